"""Hostile clients at the session socket of a real manager, in the handshake and in the shared ring.

Each must cost its own session or its own request, with a reason in the manager's log and a count in its metrics, and
nothing else: after every test an engine that was attached all the time, and one that attaches then, publish and restore
as if nothing had happened, all gauges are zero, and the manager has the descriptors that it had before.
"""
import os
import pathlib
import random
import signal
import struct
import sys
import threading
import time

import pytest
from orbitkv_tools import session_client as sc
from orbitkv_tools.process import Cluster, wait_until

DRAINED = ("orbitkv_sessions", "orbitkv_query_reserved_bytes", "orbitkv_inflight_bytes",
           "orbitkv_pinned_for_load_entries", "orbitkv_pinned_for_load_refs", "orbitkv_pinned_for_load_unique_blocks",
           "orbitkv_pinned_for_load_unique_bytes",
           'orbitkv_leases{phase="preparing"}', 'orbitkv_leases{phase="ready"}', 'orbitkv_leases{phase="restoring"}',
           'orbitkv_leases{phase="quarantined"}')
REFUSALS = "orbitkv_session_refusals_total"
ERRORS = "orbitkv_session_protocol_errors_total"
REJECTED_SAVES = "orbitkv_save_rejections_total"


@pytest.fixture(scope="module")
def manager(orbitkv):
    with Cluster(orbitkv, "no model") as cluster:
        yield cluster.manager("manager", options=("--pool-size", "64mb"))


def descriptors(manager):
    return len(os.listdir(f"/proc/{manager.program.child.pid}/fd"))


def use_as_an_engine_does(client, first_token):
    pages = sc.chain(first_token, 3)
    contents = [random.Random(first_token + number).randbytes(sc.PAGE_BYTES) for number in range(3)]
    assert client.query(pages) == (sc.OK, 0)
    assert client.publish(pages, contents) == (sc.OK, 3)
    assert client.query(pages) == (sc.OK, 3)
    status, count, lease = client.prepare(pages)
    assert (status, count) == (sc.OK, 3)
    assert client.restore(lease) == (sc.OK, contents)
    assert client.release(lease) == sc.OK


first_tokens = iter(range(1_000, 900_000, 1_000))


@pytest.fixture(autouse=True)
def nobody_else_is_harmed(manager):
    """One engine is attached during the test; it and a new one work afterwards, and everything drains."""
    before = descriptors(manager)
    with sc.Client(manager.socket, name=b"bystander") as bystander:
        use_as_an_engine_does(bystander, next(first_tokens))
        yield bystander
        use_as_an_engine_does(bystander, next(first_tokens))
        bystander.bye()
    with sc.Client(manager.socket, name=b"newcomer") as newcomer:
        use_as_an_engine_does(newcomer, next(first_tokens))
        newcomer.bye()
    assert manager.program.alive

    def is_drained():
        values = manager.metrics()
        return all(values.get(name) == 0 for name in DRAINED) and descriptors(manager) <= before

    if not wait_until(is_drained, 10):
        values = manager.metrics()
        left = {name: values.get(name) for name in DRAINED if values.get(name) != 0}
        pytest.fail(f"not drained: {left}, {descriptors(manager)} descriptors instead of {before}")


class Watch:
    """What the manager logs and counts from here on."""

    def __init__(self, manager):
        self.manager, self.before, self.read_to = manager, manager.metrics(), manager.program.log_path.stat().st_size

    def counted(self, name):
        return self.manager.metrics()[name] - self.before[name]

    def assert_counted(self, name, count=1):
        assert wait_until(lambda: self.counted(name) == count, 5), f"{name} rose by {self.counted(name)}, not {count}"

    def log(self):
        return self.manager.program.log_path.read_bytes()[self.read_to:].decode(errors="replace")

    def assert_logged(self, words):
        assert wait_until(lambda: words in self.log(), 5), f"{words!r} is not in {self.log()!r}"


@pytest.fixture
def watch(manager):
    return Watch(manager)


# ---- the handshake ----

def offer(manager, packet, given):
    """Sends one packet with descriptors and returns the manager's refusal; closes the descriptors."""
    with sc.Connection(manager.socket) as connection:
        try:
            connection.send(packet, given)
        finally:
            for descriptor in given:
                os.close(descriptor)
        with pytest.raises(sc.Refused) as refused:
            connection.expect_end()
        return refused.value


