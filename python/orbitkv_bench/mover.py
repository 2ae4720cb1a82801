"""bench `mover`: what moving a block costs others: Redis beside a bare socket, the same client on both sides."""
import statistics

from .machine import fetch_line, raw_socket
from .noise import alternate
from .opponents import Redis
from .stats import make_row

REDIS_BYTES = 1 << 20


def rate(seconds, size=REDIS_BYTES):
    return size / statistics.median(seconds) / 1e9


def run(context):
    redis = Redis(context.cluster, REDIS_BYTES)
    found = alternate(context.watch, context.samples, {
        "Redis": lambda: {"redis": rate(fetch_line(context.build, redis.port, redis.request, redis.reply_bytes, 50))},
        "socket": lambda: {"socket": REDIS_BYTES / raw_socket(context.build, [REDIS_BYTES], 50)[REDIS_BYTES].median / 1e9},
    }, context.progress)
    yield make_row("redis/get/1mib", "GB/s", found["redis"], "raw socket", found["socket"])
