"""What classes of rows come to, and the bars that they are held against.

A class is a mapping from the names of rows to their values: ratios of the rival's time to ours, seconds, counts. A
script gives its classes by label, with the bar of each that has one, and writes what they came to beside its report,
in `FILE.summary.json`; `benchmarks.everything` makes one table of such files.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from benchmarks import harness
from benchmarks.harness import Row, geomean
from ucutlass import files

Classes: TypeAlias = Mapping[str, Mapping[str, float]]
"""Values by the names of rows, by the labels of classes."""


@dataclass(frozen=True, slots=True)
class Bar:
    """What a class must reach; None asks for nothing. `geomean` and `least` bound ratios from below, `median` and
    `most` seconds and counts from above; `share` is a value and the share of the rows that must reach it."""

    geomean: float | None = None
    least: float | None = None
    median: float | None = None
    most: float | None = None
    share: tuple[float, float] | None = None

    def __str__(self) -> str:
        words = [
            f"{name} {value}" for name, value in asdict(self).items() if value is not None and name != "share"
        ]
        if self.share is not None:
            words.append(f"{self.share[0]:.3f} by {self.share[1]:.0%}")
        return ", ".join(words)


NO_BAR = Bar()


@dataclass(frozen=True, slots=True)
class Figure:
    """What a class came to. `spread` is the largest of its rows', where they have one."""

    label: str
    values: Mapping[str, float]
    bar: Bar = NO_BAR
    spread: float | None = None

    @property
    def geomean(self) -> float | None:
        """None where a value has no logarithm."""
        values = list(self.values.values())
        return geomean(values) if min(values) > 0 else None

    @property
    def median(self) -> float:
        return statistics.median(self.values.values())

    @property
    def least(self) -> tuple[float, str]:
        return min((value, name) for name, value in self.values.items())

    @property
    def most(self) -> tuple[float, str]:
        return max((value, name) for name, value in self.values.items())

    def reaching(self, value: float) -> int:
        return sum(own >= value for own in self.values.values())

    @property
    def missed(self) -> tuple[str, ...]:
        """Says which parts of the bar are missed. What is no number misses every part."""
        bar, mean = self.bar, self.geomean
        reached = {
            f"geomean {bar.geomean}": bar.geomean is None or (mean is not None and mean >= bar.geomean),
            f"least {bar.least}": bar.least is None or self.least[0] >= bar.least,
            f"median {bar.median}": bar.median is None or self.median <= bar.median,
            f"most {bar.most}": bar.most is None or self.most[0] <= bar.most,
        }
        if any(math.isnan(value) for value in self.values.values()):
            return tuple(words for words in reached if not words.endswith("None")) or ("not a number",)
        if bar.share is not None:
            value, share = bar.share
            words = f"{share:.0%} of at least {value:.3f}"
            reached[words] = self.reaching(value) >= share * len(self.values)
        return tuple(words for words, held in reached.items() if not held)

    def as_json(self) -> Row:
        return {
            "class": self.label,
            "rows": len(self.values),
            "geomean": self.geomean,
            "median": self.median,
            "least": self.least,
            "most": self.most,
            "spread": self.spread,
            "bar": str(self.bar),
            "below": None if self.bar.least is None else len(self.values) - self.reaching(self.bar.least),
            "share": None if self.bar.share is None else self.reaching(self.bar.share[0]) / len(self.values),
            "missed": self.missed,
        }


def figures(
    classes: Classes, bars: Mapping[str, Bar] = MappingProxyType({}), rows: Sequence[Row] = ()
) -> list[Figure]:
    """Returns the figures of the classes that have rows, each with the largest spread of its rows. Raises KeyError
    for a bar of no class."""
    if unknown := [label for label in bars if label not in classes]:
        raise KeyError(f"bars of no class: {', '.join(unknown)}")
    spreads = {row["name"]: row["spread"] for row in rows if "spread" in row}
    return [
        Figure(
            label,
            values,
            bars.get(label, NO_BAR),
            max((spreads[name] for name in values if name in spreads), default=None),
        )
        for label, values in classes.items()
        if values
    ]


def classed(
    rows: Sequence[Row], value: Callable[[Row], float | None], label: Callable[[Row], str]
) -> dict[str, dict[str, float]]:
    """Returns the values of rows by their labels; rows whose value is None are left out."""
    classes: dict[str, dict[str, float]] = {}
    for row in rows:
        if (own := value(row)) is not None:
            classes.setdefault(label(row), {})[row["name"]] = own
    return classes


def lines(every: Sequence[Figure]) -> list[str]:
    """Returns a line for each figure."""
    return [_line(figure) for figure in every]


def _line(figure: Figure) -> str:
    value, name = figure.least if figure.bar.most is None else figure.most
    end = "least" if figure.bar.most is None else "most"
    mean = f"geomean {figure.geomean:.3f}" if figure.geomean is not None else f"median {figure.median:.3f}"
    spread = "" if figure.spread is None else f", spread {figure.spread:.3f}"
    words = f"{figure.label}: {mean}, {end} {value:.3f} ({name}), {len(figure.values)} rows{spread}"
    if figure.bar == NO_BAR:
        return words
    return f"{words}; bar {figure.bar}: {'missed: ' + '; '.join(figure.missed) if figure.missed else 'held'}"


def summary_path(out: Path) -> Path:
    return out.with_suffix(".summary.json")


def write_summary(
    out: Path,
    every: Sequence[Figure],
    machine: Mapping[str, str],
    *,
    wrong: Sequence[str] = (),
    unreached: Sequence[str] = (),
) -> None:
    """Writes what the classes came to, and which rows are wrong or lost, and which were not reached."""
    summary = {
        "machine": dict(machine),
        "classes": [figure.as_json() for figure in every],
        "wrong": list(wrong),
        "not reached": list(unreached),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    files.write(summary_path(out), json.dumps(summary, indent=1))


def status(every: Sequence[Figure], wrong: Sequence[str], unreached: Sequence[str]) -> int:
    """Returns the exit status of a run: 1 where a row is wrong or lost or a bar is missed, 3 where rows were not
    reached, else 0."""
    if wrong or any(figure.missed for figure in every):
        return 1
    return 3 if unreached else 0


def held_to_none(faulty: Mapping[str, bool], count: int, out: Path | None) -> int:
    """Holds drawn cases, by their names whether each is wrong or failed, against none that is; of `count` those that are
    not among them were not reached. Writes the summary beside `out`, and returns the exit status."""
    values = {"wrong or failed": {name: float(fault) for name, fault in faulty.items()}}
    every = figures(values, {"wrong or failed": Bar(most=0)})
    wrong = [name for name, fault in faulty.items() if fault]
    unreached = ["modules"] * (count - len(faulty))
    if out:
        write_summary(out, every, harness.machine(), wrong=wrong, unreached=unreached)
    return status(every, wrong, unreached)
