"""How products run: which kernel, which tiles, in which order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from ucutlass.ir.hardware import Arch, Device, clusters_at_a_time
from ucutlass.ir.schedule import PartialSchedule, show_value, without
from ucutlass.kernels.grouped_gemm.cost import estimate, known, tiles_of
from ucutlass.kernels.grouped_gemm.match import GroupedGemmPattern
from ucutlass.kernels.grouped_gemm.plan import (
    CLUSTERS,
    GroupedGemmPlan,
    GroupedGemmProblem,
    SimtSchedule,
    WgmmaSchedule,
)
from ucutlass.kernels.grouped_gemm.problem import grouped_gemm_problem
from ucutlass.kernels.grouped_gemm.rules import (
    MOST_BLOCKS,
    SCHEDULE_RULES,
    WGMMA_RULES,
    WgmmaCandidate,
    WgmmaCase,
    depths,
    units,
    why_not_wgmma,
    why_undivided,
    why_unscaled,
    why_unsliced,
)
from ucutlass.kernels.grouped_gemm.schedule import band_of, depth_of, fitted, request_of
from ucutlass.kernels.grouped_gemm.variants import VARIANTS
from ucutlass.kernels.planned import Estimate, Note, Planned
from ucutlass.kernels.rule import broken
from ucutlass.kernels.violation import Violation, foreign_to

Warps = Literal["pingpong", "cooperative", "sliced"]

_SIMT = SimtSchedule((64, 64, 16))


_STREAM_K = Violation(
    "UC0439",
    "stream-K is a scheduler of one plain product; here the blocks of a cluster add parts of K",
    "give `split_k` a number",
    ("split_k",),
    PartialSchedule(),
)


@dataclass(frozen=True, slots=True)
class PricedSchedule:
    """A schedule, its launch's band and its estimate."""

    schedule: WgmmaSchedule
    band: int
    price: Estimate


def plan_grouped_gemm(
    pattern: GroupedGemmPattern,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    request: PartialSchedule,
    aligned: tuple[bool, ...] | None = None,
) -> Planned | tuple[Violation, ...]:
    """The kernel of one or two products for these extents, or why there is none. Raises Refused."""
    if foreign := foreign_to(request, VARIANTS, "a pair of dots, or one over ragged groups,"):
        return (foreign,)
    if request.split_k == "stream":
        return (_STREAM_K,)
    problem = grouped_gemm_problem(pattern, sizes, aligned)
    reason = why_not_wgmma(problem, sizes, arch)
    if reason or request.warps == "direct":
        if without(request, "warps").fixed() or request.warps not in (None, "direct"):
            return broken(WGMMA_RULES, WgmmaCase(problem, sizes, arch, request))[:1]
        price = estimate(problem, _SIMT, sizes, arch, device, (1,))
        plan = GroupedGemmPlan(arch.name, problem, _SIMT)
        why = f"the Hopper kernel cannot take this: {reason}" if reason else "the schedule says so"
        full, note = PartialSchedule(warps="direct"), Note("", "plain multiply-adds", why)
        return Planned(plan, (1,), sizes, full, device, price, (note,))
    candidates = sorted(_candidates(problem, sizes, arch, device, request), key=lambda c: c.price.seconds)
    if not candidates:
        return (_no_fit(problem, sizes, arch, device, request),)
    return _planned(problem, candidates[0], sizes, arch, device, request)


def candidates(
    pattern: GroupedGemmPattern, sizes: tuple[int, ...], arch: Arch, device: Device, request: PartialSchedule
) -> Iterator[Planned]:
    """Every legal Hopper kernel that the planner would consider for a request, the cheapest first. Raises
    Refused."""
    if foreign_to(request, VARIANTS, "") or request.warps == "direct":
        return
    problem = grouped_gemm_problem(pattern, sizes, None)
    if why_not_wgmma(problem, sizes, arch):
        return
    ranked = sorted(_candidates(problem, sizes, arch, device, request), key=lambda c: c.price.seconds)
    yield from (_planned(problem, c, sizes, arch, device, request) for c in ranked)


def _planned(
    problem: GroupedGemmProblem,
    best: PricedSchedule,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    request: PartialSchedule,
) -> Planned:
    schedule = best.schedule
    full = request_of(schedule, best.band, request)
    reasons = {
        "tile": "the least time by tiles, waves and what a main loop of it reaches",
        "warps": "one's epilogue runs while the other multiplies"
        if schedule.warps == "pingpong"
        else "two warp groups take turns along K of a tile"
        if schedule.warps == "sliced"
        else "two warp groups share a tile",
        "cluster": "blocks that share loads" if math.prod(schedule.cluster) > 1 else "nothing to share",
        "stages": "as many as fit in shared memory beside the epilogue",
        "split_k": f"{schedule.parts} blocks of a cluster share a tile, and fill the SMs",
    }
    notes = tuple(
        Note(name, show_value(value), reasons[name])
        for name, value in full.fixed().items()
        if name in reasons and getattr(request, name) is None
    )
    plan = GroupedGemmPlan(arch.name, problem, schedule)
    return Planned(plan, (best.band,), sizes, full, device, best.price, notes)


