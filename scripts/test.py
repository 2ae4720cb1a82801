#!/usr/bin/env python3
"""Builds and runs OrbitKV's tests and counts test cases; `./run help test` tells how to call it.

A plan is a list of steps: C tests of one build (through meson) or Python tests of one folder (through pytest). Each step
returns a Count; the program's last line is their sum, and its exit status is 0 only if something ran and nothing failed.

C test programs print TAP. We count their lines ourselves and hold them against the announced plan and the exit status,
so that a program which dies half-way, or leaks at its end, is a failure even if every line so far said ok.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as xml

ROOT = pathlib.Path(__file__).resolve().parent.parent
PYTHON = ROOT / ".venv" / "bin" / "python"
SORTS = ("unit", "fuzz", "concurrent")
FOLDERS = ("layering", "tooling", "blackbox")
BUILD_WORDS = {"release": "release", "asan": "ASan+UBSan", "tsan": "TSan"}
SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_stack_use_after_return=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1",
}
SECONDS_FOR_ONE_STEP = 1800


class Count:
    """Passed and skipped test cases, and of each failed one its name and what it printed."""

    def __init__(self):
        self.passed = 0
        self.skipped = 0
        self.failures = []

    def add(self, other):
        self.passed += other.passed
        self.skipped += other.skipped
        self.failures += other.failures

    def fail(self, name, output=""):
        self.failures.append((name, output.rstrip()))

    def words(self, always_failed=False):
        words = [f"{self.passed} passed"]
        if self.failures or always_failed:
            words.append(f"{len(self.failures)} failed")
        if self.skipped:
            words.append(f"{self.skipped} skipped")
        return ", ".join(words)


TAP_PLAN = re.compile(r"^1\.\.(\d+)", re.MULTILINE)
TAP_CASE = re.compile(r"^(not )?ok\b *(?:\d+)? *-? *(.*)$", re.MULTILINE)


def count_c_program(record):
    """The Count of one line of meson's testlog.json."""
    count = Count()
    name = record["name"].split(" / ")[-1]
    output = record.get("stdout", "") + record.get("stderr", "")
    planned = sum(int(number) for number in TAP_PLAN.findall(record.get("stdout", "")))
    if not planned:  # a fuzz corpus: the program is one case
        if record["result"] == "OK":
            count.passed = 1
        elif record["result"] == "SKIP":
            count.skipped = 1
        else:
            count.fail(f"{name} ({record['result'].lower()})", output)
        return count

    seen = 0
    for negated, rest in TAP_CASE.findall(record["stdout"]):
        seen += 1
        if rest.startswith("# SKIP") or " # SKIP" in rest:
            count.skipped += 1
        elif negated:
            count.fail(f"{name}: {rest}", output)
        else:
            count.passed += 1
    if seen != planned:
        count.fail(f"{name}: ended after {seen} of {planned} cases ({record['result'].lower()})", output)
    elif record["result"] != "OK" and not count.failures:
        count.fail(f"{name}: exit status {record['returncode']} though each case passed", output)
    return count


def count_junit(path):
    """The Count of one of pytest's XML reports."""
    count = Count()
    for case in xml.parse(path).getroot().iter("testcase"):
        outcomes = {child.tag for child in case}
        name = f"{case.get('classname')}: {case.get('name')}"
        if outcomes & {"failure", "error"}:
            count.fail(name)
        elif "skipped" in outcomes:
            count.skipped += 1
        else:
            count.passed += 1
    return count


def without_address_randomisation(build):
    """gcc 12's sanitizers cannot place their shadow on kernels with 32 random bits of mmap; a fixed layout always works."""
    prefix = ["setarch", "-R"]
    if build == "release":
        return []
    try:
        works = subprocess.run(prefix + ["true"], capture_output=True).returncode == 0
    except FileNotFoundError:
        works = False
    return prefix if works else []


def build_targets(build, targets=()):
    done = subprocess.run([ROOT / "scripts" / "build.sh", build, *targets], stdin=subprocess.DEVNULL)
    return done.returncode == 0


def c_tests_of(build, wanted):
    """(name, program) of each C test of a configured build whose suites `wanted` accepts."""
    tests = json.loads((ROOT / f"build-{build}" / "meson-info" / "intro-tests.json").read_text())
    for test in tests:
        suites = {suite.split(":")[-1] for suite in test["suite"]}
        if wanted(suites):
            yield test["name"], os.path.basename(test["cmd"][0])


def run_c_tests(build, wanted):
    count = Count()
    folder = ROOT / f"build-{build}"
    if not (folder / "build.ninja").exists() and not build_targets(build, ["build.ninja"]):
        count.fail(f"build-{build}: configuring")
        return count
    # TSan runs few of the programs, so only those are compiled; the other builds are needed whole.
    programs = [program for _, program in c_tests_of(build, wanted)] if build == "tsan" else []
    if build == "tsan" and not programs:
        return count
    if not build_targets(build, programs):
        count.fail(f"build-{build}: compiling")
        return count

    names = [name for name, _ in c_tests_of(build, wanted)]
    if not names:
        return count
    log = folder / "meson-logs" / "testlog.json"
    log.unlink(missing_ok=True)
    command = without_address_randomisation(build) + [
        "meson", "test", "-C", folder, "--no-rebuild", "-t", "1" if build == "release" else "4"]
    done = subprocess.run(command + names, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          env=os.environ | SANITIZER_OPTIONS)
    records = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    for record in records:
        count.add(count_c_program(record))
    if len(records) != len(names):
        count.fail(f"build-{build}: meson ran {len(records)} of {len(names)} programs", done.stdout + done.stderr)
    return count


