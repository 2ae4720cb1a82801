"""Managers and engines as real processes: what happens to a request when the cache around it fails.

The oracle of every answer is the same request with the cache off. Resources must drain to zero by ownership: each test
ends by looking at the gauges of every process that is still there.
"""
import os
import signal
import subprocess
import threading
import time

import pytest
from orbitkv_tools.process import Cluster, StartError, free_port, wait_until

PAGE_TOKENS = 16
DRAINED = ("orbitkv_query_reserved_bytes", "orbitkv_inflight_bytes", "orbitkv_transfer_lock_active",
           "orbitkv_transfer_reserved_bytes", "orbitkv_transfer_completion_outstanding")
TEXT = ("The lighthouse keeper wrote down every ship that passed, its flag, its course and the state of the sea. "
        "In winter there were days without a single line, and then he wrote about the birds. ") * 12


@pytest.fixture
def cluster(orbitkv, model_path):
    with Cluster(orbitkv, model_path) as running:
        yield running


def ask(engine, number, cache="full", tokens=8):
    text, first_s, usage, _ = engine.stream("/v1/completions", {
        "prompt": f"Story {number}. {TEXT}", "max_tokens": tokens, "temperature": 0, "orbitkv": {"cache": cache}})
    return text, usage["orbitkv"], usage["prompt_tokens"], first_s


def fill(engine, number):
    """Computes a prompt and returns its answer once the engine's manager holds all its whole pages."""
    text = ask(engine, number)[0]
    assert wait_until(lambda: engine.unpublished_pages() == 0, 30)
    return text


def whole_pages(prompt_tokens):
    return (prompt_tokens - 1) // PAGE_TOKENS * PAGE_TOKENS


def assert_drained(*managers):
    for manager in managers:
        def zero():
            values = manager.metrics()
            return all(values.get(name) == 0 for name in DRAINED)

        if not wait_until(zero, 15):
            values = manager.metrics()
            pytest.fail(f"{manager.program.name} is not drained: { {name: values.get(name) for name in DRAINED} }")


def attached(manager, count=1):
    return wait_until(lambda: len(manager.json("GET", "/instances")["instances"]) == count, 15)


def linked(manager):
    return wait_until(lambda: manager.metrics().get("orbitkv_peers_connected", 0) >= 1, 15)


def pair(cluster, faults_a="", options_b=()):
    """Two managers that know each other, and B's engine; A's engine is started to fill A, then stays."""
    address_a, address_b = (f"127.0.0.1:{free_port()}" for _ in range(2))
    a = cluster.manager("manager-a", [address_b], address_a, faults_a)
    b = cluster.manager("manager-b", [address_a], address_b, options=options_b)
    engine_a, engine_b = cluster.engine("engine-a", a), cluster.engine("engine-b", b)
    assert attached(a) and attached(b) and linked(a) and linked(b)
    return a, b, engine_a, engine_b


def test_an_engine_goes_on_when_its_manager_is_killed_and_attaches_to_the_next_one(cluster):
    manager = cluster.manager("manager")
    engine = cluster.engine("engine", manager)
    assert attached(manager)
    control = ask(engine, 1, "off")[0]
    assert ask(engine, 1)[0] == control
    manager.program.kill()

    text, usage, prompt_tokens, _ = ask(engine, 2)
    assert usage["restored_tokens"] == 0
    assert text == ask(engine, 2, "off")[0]

    again = cluster.manager("manager-2", socket=manager.socket)
    assert attached(again)
    fill(engine, 3)
    assert again.metrics()["orbitkv_cache_block_insertions_total"] > 0
    assert_drained(again)


def test_a_fresh_engine_restores_what_an_earlier_one_of_the_same_host_published(cluster):
    manager = cluster.manager("manager")
    first = cluster.engine("first", manager)
    assert attached(manager)
    control = fill(first, 1)
    assert first.program.stop() == 0

    second = cluster.engine("second", manager)
    assert attached(manager)
    text, usage, prompt_tokens, _ = ask(second, 1)
    assert text == control
    assert usage["restored_tokens"] == whole_pages(prompt_tokens)
    assert_drained(manager)


