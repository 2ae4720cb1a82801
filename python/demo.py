#!/usr/bin/env python3
"""Two replicas, one shared cache, on the real model: every claim is a check, and the exit status is the verdict.

Two managers and two engines run as separate processes. Replica A computes long prompts; replica B, which has never seen
them, answers from A's KV. Then A forgets and gets everything back from B, a damaged bit is refused, and A's manager dies
while B is reading from it. Each output is compared with a control that B computes with the cache switched off.
"""
import argparse
import json
import os
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from orbitkv_tools.process import Cluster, StartError, end_on_signals, free_port, wait_until  # noqa: E402

PAGE_TOKENS = 16
BLOCK_BYTES = 368_640  # one page of SmolLM2-135M in f16: 30 layers x (Kraw, V) x 16 tokens x 3 heads x 64 x 2 bytes
ANSWER_TOKENS = 24
PROMPT_TOKENS = (500, 1000, 2000)
CHARACTERS_A_TOKEN = 5.15  # of the text below under this tokenizer; prompts are only "about" so long

# What must be zero on both managers when nothing is under way.
DRAINED = ("orbitkv_query_reserved_bytes", "orbitkv_inflight_bytes", "orbitkv_transfer_lock_active",
           "orbitkv_transfer_reserved_bytes", "orbitkv_transfer_completion_outstanding")
READS_GRANTED = "orbitkv_transfer_locks_total"  # at the source
RELEASES_ACKNOWLEDGED = 'orbitkv_remote_stage_duration_seconds_count{stage="release",status="ok"}'  # at the reader


def natural_text():
    return (Path(__file__).resolve().parent.parent / "LICENSE").read_text()


def prompt(number, tokens):
    """A chat about a real text. The first words carry `number`, so that no two prompts share a page."""
    text = " ".join(natural_text().split())
    size = int((tokens - 70) * CHARACTERS_A_TOKEN)
    start = number * 137
    return [
        {"role": "system", "content": f"Document {number}. You explain documents to people in plain words."},
        {"role": "user", "content": (text + " " + text)[start:start + size] + "\n\nWhat is this document about?"},
    ]


def pages(tokens):
    return (tokens - 1) // PAGE_TOKENS


