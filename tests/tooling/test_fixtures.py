"""The looks after each test, tested: a leftover process, a sanitizer's report and a bad end must fail it.

Each runs in a pytest of its own, since the look fails the very test that it is about.
"""
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def outcome(tmp_path):
    """outcome(body, **environment): what pytest says about one test with that body and one that does nothing."""
    def run(body, arguments="", **environment):
        (tmp_path / "test_inner.py").write_text(
            f"import subprocess\ndef test_inner({arguments}):\n    {body}\ndef test_control():\n    pass\n")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "conftest", "-p", "no:cacheprovider", tmp_path],
            capture_output=True, text=True, cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'python'}"} | environment)
        return done.stdout

    return run


def test_orderly_program_passes(outcome):
    assert "2 passed" in outcome("start(['sh', '-c', 'echo ready; exec sleep 60'], ready='ready')", "start")


def test_orphan_that_outlives_its_parent_is_found_and_killed(outcome):
    said = outcome("subprocess.run(['sh', '-c', 'sleep 61 &'], start_new_session=True)")
    assert "processes outlived the test and were killed" in said
    assert "2 passed, 1 error" in said


def test_program_that_dies_of_a_signal_is_found(outcome):
    said = outcome("start(['sh', '-c', 'echo ready; kill -SEGV $$'], ready='ready').child.wait()", "start")
    assert "died of signal 11 during the test" in said
    assert "2 passed, 1 error" in said


def test_program_that_ends_before_it_is_ready_fails_with_its_last_words(outcome):
    said = outcome("start(['sh', '-c', 'echo no such model; exit 1'], ready='listening')", "start")
    assert "no such model" in said and "1 failed, 1 passed" in said


def test_sanitizer_report_of_any_process_is_found(outcome, tmp_path):
    said = outcome(f"subprocess.run(['sh', '-c', 'echo overflow in x.c > {tmp_path}/report.7'])",
                   ASAN_OPTIONS=f"halt_on_error=1:log_path={tmp_path}/report")
    assert "overflow in x.c" in said and "2 passed, 1 error" in said