def test_random_bytes_are_refused(manager, watch):
    dice = random.Random(5)
    for number in range(200):
        refused = offer(manager, dice.randbytes(dice.randrange(1, 1024)), [])
        assert refused.status == sc.PROTOCOL and "does not speak the session protocol" in refused.text
    watch.assert_counted(REFUSALS, 200)
    watch.assert_logged("does not speak the session protocol")


def test_random_bytes_behind_a_good_head_are_refused(manager, watch):
    dice = random.Random(6)
    for number in range(200):
        refused = offer(manager, sc.message(dice.randrange(1, 7), dice.randbytes(dice.randrange(1, 900))), [])
        assert refused.status != sc.OK and refused.text
    watch.assert_counted(REFUSALS, 200)


def test_a_hello_cut_short_anywhere_is_refused(manager, watch):
    whole = sc.hello(sc.RING_BYTES)
    for size in range(1, len(whole), 7):
        assert offer(manager, whole[:size], []).status in (sc.PROTOCOL, sc.INVALID)
    watch.assert_logged("malformed")


@pytest.mark.parametrize("packet", [b"", bytes(1025), sc.message(sc.HELLO, bytes(4000))], ids=["empty", "1025", "4012"])
def test_packets_of_impossible_size_end_the_connection(manager, packet):
    with sc.Connection(manager.socket) as connection:
        connection.send(packet)
        connection.expect_end()


def test_another_version_is_refused_by_name(manager, watch):
    refused = offer(manager, sc.hello(sc.RING_BYTES, version=7), [])
    assert refused.status == sc.ERR_VERSION
    assert "version 1" in refused.text and "version 7" in refused.text
    watch.assert_logged("version 7")


@pytest.mark.parametrize("kind", [sc.ACCEPT, sc.REFUSE, sc.DOORBELL, sc.BYE])
def test_another_first_message_than_hello_is_refused(manager, kind):
    body = {sc.ACCEPT: struct.pack("<QQ16sH", 1, 4096, bytes(16), 1), sc.REFUSE: struct.pack("<HH2s", 1, 2, b"no")}
    assert "HELLO" in offer(manager, sc.message(kind, body.get(kind, b"")), []).text


ARENA = 4096 * 64


def ring(head=(b"OKVR", 1, sc.SLOTS, 0), size=sc.RING_BYTES):
    descriptor = sc.memory(size)
    os.pwrite(descriptor, struct.pack("<4sIII", *head), 0)
    return descriptor


def plain_file():
    descriptor = os.open("/tmp", os.O_TMPFILE | os.O_RDWR)
    os.ftruncate(descriptor, ARENA)
    return descriptor


DESCRIPTORS = {
    "none": (lambda: [], "two descriptors"),
    "only an arena": (lambda: [sc.memory(ARENA)], "two descriptors"),
    "an arena that can shrink": (lambda: [sc.memory(ARENA, sc.F_SEAL_GROW), ring()], "not sealed"),
    "an arena without seals": (lambda: [sc.memory(ARENA, 0), ring()], "not sealed"),
    "an arena smaller than it says": (lambda: [sc.memory(4096), ring()], "announced 262144 bytes"),
    "an arena larger than it says": (lambda: [sc.memory(2 * ARENA), ring()], "announced 262144 bytes"),
    "a file": (lambda: [plain_file(), ring()], "not sealed"),
    "a device": (lambda: [os.open("/dev/zero", os.O_RDWR), ring()], "not sealed"),
    "a pipe": (lambda: [*os.pipe()], "not sealed"),
    "a ring that can shrink": (lambda: [sc.memory(ARENA), sc.memory(sc.RING_BYTES, sc.F_SEAL_GROW)], "not sealed"),
    "a ring that is too small": (lambda: [sc.memory(ARENA), ring(size=sc.RING_BYTES - 4096)], "announced"),
    "a ring of another kind": (lambda: [sc.memory(ARENA), ring((b"RING", 1, sc.SLOTS, 0))], "no head of ours"),
    "a ring of more slots": (lambda: [sc.memory(ARENA), ring((b"OKVR", 1, 64, 0))], "no head of ours"),
    "a ring of another version": (lambda: [sc.memory(ARENA), ring((b"OKVR", 9, sc.SLOTS, 0))], "version 9"),
}