class Demo:
    def __init__(self, cluster, show):
        self.cluster, self.show = cluster, show
        self.checks, self.rows = [], []

    def check(self, step, what, holds, detail=""):
        self.checks.append({"step": step, "what": what, "holds": bool(holds), "detail": detail})
        if not holds:
            self.show(f"      FAILED: {what} ({detail})")

    def ask(self, engine, messages, cache="full"):
        text, first_s, usage, _ = engine.stream("/v1/chat/completions", {
            "messages": messages, "max_tokens": ANSWER_TOKENS, "temperature": 0, "orbitkv": {"cache": cache}})
        return {"text": text, "ttft_ms": first_s * 1e3, "prompt_tokens": usage["prompt_tokens"], **usage["orbitkv"]}

    def drained(self, step, *managers):
        """Waits until every gauge of the managers is zero; a missing gauge is a failure, not zero."""
        for manager in managers:
            def is_zero():
                values = manager.metrics()
                return all(values.get(name) == 0 for name in DRAINED)

            wait_until(is_zero, 30)
            values = manager.metrics()
            left = {name: values.get(name) for name in DRAINED if values.get(name) != 0}
            self.check(step, f"manager {manager.program.name[-1].upper()} is drained", not left, f"not zero: {left}")

    def start(self):
        self.show("[1/6] starting two managers and two engines")
        port_a, port_b = free_port(), free_port()
        self.address_a, self.address_b = f"127.0.0.1:{port_a}", f"127.0.0.1:{port_b}"
        self.manager_a = self.start_manager_a()
        self.manager_b = self.cluster.manager("manager-b", [self.address_a], self.address_b)
        self.engine_a = self.cluster.engine("engine-a", self.manager_a)
        self.engine_b = self.cluster.engine("engine-b", self.manager_b)

    def start_manager_a(self, faults=""):
        return self.cluster.manager("manager-a", [self.address_b], self.address_a, faults)

    def restart_manager_a(self, faults):
        """A's manager with another fault point armed; its engine must find it again by itself."""
        if self.manager_a.program.alive:
            self.manager_a.program.stop()
        self.manager_a = self.start_manager_a(faults)
        self.check("attach", "engine A finds its restarted manager by itself", self.attached(self.manager_a))
        linked = wait_until(lambda: self.linked(self.manager_b), 15)
        self.check("attach", "manager B finds its restarted peer by itself", linked)

    @staticmethod
    def attached(manager):
        return wait_until(lambda: len(manager.json("GET", "/instances")["instances"]) == 1, 15)

    @staticmethod
    def linked(manager):
        return manager.metrics().get("orbitkv_peers_connected", 0) >= 1

    def compute_on_a(self, number, tokens):
        messages = prompt(number, tokens)
        before = self.engine_a.published_pages()
        cold = self.ask(self.engine_a, messages)
        wanted = before + pages(cold["prompt_tokens"])
        published = wait_until(lambda: self.engine_a.published_pages() >= wanted, 15)
        self.check(f"publish {cold['prompt_tokens']}", "A's manager holds every whole page of the prompt", published)
        return messages, cold

    def cold_and_restored(self):
        for name, manager in (("A", self.manager_a), ("B", self.manager_b)):
            self.check("attach", f"engine {name} finds its manager", self.attached(manager))
            self.check("attach", f"manager {name} finds its peer", wait_until(lambda: self.linked(manager), 15))
        for number, tokens in enumerate(PROMPT_TOKENS, 1):
            self.show(f"[2/6] about {tokens} tokens: computed on A, control on B, restored on B")
            messages, cold = self.compute_on_a(number, tokens)
            control = self.ask(self.engine_b, messages, "off")
            before_a, before_b = self.manager_a.metrics(), self.manager_b.metrics()
            warm = self.ask(self.engine_b, messages)
            moved = self.manager_b.metrics()["orbitkv_remote_fetch_bytes_total"] - before_b["orbitkv_remote_fetch_bytes_total"]
            n = cold["prompt_tokens"]
            step = f"restore {n}"
            self.check(step, "A restored nothing", cold["restored_tokens"] == 0, str(cold))
            self.check(step, "the control computed the prompt", control["computed_tokens"] == n, str(control))
            self.check(step, "B's answer equals its own control", warm["text"] == control["text"] and warm["text"],
                       repr(warm["text"]))
            self.check(step, "A's answer equals B's control", cold["text"] == control["text"])
            self.check(step, "B restored every whole page", warm["restored_tokens"] == pages(n) * PAGE_TOKENS, str(warm))
            self.check(step, "remote bytes are exactly the pages'", moved == pages(n) * BLOCK_BYTES,
                       f"{moved:.0f} of {pages(n) * BLOCK_BYTES}")
            self.drained(step, self.manager_a, self.manager_b)
            granted = self.manager_a.metrics()[READS_GRANTED] - before_a[READS_GRANTED]
            released = self.manager_b.metrics()[RELEASES_ACKNOWLEDGED] - before_b[RELEASES_ACKNOWLEDGED]
            self.check(step, "A acknowledged the release of every read", released == granted > 0,
                       f"{released:.0f} of {granted:.0f}")
            self.rows.append({"prompt_tokens": n, "pages": pages(n), "remote_bytes": int(moved), "releases": int(released),
                              "cold_ttft_ms": control["ttft_ms"], "restored_ttft_ms": warm["ttft_ms"],
                              "ratio": control["ttft_ms"] / warm["ttft_ms"], "answer": warm["text"]})

    def served_back(self):
        self.show("[3/6] A forgets everything; B serves it back")
        cleaned = self.manager_a.json("POST", "/cache/memory/cleanup")
        self.check("serve back", "A evicted its blocks", cleaned["evicted_blocks"] > 0, str(cleaned))
        self.check("serve back", "no block of A was still referenced", cleaned["still_referenced_blocks"] == 0)
        self.engine_a.program.stop()
        self.engine_a = self.cluster.engine("engine-a", self.manager_a)
        self.check("serve back", "a new engine A attaches", self.attached(self.manager_a))
        before = self.manager_a.metrics()["orbitkv_remote_fetch_bytes_total"]
        back = self.ask(self.engine_a, prompt(2, PROMPT_TOKENS[1]))
        moved = self.manager_a.metrics()["orbitkv_remote_fetch_bytes_total"] - before
        row = self.rows[1]
        self.check("serve back", "A's answer equals the control", back["text"] == row["answer"], repr(back["text"]))
        self.check("serve back", "every byte came from B", moved == row["remote_bytes"], f"{moved:.0f}")
        self.drained("serve back", self.manager_a, self.manager_b)

    def damaged(self):
        self.show("[4/6] one bit of a block flips in A's pool before B reads it")
        self.restart_manager_a("pool_flip_bit_on_authorise=1")
        messages, cold = self.compute_on_a(4, 700)
        control = self.ask(self.engine_b, messages, "off")
        name = 'orbitkv_remote_verification_failures_total{reason="crc"}'
        before = self.manager_b.metrics().get(name)
        warm = self.ask(self.engine_b, messages)
        after = self.manager_b.metrics().get(name)
        self.check("damage", "the damaged block was refused and counted", None not in (before, after) and after > before,
                   f"{before} -> {after}")
        self.check("damage", "not every page was restored", warm["restored_tokens"] < pages(cold["prompt_tokens"]) * PAGE_TOKENS,
                   str(warm))
        self.check("damage", "B's answer equals its control", warm["text"] == control["text"], repr(warm["text"]))
        self.drained("damage", self.manager_a, self.manager_b)

    def killed(self):
        self.show("[5/6] A's manager is killed while B reads from it")
        self.restart_manager_a("mover_stall_ms=2500")
        messages, _ = self.compute_on_a(5, 1200)
        control = self.ask(self.engine_b, messages, "off")
        answer = {}
        asking = threading.Thread(target=lambda: answer.update(self.ask(self.engine_b, messages)), daemon=True)
        asking.start()
        reading = wait_until(lambda: self.manager_a.metrics().get("orbitkv_transfer_lock_active", 0) > 0, 10, 0.01)
        self.manager_a.program.kill()
        self.check("kill", "the manager died while its blocks were being read", reading)
        asking.join(60)
        self.check("kill", "B's answer equals its control", answer.get("text") == control["text"], repr(answer.get("text")))
        self.check("kill", "B recomputed", answer.get("restored_tokens", -1) < pages(control["prompt_tokens"]) * PAGE_TOKENS,
                   str(answer))
        self.drained("kill", self.manager_b)

    def compared(self):
        self.show("[6/6] restored against cold")
        for row in self.rows:
            # The bars are in ./run bench; here a restore only has to be plainly worth having.
            self.check(f"speed {row['prompt_tokens']}", "restored at least 3 times sooner than computed", row["ratio"] >= 3,
                       f"{row['ratio']:.1f}x")

    def run(self):
        for part in (self.start, self.cold_and_restored, self.served_back, self.damaged, self.killed, self.compared):
            part()
        return all(check["holds"] for check in self.checks)


