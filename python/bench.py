#!/usr/bin/env python3
"""Measures this build against the machine's limits and against other programs, all in one run; `./run bench --help`."""
import argparse
import datetime
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))
from orbitkv_bench import engine, memory, mover, report, restore, stats  # noqa: E402
from orbitkv_bench.machine import HelperError, Machine, cores  # noqa: E402
from orbitkv_bench.noise import Watch  # noqa: E402
from orbitkv_bench.ours import BenchError  # noqa: E402
from orbitkv_tools.process import Cluster, StartError, end_on_signals  # noqa: E402

BENCHES = {
    "limits": (None, "the machine: memory, f32 and int8 multiply-adds, a bare socket"),
    "engine": (engine.run, "decode and prefill beside llama.cpp and the roofline"),
    "restore": (restore.run, "time to the first token restored from the other host, beside recomputing"),
    "llama-slots": (restore.run_slots, "llama.cpp's own way: a slot file read back and resumed"),
    "mover": (mover.run, "a verified READ, a whole peer read and a Redis GET beside a bare socket"),
    "memory": (memory.run, "resident memory of a manager and of an engine, llama.cpp beside it"),
}

EXPLANATION = """\
Rows say value, against, ratio and, where there is one, the bar and whether it holds. Samples alternate and medians are
shown. A sample during which other programs used more than 4 %% of two cores is marked noisy; it counts only when fewer
than three quiet ones were to be had, and the row then says "noisy". Close other programs and run again.
Only ratios of one run mean anything: machines differ by 2x and more.

benches:
""" + "\n".join(f"  {name:<12} {words}" for name, (_, words) in BENCHES.items())


class Context:
    """What a bench gets: programs, limits and the watch of this run."""

    def __init__(self, options, machine, cluster):
        self.samples, self.model, self.build = options.samples, options.model, options.build
        self.orbitkv = options.orbitkv
        self.machine, self.cluster = machine, cluster
        self.watch = Watch(lambda: [program for program in cluster.programs if program.alive])

    @staticmethod
    def progress(text):
        progress(text)


def progress(text):
    """One line that overwrites itself on a terminal; nothing in a file."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text[:100]}", end="", file=sys.stderr, flush=True)


def run_of():
    """The words that name this run in every row of it."""
    def words(*command):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    processor = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                      if line.startswith("model name")), "unknown processor")
    commit = words("git", "rev-parse", "--short=12", "HEAD") or "unknown"
    if words("git", "status", "--porcelain", "--untracked-files=no", "--", ":(exclude)docs"):  # the rows are written there
        commit += " with changes"
    now = datetime.datetime.now(datetime.timezone.utc)
    return {"time": now.isoformat(timespec="seconds"), "commit": commit, "processor": processor, "cores": cores()}


def limit_rows(machine):
    for name, series in machine.series.items():
        yield {**stats.make_row(f"limits/{name}", machine.units[name], series), "value": machine.best(name)}


def rows_of(name, options, machine):
    """The rows of one bench; its processes end with it."""
    if name == "limits":
        yield from limit_rows(machine)
        return
    with Cluster(options.orbitkv, options.model) as cluster:
        yield from BENCHES[name][0](Context(options, machine, cluster))


def measure(options):
    """Runs the chosen benches; returns the exit status."""
    run = run_of()
    progress("measuring the machine's limits")
    try:
        machine = Machine(options.build, options.model, Watch(list))
    except HelperError as error:
        sys.exit(f"bench: {error}")
    run["limits"] = machine.as_json()
    print(stats.table_line(stats.TITLES))
    broken, failed, noisy = [], False, 0
    for name in options.names or list(BENCHES):
        try:
            for row in rows_of(name, options, machine):
                row.update(run)
                progress("")
                print(stats.table_line(stats.cells(row)), flush=True)
                if options.json:
                    stats.append_json(options.json, row)
                noisy += row["noisy"]
                if row["holds"] is False:
                    broken.append(f"{row['bench']}: {stats.figure(row['ratio'])}x does not hold {row['bar']}")
        except (BenchError, HelperError, StartError, RuntimeError, OSError) as error:
            progress("")
            print(f"bench: {name}: could not be measured: {error}", file=sys.stderr, flush=True)
            failed = True
    if noisy:
        print(f"\n{noisy} rows are noisy and prove nothing: other programs were running.", flush=True)
    elif broken:
        print(flush=True)
    for text in broken:
        print(f"bench: {text}", file=sys.stderr)
    return 1 if broken or failed else 0


def parse():
    parser = argparse.ArgumentParser(
        prog="./run bench", description=__doc__.split(";", maxsplit=1)[0] + ".", epilog=EXPLANATION,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="benches to run; all of them without")
    parser.add_argument("--json", metavar="FILE", help="append one JSON object a row to FILE (docs/formats/bench.md)")
    parser.add_argument("--samples", type=int, default=7, metavar="N", help="quiet rounds wanted of each measurement (7)")
    parser.add_argument("--list", action="store_true", help="print the names and end")
    parser.add_argument("--report", type=Path, metavar="FILE",
                        help="write the rows of FILE, made by --json, into docs/performance.md and end")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in BENCHES]
    if unknown:
        parser.error(f"no bench is called {', '.join(unknown)}; there are {', '.join(BENCHES)}")
    if options.samples < 1:
        parser.error("--samples must be at least 1")
    return options


def main():
    options = parse()
    if options.list:
        for name, (_, words) in BENCHES.items():
            print(f"{name:<12} {words}")
        return 0
    if options.report:
        try:
            report.write(ROOT / "docs" / "performance.md", options.report, ROOT)
        except (OSError, ValueError) as error:
            sys.exit(f"bench: {error}")
        return 0
    options.orbitkv = Path(os.environ.get("ORBITKV_BIN") or ROOT / "build-release" / "orbitkv")
    options.model = os.environ.get("ORBITKV_MODEL")
    options.build = options.orbitkv.parent
    if not options.model or not os.path.exists(options.model):
        sys.exit("bench: ORBITKV_MODEL names no file; ./run bench fetches the model and sets it")
    end_on_signals()
    try:
        return measure(options)
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
