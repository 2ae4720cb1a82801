"""bench `restore`: a prompt that the other host computed, answered from its DRAM; and `llama-slots` beside it.

Two managers, two engines, as in the demo. In each round a new random prompt is computed on A; then B answers it restored,
again from its own pages, and again with the cache off, which is the time the restore saves. Time to the first token is a
whole request for one token as its client saw it. Pools and arenas are small and are filled before anything is measured,
so that every page of every sample was touched before and the least recently used one makes room.
"""
from orbitkv_tools.process import wait_until

from . import ours
from .machine import raw_socket
from .memory import MIB, resident
from .noise import alternate
from .opponents import LlamaServer
from .stats import make_row

PROMPTS = {512: ">= 10x", 1024: ">= 20x", 2048: ">= 30x"}
LIMIT_BAR, RESIDENT_BAR = "<= 2x", "<= 3x"
STEP_TOKENS = 9  # the time of one decode step is the mean of this many less one
MEMORY_MIB = 256


class Pair:
    """Host A, which computes, and host B, which restores."""

    def __init__(self, context):
        cluster, size = context.cluster, f"{MEMORY_MIB}mb"
        self.manager_a, self.manager_b = ours.two_managers(cluster, ["--pool-size", size])
        options = ["--threads", str(context.machine.threads), "--arena-size", size]
        self.engine_a = cluster.engine("engine-a", self.manager_a, options)
        self.engine_b = cluster.engine("engine-b", self.manager_b, options)
        self.page_bytes = ours.attached(self.manager_a)["page_bytes"]
        ours.attached(self.manager_b)

    def compute(self, prompt):
        """Computes on A; returns when A's manager holds every page that can be restored."""
        cold, _ = ours.complete(self.engine_a, prompt, 1, "full")
        ours.expect(cold, computed_tokens=len(prompt))
        if not wait_until(lambda: self.engine_a.unpublished_pages() == 0, 15, 0.01):
            raise ours.BenchError("engine A did not publish every page of a prompt")

    def restore(self, prompt):
        """(usage, seconds) of B's answer from A's pages."""
        pages = ours.page_count(len(prompt))
        usage, seconds = ours.complete(self.engine_b, prompt, 1, "full")
        ours.expect(usage, restored_tokens=pages * ours.PAGE_TOKENS, restored_remote_bytes=pages * self.page_bytes)
        return usage, seconds

    def resident_mib(self):
        pids = [program.program.child.pid for program in (self.manager_a, self.manager_b, self.engine_a, self.engine_b)]
        return sum(size for pid in pids for name, size in resident(pid).items() if name.startswith("/memfd:")) / MIB

    def warm(self, progress):
        """Until neither pools nor arenas nor anybody's view of them grow any more."""
        before, tokens = 0.0, max(PROMPTS)
        for number in range(4 * MEMORY_MIB * MIB // (ours.page_count(tokens) * self.page_bytes)):
            progress(f"filling pools and arenas: prompt {number + 1}, {before:.0f} MiB resident")
            prompt = ours.random_tokens(tokens)
            self.compute(prompt)
            self.restore(prompt)
            now = self.resident_mib()
            if now - before < 1:
                return
            before = now
        raise ours.BenchError(f"pools and arenas still grow at {before:.0f} MiB: nothing here is warm")

    def round(self, machine, tokens):
        """{metric: milliseconds} of one prompt of `tokens` tokens."""
        prompt = ours.random_tokens(tokens)
        whole = ours.page_count(tokens) * ours.PAGE_TOKENS
        self.compute(prompt)
        restored, restored_s = self.restore(prompt)
        resident, resident_s = ours.complete(self.engine_b, prompt, 1, "full")
        ours.expect(resident, restored_tokens=0, prefix_hit_tokens=tokens - 1)
        recomputed, recomputed_s = ours.complete(self.engine_b, prompt, 1, "off")
        ours.expect(recomputed, computed_tokens=tokens)
        stepped, _ = ours.complete(self.engine_b, prompt, STEP_TOKENS, "full")
        step_s = (stepped["total_ms"] - stepped["first_token_ms"]) / (STEP_TOKENS - 1) * 1e-3

        moved = restored["restored_remote_bytes"]
        socket_s = raw_socket(machine.build, [moved], 5)[moved].median
        left_s = (tokens - whole) * recomputed_s / tokens
        return {"restored": restored_s * 1e3, "resident": resident_s * 1e3, "recomputed": recomputed_s * 1e3,
                "restore": restored["restore_ms"], "socket": socket_s * 1e3, "left": left_s * 1e3, "step": step_s * 1e3,
                "limit": (socket_s + left_s + step_s) * 1e3}


def run(context):
    pair = Pair(context)
    pair.warm(context.progress)
    pair.round(context.machine, min(PROMPTS))
    for tokens, bar in PROMPTS.items():
        found = alternate(context.watch, context.samples,
                          {f"{tokens} tokens": lambda tokens=tokens: pair.round(context.machine, tokens)},
                          context.progress)
        name = f"restore/{tokens}"
        yield make_row(f"{name}/ttft", "ms", found["restored"], "recomputed", found["recomputed"], bar, inverse=True)
        yield make_row(f"{name}/ttft/limit", "ms", found["restored"], "raw socket + tokens left + one step",
                       found["limit"], LIMIT_BAR)
        yield make_row(f"{name}/limit/left", "ms", found["left"])
        yield make_row(f"{name}/limit/step", "ms", found["step"])
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
