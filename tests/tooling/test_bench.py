"""The arithmetic, the rows and the page of ./run bench, without measuring anything."""
import json
import os
import pathlib
import subprocess
import sys

import bench as command
import pytest
from orbitkv_bench import machine, memory, mover, noise, report, stats
from orbitkv_bench.stats import Series, make_row

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def series(*values, others=0.0):
    made = Series()
    for value in values:
        made.add(value, others)
    return made


def test_median_leaves_noisy_samples_out_while_three_quiet_ones_remain():
    mixed = series(10, 11, 12)
    mixed.add(1000, others_cores=0.5)
    assert mixed.median == 11
    assert not mixed.noisy


def test_median_takes_every_sample_and_says_so_when_quiet_ones_are_too_few():
    mixed = series(10, 12)
    mixed.add(20, others_cores=0.5)
    assert mixed.median == 12
    assert mixed.noisy


def test_a_single_quiet_sample_is_not_noisy():
    assert not series(5).noisy
    assert series(5, others=0.2).noisy


@pytest.mark.parametrize("ratio,bar,wanted", [
    (1.2, ">= 1.2x", True), (1.1999, ">= 1.2x", False), (2.0, "<= 2x", True), (2.01, "<= 2x", False), (0.1, None, None)])
def test_a_bar_holds_on_its_own_side_only(ratio, bar, wanted):
    assert stats.holds(ratio, bar) is wanted


@pytest.mark.parametrize("bar", ["> 2x", "1.2", ">= fast", ">=1.2x", "", "about >= 2x"])
def test_a_bar_that_cannot_be_read_is_refused(bar):
    with pytest.raises(ValueError):
        stats.holds(1, bar)


def test_rates_are_divided_by_theirs_and_times_the_other_way_round():
    rate = make_row("b", "tok/s", series(120), "peer", series(100), ">= 1.2x")
    assert rate["ratio"] == pytest.approx(1.2) and rate["holds"] is True and rate["ratio_is"] == "value/against"
    sooner = make_row("b", "ms", series(50), "recomputed", series(400), ">= 10x", inverse=True)
    assert sooner["ratio"] == pytest.approx(8) and sooner["holds"] is False and sooner["ratio_is"] == "against/value"


def test_a_row_without_a_bar_holds_nothing_and_a_bar_without_a_peer_is_refused():
    assert make_row("b", "MiB", series(1))["holds"] is None
    with pytest.raises(ValueError):
        make_row("b", "MiB", series(1), bar="<= 2x")


def test_a_ratio_to_zero_is_refused_under_a_bar():
    assert make_row("b", "ms", series(1), "peer", series(0))["ratio"] is None
    with pytest.raises(ValueError):
        make_row("b", "ms", series(1), "peer", series(0), "<= 2x")


def test_a_row_is_noisy_when_either_side_had_to_use_noisy_samples():
    assert make_row("b", "ms", series(1), "peer", series(1, others=1.0))["noisy"] is True
    assert make_row("b", "ms", series(1, others=1.0), "peer", series(1))["noisy"] is True
    assert make_row("b", "ms", series(1), "peer", series(1))["noisy"] is False


def test_rows_survive_the_file_and_the_last_of_a_bench_wins(tmp_path):
    path = tmp_path / "rows.json"
    for value in (1.0, 1 / 3):
        stats.append_json(path, make_row("a", "ms", series(value), "peer", series(1)))
    stats.append_json(path, make_row("b", "ms", series(2)))
    assert len(path.read_text().splitlines()) == 3
    rows = stats.read_json(path)
    assert [row["bench"] for row in rows] == ["a", "b"]
    assert rows[0]["value"] == 0.333333
    assert set(rows[0]) >= {"bench", "value", "unit", "against", "against_value", "ratio", "bar", "holds", "samples"}
    assert rows[0]["samples"] == [{"value": 0.333333, "others_cores": 0.0, "noisy": False}]


@pytest.mark.parametrize("line", ["{", "[]", "{}", "3"])
def test_a_line_that_is_no_row_is_refused_by_number(tmp_path, line):
    path = tmp_path / "rows.json"
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match=":1: not a row"):
        stats.read_json(path)


class Ticks:
    """A Watch whose snapshots are given, and that never sleeps."""

    def __init__(self, *others):
        self.others = list(others)

    def measure(self, function):
        return function(), self.others.pop(0) if self.others else 0.0


