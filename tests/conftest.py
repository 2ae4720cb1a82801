"""Fixtures of every Python test, and what is looked at after each of them.

orbitkv        path of the program under test (ORBITKV_BIN, else build-release/orbitkv)
build          "release" or "asan": which build it is
model_path     path of the real model; the test is skipped where it could not be fetched
tiny           path of a model of random weights with a vocabulary of single bytes and a few merges
tiny_with_bos  the same, but texts begin with token 1
free_port      a function that returns a loopback TCP port nobody listens on
start          starts one program (orbitkv_tools.process.Program) that is stopped at the end and must stop well

Whatever started the processes: a test fails if one of them outlives it, if one was reported by a sanitizer, or if it
takes too long.
"""
import ctypes
import os
import pathlib
import signal
import subprocess

import pytest
from orbitkv_tools import process

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
PR_SET_CHILD_SUBREAPER = 36
SECONDS_FOR_ONE_TEST = 300


def pytest_configure(config):
    # Orphans of our children become our own children, so that none can hide from the look after each test.
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # A run in the background, or under nohup, ignores these, and so would every program that it starts and signals.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def build():
    return os.environ.get("ORBITKV_BUILD", "release")


@pytest.fixture(scope="session")
def orbitkv():
    path = pathlib.Path(os.environ.get("ORBITKV_BIN") or ROOT / "build-release" / "orbitkv")
    if not path.exists():
        pytest.fail(f"{path} is not there: ./run build makes it", pytrace=False)
    return path


@pytest.fixture(scope="session")
def model_path():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    path = pathlib.Path(os.environ.get("ORBITKV_MODEL") or pathlib.Path(cache) / "orbitkv" / MODEL_NAME)
    if not path.exists():
        pytest.skip("the model is not here and could not be fetched (offline?): ./run setup model")
    return path


@pytest.fixture(scope="session")
def tiny(orbitkv, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    subprocess.run([orbitkv.parent / "make-tiny-gguf", path, "q4_1"], check=True)
    return str(path)


@pytest.fixture(scope="session")
def tiny_with_bos(tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny-with-bos.gguf"
    key = b"tokenizer.ggml.add_bos_token" + (7).to_bytes(4, "little")  # a bool
    truth = pathlib.Path(tiny).read_bytes().replace(key + b"\0", key + b"\1")
    assert key + b"\1" in truth
    path.write_bytes(truth)
    return str(path)


@pytest.fixture(scope="session")
def free_port():
    return process.free_port


@pytest.fixture
def start(tmp_path):
    """start(argv, ready="", env=None, ready_s=60) -> Program; `ready` is a pattern that a line of its stdout matches."""
    programs = []

    def start_one(argv, ready="", env=None, ready_s=60):
        argv = [str(word) for word in argv]
        name = f"{len(programs)}-{os.path.basename(argv[0])}"
        program = process.Program(name, argv, tmp_path / f"{name}.log", ready, env)
        programs.append(program)
        program.wait_until_ready(ready_s)
        return program

    yield start_one
    complaints = []
    for program in reversed(programs):
        ended_before = not program.alive
        status = program.stop()
        if status is None:
            complaints.append(f"{program.name} did not end on SIGTERM and was killed")
        elif status < 0 and -status not in (signal.SIGTERM, signal.SIGKILL):
            complaints.append(f"{program.name} died of signal {-status}" + (" during the test" if ended_before else ""))
        if program.left_behind:
            complaints.append(f"{program.name} left processes of its own behind, which were killed")
        print(f"--- {program.name} ended with {status}\n{program.tail(60)}")
    if complaints:
        pytest.fail("\n".join(complaints), pytrace=False)


def children_of_this_process():
    """Pids of our living children. Zombies are no leftovers: their memory and ports are free."""
    found = set()
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == os.getpid() and state not in "ZX":
            found.add(int(entry.name))
    return found


@pytest.fixture(autouse=True)
def nothing_is_left_running():
    before = children_of_this_process()
    yield
    names = []
    for pid in children_of_this_process() - before:
        try:
            names.append(pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip())
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (FileNotFoundError, ProcessLookupError, ChildProcessError):
            continue
    if names:
        pytest.fail(f"processes outlived the test and were killed: {names}", pytrace=False)


def sanitizer_reports():
    """Files that sanitized programs wrote: log_path in ASAN_OPTIONS, as ./run test sets it, is the start of their names."""
    for option in os.environ.get("ASAN_OPTIONS", "").split(":"):
        name, _, value = option.partition("=")
        if name == "log_path":
            start = pathlib.Path(value)
            return set(start.parent.glob(start.name + "*"))
    return set()


@pytest.fixture(autouse=True)
def no_sanitizer_reports():
    before = sanitizer_reports()
    yield
    texts = [path.read_text(errors="replace") for path in sorted(sanitizer_reports() - before)]
    if texts:
        pytest.fail("\n".join(texts), pytrace=False)


@pytest.fixture(autouse=True)
def a_test_ends_in_time(build):
    """A hanging test fails with a trace instead of holding up the run."""
    def too_late(number, frame):
        pytest.fail("the test took too long")

    old = signal.signal(signal.SIGALRM, too_late)
    signal.alarm(SECONDS_FOR_ONE_TEST * (1 if build == "release" else 3))
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, old)
