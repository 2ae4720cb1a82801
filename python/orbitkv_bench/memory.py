"""bench `memory`: what a process keeps resident, from the kernel's own account of its mappings."""
import time

from . import ours
from .opponents import LlamaServer, work_of
from .stats import Series, make_row

MIB = 1 << 20
POOL_NAME, ARENA_NAME = "/memfd:orbitkv-pool", "/memfd:okv-arena"
SETTLED_S = 1.0  # nothing grew for so long


def resident(pid):
    """{file name of a mapping, "" for anonymous memory: resident bytes}"""
    found, name = {}, ""
    with open(f"/proc/{pid}/smaps", encoding="utf-8", errors="replace") as file:
        for line in file:
            words = line.split(None, 5)
            if not words[0].endswith(":"):
                name = words[5].strip().removesuffix(" (deleted)") if len(words) > 5 else ""
            elif words[0] == "Rss:":
                found[name] = found.get(name, 0) + int(words[1]) * 1024
    return found


def total(pid):
    return sum(resident(pid).values())


def settled(pid):
    """Returns when the process has stopped growing: reserves are touched while there is nothing else to do."""
    before = -1
    while (now := total(pid)) != before:
        before = now
        time.sleep(SETTLED_S)


def one(value):
    series = Series()
    series.add(value)
    return series


def run(context):
    manager = context.cluster.manager("manager", options=["--pool-size", "1gb"])
    pid = manager.program.child.pid
    settled(pid)
    yield make_row("memory/manager", "MiB", one(total(pid) / MIB))

    llama = LlamaServer(context.cluster, "llamacpp", context.model, context.machine.threads)
    llama.complete(ours.random_tokens(512), 8)
    theirs = one(total(llama.program.child.pid) / MIB)

    engine = context.cluster.engine("engine", manager, ["--threads", str(context.machine.threads)])
    ours.attached(manager)
    ours.complete(engine, ours.random_tokens(512), 8, "full")
    pid = engine.program.child.pid
    settled(pid)
    found = resident(pid)
    if POOL_NAME not in found or ARENA_NAME not in found:
        raise ours.BenchError(f"the engine maps no {POOL_NAME} or no {ARENA_NAME}: their names are not what they were")
    own, arena = sum(found.values()) - found[POOL_NAME], found[ARENA_NAME]
    # A page's rotated keys are a plane of private memory, as large as its raw keys: half of the page.
    beyond = own - arena - arena // 2 - work_of(context.model)["tensor_bytes"]
    yield make_row("memory/engine", "MiB", one(own / MIB), "llama.cpp in all", theirs, inverse=True)
    yield make_row("memory/engine/beyond", "MiB", one(beyond / MIB), "llama.cpp in all", theirs, inverse=True)
