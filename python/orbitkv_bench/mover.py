"""bench `mover`: what moving a block costs: our mover alone, a whole peer read, Redis; each beside a bare socket.

A peer read is what host B's manager does for a block that only A has: locate, authorise, READ, verify, publish locally,
answer, release. A stand-in engine asks for blocks of the wanted size one after the other, each a root of its own, so that
nothing overlaps; the clock stops when the last release is acknowledged. B forgets them before each sample, and its pool
was touched by the samples before.
"""
import json
import os

from orbitkv_tools.process import wait_until
from orbitkv_tools.session_client import OK, PAGE_TOKENS, Client, Shape, chain

from . import ours
from .machine import SOCKET_BYTES, cores, fetch_line, helper, quickest, raw_socket, socket_settings
from .noise import alternate
from .opponents import Redis
from .stats import Series, make_row

BAR = ">= 0.6x"
REDIS_BYTES = 1 << 20
READS = 50
NAMES = {64 << 10: "64kib", 1 << 20: "1mib", 8 << 20: "8mib"}
SHAPES = {64 << 10: Shape(8, 2, 64), 1 << 20: Shape(32, 8, 64), 8 << 20: Shape(128, 8, 128)}
BLOCKS = {64 << 10: 64, 1 << 20: 32, 8 << 20: 12}
POOL = "512mb"
OUTSTANDING = "orbitkv_transfer_completion_outstanding"
FETCH = "orbitkv_remote_fetch_duration_seconds"


def series_of(values):
    series = Series()
    for value in values:
        series.add(value)
    return series


def mover_rates(build):
    """{metric: GB/s} of our mover, under the placement of the two processes that is best for that size, and apart."""
    rates = {}
    for line in helper(build, "okv-bench-mover", READS, *SOCKET_BYTES).splitlines():
        row = json.loads(line)
        size, rate = row["bytes"], row["bytes"] / series_of(row["samples_ns"]).median
        rates[f"mover {size}"] = max(rate, rates.get(f"mover {size}", 0))
        rates[f"mover {row['placement']} {size}"] = rate
    return rates


def socket_rates(build):
    """{metric: GB/s} of a bare socket: over one connection, as a READ of ours has, and under the best setting of all."""
    found = {}
    for size, by_setting in socket_settings(build, SOCKET_BYTES, READS).items():
        found[f"same {size}"] = size / quickest(by_setting, connections=1).median / 1e9
        found[f"best {size}"] = size / quickest(by_setting).median / 1e9
        if cores() > 1:
            found[f"apart {size}"] = size / quickest(by_setting, connections=1, placement="apart").median / 1e9
    return found


def run_mover(context):
    found = alternate(context.watch, context.samples, {
        "mover": lambda: mover_rates(context.build), "socket": lambda: socket_rates(context.build)}, context.progress)
    for size in SOCKET_BYTES:
        name, mine = f"mover/{NAMES[size]}", found[f"mover {size}"]
        yield make_row(name, "GB/s", mine, "raw socket, one connection as ours", found[f"same {size}"], BAR)
        yield make_row(f"{name}/best", "GB/s", mine, "raw socket, best of all settings", found[f"best {size}"])
        if cores() > 1:
            yield make_row(f"{name}/apart", "GB/s", found[f"mover apart {size}"],
                           "raw socket, one connection, each on its own processors", found[f"apart {size}"])


class PeerRead:
    """Blocks of one size that A holds and B asks for."""

    def __init__(self, managers, size):
        self.manager_a, self.manager_b = managers
        self.size, shape = size, SHAPES[size]
        self.blocks = [chain(1000 + PAGE_TOKENS * number, 1, shape) for number in range(BLOCKS[size])]
        with Client(self.manager_a.socket, 1, shape=shape) as writer:
            for block in self.blocks:
                self.content = os.urandom(size)
                if writer.publish(block, [self.content]) != (OK, 1):
                    raise ours.BenchError("A did not take a block")
        self.reader = Client(self.manager_b.socket, 1, shape=shape)

    def check(self):
        """The last block arrives as A's engine wrote it."""
        _, _, lease = self.reader.prepare(self.blocks[-1])
        status, contents = self.reader.restore(lease)
        self.reader.release(lease)
        if status != OK or contents != [self.content]:
            raise ours.BenchError("what B read is not what A holds")

    def sample(self):
        """{metric: GB/s}"""
        self.manager_b.json("POST", "/cache/memory/cleanup")
        before = self.manager_b.metrics()
        begin = ours.clock()
        for block in self.blocks:
            status, count, lease = self.reader.prepare(block)
            if (status, count) != (OK, 1):
                raise ours.BenchError(f"B could not read a block: status {status}, {count} blocks")
            self.reader.release(lease)
        if not wait_until(lambda: self.manager_b.metrics()[OUTSTANDING] == 0, 15, 0.0005):
            raise ours.BenchError("releases are not acknowledged")
        seconds = ours.clock() - begin
        after = self.manager_b.metrics()
        fetches = after[f"{FETCH}_count"] - before[f"{FETCH}_count"]
        moved = after["orbitkv_remote_fetch_bytes_total"] - before["orbitkv_remote_fetch_bytes_total"]
        if fetches != len(self.blocks) or moved != len(self.blocks) * self.size:
            raise ours.BenchError(f"{fetches:.0f} fetches of {moved:.0f} bytes, expected {len(self.blocks)} blocks")
        return {"whole": moved / seconds / 1e9, "fetch": moved / (after[f"{FETCH}_sum"] - before[f"{FETCH}_sum"]) / 1e9}


def run_peer_reads(context):
    managers = ours.two_managers(context.cluster, ["--pool-size", POOL])
    for size in SOCKET_BYTES:
        reads = PeerRead(managers, size)
        with reads.reader:
            reads.check()
            reads.sample()
            found = alternate(context.watch, context.samples, {
                f"peer read of {NAMES[size]}": reads.sample,
                "socket": lambda size=size: {"socket": size / raw_socket(context.build, [size], READS)[size].median / 1e9},
            }, context.progress, budget_s=20)
        name = f"peer-read/{NAMES[size]}"
        yield make_row(name, "GB/s", found["whole"], "raw socket", found["socket"])
        yield make_row(f"{name}/fetch", "GB/s", found["fetch"], "raw socket", found["socket"])


def run_redis(context):
    redis = Redis(context.cluster, REDIS_BYTES)

    def redis_rate():
        seconds = series_of(fetch_line(context.build, redis.port, redis.request, redis.reply_bytes, READS))
        return {"redis": REDIS_BYTES / seconds.median / 1e9}

    found = alternate(context.watch, context.samples, {
        "Redis": redis_rate,
        "socket": lambda: {"socket": REDIS_BYTES / raw_socket(context.build, [REDIS_BYTES], READS)[REDIS_BYTES].median / 1e9},
    }, context.progress, budget_s=20)
    yield make_row("redis/get/1mib", "GB/s", found["redis"], "raw socket", found["socket"])


def run(context):
    yield from run_mover(context)
    yield from run_peer_reads(context)
    yield from run_redis(context)
