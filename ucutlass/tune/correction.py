"""This module corrects the estimate by what was measured: kernels that are alike are wrong alike.

The cost model is off by a factor that neighbours share, since they run into the same limit. A kernel's
correction is the mean log of measured over estimated time of the kernels measured so far, each weighed
by its likeness; a prior of weight `PRIOR` on "the estimate is right" keeps one measurement from ruling.
Nothing is kept from one shape to the next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from operator import attrgetter, ne

from ucutlass.ir.schedule import PartialSchedule

APART = 1.0
"""Distance at which one kernel says 1 / e of what it says of itself."""

PRIOR = 0.1
"""Measurements that the bare estimate counts for: a kernel that was measured is believed, one that is
unlike all that were keeps its estimate."""

_FIELDS = (
    "warps",
    "cluster",
    "swap",
    "split_k",
    "math",
    "rows",
    "columns",
    "threads",
    "warp_tile",
    "vector",
    "items",
    "keep",
    "blocks",
)
_VALUES = attrgetter(*_FIELDS)
_STEP = 0.5
"""Distance of another value in one of these fields, and of a tile's side twice as long."""


def distance(a: PartialSchedule, b: PartialSchedule) -> float:
    """Returns how unlike two schedules are: 0 for the same binary."""
    # Asked some hundred thousand times a search: every group against everything measured.
    changed: int = sum(map(ne, _VALUES(a), _VALUES(b)))
    return _STEP * (changed + _tiles(a.tile, b.tile))


def _tiles(a: Sequence[int] | None, b: Sequence[int] | None) -> float:
    if a is None or b is None:
        return 0.0 if a is b else 1.0
    return math.fsum(map(_twice, a, b))


@cache
def _twice(x: int, y: int) -> float:
    """Returns how many times one side is twice the other."""
    return abs(math.log2(x / y))


def factor(of: PartialSchedule, measured: Sequence[tuple[PartialSchedule, float]]) -> float:
    """Returns what to multiply the estimate of a schedule with, 1 where nothing was measured; `measured`
    pairs schedules with the log of their measured over their estimated time. 1 where nothing was measured."""
    weights = [math.exp(-distance(of, other) / APART) for other, _ in measured]
    total = sum(w * log for w, (_, log) in zip(weights, measured, strict=True))
    return math.exp(total / (PRIOR + sum(weights)))
