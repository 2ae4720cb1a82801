"""Two managers on two hosts whose cable is pulled: nothing arrives any more, not even the news that nobody is there.

The hosts are network namespaces; a machine that cannot make them skips the test.
"""
import contextlib
import ctypes
import os
import random
import shutil
import subprocess

import pytest
from orbitkv_tools import session_client as sc
from orbitkv_tools.process import Cluster, wait_until

PORT = 7400
LIBC = ctypes.CDLL(None, use_errno=True)


def ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=30)


class Host:
    """A network namespace with one end of a cable; within `inside` it is where sockets and programs are made."""

    def __init__(self, name, address):
        self.name, self.address = name, address
        ip("netns", "add", name)

    def plug(self, end):
        ip("link", "set", end, "netns", self.name)
        ip("-n", self.name, "addr", "add", f"{self.address}/24", "dev", end)
        for device in (end, "lo"):
            ip("-n", self.name, "link", "set", device, "up")

    @contextlib.contextmanager
    def inside(self):
        with open("/proc/thread-self/ns/net") as here, open(f"/run/netns/{self.name}") as there:
            enter(there)
            try:
                yield
            finally:
                enter(here)

    def metrics(self, manager):
        with self.inside():
            return manager.metrics()


def enter(namespace):
    if LIBC.setns(namespace.fileno(), 0) != 0:
        raise OSError(ctypes.get_errno(), "setns")


@pytest.fixture
def hosts():
    """Two hosts and the name of the cable's end at the second."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("network namespaces need root and the program ip (Debian: iproute2)")
    mark, made = f"okv{os.getpid()}", []
    try:
        try:
            for side, address in (("a", "10.99.0.1"), ("b", "10.99.0.2")):
                made.append(Host(f"{mark}{side}", address))
            ip("link", "add", f"{mark}a", "type", "veth", "peer", "name", f"{mark}b")
            for host in made:
                host.plug(host.name)
            with made[0].inside():
                pass
        except (subprocess.CalledProcessError, OSError) as error:
            pytest.skip(f"network namespaces cannot be made here: {getattr(error, 'stderr', None) or error}")
        yield made
    finally:
        for host in made:
            ip("netns", "del", host.name)  # and the cable with them


def test_pins_of_a_reader_whose_host_vanished_end_and_the_hosts_meet_again(orbitkv, hosts):
    pages = sc.chain(1_000, 8)
    contents = [random.Random(number).randbytes(sc.PAGE_BYTES) for number in range(8)]
    with Cluster(orbitkv, "no model") as cluster:
        managers = []
        for host, other, faults in zip(hosts, reversed(hosts), ("mover_stall_ms=250000", "")):
            with host.inside():
                managers.append(cluster.manager(host.name, [f"{other.address}:{PORT}"], f"{host.address}:{PORT}",
                                                faults, ("--pool-size", "64mb", "--peer-deadline-ms", "200000")))

        def value(side, name):
            return hosts[side].metrics(managers[side])[f"orbitkv_{name}"]

        def are_linked():
            return all(value(side, "peers_connected") == 1 for side in range(2))

        assert wait_until(are_linked, 15)
        with sc.Client(managers[0].socket) as here, sc.Client(managers[1].socket) as there:
            assert here.publish(pages, contents) == (sc.OK, 8)
            there.start(sc.PREPARE, b"".join(sc.block(name, parent) for name, parent, _ in pages), count=8)
            assert wait_until(lambda: value(0, "transfer_lock_active") == 8, 10)
            ip("-n", hosts[1].name, "link", "set", hosts[1].name, "down")

            assert wait_until(lambda: value(0, "transfer_lock_active") == 0, 30), "nobody is there to hold them"
            assert value(0, "transfer_readers_gone_total") > 0
            assert value(0, "transfer_reserved_bytes") == 0
            assert wait_until(lambda: value(1, "peers_connected") == 0, 30), "the other end notices, too"

            ip("-n", hosts[1].name, "link", "set", hosts[1].name, "up")
            assert wait_until(are_linked, 30)
        for manager in reversed(managers):
            assert manager.program.stop() == 0, manager.program.tail(40)
