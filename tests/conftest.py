"""Fixtures of every Python test: where the program and the model are, free ports, and processes that never outlive a test.

orbitkv        path of the program under test (ORBITKV_BIN, else build-release/orbitkv)
build          "release" or "asan": which build it is
model_path     path of the real model; the test is skipped where it could not be fetched
free_port      a function that returns a TCP port of 127.0.0.1 nobody listens on
processes      starts children (see Processes); they are stopped at the end and their ends are judged
"""
import ctypes
import os
import pathlib
import signal
import socket
import subprocess
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SANITIZER_WORDS = ("ERROR: AddressSanitizer", "ERROR: LeakSanitizer", "WARNING: ThreadSanitizer", "runtime error: ")
PR_SET_CHILD_SUBREAPER = 36
SECONDS_FOR_ONE_TEST = 300


def pytest_configure(config):
    # Orphans of our children become our own children, so that none can hide from the check after each test.
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Child:
    """One started process. `output()` is what it wrote to stdout and stderr so far, together."""

    def __init__(self, argv, log_path, **options):
        self.argv = [str(word) for word in argv]
        self.log_path = log_path
        self.stopped_by_us = False
        with open(log_path, "wb") as log:
            self.popen = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                          start_new_session=True, **options)

    @property
    def pid(self):
        return self.popen.pid

    def output(self):
        return self.log_path.read_text(errors="replace")

    def is_running(self):
        return self.popen.poll() is None

    def wait_for(self, condition, timeout=30):
        """Waits until `condition` holds: a text in the output, or a function that returns true. Returns its result."""
        end = time.monotonic() + timeout
        while True:
            result = condition in self.output() if isinstance(condition, str) else condition()
            if result:
                return result
            words = condition if isinstance(condition, str) else getattr(condition, "__name__", "condition")
            if not self.is_running():
                pytest.fail(f"{self.argv[0]} ended with {self.popen.returncode} before: {words}\n{self.output()}")
            if time.monotonic() > end:
                pytest.fail(f"{self.argv[0]} after {timeout} s still not: {words}\n{self.output()}")
            time.sleep(0.02)

    def wait(self, timeout=30):
        """Waits for the process to end by itself; returns its exit status (negative: the signal)."""
        return self.popen.wait(timeout)

    def stop(self, number=signal.SIGTERM, timeout=15):
        """Sends a signal and waits for the end; a process that ignores it fails the test. Returns the exit status."""
        if self.is_running():
            self.stopped_by_us = True
            self.popen.send_signal(number)
            self.popen.send_signal(signal.SIGCONT)  # a test may have stopped it with SIGSTOP
        try:
            return self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            pytest.fail(f"{self.argv[0]} was still there {timeout} s after signal {int(number)}\n{self.output()}")

    def kill(self):
        """SIGKILL to the process and whatever it started in its session."""
        self.stopped_by_us = True
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        return self.popen.wait()


class Processes:
    """Starts children and judges how they end.

        manager = processes.start([orbitkv, "manager", "--socket", path], ready="listening")
        ...
        assert manager.stop() == 0

    At the end of the test (or module, see `module_processes`) what still runs is stopped with SIGTERM. The test fails if
    one does not stop, if a sanitizer wrote into its output, or if it died of a signal that we did not send.
    """

    def __init__(self, folder):
        self.folder = folder
        self.children = []

    def start(self, argv, ready=None, timeout=30, **options):
        name = f"{len(self.children)}-{os.path.basename(str(argv[0]))}.log"
        child = Child(argv, self.folder / name, **options)
        self.children.append(child)
        if ready is not None:
            child.wait_for(ready, timeout)
        return child

    def finish(self):
        complaints = []
        for child in reversed(self.children):
            died_alone = child.popen.poll() is not None and child.popen.returncode < 0 and not child.stopped_by_us
            try:
                child.stop()
            except pytest.fail.Exception as failure:
                complaints.append(failure.msg)
            output = child.output()
            print(f"--- {' '.join(child.argv)} ended with {child.popen.returncode}\n{output[-8000:]}")
            if died_alone:
                complaints.append(f"{child.argv[0]} died of signal {-child.popen.returncode}")
            complaints += [f"{child.argv[0]}: {word}" for word in SANITIZER_WORDS if word in output]
        self.children = []
        if complaints:
            pytest.fail("\n".join(complaints), pytrace=False)


def children_of_this_process():
    """Pids of our living children. Zombies are no leftovers: their bytes and ports are free."""
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
    left = children_of_this_process() - before
    names = []
    for pid in left:
        try:
            names.append(pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip())
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (FileNotFoundError, ProcessLookupError, ChildProcessError):
            continue
    if names:
        pytest.fail(f"processes outlived the test and were killed: {names}", pytrace=False)


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
def free_port():
    def pick():
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return probe.getsockname()[1]

    return pick


@pytest.fixture
def processes(tmp_path):
    started = Processes(tmp_path)
    yield started
    started.finish()


@pytest.fixture(scope="module")
def module_processes(tmp_path_factory):
    """As `processes`, for a server that all tests of one file share."""
    started = Processes(tmp_path_factory.mktemp("module"))
    yield started
    started.finish()
