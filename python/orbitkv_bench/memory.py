"""bench `memory`: what a process keeps resident, from the kernel's own account of their mappings."""
from . import ours
from .opponents import LlamaServer
from .stats import Series, make_row

MIB = 1 << 20


def resident_bytes(pid, counts=lambda name: True):
    """Resident bytes of the mappings whose file name `counts` accepts ("" for anonymous memory)."""
    total, name = 0, ""
    with open(f"/proc/{pid}/smaps", encoding="utf-8", errors="replace") as file:
        for line in file:
            words = line.split(None, 5)
            if not words[0].endswith(":"):
                name = words[5].strip() if len(words) > 5 else ""
            elif words[0] == "Rss:" and counts(name):
                total += int(words[1]) * 1024
    return total


def one(value):
    series = Series()
    series.add(value)
    return series


def run(context):
    llama = LlamaServer(context.cluster, "llamacpp", context.model, context.machine.threads)
    llama.complete(ours.random_tokens(512), 8)
    theirs = one(resident_bytes(llama.program.child.pid) / MIB)
    yield make_row("llama.cpp/memory", "MiB", theirs)
