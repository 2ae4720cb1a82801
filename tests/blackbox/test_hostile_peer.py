"""Strangers at a real manager's control and data ports, in numbers, and a manager that has few descriptors.

Whatever they send or leave unsaid, the engines of this host and an honest peer are served meanwhile and afterwards.
"""
import contextlib
import os
import random
import socket
import struct
import time

import pytest
from orbitkv_tools import session_client as sc
from orbitkv_tools.process import Cluster, free_port, wait_until

HELLO_FRAME = struct.pack("<4sHHIQH7s16s", b"OKVC", 1, 1, 25, 1, 7, b"orbitkv", b"r" * 16)
READ_MAGIC = b"OKVD\1\0\1\0"


@pytest.fixture
def pair(orbitkv):
    """Two managers; the first is the one that is attacked."""
    with Cluster(orbitkv, "no model") as cluster:
        addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        managers = [cluster.manager(f"manager-{i}", [addresses[1 - i]], addresses[i], options=("--pool-size", "64mb"))
                    for i in range(2)]
        assert wait_until(lambda: all(is_linked(manager) for manager in managers), 15)
        yield managers


def is_linked(manager):
    return manager.metrics()["orbitkv_peers_connected"] == 1


def connect(port, data=b""):
    peer = socket.create_connection(("127.0.0.1", port), timeout=10)
    with contextlib.suppress(OSError):
        peer.sendall(data)
    return peer


def data_port(manager):
    with connect(int(manager.peer_address.rsplit(":", 1)[1]), HELLO_FRAME) as peer:
        welcome = b""
        while len(welcome) < 40:
            welcome += peer.recv(64)
        refusal, _, port = struct.unpack_from("<H16sH", welcome, 20)
        assert refusal == 0
        return port


first_tokens = iter(range(1_000, 900_000, 1_000))


def assert_that_blocks_cross(managers):
    """What an engine of the attacked manager publishes, an engine of the other restores."""
    pages = sc.chain(next(first_tokens), 5)
    contents = [random.Random(number).randbytes(sc.PAGE_BYTES) for number in range(5)]
    with sc.Client(managers[0].socket) as here, sc.Client(managers[1].socket) as there:
        assert here.publish(pages, contents) == (sc.OK, 5)
        status, count, lease = there.prepare(pages)
        assert (status, count) == (sc.OK, 5)
        assert there.restore(lease) == (sc.OK, contents)
        assert there.release(lease) == sc.OK
        there.bye()
        here.bye()


def assert_drained(managers):
    names = ("orbitkv_transfer_lock_active", "orbitkv_transfer_completion_outstanding", "orbitkv_inflight_bytes",
             "orbitkv_query_reserved_bytes", "orbitkv_sessions")
    for manager in managers:
        assert wait_until(lambda: all(manager.metrics()[name] == 0 for name in names), 10), manager.metrics()


def test_silent_and_dripping_connections_on_both_ports_shut_nobody_out(pair):
    control = int(pair[0].peer_address.rsplit(":", 1)[1])
    data = data_port(pair[0])
    with contextlib.ExitStack() as stack:
        for number in range(300):
            stack.enter_context(connect(control, HELLO_FRAME[:number % 40]))
            stack.enter_context(connect(data, READ_MAGIC[:number % 8]))
        assert_that_blocks_cross(pair)
        assert pair[0].call("GET", "/health") == (200, "ok\n")
    assert_that_blocks_cross(pair)
    assert_drained(pair)


def test_random_tokens_and_random_bytes_open_nothing(pair):
    control = int(pair[0].peer_address.rsplit(":", 1)[1])
    data = data_port(pair[0])
    rng = random.Random(7)
    with connect(data) as peer:
        for _ in range(2_000):
            peer.sendall(READ_MAGIC + rng.randbytes(16))
            assert peer.recv(16, socket.MSG_WAITALL) == b"OKVD" + struct.pack("<HHQ", 1, 3, 0)
        assert_that_blocks_cross(pair)
    for number in range(200):
        frame = bytearray(HELLO_FRAME + struct.pack("<4sHHIQ", b"OKVC", 1, rng.randrange(12), rng.choice(
            (0, 1, 60, 34_000, 0xffffffff)), number) + rng.randbytes(rng.randrange(200)))
        if number % 2:
            frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
        with connect(control, bytes(frame)) as peer, contextlib.suppress(OSError):
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(4096):
                pass
    assert_that_blocks_cross(pair)
    assert_drained(pair)


def cpu_seconds(manager):
    with open(f"/proc/{manager.program.child.pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_manager_without_descriptors_waits_for_some_and_goes_on(orbitkv):
    with Cluster(orbitkv, "no model") as cluster:
        path = cluster.folder / "few.sock"
        listen = f"127.0.0.1:{free_port()}"
        argv = ["sh", "-c", 'ulimit -n 64 && exec "$0" "$@"', str(orbitkv), "manager", "--socket", str(path), "--http",
                "127.0.0.1:0", "--listen", listen, "--pool-size", "16mb"]
        program = cluster.start("few", argv, r"http=(\S+) peer=(\S+)")
        port = int(listen.rsplit(":", 1)[1])
        with contextlib.ExitStack() as stack:
            for _ in range(100):
                stack.enter_context(connect(port, HELLO_FRAME))
            time.sleep(0.5)
            manager = type("Few", (), {"program": program})
            before = cpu_seconds(manager)
            time.sleep(1)
            assert cpu_seconds(manager) - before < 0.5, "it waits, and does not spin"
        assert program.alive

        def serves():
            with contextlib.suppress(OSError, sc.Ended, sc.Refused, AssertionError), sc.Client(path) as client:
                return client.query(sc.chain(1, 1)) == (sc.OK, 0)

        assert wait_until(serves, 10, 0.2)
        assert program.stop() == 0


def test_a_manager_takes_all_the_descriptors_that_it_may_have(orbitkv):
    with Cluster(orbitkv, "no model") as cluster:
        argv = ["sh", "-c", 'ulimit -S -n 64 && exec "$0" "$@"', str(orbitkv), "manager", "--socket",
                str(cluster.folder / "soft.sock"), "--http", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--pool-size", "16mb"]
        program = cluster.start("soft", argv, "ready")
        with open(f"/proc/{program.child.pid}/limits", encoding="ascii") as file:
            soft, hard = next(line for line in file if line.startswith("Max open files")).split()[3:5]
        assert soft == hard