@pytest.mark.parametrize("case", DESCRIPTORS)
def test_wrong_descriptors_are_refused(manager, watch, case):
    make, words = DESCRIPTORS[case]
    assert words in offer(manager, sc.hello(ARENA), make()).text
    watch.assert_counted(REFUSALS)
    watch.assert_logged(words)


HELLOS = {
    "a page that does not follow from the key": ({"page_bytes": 4096}, "does not follow from the key"),
    "an arena of less than a page": ({"arena_bytes": 1}, "an arena of 1 bytes"),
    "an arena of all memory there is": ({"arena_bytes": (1 << 64) - 1}, "an arena of 18446744073709551615 bytes"),
    "a name with a line break": ({"name": b"a\nforged log line"}, "name"),
    "a name that is too long": ({"name": b"n" * 40}, "name"),
    "a key cut short": ({"encoded": sc.key()[:-1]}, "isolation_domain"),
    "a page of more tokens than a block has": ({"encoded": sc.key().replace(
        struct.pack("<HII", 11, 4, 16), struct.pack("<HII", 11, 4, 100_000))}, "100000 tokens"),
    "a page that fills the pool": ({"page_bytes": sc.PAGE_BYTES << 10, "encoded": sc.key().replace(
        struct.pack("<HII", 8, 4, 4), struct.pack("<HII", 8, 4, 4 << 10)), "arena_bytes": 64 << 20}, "--pool-size"),
}


@pytest.mark.parametrize("case", HELLOS)
def test_a_hello_that_contradicts_itself_is_refused(manager, watch, case):
    changes, words = HELLOS[case]
    fields = {"arena_bytes": ARENA} | changes
    assert words in offer(manager, sc.hello(**fields), [sc.memory(ARENA), ring()]).text
    watch.assert_counted(REFUSALS)
    assert "\nforged" not in watch.log()


def test_more_descriptors_than_belong_to_a_message_end_the_session_and_are_closed(manager, watch):
    given = [sc.memory(4096) for _ in range(200)]
    try:
        for packet in (sc.hello(ARENA), b"x", sc.message(sc.BYE)):
            with sc.Connection(manager.socket) as connection:
                connection.send(packet, given)
                connection.expect_end()
        with sc.Client(manager.socket) as attached:
            attached.send(sc.message(sc.DOORBELL), given)
            attached.expect_end()
        watch.assert_counted(ERRORS, 4)
        watch.assert_logged("brings descriptors")
    finally:
        for descriptor in given:
            os.close(descriptor)


def test_connections_that_say_nothing_are_refused_and_lock_nobody_out_for_long(manager, watch, nobody_else_is_harmed):
    silent, said = [], []
    try:
        for _ in range(300):
            silent.append(sc.Connection(manager.socket))
        use_as_an_engine_does(nobody_else_is_harmed, next(first_tokens))
        begin = time.monotonic()
        for connection in silent:
            with pytest.raises(sc.Refused) as refused:
                connection.expect_end()
            said.append(refused.value.status)
        assert time.monotonic() - begin < 10
    finally:
        for connection in silent:
            connection.close()
    assert set(said) == {sc.BUSY, sc.DEADLINE}, "some found no place; the others had one and did not use it"
    watch.assert_counted(REFUSALS, 300)
    watch.assert_logged("engines already")
    watch.assert_logged("did not say HELLO")


def test_a_client_that_leaves_at_any_moment_of_the_handshake_leaves_nothing(manager):
    for number in range(100):
        with sc.Connection(manager.socket) as connection:
            given = [sc.memory(ARENA), ring()]
            if number % 4:
                connection.send(sc.hello(ARENA) if number % 4 > 1 else sc.hello(ARENA)[:60], given)
            if number % 4 == 3:
                connection.send(sc.message(sc.DOORBELL))
            for descriptor in given:
                os.close(descriptor)


# ---- after the handshake ----

@pytest.mark.parametrize("packet", [sc.hello(ARENA), b"noise", sc.message(sc.REFUSE, struct.pack("<HH2s", 1, 2, b"no")),
                                    sc.message(sc.DOORBELL, b"tail"), sc.message(sc.DOORBELL, version=2)],
                         ids=["second hello", "noise", "refuse", "tail", "version"])
def test_a_message_out_of_turn_ends_the_session(manager, watch, packet):
    with sc.Client(manager.socket, name=b"talker") as client:
        client.send(packet)
        client.expect_end()
    watch.assert_counted(ERRORS)
    watch.assert_logged("talker")


