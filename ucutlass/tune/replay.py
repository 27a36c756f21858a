"""This module replays a search policy on recorded tables: what it would have found, and at how many builds.

A binary costs one build, whatever is swept on it. Nothing that a policy learns goes from one shape to
another, so no shape needs to be left out for the policy's sake; the cost model's own constants were
fitted to recordings, and `constants` of `ucutlass.tune.tables.read` takes others.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ucutlass.tune.policy import POLICIES, Name, SearchLimits, stop_reason
from ucutlass.tune.tables import RecordedTable

BUILDS = (1, 2, 4, 8)
"""Where curves are read off."""

SEEDS = 100
"""Runs of the random policy, whose mean is reported."""

ENOUGH = 0.97
"""Of the exhaustive best's speed: what the tuner is held to, with at most eight builds."""


@dataclass(frozen=True, slots=True)
class ReplayRun:
    """Describes one search. `order` are the groups as they were built; `shares[i]` is the exhaustive best's
    time over the best found with i + 1 builds; `stopped` why it ended."""

    order: tuple[int, ...]
    shares: tuple[float, ...]
    stopped: str

    def share(self, builds: int) -> float:
        """Returns what it had after so many builds, or at its end before."""
        return self.shares[min(builds, len(self.shares)) - 1]


def run(table: RecordedTable, policy: Name, seed: int = 0, limits: SearchLimits | None = None) -> ReplayRun:
    """Runs one search on a table, a build at a time. Without limits it goes on until all is built."""
    measured: dict[int, float | None] = {}
    order: list[int] = []
    shares: list[float] = []
    lasting = limits or SearchLimits(builds=len(table.space.groups), close=0.0, hopeful=float("inf"))
    while True:
        why = stop_reason(table.space, measured, lasting, 0.0)
        if why is not None:
            return ReplayRun(tuple(order), tuple(shares), why)
        at = POLICIES[policy](table.space, measured, seed)[0]
        order.append(at)
        measured[at] = table.best_of(at)
        shares.append(max(table.best / table.best_of(a) for a in order))


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """Describes one shape: `shares[policy][i]` after BUILDS[i] builds, and what `guided` would have done by
    itself within eight builds (`builds` it made, `share` it had, `stopped` why)."""

    file: str
    shape: str
    kernels: int
    binaries: int
    refused: int
    shares: Mapping[Name, tuple[float, ...]]
    builds: int
    share: float
    stopped: str


def line(table: RecordedTable, seeds: int = SEEDS, limits: SearchLimits | None = None) -> ReplayRow:
    """Runs all policies on one table."""
    most = max(BUILDS)
    bare = SearchLimits(builds=min(most, len(table.space.groups)), close=0.0, hopeful=float("inf"))
    shares: dict[Name, tuple[float, ...]] = {}
    for policy in POLICIES:
        runs = [run(table, policy, seed, bare) for seed in range(seeds if policy == "random" else 1)]
        shares[policy] = tuple(statistics.fmean(r.share(b) for r in runs) for b in BUILDS)
    own = run(table, "guided", 0, limits or SearchLimits())
    return ReplayRow(
        table.file,
        table.shape,
        table.space.kernels,
        len(table.space.groups),
        table.refused,
        shares,
        len(own.order),
        own.shares[-1],
        own.stopped,
    )


@dataclass(frozen=True, slots=True)
class ReplaySummary:
    """Holds over shapes, for each policy and count of builds, the mean share, the least, and how many shapes
    have `ENOUGH`."""

    mean: Mapping[Name, tuple[float, ...]]
    least: Mapping[Name, tuple[float, ...]]
    enough: Mapping[Name, tuple[int, ...]]
    shapes: int


def summary(lines: Sequence[ReplayRow]) -> ReplaySummary:
    """Raises ValueError for no lines."""
    if not lines:
        raise ValueError("no shapes were replayed")

    def columns(name: Name) -> Iterable[tuple[float, ...]]:
        return zip(*(row.shares[name] for row in lines), strict=True)

    return ReplaySummary(
        {p: tuple(statistics.fmean(c) for c in columns(p)) for p in POLICIES},
        {p: tuple(min(c) for c in columns(p)) for p in POLICIES},
        {p: tuple(sum(s >= ENOUGH for s in c) for c in columns(p)) for p in POLICIES},
        len(lines),
    )


def to_json(lines: Sequence[ReplayRow]) -> dict[str, Any]:
    """Returns what `ucc tune --replay --json` prints."""
    return {
        "builds": list(BUILDS),
        "enough": ENOUGH,
        "seeds": SEEDS,
        "shapes": [asdict(row) for row in lines],
        "files": {
            file: asdict(summary([row for row in lines if row.file == file]))
            for file in dict.fromkeys(row.file for row in lines)
        },
    }