# --- candidates ---------------------------------------------------------------------------


def _candidates(
    problem: GroupedGemmProblem, sizes: tuple[int, ...], arch: Arch, device: Device, request: PartialSchedule
) -> Iterator[PricedSchedule]:
    parts = request.split_k if isinstance(request.split_k, int) else 1
    tiles = (
        [request.tile]
        if request.tile
        else [
            (m, n // problem.products, depth_of(problem, n, sizes, parts))
            for m in (64, 128, 256)
            for n in (32, 64, 96, 128, 192, 256)
        ]
    )
    both: tuple[Warps, ...] = ("pingpong", "cooperative")
    warps: tuple[Warps, ...] = (*both, "sliced") if problem.converts else both
    for kind in warps if request.warps is None else (request.warps,):
        if kind not in ("pingpong", "cooperative", "sliced"):
            continue
        for tile in tiles:
            if why_unscaled(problem, sizes, tile):
                continue
            for cluster in (request.cluster,) if request.cluster else CLUSTERS:
                whole = WgmmaSchedule(tile, cluster, 2, kind)
                for count in _parts(problem, whole, sizes, device, request):
                    schedule = fitted(problem, replace(whole, parts=count), request.stages)
                    if schedule is None or why_unsliced(problem, sizes, schedule):
                        continue
                    if why_undivided(problem, sizes, schedule):
                        continue
                    if known(problem, schedule) or request.tile:
                        order = band_of(request, problem)
                        price = estimate(problem, schedule, sizes, arch, device, (order,))
                        yield PricedSchedule(schedule, order, price)


def _parts(
    problem: GroupedGemmProblem,
    schedule: WgmmaSchedule,
    sizes: tuple[int, ...],
    device: Device,
    request: PartialSchedule,
) -> tuple[int, ...]:
    """Parts of K to price: one, and those whose blocks all run at a time and have some steps each."""
    if request.split_k is not None:
        return (request.split_k,) if isinstance(request.split_k, int) else ()
    if not (problem.converts or problem.products > 1) or problem.ragged or schedule.warps == "pingpong":
        return (1,)
    blocks = math.prod(schedule.cluster)
    most = min(MOST_BLOCKS // blocks, units(problem, sizes, schedule) // _LEAST_STEPS)
    tiles = math.ceil(tiles_of(problem, schedule, sizes) / blocks)
    return (1, *(p for p in range(2, most + 1) if tiles <= clusters_at_a_time(device, blocks * p)))


_LEAST_STEPS = 4
"""Steps of K beside which it pays to exchange sums."""


# --- refusals -----------------------------------------------------------------------------


def _no_fit(
    problem: GroupedGemmProblem, sizes: tuple[int, ...], arch: Arch, device: Device, request: PartialSchedule
) -> Violation:
    """UC0332 with the first rule that what was asked for breaks, and the nearest that is legal."""
    kind: Warps = request.warps if request.warps in ("pingpong", "sliced") else "cooperative"
    tile = request.tile or (128 if kind == "cooperative" else 64, 128 // problem.products, depths(problem)[0])
    parts = request.split_k if isinstance(request.split_k, int) else 1
    schedule = WgmmaSchedule(tile, request.cluster or (1, 1), 2, kind, parts)
    scheduled = WgmmaCandidate(problem, sizes, replace(schedule, stages=request.stages or 2))
    (violation, *_) = broken(SCHEDULE_RULES, scheduled)
    nearest = None
    for names in (
        ("stages",),
        ("split_k",),
        ("cluster",),
        ("warps",),
        ("tile", "stages"),
        tuple(request.fixed()),
    ):
        relaxed = without(request, *names)
        if candidates := sorted(
            _candidates(problem, sizes, arch, device, relaxed), key=lambda c: c.price.seconds
        ):
            best = candidates[0].schedule
            nearest = replace(
                relaxed,
                warps=best.warps,
                tile=best.tile,
                cluster=best.cluster,
                stages=best.stages,
                split_k=best.parts if best.parts > 1 else None,
            )
            break
    fields = tuple(
        name for name in ("tile", "warps", "cluster", "stages", "split_k") if name in request.fixed()
    )
    return replace(violation, fields=fields, nearest=nearest)