def test_a_flood_of_doorbells_holds_nobody_up(manager, nobody_else_is_harmed):
    with sc.Client(manager.socket, name=b"bell-ringer") as client:
        stop = threading.Event()

        def flood():
            while not stop.is_set():
                client.send(sc.message(sc.DOORBELL))

        thread = threading.Thread(target=flood)
        thread.start()
        try:
            begin = time.monotonic()
            use_as_an_engine_does(nobody_else_is_harmed, next(first_tokens))
            assert time.monotonic() - begin < 5
        finally:
            stop.set()
            thread.join()
        client.bye()


def entry(client, op=sc.QUERY, slot=0, generation=1, count=1, area=sc.block(bytes(32)), **fields):
    client.put(sc.request(op, slot, generation, count=count, **fields), area, slot % sc.SLOTS)


def one(**fields):
    return lambda client: entry(client, **fields)


def reused_slot(client):
    pages = sc.chain(950_000, 1)
    area = sc.block(pages[0][0]) + struct.pack("<16I", *pages[0][2])
    for generation in (1, 3):
        entry(client, op=sc.PUBLISH, generation=generation, tokens=16, area=area)


def replayed(client):
    client.query(sc.chain(950_000, 1))
    entry(client, generation=1)


def counter_backwards(client):
    client.query(sc.chain(950_000, 1))
    client.sent = 0


def counter_beyond(value):
    def change(client):
        client.sent = value
    return change


def replies_counter(client):
    client.set_counter(sc.REPLIES_TAKEN, 77)
    entry(client)


RINGS = {
    "a counter just beyond the ring": (counter_beyond(33), "a counter beyond the ring"),
    "a counter far beyond the ring": (counter_beyond(1 << 63), "a counter beyond the ring"),
    "a counter that goes back": (counter_backwards, "a counter beyond the ring"),
    "a counter without requests behind it": (counter_beyond(5), "an unknown operation"),
    "operation 0": (one(op=0), "an unknown operation"),
    "operation 99": (one(op=99), "an unknown operation"),
    "slot 32": (one(slot=32), "a slot beyond the ring"),
    "slot 2^32 - 1": (one(slot=0xffffffff), "a slot beyond the ring"),
    "an even generation": (one(generation=2), "a stale generation"),
    "generation 0": (one(generation=0), "a stale generation"),
    "a generation again": (replayed, "a stale generation"),
    "a slot again before its reply": (reused_slot, "a slot is used again"),
    "no block": (one(count=0), "a count of blocks"),
    "1,025 blocks": (one(count=1025), "a count of blocks"),
    "2^32 - 1 blocks": (one(count=0xffffffff), "a count of blocks"),
    "2^32 - 1 token ids": (one(op=sc.PUBLISH, tokens=0xffffffff), "a count of token ids"),
    "token ids of a query": (one(tokens=16), "token ids where none belong"),
    "blocks of a release": (one(op=sc.RELEASE), "blocks where none belong"),
    "a counter of replies that never came": (replies_counter, "the engine's counter of replies"),
}


@pytest.mark.parametrize("case", RINGS)
def test_a_corrupt_ring_ends_its_session(manager, watch, case):
    corrupt, words = RINGS[case]
    with sc.Client(manager.socket, name=b"vandal") as client:
        corrupt(client)
        client.ring_the_bell()
        client.expect_end()
    watch.assert_counted(ERRORS)
    watch.assert_logged("vandal")
    watch.assert_logged(words)


