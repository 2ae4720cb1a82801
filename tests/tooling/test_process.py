"""Nothing that a Cluster or a Program started outlives it: not after a signal, not with an orphan in the way."""
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest
from orbitkv_tools.process import Cluster, Program, StartError, wait_until

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def program(folder, script):
    made = Program("stand-in", ["sh", "-c", script], folder / "log", "ready")
    made.wait_until_ready(10)
    return made


def end_orphan(pid_file):
    pid = int(pid_file.read_text())
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)  # tests/conftest.py makes orphans ours


def test_an_orphan_that_holds_stdout_does_not_hold_up_the_end(tmp_path):
    pid_file = tmp_path / "pid"
    stand_in = program(tmp_path, f"setsid sh -c 'echo $$ > {pid_file}; echo ready; exec sleep 60' & exec sleep 60")
    begin = time.monotonic()
    assert stand_in.stop() == -signal.SIGTERM
    assert time.monotonic() - begin < 3
    end_orphan(pid_file)


def test_what_a_program_left_in_its_group_is_killed_and_reported(tmp_path):
    pid_file = tmp_path / "pid"
    stand_in = program(tmp_path, f"sleep 60 & echo $! > {pid_file}; echo ready")
    assert wait_until(lambda: not stand_in.alive, 5)
    assert stand_in.stop() == 0
    assert stand_in.left_behind
    _, status = os.waitpid(int(pid_file.read_text()), 0)
    assert os.WTERMSIG(status) == signal.SIGKILL


def test_an_orderly_program_leaves_nothing_behind(tmp_path):
    stand_in = program(tmp_path, "echo ready; exec sleep 60")
    stand_in.stop()
    assert not stand_in.left_behind


def test_last_words_without_a_newline_are_in_the_log(tmp_path):
    stand_in = Program("stand-in", ["sh", "-c", "printf 'no such model'; exit 3"], tmp_path / "log", "listening")
    with pytest.raises(StartError, match="(?s)ended:.*no such model"):
        stand_in.wait_until_ready(10)


def test_a_program_that_never_says_that_it_is_ready_is_ended(tmp_path):
    stand_in = Program("stand-in", ["sh", "-c", "echo starting; exec sleep 60"], tmp_path / "log", "listening")
    with pytest.raises(StartError, match="(?s)was not ready after 0.2 s.*starting"):
        stand_in.wait_until_ready(0.2)
    assert not stand_in.alive


def test_a_cluster_whose_program_cannot_start_is_cleaned_up():
    with pytest.raises(FileNotFoundError):
        with Cluster("/nonexistent/orbitkv", "model") as cluster:
            cluster.manager("manager")
    assert not cluster.folder.exists()


@pytest.fixture
def demo(tmp_path):
    """demo(serve, term, http): ./run demo's program with a stand-in for orbitkv: what an engine does at its start and
    what SIGTERM does, in shell, and where a manager's HTTP is. Returns the process and a function that lists the
    stand-ins that were started."""
    pids = tmp_path / "pids"
    pids.mkdir()
    folders = tmp_path / "folders"
    folders.mkdir()
    running = []

    def start(serve, term="exit 0", http="127.0.0.1:9"):
        stand_in = tmp_path / "orbitkv"
        stand_in.write_text(f"""#!/bin/sh
trap '{term}' TERM
case $1 in
manager) echo "orbitkv manager: ready http={http} peer=127.0.0.1:9" ;;
serve) {serve} ;;
esac
: > {pids}/$$
while :; do sleep 0.1; done
""")
        stand_in.chmod(0o755)
        running.append(subprocess.Popen(
            [sys.executable, ROOT / "python" / "demo.py", "--orbitkv", stand_in, "--model", "/dev/null"],
            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(folders)}))
        return running[0], lambda: [int(path.name) for path in pids.iterdir()]

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stderr.close()
    assert list(folders.iterdir()) == [], "the folder of the run stays"


def assert_ended(process, stand_ins):
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "everything that was started has been ended" in said and "Traceback" not in said
    left = [pid for pid in stand_ins if pathlib.Path(f"/proc/{pid}").exists()]
    assert left == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_the_demo_waits_for_an_engine_ends_everything(demo, how):
    process, started = demo(serve=":")
    assert wait_until(lambda: len(started()) == 3, 20), "two managers, and the first engine that never gets ready"
    process.send_signal(how)
    assert_ended(process, started())


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_demo_waits_for_an_answer_ends_everything(demo, how):
    with socket.create_server(("127.0.0.1", 0)) as engine:
        engine.settimeout(20)
        address = f"127.0.0.1:{engine.getsockname()[1]}"
        process, started = demo(serve=f"echo 'orbitkv serve: listening on http://{address}'", http=address)
        connection, _ = engine.accept()  # and never an answer
        with connection:
            process.send_signal(how)
            assert_ended(process, started())


def test_an_impatient_second_signal_does_not_stop_the_cleaning_up(demo):
    process, started = demo(serve=":", term="sleep 1; exit 0")
    assert wait_until(lambda: len(started()) == 3, 20)
    for _ in range(4):
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
    assert_ended(process, started())
