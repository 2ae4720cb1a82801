"""Samples, what they add up to, and the rows that `./run bench` writes and shows.

A Sample knows how many cores other programs used while it was taken. A noisy one is kept, marked, and left out of the
median only while at least three quiet ones remain; a row that had to use noisy ones says so.
"""
import json
import re
import statistics
from dataclasses import dataclass, field

NOISY_CORES = 0.08  # of other programs and of the hypervisor together: 4 % of two cores
QUIET_WANTED = 3


@dataclass
class Sample:
    value: float
    others_cores: float = 0.0

    @property
    def noisy(self):
        return self.others_cores > NOISY_CORES

    def as_json(self):
        return {"value": round(self.value, 6), "others_cores": round(self.others_cores, 3), "noisy": self.noisy}


@dataclass
class Series:
    samples: list = field(default_factory=list)

    def add(self, value, others_cores=0.0):
        self.samples.append(Sample(value, others_cores))

    @property
    def quiet(self):
        return [sample for sample in self.samples if not sample.noisy]

    @property
    def used(self):
        """The samples that count: the quiet ones if they are enough, else all."""
        quiet = self.quiet
        return quiet if len(quiet) >= min(QUIET_WANTED, len(self.samples)) else self.samples

    @property
    def noisy(self):
        return any(sample.noisy for sample in self.used)

    @property
    def median(self):
        return statistics.median(sample.value for sample in self.used)


BAR = re.compile(r"(>=|<=) (\d+(?:\.\d+)?)x")


def holds(ratio, bar):
    """True or False; None where there is no bar to hold."""
    if bar is None:
        return None
    match = BAR.fullmatch(bar)
    if not match:
        raise ValueError(f"a bar reads '>= 1.2x' or '<= 2x', not {bar!r}")
    limit = float(match.group(2))
    return ratio >= limit if match.group(1) == ">=" else ratio <= limit


def make_row(bench, unit, value, against_name=None, against=None, bar=None, inverse=False):
    """One row. `value` and `against` are Series; the ratio is value/against, or with `inverse` against/value: how many
    times less our time is than theirs."""
    row = {"bench": bench, "value": value.median, "unit": unit, "against": against_name, "against_value": None,
           "ratio": None, "ratio_is": None, "bar": bar, "holds": None, "samples": [s.as_json() for s in value.samples],
           "against_samples": None, "noisy": value.noisy}
    if against is None:
        if bar is not None:
            raise ValueError(f"{bench}: a bar needs something to be held against")
        return row
    row["against_value"] = against.median
    row["ratio_is"] = "against/value" if inverse else "value/against"
    over, under = (against.median, value.median) if inverse else (value.median, against.median)
    row["ratio"] = over / under if under else None
    if row["ratio"] is None and bar is not None:
        raise ValueError(f"{bench}: a ratio to zero holds no bar")
    row["holds"] = holds(row["ratio"], bar)
    row["against_samples"] = [s.as_json() for s in against.samples]
    row["noisy"] = value.noisy or against.noisy
    return row


def rounded(row):
    """The row with its figures cut to what was measured; six significant digits are more than a clock here gives."""
    return {key: float(f"{value:.6g}") if isinstance(value, float) else value for key, value in row.items()}


def append_json(path, row):
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(rounded(row)) + "\n")


def read_json(path):
    """The rows of a file; the last one of each bench, in the order of their first appearance."""
    rows = {}
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    row = json.loads(line)
                    rows[row["bench"]] = row
                except (ValueError, TypeError, KeyError) as error:
                    raise ValueError(f"{path}:{number}: not a row of ./run bench ({error})") from error
    return list(rows.values())


def figure(value):
    """Three significant digits, never in powers of ten."""
    if value is None:
        return ""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}"


def verdict(row):
    return {True: "yes", False: "NO", None: ""}[row["holds"]]


def cells(row):
    """What a reader sees of a row: bench, value, against, its value, ratio, bar, holds, noise."""
    unit = row["unit"]
    return [row["bench"], f"{figure(row['value'])} {unit}", row["against"] or "",
            f"{figure(row['against_value'])} {unit}" if row["against"] else "",
            f"{figure(row['ratio'])}x" if row["ratio"] is not None else "", row["bar"] or "", verdict(row),
            "noisy" if row["noisy"] else ""]


TITLES = ["bench", "ours", "against", "theirs", "ratio", "bar", "holds", ""]
WIDTHS = [30, 15, 38, 15, 8, 9, 6, 5]


def table_line(texts):
    return " ".join(f"{text:{'<' if column in (0, 2) else '>'}{width}}"
                    for column, (text, width) in enumerate(zip(texts, WIDTHS))).rstrip()
