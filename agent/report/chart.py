"""This module has charts as plain values: axes with round ticks, lines, marks. The page's template draws them
as SVG.

Its own, and small: what libraries there are put styles on each element or bring scripts, and the page
allows neither; plotly alone is 4 MB. Colours are the page's classes, so that a chart turns dark with it;
words are escaped where all are, in the template.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

WIDTH = 720
LEFT, RIGHT, TOP, BOTTOM = 78, 704, 18, 44
"""Pixels of the plot within the picture; BOTTOM is the room below it."""

MarkShape: TypeAlias = Literal["dot", "cross", "diamond"]


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    words: str


@dataclass(frozen=True, slots=True)
class ChartAxis:
    """Maps values `low` to `high` onto pixels `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def at(self, value: float) -> float:
        """Returns the pixel of a value; one beyond the axis lands on its end."""
        low, high, here = self.low, self.high, max(value, self.low) if self.log else value
        if self.log:
            low, high, here = math.log(low), math.log(high), math.log(here)
        share = min(1.0, max(0.0, (here - low) / (high - low)))
        return round(self.start + share * (self.end - self.start), 1)


@dataclass(frozen=True, slots=True)
class Mark:
    """Describes a point. `kind` is its class, `link` the id of the element of the page that it leads to."""

    x: float
    y: float
    shape: MarkShape
    kind: str
    words: str
    link: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    """Describes a line through points."""

    points: tuple[tuple[float, float], ...]
    kind: str
    words: str

    @property
    def drawn(self) -> str:
        return " ".join(f"{x:g},{y:g}" for x, y in self.points)


@dataclass(frozen=True, slots=True)
class Label:
    x: float
    y: float
    words: str
    kind: str = ""
    anchor: Literal["start", "middle", "end"] = "start"


@dataclass(frozen=True, slots=True)
class Chart:
    """`says` is for those who do not see it. `across` and `up` name the axes."""

    id: str
    title: str
    says: str
    height: float
    x_ticks: tuple[Tick, ...] = ()
    y_ticks: tuple[Tick, ...] = ()
    across: str = ""
    up: str = ""
    curves: tuple[Curve, ...] = ()
    marks: tuple[Mark, ...] = ()
    labels: tuple[Label, ...] = ()

    @property
    def floor(self) -> float:
        """Returns the pixel of the plot's lower edge."""
        return self.height - BOTTOM


def linear(low: float, high: float, start: float, end: float) -> ChartAxis:
    return ChartAxis(low, high if high > low else low + 1, start, end, False)


def logarithmic(values: Iterable[float], start: float, end: float, margin: float = 1.08) -> ChartAxis:
    """Returns an axis around positive values, with a little room at both ends."""
    positives = list(values)
    return ChartAxis(min(positives) / margin, max(positives) * margin, start, end, True)


_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


def round_values(axis: ChartAxis, most: int = 8) -> list[float]:
    """Returns round values within an axis, at most so many: what its ticks stand at."""
    if axis.log:
        for within in ((1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8), (1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1,)):
            powers = range(math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high)) + 1)
            ticks = [w * 10.0**p for p in powers for w in within if axis.low <= w * 10.0**p <= axis.high]
            if 2 <= len(ticks) <= most:
                return ticks
        if len(ticks) > most:
            return ticks[:: math.ceil(len(ticks) / most)]
    rough = (axis.high - axis.low) / max(1, most - 1)
    step = next(s * p for p in [10.0 ** math.floor(math.log10(rough))] for s in _STEPS if s * p >= rough)
    first = math.ceil(axis.low / step - 1e-9)
    return [n * step for n in range(first, math.floor(axis.high / step + 1e-9) + 1)]


def number(value: float) -> str:
    """Returns three digits, with k, M, G, T or P from a thousand on."""
    for size, prefix in ((1e15, " P"), (1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{prefix}"
    return f"{value:.3g}"