PAGES = sc.chain(960_000, 2)
IDS = struct.pack("<32I", *(token for _, _, tokens in PAGES for token in tokens))
BEHIND_ARENA = -(-8 * sc.PAGE_BYTES // 4096) * 4096 - sc.PAGE_BYTES + 1  # of a Client


def publish(first=None, second=None, ids=IDS, count=2, tokens=32):
    blocks = (first or sc.block(PAGES[0][0])) + (second or sc.block(PAGES[1][0], PAGES[1][1]))
    return {"op": sc.PUBLISH, "area": blocks + ids, "count": count, "tokens": tokens}


REQUESTS = {
    "a page just outside the arena": (publish(sc.block(PAGES[0][0], offset=BEHIND_ARENA)), sc.INVALID, "outside"),
    "a page far outside the arena": (publish(sc.block(PAGES[0][0], offset=(1 << 64) - 1)), sc.INVALID, "outside"),
    "the second page outside": (publish(None, sc.block(*PAGES[1][:2], offset=1 << 40)), sc.INVALID, "block 1 lies"),
    "no token": (publish(sc.block(PAGES[0][0], tokens=0)), sc.INVALID, "has 0 tokens"),
    "17 tokens": (publish(sc.block(PAGES[0][0], tokens=17)), sc.INVALID, "has 17 tokens"),
    "2^32 - 1 tokens": (publish(sc.block(PAGES[0][0], tokens=0xffffffff)), sc.INVALID, "has 4294967295 tokens"),
    "fewer token ids than tokens": (publish(tokens=31), sc.INVALID, "block 1 lacks token ids"),
    "more token ids than tokens": (publish(tokens=33), sc.INVALID, "1 token ids belong to no block"),
    "other token ids": (publish(ids=bytes(128)), sc.MISMATCH, "block 0 does not follow"),
    "other token ids in the second page": (publish(ids=IDS[:-4] + b"\1\2\3\4"), sc.MISMATCH, "block 1 does not follow"),
    "another parent": (publish(None, sc.block(PAGES[1][0], b"p" * 32)), sc.MISMATCH, "block 1 does not follow"),
    "a name out of the air": (publish(sc.block(b"n" * 32)), sc.MISMATCH, "block 0 does not follow"),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_a_wrong_publish_is_refused_and_stores_nothing(manager, watch, case):
    fields, status, words = REQUESTS[case]
    with sc.Client(manager.socket, name=b"liar") as client:
        assert client.ask(**fields)[:2] == (status, 0)
        assert client.query(PAGES) == (sc.OK, 0)
        watch.assert_counted(REJECTED_SAVES)
        watch.assert_logged(words)
        client.bye()
    assert watch.counted(ERRORS) == 0, "the session went on"


def test_leases_of_others_and_leases_that_never_were_are_refused(manager, nobody_else_is_harmed):
    pages = sc.chain(next(first_tokens), 2)
    contents = [b"a" * sc.PAGE_BYTES, b"b" * sc.PAGE_BYTES]
    owner = nobody_else_is_harmed
    assert owner.publish(pages, contents) == (sc.OK, 2)
    _, _, lease = owner.prepare(pages)
    with sc.Client(manager.socket, name=b"thief") as client:
        for op in (sc.RESTORE, sc.RELEASE, sc.REPORT_DAMAGED):
            assert client.ask(op, lease=lease)[0] == sc.PERMISSION
            for nonsense in (0, 1 << 20, lease + (1 << 32), (1 << 64) - 1):
                assert client.ask(op, lease=nonsense)[0] in (sc.STALE, sc.AHEAD)
        for slot in (0, 1, 31, 32, 0xffffffff):
            assert client.ask(sc.CANCEL, target_slot=slot, target_generation=1)[0] == sc.STALE
        client.bye()
    assert owner.restore(lease) == (sc.OK, contents)
    assert owner.restore(lease)[0] == sc.EXISTS
    assert owner.ask(sc.REPORT_DAMAGED, lease=lease, index=2)[0] == sc.INVALID
    assert owner.ask(sc.REPORT_DAMAGED, lease=lease, index=0xffffffff)[0] == sc.INVALID
    assert owner.ask(sc.REPORT_DAMAGED, lease=lease, index=0)[0] == sc.OK
    assert owner.query(pages) == (sc.OK, 2), "a report is looked into: the block is whole and stays"
    assert owner.release(lease) == sc.OK
    assert owner.release(lease) == sc.STALE


def test_a_request_rewritten_after_the_doorbell_is_judged_by_one_copy(manager, watch):
    """A thread flips the first block between a good one and a hostile one, while the manager looks at 64 of them."""
    stored_name = b"n" * 32
    seen = set()
    with sc.Client(manager.socket, name=b"forger") as client:
        stop = threading.Event()
        good = hostile = bytes(112)
        place = slice(client.area(0), client.area(0) + 112)

        def rewrite():
            while not stop.is_set():
                client.ring[place] = hostile
                client.ring[place] = good

        thread = threading.Thread(target=rewrite)
        for attempt in range(200):
            pages = sc.chain(2_000_000 + attempt * 1024, 64)  # new ones: what is there already is not copied
            blocks = [sc.block(name, parent) for name, parent, _ in pages]
            ids = struct.pack("<1024I", *(token for _, _, tokens in pages for token in tokens))
            hostile, good = sc.block(stored_name, offset=(1 << 64) - 4096), blocks[0]
            if not attempt:
                thread.start()
            try:
                status, count, *_ = client.ask(sc.PUBLISH, b"".join(blocks) + ids, count=64, tokens=1024)
            except BaseException:
                stop.set()
                raise
            assert (status, count) == (sc.OK, 64) or status in (sc.INVALID, sc.MISMATCH)
            seen.add(status)
        stop.set()
        thread.join()
        assert sc.OK in seen and len(seen) > 1, f"nothing was ever rewritten in time: {seen}"
        assert client.ask(sc.QUERY, sc.block(stored_name), count=1)[:2] == (sc.OK, 0)
        client.bye()
    assert watch.counted(ERRORS) == 0


def test_an_engine_that_leaves_during_its_publish_publishes_nothing(manager):
    inserted = manager.metrics()["orbitkv_cache_block_insertions_total"]
    pages = sc.chain(970_000, 8)
    blocks = b"".join(sc.block(name, parent, number * sc.PAGE_BYTES) for number, (name, parent, _) in enumerate(pages))
    ids = struct.pack("<128I", *(token for _, _, tokens in pages for token in tokens))
    with sc.Client(manager.socket, name=b"leaver") as client:
        manager.program.child.send_signal(signal.SIGSTOP)  # it finds the request and the closed socket together
        try:
            client.start(sc.PUBLISH, blocks + ids, count=8, tokens=128)
            client.socket.close()
        finally:
            manager.program.child.send_signal(signal.SIGCONT)
    assert wait_until(lambda: manager.metrics()["orbitkv_inflight_bytes"] == 0, 5)
    with sc.Client(manager.socket) as client:
        assert client.query(pages) == (sc.OK, 0)
        client.bye()
    assert manager.metrics()["orbitkv_cache_block_insertions_total"] == inserted


def test_leases_of_a_session_that_broke_the_protocol_wait_until_its_engine_disclaims_them(manager, watch):
    pages = sc.chain(next(first_tokens), 2)
    with sc.Client(manager.socket, name=b"breaker") as client:
        client.publish(pages, [b"x" * sc.PAGE_BYTES] * 2)
        _, _, active = client.prepare(pages)
        assert client.restore(active)[0] == sc.OK
        assert client.prepare(pages)[:2] == (sc.OK, 2), "a second lease, which nobody read"
        entry(client, op=99)
        client.ring_the_bell()
        client.expect_end()
        session = client.session
    watch.assert_counted(ERRORS)
    values = manager.metrics()
    assert values['orbitkv_leases{phase="quarantined"}'] == 1, "the engine may be reading still: no timer frees it"
    assert values['orbitkv_leases{phase="ready"}'] == 0
    with sc.Client(manager.socket, previous=session) as client:
        assert manager.metrics()['orbitkv_leases{phase="quarantined"}'] == 0
        client.bye()


@pytest.fixture
def engine_process(manager, start):
    def run(*deed, ready):
        return start([sys.executable, pathlib.Path(sc.__file__), manager.socket, *deed], ready)

    return run


def test_leases_of_a_process_that_broke_the_protocol_end_with_its_death(manager, engine_process):
    holder = engine_process("hold", ready="broken")
    assert manager.metrics()['orbitkv_leases{phase="quarantined"}'] == 1
    cleaned = manager.json("POST", "/cache/memory/cleanup")
    assert cleaned["still_referenced_blocks"] == 2
    holder.kill()
    assert wait_until(lambda: manager.metrics()['orbitkv_leases{phase="quarantined"}'] == 0, 5)


def test_another_process_cannot_disclaim_a_session(manager, engine_process, nobody_else_is_harmed):
    victim = nobody_else_is_harmed
    pages = sc.chain(next(first_tokens), 1)
    victim.publish(pages, [b"v" * sc.PAGE_BYTES])
    _, _, lease = victim.prepare(pages)
    victim.restore(lease)
    claimer = engine_process("claim", victim.session, ready="attached")
    assert manager.metrics()['orbitkv_leases{phase="restoring"}'] == 1
    assert victim.release(lease) == sc.OK
    claimer.kill()
