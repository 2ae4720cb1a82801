"""Starts and stops the real programs: managers and engines as processes of their own, on loopback, in one folder.

A Cluster owns a temporary folder and every process started in it. Leaving its `with` block, by whatever way, ends them
all and removes the folder, so that a demo, a test or a benchmark cannot leave anything behind; a program that calls
end_on_signals() leaves it on SIGTERM too. Standard library only.
"""
import contextlib
import http.client
import json
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path


class StartError(RuntimeError):
    """A program ended, or stayed silent, before it said that it was ready; the message holds its last lines."""


def end_on_signals():
    """Lets SIGTERM and a hang-up unwind the main thread as Ctrl-C does, so that `with` blocks end what was started."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # ignored: `nohup` wants it so
            signal.signal(number, signal.default_int_handler)


@contextlib.contextmanager
def held_signals():
    """Ctrl-C, SIGTERM and a hang-up wait until the block is over: a child is noted once started, and ended for sure."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread is interrupted
        return
    held, before = [], {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        before[number] = signal.signal(number, lambda number, _: held.append(number)) or signal.SIG_DFL
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if held:
            signal.raise_signal(held[0])


class Program:
    """One child process in a process group of its own; its output goes to a log file and is searched for a ready line.

    The group ends with the child: what the child started and left behind is killed and reported by `left_behind`. A
    process that left the group may hold the child's stdout for ever, and is not waited for.
    """

    def __init__(self, name, argv, log_path, ready, env=None):
        self.name = name
        self.log_path = Path(log_path)
        self.ready_match = None
        self.left_behind = False
        self._ready_pattern = re.compile(ready)
        self._ready = threading.Event()
        self._is_over = False
        self._log = open(self.log_path, "ab")
        try:
            self.child = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._log, bufsize=0,
                env={**os.environ, **(env or {})}, start_new_session=True)
        except OSError:
            self._log.close()
            raise
        self._enough, self._say_enough = os.pipe()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_until_ready(self, ready_s=60):
        """Returns once the ready line came; else the program is ended and StartError says its last words."""
        deadline = time.monotonic() + ready_s
        while not self._ready.wait(0.02):
            if self.alive and time.monotonic() < deadline:
                continue
            state = f"was not ready after {ready_s} s" if self.alive else "ended"
            self.kill()
            if not self.ready_match:  # what was still in the pipe has been read by now
                raise StartError(f"{self.name} {state}:\n{self.tail()}")

    def _read(self):
        """Until stdout ends, or kill() says that the rest is not waited for."""
        output, line, last_reads = self.child.stdout.fileno(), b"", 16  # a pipe holds 64 KiB
        poll = select.poll()
        for descriptor in (output, self._enough):
            poll.register(descriptor, select.POLLIN)
        while last_reads:
            events = dict(poll.poll())
            last_reads -= self._enough in events
            if output not in events:
                break
            data = os.read(output, 64 << 10)
            if not data:
                break
            self._log.write(data)
            self._log.flush()
            *lines, line = (line + data).split(b"\n")
            self._look_for_ready(lines)
        self._look_for_ready([line])

    def _look_for_ready(self, lines):
        for line in lines:
            match = None if self.ready_match else self._ready_pattern.search(line.decode(errors="replace"))
            if match:
                self.ready_match = match
                self._ready.set()

    def tail(self, lines=12):
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    @property
    def alive(self):
        return self.child.poll() is None

    def stop(self, wait_s=10):
        """Asks by SIGTERM; returns the exit status, or None if it had to be killed after `wait_s`."""
        if self.alive:
            self.child.send_signal(signal.SIGTERM)
        try:
            return self.child.wait(wait_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.kill()

    def kill(self):
        """Ends the child, if it lives, and its group at once."""
        if self._is_over:
            return
        self._is_over = True
        ended_before = not self.alive
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)  # the number stays the group's while it has a member
            self.left_behind = ended_before
        self.child.wait()
        os.close(self._say_enough)
        self._reader.join()
        os.close(self._enough)
        self.child.stdout.close()
        self._log.close()


