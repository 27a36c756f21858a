"""This module decides which binaries to build next, by pure functions of the space and of what was measured
so far.

A policy orders the groups that nobody looked at yet. `guided` begins with the analytic order, one of
each group of equals, and goes on with the kernels that the corrected estimate predicts to be fastest,
neighbours of the best first. `analytic` and `random` are there to be compared with.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

from ucutlass.ir.schedule import PartialSchedule
from ucutlass.tune.correction import factor
from ucutlass.tune.space import BinaryGroup, ScheduleSpace

Name: TypeAlias = Literal["guided", "analytic", "random"]

GroupTimes: TypeAlias = Mapping[int, float | None]
"""By the group's number in its space: seconds of its fastest kernel, None where it did not build, run or
compute what it should."""

OPENING = 3
"""Groups of the analytic order before measurements steer: one says how far off all estimates are, three
whether the order holds."""

NEAR = 1.03
"""A neighbour of the best goes before other kernels that are predicted up to so much faster: what is
known of the best holds for it more than for them."""

FIELDS = (
    "warps",
    "tile",
    "cluster",
    "stages",
    "swap",
    "split_k",
    "math",
    "rows",
    "columns",
    "threads",
    "vector",
    "items",
    "keep",
    "blocks",
)
"""What costs a build; a tile is one field however many of its sides change."""

_TIED: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "tile": frozenset({"stages", "warp_tile", "blocks"}),
        "warps": frozenset({"stages"}),
        "blocks": frozenset({"stages"}),
        "threads": frozenset({"items"}),
        "items": frozenset({"threads"}),
        "vector": frozenset({"items", "threads"}),
        "cluster": frozenset({"items", "threads", "rows"}),
        "keep": frozenset({"items", "threads", "rows", "cluster", "split_k"}),
    }
)
"""Fields that follow another: as many stages as fit beside a tile are no change of their own."""


def neighbours(a: PartialSchedule, b: PartialSchedule) -> bool:
    """Returns whether two schedules differ in one field, launch parameters and what follows from it aside."""
    changed = {f for f in FIELDS if getattr(a, f) != getattr(b, f)}
    return any(changed - _TIED.get(f, frozenset()) == {f} for f in changed)


def best(measured: GroupTimes) -> tuple[int, float] | None:
    """Returns the group with the least time, and that; None where nothing has a time."""
    timed = [(seconds, at) for at, seconds in measured.items() if seconds is not None]
    return (min(timed)[1], min(timed)[0]) if timed else None


# --- predictions -----------------------------------------------------------------


def predictions(space: ScheduleSpace, measured: GroupTimes) -> dict[int, float]:
    """Returns the seconds that each group nobody looked at is predicted to take."""
    groups = space.groups
    timings = [
        (groups[at].request, math.log(seconds / groups[at].estimate))
        for at, seconds in measured.items()
        if seconds is not None
    ]
    return {at: g.estimate * factor(g.request, timings) for at, g in enumerate(groups) if at not in measured}


# --- policies --------------------------------------------------------------------


def analytic(space: ScheduleSpace, measured: GroupTimes, seed: int) -> tuple[int, ...]:
    """Orders the groups by the estimate alone."""
    return tuple(at for at in range(len(space.groups)) if at not in measured)


def shuffled(space: ScheduleSpace, measured: GroupTimes, seed: int) -> tuple[int, ...]:
    """Orders the groups at random; the order is the seed's, whatever was measured."""
    order = list(range(len(space.groups)))
    random.Random(seed).shuffle(order)
    return tuple(at for at in order if at not in measured)


def guided(space: ScheduleSpace, measured: GroupTimes, seed: int) -> tuple[int, ...]:
    """Returns the analytic order while there is little to learn from, then the corrected one."""
    best_seen = best(measured)
    opening = [at for at in distinct(space.groups) if at not in measured]
    if best_seen is None or len(measured) < OPENING:
        chosen = opening[: max(0, OPENING - len(measured))]
        rest = [at for at in _corrected(space, measured) if at not in chosen]
        return (*chosen, *rest)
    return _corrected(space, measured)


def _corrected(space: ScheduleSpace, measured: GroupTimes) -> tuple[int, ...]:
    predicted = predictions(space, measured)
    best_seen = best(measured)

    def worth(at: int) -> tuple[float, int]:
        near = best_seen is not None and neighbours(
            space.groups[best_seen[0]].request, space.groups[at].request
        )
        return predicted[at] / (NEAR if near else 1.0), at

    return tuple(sorted(predicted, key=worth))


def distinct(groups: Sequence[BinaryGroup]) -> list[int]:
    """Returns of groups with exactly one price the first: the model does not tell them apart, so the others
    would teach nothing new about it. They stay neighbours of the best."""
    first: dict[float, int] = {}
    for at, group in enumerate(groups):
        first.setdefault(group.estimate, at)
    return list(first.values())


Policy: TypeAlias = Callable[[ScheduleSpace, GroupTimes, int], tuple[int, ...]]
"""The numbers of the groups that are not in `GroupTimes`, what to build first in front; by seed."""

POLICIES: Mapping[Name, Policy] = MappingProxyType(
    {"guided": guided, "analytic": analytic, "random": shuffled}
)


# --- when to stop ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """`builds` and `seconds` are the budget. `close`: over the realistic bound, at most so many times it
    is good enough. `hopeful`: a kernel is worth a build if it is predicted to take at most so many times
    the best; above 1, since predictions are off by some per cent."""

    builds: int = 8
    seconds: float = math.inf
    close: float = 1.03
    hopeful: float = 1.10


def stop_reason(space: ScheduleSpace, measured: GroupTimes, limits: SearchLimits, spent: float) -> str | None:
    """Returns why to build no more, in words; None to go on. `spent` is in seconds."""
    if len(measured) >= len(space.groups):
        return "every binary was tried"
    if len(measured) >= limits.builds:
        return f"the budget of {limits.builds} builds is spent"
    if spent >= limits.seconds:
        return f"the budget of {limits.seconds:g} s is spent"
    best_seen = best(measured)
    if best_seen is None:
        return None
    if space.bound and best_seen[1] <= limits.close * space.bound:
        return f"the best is within {limits.close - 1:.0%} of what any plan here could come to"
    if (
        len(measured) >= OPENING
        and min(predictions(space, measured).values()) > limits.hopeful * best_seen[1]
    ):
        return f"no kernel is predicted within {limits.hopeful - 1:.0%} of the best"
    return None
