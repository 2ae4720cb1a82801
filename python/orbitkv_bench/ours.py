"""Our own programs: two hosts that know each other, and requests to engines, token ids in and usage out."""
import random
import time

from orbitkv_tools.process import free_port, wait_until

PAGE_TOKENS = 16
clock = time.perf_counter


class BenchError(RuntimeError):
    """A measurement did other work than it claims to measure, or a field it needs is missing."""


def random_tokens(count):
    """Ordinary tokens of the model's vocabulary; no two prompts share a page."""
    return [random.randrange(1000, 40000) for _ in range(count)]


def page_count(tokens):
    """Pages of a prompt that can be restored: at least one token is always computed."""
    return (tokens - 1) // PAGE_TOKENS


def complete(engine, tokens, count, cache):
    """(usage's orbitkv object, seconds of the whole request as its client saw it)"""
    body = {"prompt": tokens, "max_tokens": count, "temperature": 0, "ignore_eos": True, "orbitkv": {"cache": cache}}
    begin = clock()
    reply = engine.json("POST", "/v1/completions", body)
    seconds = clock() - begin
    usage = reply["usage"]
    if usage["prompt_tokens"] != len(tokens) or usage["completion_tokens"] != count:
        raise BenchError(f"the engine did other work than asked: {usage}")
    return usage["orbitkv"], seconds


def expect(usage, **fields):
    """Refuses a sample whose usage does not say what the bench thinks it measured."""
    for name, wanted in fields.items():
        if usage.get(name) != wanted:
            raise BenchError(f"usage says {name}={usage.get(name)}, expected {wanted}: {usage}")


def two_managers(cluster, options=()):
    """The managers of hosts A and B, each a peer of the other."""
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    managers = [cluster.manager(f"manager-{name}", [addresses[1 - i]], addresses[i], options=options)
                for i, name in enumerate("ab")]
    if not wait_until(lambda: all(manager.metrics().get("orbitkv_peers_connected", 0) >= 1 for manager in managers), 15):
        raise BenchError("the managers did not find each other")
    return managers


def attached(manager):
    """The one engine at this manager, as GET /instances has it."""
    if not wait_until(lambda: len(manager.json("GET", "/instances")["instances"]) == 1, 15):
        raise BenchError("the engine did not attach to its manager")
    return manager.json("GET", "/instances")["instances"][0]