class Http:
    """One program's HTTP address."""

    def __init__(self, address):
        self.address = address

    def call(self, method, path, body=None, timeout_s=120):
        """(status, text) of one request; `body` is sent as JSON unless it is bytes."""
        host, port = self.address.rsplit(":", 1)
        connection = http.client.HTTPConnection(host, int(port), timeout=timeout_s)
        try:
            payload = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
            headers = {"Content-Type": "application/json"} if payload is not None else {}
            connection.request(method, path, payload, headers)
            reply = connection.getresponse()
            return reply.status, reply.read().decode(errors="replace")
        finally:
            connection.close()

    def json(self, method, path, body=None, timeout_s=120):
        status, text = self.call(method, path, body, timeout_s)
        if status != 200:
            raise RuntimeError(f"{method} {path}: {status} {text[:400]}")
        return json.loads(text)

    def metrics(self):
        """{name or name{labels}: value} of /metrics; a missing name is missing, never zero."""
        status, text = self.call("GET", "/metrics", timeout_s=10)
        if status != 200:
            raise RuntimeError(f"GET /metrics: {status}")
        values = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                values[name] = float(value)
        return values

    def stream(self, path, body, timeout_s=120):
        """Streams a completion: (text, seconds to the first token, usage, finish_reason)."""
        host, port = self.address.rsplit(":", 1)
        connection = http.client.HTTPConnection(host, int(port), timeout=timeout_s)
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        text, first_s, usage, finish = "", None, None, None
        start = time.perf_counter()
        try:
            connection.request("POST", path, json.dumps(body).encode(), {"Content-Type": "application/json"})
            reply = connection.getresponse()
            if reply.status != 200:
                raise RuntimeError(f"POST {path}: {reply.status} {reply.read()[:400]!r}")
            for line in reply:
                if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    raise RuntimeError(f"POST {path}: {event['error']}")
                for choice in event.get("choices", []):
                    piece = choice["delta"].get("content") if "delta" in choice else choice.get("text")
                    if piece:
                        first_s = first_s or time.perf_counter() - start
                        text += piece
                    finish = choice.get("finish_reason") or finish
                usage = event.get("usage") or usage
        finally:
            connection.close()
        return text, first_s, usage, finish


class Manager(Http):
    def __init__(self, program, socket):
        super().__init__(program.ready_match.group(1))
        self.program, self.socket = program, socket
        self.peer_address = program.ready_match.group(2)


class Engine(Http):
    def __init__(self, program):
        super().__init__(program.ready_match.group(1))
        self.program = program

    def published_pages(self):
        """Pages that the manager has taken or had: what is counted here can be restored elsewhere."""
        return self.metrics()["orbitkv_engine_published_pages_total"]

    def unpublished_pages(self):
        """Pages of answers given so far that the manager has not answered for yet."""
        return self.metrics()["orbitkv_engine_unpublished_pages"]


class Cluster:
    """Managers and engines of one run."""

    def __init__(self, orbitkv, model, keep=False):
        self.orbitkv, self.model, self._keep = str(orbitkv), str(model), keep
        self.folder = Path(tempfile.mkdtemp(prefix="orbitkv-"))
        self.programs = []

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        self.close()

    def close(self):
        with held_signals():
            for program in reversed(self.programs):
                if program.alive:
                    program.child.send_signal(signal.SIGTERM)
            for program in reversed(self.programs):
                program.stop(wait_s=10)
            self.programs.clear()
            if not self._keep:
                shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, name, argv, ready, env=None, ready_s=60):
        with held_signals():
            program = Program(name, argv, self.folder / f"{name}.log", ready, env)
            self.programs.append(program)
        program.wait_until_ready(ready_s)
        return program

    def manager(self, name, peers=(), listen="127.0.0.1:0", faults="", options=(), socket=None):
        """A manager on ports of its own; `peers` are addresses of others, `faults` arms fault points."""
        socket = socket or self.folder / f"{name}.sock"
        argv = [self.orbitkv, "manager", "--socket", str(socket), "--http", "127.0.0.1:0", "--listen", listen, *options]
        for peer in peers:
            argv += ["--peer", peer]
        program = self.start(name, argv, r"orbitkv manager: ready\b.*http=(\S+).* peer=(\S+)",
                             {"ORBITKV_FAULTS": faults})
        return Manager(program, socket)

    def engine(self, name, manager=None, options=()):
        argv = [self.orbitkv, "serve", "--model", self.model, "--port", "0", *options]
        if manager:
            argv += ["--manager", str(manager.socket)]
        program = self.start(name, argv, r"orbitkv serve: listening on http://(\S+)")
        return Engine(program)


def free_port():
    """A loopback port that was free a moment ago, for programs whose peers must know it before they start."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(condition, limit_s, step_s=0.05):
    """Polls until `condition()` is true; False at the limit."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(step_s)
    return True