def test_steps_alternate_until_enough_quiet_rounds_and_no_longer_than_twice_that():
    order = []
    steps = {name: lambda name=name: order.append(name) or {name: 1.0} for name in ("ours", "theirs")}
    noise.alternate(Ticks(), 2, steps)
    assert order == ["ours", "theirs"] * 2
    order.clear()
    found = noise.alternate(Ticks(*[0.5] * 100), 2, steps)
    assert order == ["ours", "theirs"] * 4
    assert found["ours"].noisy and len(found["ours"].samples) == 4


def test_a_comparison_ends_with_its_budget_after_three_rounds_or_with_three_budgets():
    now, rounds = [0.0], []

    def step():
        rounds.append(now[0])
        now[0] += 10
        return {"m": 1.0}

    noise.alternate(Ticks(), 7, {"step": step}, budget_s=45, clock=lambda: now[0])
    assert len(rounds) == 5  # the fifth began within the budget
    rounds.clear()
    noise.alternate(Ticks(), 7, {"step": step}, budget_s=8, clock=lambda: now[0])
    assert len(rounds) == 3
    rounds.clear()
    noise.alternate(Ticks(), 7, {"step": step}, budget_s=1, clock=lambda: now[0])
    assert len(rounds) == 1
    rounds.clear()
    noise.alternate(Ticks(), 2, {"step": step}, budget_s=8, clock=lambda: now[0])
    assert len(rounds) == 2, "fewer were asked for"


def test_the_blocks_of_peer_reads_have_the_sizes_that_the_rows_name():
    assert {size: shape.page_bytes for size, shape in mover.SHAPES.items()} == {size: size for size in machine.SOCKET_BYTES}
    assert set(mover.NAMES) == set(mover.BLOCKS) == set(machine.SOCKET_BYTES)


def test_resident_memory_is_summed_by_mapping(tmp_path, monkeypatch):
    smaps = tmp_path / "smaps"
    smaps.write_text("7f00-7f10 rw-s 00000000 00:01 5   /memfd:orbitkv-pool (deleted)\nRss:      64 kB\nPss: 32 kB\n"
                     "7f10-7f20 rw-p 00000000 00:00 0 \nRss:       8 kB\n7f30-7f40 rw-p 00000000 00:00 0 \nRss:  4 kB\n")
    monkeypatch.setattr("builtins.open", lambda path, _open=open, **more: _open(smaps, **more))
    assert memory.resident(1) == {memory.POOL_NAME: 64 << 10, "": 12 << 10}
    assert memory.total(1) == 76 << 10


def test_the_quickest_setting_is_that_of_all_or_of_as_many_connections():
    by_setting = {(1, "apart", 0, 0): [3.0, 3.0], (1, "together", 4096, 0): [2.0, 2.5], (4, "apart", 0, 9): [1.0, 9.0, 1.0]}
    assert machine.quickest(by_setting).median == 1.0
    assert machine.quickest(by_setting, connections=1).median == 2.25
    assert machine.quickest(by_setting, connections=1, placement="apart").median == 3.0


def test_others_are_what_the_machine_did_without_us():
    # (clock, seconds the machine was busy, seconds of ours)
    assert noise.Watch.others((0.0, 10.0, 1.0), (2.0, 13.0, 3.0)) == pytest.approx(0.5)
    assert noise.Watch.others((0.0, 10.0, 1.0), (2.0, 11.0, 3.0)) == 0.0


def test_this_process_is_not_counted_among_the_others():
    watch = noise.Watch(list, patience_s=0)
    before = watch.snapshot()
    while watch.snapshot()[2] - before[2] < 0.1:
        pass
    after = watch.snapshot()
    assert (after[1] - before[1]) - (after[2] - before[2]) < after[1] - before[1]


RUN = {"time": "2026-01-02T03:04:05+00:00", "commit": "abc", "processor": "Some CPU", "cores": 2,
       "limits": {"read_memory_1_core": {"value": 12.5, "unit": "GB/s"}}}


def committed_rows(path, **changes):
    stats.append_json(path, {**make_row("a|b", "ms", series(2), "peer", series(30), ">= 10x", inverse=True), **RUN})
    stats.append_json(path, {**make_row("c", "MiB", series(3)), **RUN, **changes})


