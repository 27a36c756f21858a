"""The schedules of a GEMM that are worth timing: what the cost model weighs, or every schedule of a table.

`stages` stays as many as fit: fewer were never seen to be faster, and the estimate cannot tell them apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import astuple, replace
from types import MappingProxyType
from typing import Any

from ucutlass.ir.hardware import Arch, Device
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels.gemm.cost import effective_swizzle, estimate
from ucutlass.kernels.gemm.plan import (
    MAX_CLUSTER,
    GemmPlan,
    GemmProblem,
    GemvSchedule,
    LaunchParameters,
    Sm90Schedule,
)
from ucutlass.kernels.gemm.problem import ceil_div
from ucutlass.kernels.gemm.rules import legal
from ucutlass.kernels.gemm.rules.vector import ROWS, THREADS
from ucutlass.kernels.gemm.schedule import (
    RASTER_WORD,
    GemmCandidate,
    PlanningCase,
    build,
    case_of,
    request_of,
)
from ucutlass.kernels.gemm.search import LINE, expand, rounds
from ucutlass.kernels.planned import Planned

SWIZZLES = (1, 2, 4, 8)
SPLITS = (2, 4, 8, 16)
"""Parts of K beside the scheduler's own choice that one binary is tried with."""


def kernels(
    problem: GemmProblem,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    request: PartialSchedule,
    free: bool,
) -> Iterator[Planned]:
    """The legal kernels of a request, each as a plan without notes: nothing was left out for the planner."""
    case = case_of(problem, sizes, arch, device)
    candidates = _free(case, request) if free else _weighed(case, request)
    return (planned(candidate, device) for candidate in candidates)


def planned(c: GemmCandidate, device: Device) -> Planned:
    """A legal candidate as a plan. It has no notes: nothing was left out for the planner."""
    plan = GemmPlan(c.arch.name, c.problem, c.schedule, c.routes)
    return Planned(plan, astuple(c.launch), c.sizes, request_of(c), device, estimate(c, device))


def _weighed(case: PlanningCase, request: PartialSchedule) -> Iterator[GemmCandidate]:
    """What the planner prices for a request, with the other settings of the launch parameters that it leaves open."""
    for tried in rounds(case, request):
        candidates = [c for full in expand(case, request, tried) if legal(c := build(case, full))]
        for candidate in candidates:
            yield from (v for v in variants(candidate, request) if legal(v))
        if candidates:
            return


def _free(case: PlanningCase, request: PartialSchedule) -> Iterator[GemmCandidate]:
    for candidate in _everything(case, request):
        yield from (v for v in variants(candidate, request) if legal(v))


def variants(candidate: GemmCandidate, request: PartialSchedule) -> Iterator[GemmCandidate]:
    """Yields the candidate, and it with one launch parameter changed that `request` leaves open: all of their
    combinations would be timed for longer than another build takes."""
    yield candidate
    if isinstance(candidate.schedule, GemvSchedule):
        return
    now = candidate.launch
    settings: list[LaunchParameters] = []
    if request.raster is None:
        settings += [replace(now, raster=r) for r in RASTER_WORD if r != now.raster]
    if request.swizzle is None:
        settings += [replace(now, swizzle=s) for s in _swizzles(candidate)]
    if request.split_k is None:
        settings += [replace(now, splits=s) for s in _splits(candidate) if s != now.splits]
    yield from (replace(candidate, launch=launch) for launch in settings)


def _swizzles(c: GemmCandidate) -> tuple[int, ...]:
    """Swizzles that the scheduler does not take for the one there is, or for one another."""
    assert not isinstance(c.schedule, GemvSchedule)
    m, n = ceil_div(c.shape.m, c.schedule.tile[0]), ceil_div(c.shape.n, c.schedule.tile[1])
    by_effect = {effective_swizzle(m, n, s): s for s in reversed(SWIZZLES)}
    by_effect.pop(effective_swizzle(m, n, c.launch.swizzle), None)
    return tuple(sorted(by_effect.values()))


def _splits(c: GemmCandidate) -> tuple[int, ...]:
    match c.schedule:
        case Sm90Schedule(scheduler="stream_k"):
            return (0, *SPLITS)
        case Sm90Schedule(scheduler="cluster_k", cluster=(m, n)):
            return tuple(range(2, MAX_CLUSTER // (m * n) + 1))
        case Sm90Schedule() | GemvSchedule():
            return ()
        case _:
            return (1, *SPLITS)


_SIDES: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]] = MappingProxyType(
    {
        "sm90": ((64, 128, 192, 256), tuple(range(16, 257, 16))),
        "sm80": ((32, 64, 128, 256), (32, 64, 128, 256)),
    }
)
"""M and N of tiles."""

_DEPTHS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"sm90": (LINE, 2 * LINE), "sm80": (LINE // 2, LINE)}
)
"""Bytes of K in a tile."""

_IN_CLUSTER = 2
"""Parts of K that meet in a cluster; those that meet in memory share a binary with stream-K."""

_FIELDS: Mapping[str, Mapping[str, tuple[Any, ...]]] = MappingProxyType(
    {
        "sm90": {
            "warps": ("pingpong", "cooperative"),
            "cluster": ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4)),
            "split_k": (1, "stream", _IN_CLUSTER),
            "math": (None, "tf32x3_rs", "tf32x3_fused", "f16x3"),
        },
        "sm80": {"warps": ("multistage",), "math": (None, "tf32x3", "simt")},
        "gemv": {"warps": ("gemv",), "rows": ROWS, "threads": THREADS},
    }
)


def _everything(case: PlanningCase, request: PartialSchedule) -> Iterator[GemmCandidate]:
    """Every legal candidate of the tables, in both orientations, that has what `request` fixes."""
    fixed = request.fixed()
    f32 = case.written.problem.compute_type.name == "f32"
    for family, fields in _FIELDS.items():
        # Only f32 is split in registers: others would be refused one by one.
        table = fields if f32 or family != "sm90" else {n: v for n, v in fields.items() if n != "math"}
        if any(n in fixed and fixed[n] not in table.get(n, ()) for n in ("warps", "math")):
            continue
        table = {**table, "swap": ("no", "yes"), "tile": _tiles(case, family)}
        values = itertools.product(*((fixed[n],) if n in fixed else own for n, own in table.items()))
        for chosen in values:
            full = replace(request, **dict(zip(table, chosen, strict=True)))
            if full.split_k == _IN_CLUSTER and "split_k" not in fixed:
                full = replace(full, partials="cluster")
            candidate = build(case, full)
            if legal(candidate):
                yield candidate


def _tiles(case: PlanningCase, family: str) -> tuple[tuple[int, int, int] | None, ...]:
    if family not in _SIDES:
        return (None,)
    item = case.written.problem.compute_type.bytes
    rows, columns = _SIDES[family]
    return tuple(itertools.product(rows, columns, (d // item for d in _DEPTHS[family])))