def print_table(demo, good):
    print(f"\n{'prompt tokens':>14} {'pages':>6} {'bytes from A':>13} {'computed':>11} {'restored':>11} {'sooner':>8}")
    for row in demo.rows:
        print(f"{row['prompt_tokens']:>14} {row['pages']:>6} {row['remote_bytes']:>13,} {row['cold_ttft_ms']:>8.0f} ms "
              f"{row['restored_ttft_ms']:>8.1f} ms {row['ratio']:>7.1f}x")
    held = sum(check["holds"] for check in demo.checks)
    print(f"\nTime to the first token on replica B. Every answer was compared with B's own, computed with the cache off.\n"
          f"{held} of {len(demo.checks)} checks held.\n")
    for check in demo.checks:
        if not check["holds"]:
            print(f"  FAILED {check['step']}: {check['what']} ({check['detail']})")
    print("VERDICT: " + ("every check held" if good else "NOT GOOD"))


def main():
    parser = argparse.ArgumentParser(prog="./run demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object with every figure and check, nothing else")
    parser.add_argument("--keep-logs", action="store_true", help="keep the folder with the programs' logs and say where it is")
    parser.add_argument("--orbitkv", default=os.environ.get("ORBITKV_BIN"), required="ORBITKV_BIN" not in os.environ,
                        metavar="PATH", help="the orbitkv program (default: $ORBITKV_BIN)")
    parser.add_argument("--model", default=os.environ.get("ORBITKV_MODEL"), required="ORBITKV_MODEL" not in os.environ,
                        metavar="PATH", help="the model file (default: $ORBITKV_MODEL)")
    options = parser.parse_args()
    end_on_signals()
    started = time.monotonic()

    def show(line):
        print(line, file=sys.stderr, flush=True)

    with Cluster(options.orbitkv, options.model, options.keep_logs) as cluster:
        demo = Demo(cluster, show)
        try:
            good = demo.run()
        except (StartError, RuntimeError, OSError) as failure:
            demo.check("run", "the demo ran to its end", False, str(failure))
            good = False
        if options.json:
            print(json.dumps({"verdict": good, "seconds": round(time.monotonic() - started, 1), "rows": demo.rows,
                              "checks": demo.checks}))
        else:
            print_table(demo, good)
        if options.keep_logs:
            show(f"logs: {cluster.folder}")
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nstopped; everything that was started has been ended", file=sys.stderr)
        sys.exit(130)
