"""What else ran on the machine while a sample was taken: other programs' processor time, and the hypervisor's.

The kernel counts in ticks of 10 ms, so a window always begins with a short wait: for the machine to calm down, and for
the ticks to mean something under a measurement of a few milliseconds.
"""
import os
import time

from .stats import NOISY_CORES, QUIET_WANTED, Series

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
CALM_WINDOW_S = 0.25
BUDGET_S = 60  # of one comparison on a machine that is slow or never quiet; a whole run has about ten


def process_seconds(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            fields = file.read().rsplit(")", 1)[1].split()
    except FileNotFoundError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) * TICK_S


class Watch:
    """Measures under observation. `programs()` yields the running orbitkv_tools.process.Program objects that are ours."""

    def __init__(self, programs, patience_s=2.0):
        self.programs, self.patience_s = programs, patience_s

    def snapshot(self):
        with open("/proc/stat", encoding="utf-8") as file:
            user, nice, system, _, _, _, _, steal = map(int, file.readline().split()[1:9])
        mine = sum(os.times()[:4]) + sum(process_seconds(program.child.pid) for program in self.programs())
        # Soft interrupts are left out: those of loopback traffic are ours and belong to no process.
        return time.perf_counter(), (user + nice + system + steal) * TICK_S, mine

    @staticmethod
    def others(before, after):
        """Cores that were busy between two snapshots with something that is not ours."""
        elapsed = after[0] - before[0]
        return max(0.0, (after[1] - before[1]) - (after[2] - before[2])) / elapsed

    def settle(self):
        """Waits for a calm moment, but not for ever; returns the snapshot from which the sample's window runs."""
        deadline = time.monotonic() + self.patience_s
        while True:
            before = self.snapshot()
            time.sleep(CALM_WINDOW_S)
            if self.others(before, self.snapshot()) <= NOISY_CORES or time.monotonic() > deadline:
                return before

    def measure(self, function):
        """(what `function` returns, cores used by others meanwhile)"""
        before = self.settle()
        result = function()
        return result, self.others(before, self.snapshot())


def alternate(watch, samples, steps, progress=lambda text: None, budget_s=BUDGET_S, clock=time.monotonic):
    """Runs the steps in turn, round after round. Each step returns {metric: value}; the answer is {metric: Series}.

    Ends after `samples` rounds in which everything was quiet, and in any case after twice as many, or when `budget_s` is
    over and three rounds are done; a machine so slow that three take thrice the time does fewer.
    """
    series, begin = {}, clock()
    for number in range(1, 2 * samples + 1):
        if clock() - begin > budget_s * (1 if number > QUIET_WANTED else 3):
            break
        for name, step in steps.items():
            progress(f"round {number}: {name}")
            result, others_cores = watch.measure(step)
            for metric, value in result.items():
                series.setdefault(metric, Series()).add(value, others_cores)
        if all(len(one.quiet) >= samples for one in series.values()):
            break
    return series
