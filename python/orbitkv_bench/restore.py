"""bench `restore`: a prompt that the other host computed, answered from its DRAM; and `llama-slots` beside it.

Two managers, two engines, as in the demo. In each round a new random prompt is computed on A; then B answers it restored,
again from its own pages, and again with the cache off, which is the time the restore saves. Time to the first token is a
whole request for one token as its client saw it.
"""
from orbitkv_tools.process import free_port, wait_until

from . import ours
from .machine import raw_socket
from .noise import alternate
from .opponents import LlamaServer
from .stats import make_row

PROMPTS = {512: ">= 10x", 1024: ">= 20x", 2048: ">= 30x"}
LIMIT_BAR, RESIDENT_BAR = "<= 2x", "<= 3x"
STEP_TOKENS = 9  # the time of one decode step is the mean of this many less one


class Pair:
    """Host A, which computes, and host B, which restores."""

    def __init__(self, context):
        port_a, port_b = free_port(), free_port()
        address_a, address_b = f"127.0.0.1:{port_a}", f"127.0.0.1:{port_b}"
        cluster = context.cluster
        self.manager_a = cluster.manager("manager-a", [address_b], address_a)
        self.manager_b = cluster.manager("manager-b", [address_a], address_b)
        options = ["--threads", str(context.machine.threads)]
        self.engine_a = cluster.engine("engine-a", self.manager_a, options)
        self.engine_b = cluster.engine("engine-b", self.manager_b, options)
        if not wait_until(lambda: all(manager.metrics().get("orbitkv_peers_connected", 0) >= 1
                                      for manager in (self.manager_a, self.manager_b)), 15):
            raise ours.BenchError("the managers did not find each other")

    def round(self, machine, tokens):
        """{metric: milliseconds} of one prompt of `tokens` tokens, and the bytes that the restore moved."""
        prompt = ours.random_tokens(tokens)
        whole = ours.page_count(tokens) * ours.PAGE_TOKENS
        cold, _ = ours.complete(self.engine_a, prompt, 1, "full")
        ours.expect(cold, computed_tokens=tokens)
        self.manager_a.json("POST", "/cache/sync")

        restored, restored_s = ours.complete(self.engine_b, prompt, 1, "full")
        ours.expect(restored, restored_tokens=whole)
        moved = restored["restored_remote_bytes"]
        resident, resident_s = ours.complete(self.engine_b, prompt, 1, "full")
        ours.expect(resident, restored_tokens=0, prefix_hit_tokens=whole)
        recomputed, recomputed_s = ours.complete(self.engine_b, prompt, 1, "off")
        ours.expect(recomputed, computed_tokens=tokens)
        stepped, _ = ours.complete(self.engine_b, prompt, STEP_TOKENS, "full")
        step_s = (stepped["total_ms"] - stepped["first_token_ms"]) / (STEP_TOKENS - 1) * 1e-3

        socket_s = raw_socket(machine.build, [moved], 5)[moved].median
        left_s = (tokens - whole) * recomputed_s / tokens
        return {"restored": restored_s * 1e3, "resident": resident_s * 1e3, "recomputed": recomputed_s * 1e3,
                "restore": restored["restore_ms"], "socket": socket_s * 1e3,
                "limit": (socket_s + left_s + step_s) * 1e3}


def run(context):
    pair = Pair(context)
    for tokens in PROMPTS:  # touches pools and arenas before they are measured
        pair.round(context.machine, tokens)
    for tokens, bar in PROMPTS.items():
        found = alternate(context.watch, context.samples,
                          {f"{tokens} tokens": lambda tokens=tokens: pair.round(context.machine, tokens)},
                          context.progress)
        name = f"restore/{tokens}"
        yield make_row(f"{name}/ttft", "ms", found["restored"], "recomputed", found["recomputed"], bar, inverse=True)
        yield make_row(f"{name}/ttft/limit", "ms", found["restored"], "raw socket + tokens left + one step",
                       found["limit"], LIMIT_BAR)
        yield make_row(f"{name}/resident", "ms", found["restore"], "raw socket, same bytes", found["socket"], RESIDENT_BAR)
        yield make_row(f"{name}/local", "ms", found["resident"], "restored from the other host", found["restored"],
                       inverse=True)


def slot_round(server, tokens):
    """{metric: milliseconds} of llama.cpp computing a prompt, and of it reading its slot file and going on."""
    prompt, file = ours.random_tokens(tokens), f"slot-{tokens}.bin"
    server.slot("erase")
    begin = ours.clock()
    server.complete(prompt, 1, keep=True)
    recomputed_s = ours.clock() - begin
    server.slot("save", filename=file)
    server.slot("erase")
    server.complete(ours.random_tokens(16), 1)  # nothing of the prompt is left in the slot

    begin = ours.clock()
    restored = server.slot("restore", filename=file)
    restore_s = ours.clock() - begin
    reply = server.complete(prompt, 1, keep=True)
    total_s = ours.clock() - begin
    if reply["timings"].get("cache_n", 0) < tokens - 2:
        raise ours.BenchError(f"llama.cpp did not resume from its slot file: {reply['timings']}, {restored}")
    return {"recomputed": recomputed_s * 1e3, "restore": restore_s * 1e3, "resumed": total_s * 1e3}


def run_slots(context):
    folder = context.cluster.folder / "slots"
    folder.mkdir()
    server = LlamaServer(context.cluster, "llamacpp-slots", context.model, context.machine.threads, folder)
    slot_round(server, min(PROMPTS))
    for tokens in PROMPTS:
        found = alternate(context.watch, context.samples,
                          {f"{tokens} tokens": lambda tokens=tokens: slot_round(server, tokens)}, context.progress)
        name = f"llama-slots/{tokens}"
        yield make_row(f"{name}/ttft", "ms", found["resumed"], "recomputed by llama.cpp", found["recomputed"], inverse=True)
        yield make_row(f"{name}/file", "ms", found["restore"])
