"""bench `engine`: decoding alone and prefilling 512 tokens, two threads, beside llama.cpp and beside the roofline.

All servers hold their model warm. While one is measured the others are stopped by signal, so that each has the machine to
itself; rates are the servers' own, so HTTP and sampling weigh on neither.
"""
import contextlib
import os
import signal

from . import ours
from .noise import alternate
from .opponents import LlamaServer, requantised, work_of
from .stats import Series, make_row

PREFILL_TOKENS = 512
DECODE_PROMPT, DECODE_TOKENS = 16, 128


@contextlib.contextmanager
def alone(chosen, everyone):
    """Stops every other server for the time of the block."""
    others = [server.program.child.pid for server in everyone if server is not chosen]
    for pid in others:
        os.killpg(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in others:
            os.killpg(pid, signal.SIGCONT)


def llama_prefill(server):
    timings = server.complete(ours.random_tokens(PREFILL_TOKENS), 1)["timings"]
    return PREFILL_TOKENS / timings["prompt_ms"] * 1e3


def llama_decode(server):
    # Its clock starts when the first token is there, so one token fewer was decoded in that time.
    timings = server.complete(ours.random_tokens(DECODE_PROMPT), DECODE_TOKENS)["timings"]
    return (DECODE_TOKENS - 1) / timings["predicted_ms"] * 1e3


def our_prefill(engine):
    usage, _ = ours.complete(engine, ours.random_tokens(PREFILL_TOKENS), 1, "off")
    ours.expect(usage, computed_tokens=PREFILL_TOKENS)
    return PREFILL_TOKENS / (usage["first_token_ms"] - usage["queued_ms"]) * 1e3


def our_decode(engine):
    usage, _ = ours.complete(engine, ours.random_tokens(DECODE_PROMPT), DECODE_TOKENS, "off")
    ours.expect(usage, computed_tokens=DECODE_PROMPT)
    return (DECODE_TOKENS - 1) / (usage["total_ms"] - usage["first_token_ms"]) * 1e3


def run(context):
    threads = context.machine.threads
    engine = context.cluster.engine("engine", options=["--threads", str(threads)])
    same = LlamaServer(context.cluster, "llamacpp", context.model, threads)
    context.progress("requantising the model to Q4_0 (kept for the next run)")
    fast = LlamaServer(context.cluster, "llamacpp-q4_0", requantised(context.model), threads)
    everyone = [engine, same, fast]

    def step(server, name, prefill, decode):
        def both():
            with alone(server, everyone):
                return {f"{name} prefill": prefill(server), f"{name} decode": decode(server)}
        return both

    steps = {"ours": step(engine, "ours", our_prefill, our_decode),
             "llama.cpp": step(same, "same", llama_prefill, llama_decode),
             "llama.cpp Q4_0": step(fast, "fast", llama_prefill, llama_decode)}
    for warm in steps.values():
        warm()
    found = alternate(context.watch, context.samples, steps, context.progress)

    work = work_of(context.model)
    limits = {"decode": context.machine.read_gb_s() * 1e9 / work["decode_bytes"],
              "prefill": context.machine.f32_gflop_s() * 1e9 / work["prefill_flop"]}
    limit_names = {"decode": "reading the weights once a token", "prefill": "f32 multiply-add peak"}
    for phase, bar in (("decode", ">= 1.2x"), ("prefill", ">= 1.5x")):
        mine, same_rate, fast_rate = (found[f"{name} {phase}"] for name in ("ours", "same", "fast"))
        limit = Series()
        limit.add(limits[phase])
        yield make_row(f"engine/{phase}", "tok/s", mine, "llama.cpp, same file", same_rate, bar)
        yield make_row(f"engine/{phase}/q4_0", "tok/s", mine, "llama.cpp, requantised to Q4_0", fast_rate)
        yield make_row(f"engine/{phase}/roofline", "tok/s", mine, limit_names[phase], limit)
        yield make_row(f"llama.cpp/{phase}/roofline", "tok/s", same_rate, limit_names[phase], limit)
