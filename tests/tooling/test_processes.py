"""The fixtures that start processes: what a test may rely on, and that a leftover or a bad end is noticed."""
import os
import pathlib
import signal
import subprocess
import sys

import pytest


def test_output_is_waited_for_and_the_exit_status_returned(processes):
    child = processes.start(["sh", "-c", "echo ready; trap 'exit 3' TERM; while :; do sleep 0.05; done"], ready="ready")
    assert child.is_running()
    assert child.stop() == 3


def test_child_that_ends_before_it_is_ready_fails_the_test_with_its_output(processes):
    with pytest.raises(pytest.fail.Exception, match="no such model"):
        processes.start(["sh", "-c", "echo no such model; exit 1"], ready="listening")


def test_child_that_ignores_its_signal_fails_the_test_and_is_killed(processes):
    child = processes.start(["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done"], ready="ready")
    with pytest.raises(pytest.fail.Exception, match="still there"):
        child.stop(timeout=0.2)
    assert not child.is_running()


def test_stopped_child_can_be_ended(processes):
    child = processes.start(["sleep", "60"])
    child.popen.send_signal(signal.SIGSTOP)
    assert child.stop() == -signal.SIGTERM


def test_sanitizer_report_and_death_by_a_signal_of_its_own_are_complaints(processes):
    processes.start(["sh", "-c", "echo 'x.c:1: runtime error: overflow'"]).wait()
    processes.start(["sh", "-c", "kill -SEGV $$"]).wait()
    with pytest.raises(pytest.fail.Exception, match="(?s)died of signal 11.*runtime error"):
        processes.finish()


def test_orphan_that_outlives_its_parent_is_found(tmp_path):
    # in a pytest of its own, since the check fails the test that it looks at
    (tmp_path / "test_inner.py").write_text(
        "import subprocess\n"
        "def test_leaves_one():\n"
        "    subprocess.run(['sh', '-c', 'sleep 61 &'], start_new_session=True)\n"
        "def test_leaves_none():\n"
        "    pass\n")
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", tmp_path],
                          capture_output=True, text=True, cwd=tmp_path,
                          env=os.environ | {"PYTHONPATH": str(pathlib.Path(__file__).resolve().parent.parent)})
    assert "processes outlived the test and were killed" in done.stdout
    assert "sleep 61" in done.stdout.partition("were killed")[2]
    assert "2 passed, 1 error" in done.stdout


def test_free_port_can_be_bound_by_a_server(free_port, processes):
    processes.start([sys.executable, "-u", "-m", "http.server", str(free_port()), "--bind", "127.0.0.1"],
                    ready="Serving")
