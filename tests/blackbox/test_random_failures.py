"""Managers and engines that are killed, stopped and let go on at random moments.

Whatever happens to the others, an engine reads only bytes that were published under the hash it asked for, no manager
dies by itself, and when all that is left is idle, every gauge of every manager is zero: nothing that a dead or a late
process held stays held. ORBITKV_STRESS_S makes the run longer, ORBITKV_STRESS_SEED repeats one.
"""
import os
import random
import signal
import sys
import time

import pytest
from orbitkv_tools import session_client
from orbitkv_tools.process import Cluster, free_port, wait_until

SESSION_CLIENT = session_client.__file__
DRAINED = ("orbitkv_sessions", "orbitkv_query_reserved_bytes", "orbitkv_inflight_bytes", "orbitkv_transfer_lock_active",
           "orbitkv_transfer_reserved_bytes", "orbitkv_transfer_completion_outstanding",
           "orbitkv_pinned_for_load_entries", "orbitkv_pinned_for_load_unique_blocks",
           'orbitkv_leases{phase="quarantined"}')
# One serves slowly, so that much is cut off in the middle; one gives up early.
FAULTS = ("mover_stall_ms=60", "", "")
DEADLINES_MS = ("1000", "150", "1000")


class Stage:
    def __init__(self, cluster, rng):
        self.cluster, self.rng = cluster, rng
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(3)]
        self.count = 0
        self.managers = [None] * 3
        self.engines = [None] * 6
        for place in range(3):
            self.start_manager(place)
        for place in range(6):
            self.start_engine(place)

    def start_manager(self, place):
        self.count += 1
        peers = [address for address in self.addresses if address != self.addresses[place]]
        self.managers[place] = self.cluster.manager(
            f"manager-{place}-{self.count}", peers, self.addresses[place], FAULTS[place],
            ("--pool-size", "24mb", "--peer-deadline-ms", DEADLINES_MS[place]), self.cluster.folder / f"{place}.sock")

    def start_engine(self, place):
        self.count += 1
        argv = [sys.executable, SESSION_CLIENT, self.cluster.folder / f"{place % 3}.sock", "churn", self.count]
        self.engines[place] = self.cluster.start(f"engine-{place}-{self.count}", [str(word) for word in argv], "busy")

    def harm_one(self):
        place = self.rng.randrange(9)
        program = self.engines[place - 3] if place >= 3 else self.managers[place].program
        if self.rng.random() < 0.5:
            program.child.send_signal(signal.SIGSTOP)
            time.sleep(self.rng.choice((0.02, 0.2, 1.2)))
            if self.rng.random() < 0.7:
                program.child.send_signal(signal.SIGCONT)
                return
        assert program.alive, f"{program.name} ended by itself:\n{program.tail(40)}"
        program.kill()
        self.start_engine(place - 3) if place >= 3 else self.start_manager(place)

    def check_alive(self):
        for program in [*self.engines, *(manager.program for manager in self.managers)]:
            assert program.alive, f"{program.name} ended by itself:\n{program.tail(40)}"


def test_random_deaths_and_stops_leave_no_wrong_byte_and_nothing_held(orbitkv):
    seed = int(os.environ.get("ORBITKV_STRESS_SEED", time.time_ns() % 1_000_000))
    seconds = float(os.environ.get("ORBITKV_STRESS_S", 8))
    print(f"ORBITKV_STRESS_SEED={seed}")
    with Cluster(orbitkv, "no model") as cluster:
        stage = Stage(cluster, random.Random(seed))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(stage.rng.random() * 0.4)
            stage.check_alive()
            stage.harm_one()
        time.sleep(0.5)
        stage.check_alive()
        fetched = sum(manager.metrics()["orbitkv_remote_fetch_bytes_total"] for manager in stage.managers)
        for engine in stage.engines:
            engine.kill()

        def held(manager):
            values = manager.metrics()
            return {name: values.get(name) for name in DRAINED if values.get(name) != 0}

        for manager in stage.managers:
            if not wait_until(lambda: not held(manager), 20):
                pytest.fail(f"{manager.program.name} is not drained: {held(manager)}\n{manager.program.tail(40)}")
            cleaned = manager.json("POST", "/cache/memory/cleanup")
            assert cleaned["still_referenced_blocks"] == 0
            assert manager.metrics()["orbitkv_pool_used_bytes"] == 0
        assert fetched > 0, "blocks crossed between managers"
        for manager in stage.managers:
            assert manager.program.stop() == 0, manager.program.tail(40)
