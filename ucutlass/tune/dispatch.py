"""This module covers many shapes with few schedules: it says which ones, and which shape takes which.

A shape may take any schedule that keeps `KEEP` of the speed of its winner. The schedules are chosen
greedily, always the one that serves most shapes (or most weight) not served yet, which is at most
ln(n) + 1 times as many as needed (Chvatal, A greedy heuristic for the set-covering problem,
Mathematics of Operations Research 4 (1979)); then each shape takes the fastest of those chosen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TypeAlias

from ucutlass.ir.schedule import PartialSchedule

KEEP = 0.98
"""Of the speed of a shape's winner, that the schedule it is given must have."""


@dataclass(frozen=True, slots=True)
class ShapeTimes:
    """Describes one shape: its winner, and seconds of every schedule that was timed for it, the winner
    too."""

    winner: PartialSchedule
    seconds: Mapping[PartialSchedule, float]
    weight: float = 1.0

    def share(self, request: PartialSchedule) -> float:
        """Returns the winner's time over this schedule's."""
        return self.seconds[self.winner] / self.seconds[request]


Banned: TypeAlias = Set[tuple[int, PartialSchedule]]
"""Shapes by number and schedules that were found to be wrong or slow there; never a shape's winner."""


@dataclass(frozen=True, slots=True)
class DispatchEntry:
    """Describes a schedule and the numbers of the shapes that take it."""

    request: PartialSchedule
    shapes: tuple[int, ...]


def cover_shapes(
    shapes: Sequence[ShapeTimes], banned: Banned = frozenset(), most: int | None = None
) -> tuple[DispatchEntry, ...]:
    """Returns the dispatch table; `most` limits its schedules, which then are those that serve most weight:
    shapes that none of them serves are in no entry. The entry of most weight comes first."""
    serves: dict[PartialSchedule, set[int]] = {}
    for at, shape in enumerate(shapes):
        for request in shape.seconds:
            if (at, request) not in banned and shape.share(request) >= KEEP:
                serves.setdefault(request, set()).add(at)

    def worth(request: PartialSchedule, open_: Set[int]) -> tuple[float, float]:
        mine = serves[request] & open_
        count = math.fsum(1.0 if most is None else shapes[at].weight for at in mine)
        return count, math.fsum(shapes[at].weight * math.log(shapes[at].share(request)) for at in mine)

    chosen: list[PartialSchedule] = []
    left = set(range(len(shapes)))
    while left and (most is None or len(chosen) < most):
        best = max(serves, key=lambda request: worth(request, left))
        chosen.append(best)
        left -= serves[best]
    served: dict[PartialSchedule, list[int]] = {}
    for at, shape in enumerate(shapes):
        if mine := [request for request in chosen if at in serves[request]]:
            served.setdefault(max(mine, key=shape.share), []).append(at)
    weight = {request: math.fsum(shapes[at].weight for at in ats) for request, ats in served.items()}
    order = sorted(served, key=lambda request: -weight[request])
    return tuple(DispatchEntry(request, tuple(served[request])) for request in order)


def geomean(ratios: Iterable[tuple[float, float]]) -> float | None:
    """Returns the weighted geometric mean of pairs of a ratio and its weight; None of none."""
    pairs = list(ratios)
    total = math.fsum(weight for _, weight in pairs)
    return math.exp(math.fsum(w * math.log(r) for r, w in pairs) / total) if pairs else None