def run_python_tests(folder, build, expression):
    count = Count()
    files = sorted((ROOT / "tests" / folder).glob("test_*.py"))
    if not PYTHON.exists() or subprocess.run([PYTHON, "-c", "import pytest"], capture_output=True).returncode != 0:
        print(f"      pytest is not installed (offline?): {len(files)} files of tests/{folder} are skipped")
        count.skipped = len(files)
        return count
    if not build_targets(build):
        count.fail(f"build-{build}: compiling")
        return count

    report = ROOT / f"build-{build}" / f"pytest-{folder}.xml"
    report.unlink(missing_ok=True)
    command = without_address_randomisation(build) + [
        PYTHON, "-m", "pytest", "-q", "--no-header", "--tb=short", "-rs", f"--junitxml={report}"]
    if build != "release":
        command += ["-m", "not release_only"]
    if expression:
        command += ["-k", expression]
    environment = os.environ | SANITIZER_OPTIONS | {
        "ORBITKV_BIN": str(ROOT / f"build-{build}" / "orbitkv"), "ORBITKV_BUILD": build}
    # Reports go to files, where tests/conftest.py finds them whoever started the process that wrote one.
    reports = ROOT / f"build-{build}" / "sanitizer-reports"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir()
    for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS"):
        environment[name] += f":log_path={reports}/report"
    try:
        done = subprocess.run(command + [ROOT / "tests" / folder], cwd=ROOT, stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
                              timeout=SECONDS_FOR_ONE_STEP)
    except subprocess.TimeoutExpired as expired:
        count.fail(f"tests/{folder}: not over after {SECONDS_FOR_ONE_STEP} s",
                   (expired.stdout or b"").decode(errors="replace"))
        return count
    if report.exists():
        count.add(count_junit(report))
    for line in done.stdout.splitlines():
        if line.startswith("SKIPPED"):
            print("      " + line)
    nothing_selected = done.returncode == 5
    if done.returncode != 0 and not nothing_selected:
        if not count.failures:
            count.fail(f"tests/{folder}: pytest ended with status {done.returncode}")
        name, _ = count.failures[0]
        count.failures[0] = (name, done.stdout)  # pytest's own report, once
    return count


def plan_of(options):
    """(what it is, function returning its Count) of each step, in the order of running: quick answers first."""
    words = set(options.what)
    modules = {path.parent.name for path in ROOT.glob("src/*/meson.build")}
    unknown = words - set(SORTS) - set(FOLDERS) - modules
    if unknown:
        sys.exit(f"test: nothing is called {', '.join(sorted(unknown))}; there are {' '.join(SORTS + FOLDERS)} and the "
                 f"modules {' '.join(sorted(modules))}")
    c_words = words - set(FOLDERS)
    folders = [folder for folder in FOLDERS if not words or folder in words]
    builds = ["release"] if options.quick else ["release", "asan"]

    def wanted(suites):
        # A concurrent test is a unit test that TSan runs too.
        return not words or bool((suites | ({"unit"} if "concurrent" in suites else set())) & c_words)

    def wanted_concurrent(suites):
        return "concurrent" in suites and wanted(suites)

    plan = []
    for build in builds:
        if c_words or not words:
            plan.append((f"C tests, {BUILD_WORDS[build]}", lambda build=build: run_c_tests(build, wanted)))
        for folder in folders:
            if list((ROOT / "tests" / folder).glob("test_*.py")) and (build == "release" or folder == "blackbox"):
                plan.append((f"tests/{folder}, {BUILD_WORDS[build]}", lambda build=build, folder=folder:
                             run_python_tests(folder, build, options.expression)))
    if not options.quick and (c_words or not words) and c_words != {"fuzz"}:
        plan.append((f"concurrent C tests, {BUILD_WORDS['tsan']}", lambda: run_c_tests("tsan", wanted_concurrent)))
    return plan


def show(failures):
    for name, output in failures:
        if output:
            print(f"\nFAILED {name}")
        for line in output.splitlines()[-200:]:
            print("    " + line)


def main():
    parser = argparse.ArgumentParser(prog="./run test", description="builds and runs the tests")
    parser.add_argument("--quick", action="store_true", help="release build only")
    parser.add_argument("-k", dest="expression", help="only Python tests whose names match")
    parser.add_argument("what", nargs="*", help="unit, fuzz, concurrent, layering, tooling, blackbox or a module")
    options = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)

    total = Count()
    plan = plan_of(options)
    for number, (words, step) in enumerate(plan, 1):
        print(f"[{number}/{len(plan)}] {words} ...")
        begin = time.monotonic()
        count = step()
        print(f"      {count.words()} ({time.monotonic() - begin:.1f} s)")
        show(count.failures)
        count.failures = [(f"{words}: {name}", "") for name, _ in count.failures]
        total.add(count)

    if total.failures:
        print("\nfailed:")
        for name, _ in total.failures:
            print("  " + name)
    print(total.words(always_failed=True))
    if not total.passed and not total.failures:
        print("test: no test ran, and that is a failure", file=sys.stderr)
    return 0 if total.passed and not total.failures else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("test: interrupted")