def test_a_silent_peer_costs_one_deadline_and_keeps_its_pin(cluster):
    a, b, engine_a, engine_b = pair(cluster, faults_a="mover_stall_ms=60000")
    fill(engine_a, 1)
    control = ask(engine_b, 1, "off")[0]
    text, usage, _, first_s = ask(engine_b, 1)
    assert text == control
    assert 0 < usage["restored_tokens"] < usage["computed_tokens"] * 2, "what came before the silence is used"
    assert 2.5 < first_s < 12, "the request waits for the deadline of 3 s, then recomputes the rest"
    # B is a TCP reader that hung up: its mover's cancel is the completion on its side, reader gone on A's.
    assert_drained(a, b)


def test_a_stopped_reader_keeps_the_pins_of_its_source_until_it_is_dead(cluster):
    a, b, engine_a, engine_b = pair(cluster, faults_a="mover_stall_ms=1500")
    fill(engine_a, 1)
    asking = threading.Thread(target=lambda: ask(engine_b, 1), daemon=True)
    asking.start()
    assert wait_until(lambda: a.metrics()["orbitkv_transfer_lock_active"] > 0, 10, 0.01)
    b.program.child.send_signal(signal.SIGSTOP)
    try:
        time.sleep(12)  # its kernel answers, so it is not taken for a host that vanished
        assert a.metrics()["orbitkv_transfer_lock_active"] > 0, "no timer may free a pin"
    finally:
        b.program.child.send_signal(signal.SIGCONT) if b.program.alive else None
    b.program.kill()
    assert_drained(a)
    asking.join(30)


def test_a_killed_readers_pins_end_as_reader_gone(cluster):
    a, b, engine_a, engine_b = pair(cluster, faults_a="mover_stall_ms=2500")
    fill(engine_a, 1)
    asking = threading.Thread(target=lambda: ask(engine_b, 1), daemon=True)
    asking.start()
    assert wait_until(lambda: a.metrics()["orbitkv_transfer_lock_active"] > 0, 10, 0.01)
    b.program.kill()
    assert_drained(a)
    asking.join(30)


def test_a_peer_that_resets_in_mid_read_costs_a_recompute(cluster):
    a, b, engine_a, engine_b = pair(cluster, faults_a="mover_cut_after_bytes=1000000")
    fill(engine_a, 1)
    control = ask(engine_b, 1, "off")[0]
    text, usage, prompt_tokens, _ = ask(engine_b, 1)
    assert text == control
    assert usage["restored_tokens"] < whole_pages(prompt_tokens)
    assert_drained(a, b)


def test_a_peer_that_is_down_costs_nothing_but_a_recompute(cluster):
    manager = cluster.manager("manager", [f"127.0.0.1:{free_port()}"])
    engine = cluster.engine("engine", manager)
    assert attached(manager)
    control, _, _, cold_s = ask(engine, 1, "off")
    text, usage, _, first_s = ask(engine, 1)
    assert text == control and usage["restored_tokens"] == 0
    assert first_s < cold_s + 1.5
    assert_drained(manager)


def test_another_kv_dtype_is_another_identity(cluster):
    manager = cluster.manager("manager")
    half = cluster.engine("half", manager)
    assert attached(manager)
    fill(half, 1)
    single = cluster.engine("single", manager, options=("--kv-dtype", "f32"))
    assert attached(manager, 2)
    text, usage, _, _ = ask(single, 1)
    assert usage["restored_tokens"] == 0
    assert text == ask(single, 1, "off")[0]


def test_an_engine_that_dies_during_use_leaves_nothing_pinned(cluster):
    manager = cluster.manager("manager")
    engine = cluster.engine("engine", manager)
    assert attached(manager)
    thread = threading.Thread(target=lambda: pytest.raises(Exception, ask, engine, 1, "full", 200), daemon=True)
    thread.start()
    assert wait_until(lambda: manager.metrics()["orbitkv_cache_block_insertions_total"] > 0, 30)
    engine.program.kill()
    assert attached(manager, 0)
    assert_drained(manager)
    cleaned = manager.json("POST", "/cache/memory/cleanup")
    assert cleaned["still_referenced_blocks"] == 0
    thread.join(10)


