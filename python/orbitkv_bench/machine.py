"""The machine's limits, from the programs of bench/: memory, multiply-adds on registers, a bare socket."""
import json
import os
import subprocess

from .stats import Series

SOCKET_BYTES = (64 << 10, 1 << 20, 8 << 20)


class HelperError(RuntimeError):
    """A program of bench/ is missing or failed; the message says which and why."""


def helper(build, name, *arguments):
    """Runs a program of the build folder; its standard output."""
    path = build / "bench" / name
    if not path.exists():
        raise HelperError(f"{path} is missing; ./run build makes it")
    done = subprocess.run([path, *map(str, arguments)], capture_output=True, text=True, timeout=300,
                          stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise HelperError(f"{name} ended with status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def cores():
    return len(os.sched_getaffinity(0))


class Machine:
    """The limits of this run. A limit is the best sample, since other programs can only lower it."""

    def __init__(self, build, model, watch):
        self.build = build
        self.threads = min(2, cores())
        self.series, self.units = {}, {}
        raw, others_cores = watch.measure(
            lambda: json.loads(helper(build, "okv-bench-machine", self.threads, os.path.getsize(model))))
        for name, limit in raw.items():
            self.keep(name, limit["unit"], limit["samples"], others_cores)
        sockets, others_cores = watch.measure(lambda: raw_socket(build, SOCKET_BYTES, 25))
        for size, series in sockets.items():
            rates = [size / sample.value / 1e9 for sample in series.samples]
            self.keep(f"raw_socket_{size >> 10}_kib", "GB/s", rates, others_cores)

    def keep(self, name, unit, values, others_cores):
        self.units[name] = unit
        self.series[name] = Series()
        for value in values:
            self.series[name].add(value, others_cores)

    def best(self, name):
        return max(sample.value for sample in self.series[name].samples)

    def read_gb_s(self):
        """Reading a working set of the model's size again and again: what decoding can do at most."""
        return self.best(f"read_working_set_{self.threads}_core{'s' if self.threads > 1 else ''}")

    def f32_gflop_s(self):
        suffix = f"_{self.threads}_core{'s' if self.threads > 1 else ''}"
        return max(self.best(name) for name in self.series if name.startswith("f32_") and name.endswith(suffix))

    def as_json(self):
        return {name: {"value": round(self.best(name), 2), "unit": self.units[name]} for name in self.series}


def socket_settings(build, sizes, samples):
    """{size: {setting: [seconds]}} of okv-bench-socket."""
    found = {}
    for line in helper(build, "okv-bench-socket", samples, *sizes).splitlines():
        row = json.loads(line)
        setting = (row["connections"], row["placement"], row["buffer_bytes"], row["receive_bytes"])
        found.setdefault(row["bytes"], {})[setting] = [ns * 1e-9 for ns in row["samples_ns"]]
    return found


def quickest(by_setting, connections=None, placement=None):
    """The Series of seconds of the setting with the best median, of those with so many connections and that placement."""
    candidates = []
    for (connected, placed, *_), seconds in by_setting.items():
        if connections in (None, connected) and placement in (None, placed):
            candidates.append(Series())
            for value in seconds:
                candidates[-1].add(value)
    return min(candidates, key=lambda series: series.median)


def raw_socket(build, sizes, samples):
    """{size: Series of seconds} under the setting whose median is best for that size."""
    return {size: quickest(by_setting) for size, by_setting in socket_settings(build, sizes, samples).items()}


def fetch_line(build, port, request, reply_bytes, samples):
    """Seconds of each GET of a server that answers one line with a reply of known size, over one connection."""
    row = json.loads(helper(build, "okv-bench-socket", samples, "--get", port, request, reply_bytes))
    return [ns * 1e-9 for ns in row["samples_ns"]]
