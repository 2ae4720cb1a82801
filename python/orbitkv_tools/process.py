"""Starts and stops the real programs: managers and engines as separate processes, on loopback and in a folder of their own.

A Cluster owns a temporary folder and every process started in it. Leaving its `with` block, by whatever way, ends them all
and removes the folder, so that a demo, a test or a benchmark cannot leave anything behind. Standard library only.
"""
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path


class StartError(RuntimeError):
    """A program ended, or stayed silent, before it said that it was ready; the message holds its last lines."""


class Program:
    """One child process in a process group of its own; its output goes to a log file and is searched for a ready line."""

    def __init__(self, name, argv, log_path, ready, env=None, ready_s=60):
        self.name = name
        self.log_path = Path(log_path)
        self._log = open(self.log_path, "ab")
        self.child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._log,
            env={**os.environ, **(env or {})}, start_new_session=True)
        self._ready = threading.Event()
        self.ready_match = None
        self._reader = threading.Thread(target=self._read, args=(re.compile(ready),), daemon=True)
        self._reader.start()
        deadline = time.monotonic() + ready_s
        while not self._ready.wait(0.02):
            if self.child.poll() is not None or time.monotonic() > deadline:
                self._reader.join(1)
                if self.ready_match:
                    break
                state = "ended" if self.child.poll() is not None else f"was not ready after {ready_s} s"
                self.kill()
                raise StartError(f"{name} {state}:\n{self.tail()}")

    def _read(self, ready):
        for line in self.child.stdout:
            self._log.write(line)
            self._log.flush()
            match = None if self.ready_match else ready.search(line.decode(errors="replace"))
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
            self.kill()
            return None
        finally:
            self._finish()

    def kill(self):
        if self.alive:
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()
        self._finish()

    def _finish(self):
        self._reader.join(5)
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
        for program in reversed(self.programs):
            if program.alive:
                program.child.send_signal(signal.SIGTERM)
        for program in reversed(self.programs):
            program.stop(wait_s=10)
        self.programs.clear()
        if not self._keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, name, argv, ready, env=None, ready_s=60):
        program = Program(name, argv, self.folder / f"{name}.log", ready, env, ready_s)
        self.programs.append(program)
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