def test_the_report_replaces_what_stands_between_the_marks_and_nothing_else(tmp_path):
    page, rows = tmp_path / "page.md", tmp_path / "rows.json"
    committed_rows(rows)
    page.write_text(f"before\n{report.BEGIN}\nstale words\n{report.END}\nafter\n")
    for _ in range(2):
        report.write(page, rows, tmp_path)
        text = page.read_text()
        assert text.startswith(f"before\n{report.BEGIN}\nFrom `rows.json`: Some CPU, 2 cores, commit abc")
        assert text.endswith(f"{report.END}\nafter\n")
        assert "| a\\|b | 2.00 ms | peer | 30.0 ms | 15.0x | >= 10x | yes |  |" in text
        assert "stale words" not in text


def test_the_report_refuses_rows_of_two_commits_a_page_without_marks_and_no_rows(tmp_path):
    page, rows = tmp_path / "page.md", tmp_path / "rows.json"
    page.write_text(f"{report.BEGIN}\n{report.END}\n")
    committed_rows(rows, commit="def")
    with pytest.raises(ValueError, match="more than one commit"):
        report.write(page, rows, tmp_path)
    rows.write_text("")
    with pytest.raises(ValueError, match="no rows"):
        report.write(page, rows, tmp_path)
    committed_rows(rows)
    page.write_text("no marks\n")
    with pytest.raises(ValueError, match="marks"):
        report.write(page, rows, tmp_path)


def test_the_page_quotes_its_committed_run_as_it_is():
    """docs/performance.md says exactly what the committed file of its section says."""
    page = (ROOT / "docs" / "performance.md").read_text()
    inside = page.split(report.BEGIN)[1].split(report.END)[0].strip("\n").splitlines()
    source = inside[0].split("`")[1] if inside[0].startswith("From `") else None
    if source is None:
        assert not list((ROOT / "docs" / "performance").glob("*.json")), "a run is committed but the page does not quote it"
        return
    rows = stats.read_json(ROOT / source)
    assert inside == report.section(rows, source)


def bench(*arguments):
    return subprocess.run([sys.executable, ROOT / "python" / "bench.py", *arguments], capture_output=True, text=True)


def test_the_command_lists_its_benches_explains_itself_and_refuses_unknown_names():
    listed = bench("--list")
    assert listed.returncode == 0
    names = [line.split()[0] for line in listed.stdout.splitlines()]
    assert names == ["limits", "engine", "restore", "llama-slots", "mover", "memory"]
    helped = bench("--help")
    assert helped.returncode == 0 and all(name in helped.stdout for name in names)
    refused = bench("speed")
    assert refused.returncode == 2 and "no bench is called speed" in refused.stderr
    assert bench("--samples", "0").returncode == 2


def test_a_run_names_its_commit_and_changes_to_what_it_measured(tmp_path, monkeypatch):
    def git(*words):
        return subprocess.run(["git", "-c", "user.name=test", "-c", "user.email=test@localhost", *words], cwd=tmp_path,
                              check=True, capture_output=True, text=True).stdout.strip()

    monkeypatch.setattr(command, "ROOT", tmp_path)
    source, rows = tmp_path / "mover.c", tmp_path / "docs" / "rows.json"
    rows.parent.mkdir()
    for file in (source, rows):
        file.write_text("committed")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "all")
    commit = git("rev-parse", "--short=12", "HEAD")
    rows.unlink()  # by whoever measures anew into the file that is quoted
    assert command.run_of()["commit"] == commit
    source.write_text("changed")
    assert command.run_of()["commit"] == f"{commit} with changes"


@pytest.mark.parametrize("arguments,wanted", [((1, 65536), 1), ((2, 1000, 70000), 2)])
def test_the_bare_socket_reports_each_size_under_each_setting(arguments, wanted):
    program = ROOT / "build-release" / "bench" / "okv-bench-socket"
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["bytes"] for row in rows} == set(arguments[1:])
    settings = ("placement", "connections", "buffer_bytes", "receive_bytes", "bytes")
    assert len({tuple(row[name] for name in settings) for row in rows}) == len(rows)
    assert len(rows) % wanted == 0 and all(len(row["samples_ns"]) == arguments[0] for row in rows)
    assert all(ns > 0 for row in rows for ns in row["samples_ns"])


def test_the_mover_reports_each_size_once_a_placement():
    program = ROOT / "build-release" / "bench" / "okv-bench-mover"
    done = subprocess.run([program, "2", "1000", "70000"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    placements = ["together", "apart"] if len(os.sched_getaffinity(0)) > 1 else ["together"]
    assert [(row["placement"], row["bytes"]) for row in rows] == [(p, size) for p in placements for size in (1000, 70000)]
    assert all(len(row["samples_ns"]) == 2 and min(row["samples_ns"]) > 0 for row in rows)