def test_sigterm_under_load_ends_everything_cleanly(cluster):
    a, b, engine_a, engine_b = pair(cluster)
    stop = threading.Event()

    def load(engine, base):
        for i in range(1000):
            if stop.is_set():
                return
            try:
                ask(engine, base + i, tokens=4)
            except Exception:  # noqa: BLE001 - the engine is told to stop while we ask
                return

    threads = [threading.Thread(target=load, args=(engine, base), daemon=True)
               for base, engine in ((100, engine_a), (100, engine_b), (500, engine_b))]
    for thread in threads:
        thread.start()
    time.sleep(2)
    assert b.program.stop(wait_s=10) == 0, b.program.tail()
    assert a.program.stop(wait_s=10) == 0, a.program.tail()
    assert engine_a.program.stop(wait_s=10) == 0, engine_a.program.tail()
    assert engine_b.program.stop(wait_s=10) == 0, engine_b.program.tail()
    stop.set()
    for thread in threads:
        thread.join(10)


def refused(argv, *words, env=None):
    """The program ends by itself with a message that holds all `words`."""
    done = subprocess.run([str(part) for part in argv], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
                          env={**os.environ, **(env or {})})
    message = done.stderr.lower()
    assert done.returncode in (1, 2), done
    for word in words:
        assert word.lower() in message, f"{word!r} is not in {done.stderr!r}"
    assert len(done.stderr.splitlines()) <= 4, done.stderr


def test_a_manager_refuses_what_it_cannot_do_and_says_what_to_do(cluster, orbitkv, tmp_path):
    base = [orbitkv, "manager", "--http", "127.0.0.1:0", "--listen", "127.0.0.1:0"]
    refused([*base, "--socket", "/tmp/" + "x" * 120], "socket", "long")
    refused([*base, "--socket", tmp_path / "m.sock", "--pool-size", "900tb"], "pool", "memory")
    refused([*base, "--socket", tmp_path / "m.sock", "--pool-size", "lots"], "pool-size")
    refused([*base, "--socket", tmp_path / "m.sock", "--nonsense"], "nonsense", "help")
    refused([*base, "--socket", tmp_path / "m.sock", "--peer", "nowhere"], "peer")
    refused([*base, "--socket", tmp_path / "m.sock"], "faults", env={"ORBITKV_FAULTS": "what"})
    refused([*base, "--socket", tmp_path / "m.sock"], "no fault point mover_stal_ms", "mover_stall_ms",
            env={"ORBITKV_FAULTS": "mover_stal_ms=60"})
    manager = cluster.manager("manager")
    refused([*base, "--socket", manager.socket], "socket")
    taken = manager.address.rsplit(":", 1)[1]
    refused([orbitkv, "manager", "--socket", tmp_path / "n.sock", "--listen", "127.0.0.1:0", "--http", f"127.0.0.1:{taken}"],
            taken, "in use")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a socket of another user")
def test_a_socket_of_another_user_is_neither_used_nor_removed(orbitkv, tmp_path):
    import socket as sockets

    path = tmp_path / "foreign.sock"
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as foreign:
        foreign.bind(str(path))
    os.chown(path, 65534, 65534)
    refused([orbitkv, "manager", "--http", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--socket", path], "socket", "user")
    assert path.exists()


def test_an_engine_refuses_what_it_cannot_do_and_says_what_to_do(orbitkv, model_path, tmp_path):
    junk = tmp_path / "junk.gguf"
    junk.write_bytes(b"not a model at all")
    refused([orbitkv, "serve", "--model", tmp_path / "absent.gguf", "--port", "0"], "absent.gguf")
    refused([orbitkv, "serve", "--model", junk, "--port", "0"], "gguf")
    refused([orbitkv, "serve", "--model", model_path, "--port", "99999"], "port")
    refused([orbitkv, "serve", "--model", model_path, "--port", "0", "--arena-size", "900tb"], "--arena-size", "memory")
    refused([orbitkv, "serve", "--model", model_path, "--port", "0", "--model-name", "n" * 128], "--model-name", "127")
    refused([orbitkv, "serve", "--model", model_path, "--port", "0", "--isolation-domain", ""], "--isolation-domain")
    cut = tmp_path / "cut.gguf"
    with open(model_path, "rb") as whole:
        cut.write_bytes(whole.read(5_000_000))
    refused([orbitkv, "serve", "--model", cut, "--port", "0"], "cut.gguf")


def test_two_engines_cannot_take_one_port(cluster, orbitkv, model_path):
    engine = cluster.engine("engine")
    port = engine.address.rsplit(":", 1)[1]
    refused([orbitkv, "serve", "--model", model_path, "--port", port], port, "in use")


def test_a_start_that_fails_is_reported_with_its_last_words(cluster):
    with pytest.raises(StartError, match="nonsense"):
        cluster.manager("broken", options=("--nonsense",))
