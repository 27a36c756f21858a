"""A grouped GEMM's schedule in the fields of a program: stages as many as fit, and the band in which tiles are
taken."""

from __future__ import annotations

from dataclasses import replace

from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels.grouped_gemm.plan import GroupedGemmProblem, WgmmaSchedule
from ucutlass.kernels.grouped_gemm.rules import depths, why_illegal, why_undivided, why_unscaled
from ucutlass.kernels.grouped_gemm.smem import most_stages

BAND = 8
"""Clusters of tiles along M for which a column of B is taken before the next: A of so many, and B of as
many columns as blocks run at a time, fit in L2."""

ACROSS_BAND = 2
"""Of ragged rows whose B lies across K, as row gradients' do: 1 % to 4 % faster than 8 in four of four
comparisons on an H200."""

WHOLE = 1024
"""A band that no group's tiles along M exceed in practice: `raster along_m`."""


def request_of(schedule: WgmmaSchedule, band: int, request: PartialSchedule) -> PartialSchedule:
    """The schedule as fields; those that say the band are as in `request`, else so that they say it."""
    raster = request.raster or ("along_m" if band == WHOLE else "heuristic")
    return PartialSchedule(
        warps=schedule.warps,
        tile=schedule.tile,
        cluster=schedule.cluster,
        stages=schedule.stages,
        split_k=schedule.parts if schedule.parts > 1 else request.split_k,
        raster=raster,
        swizzle=request.swizzle or (None if raster == "along_m" else band),
    )


def fitted(problem: GroupedGemmProblem, schedule: WgmmaSchedule, stages: int | None) -> WgmmaSchedule | None:
    """The schedule with its stages, None where it is illegal."""
    if why_illegal(problem, schedule):
        return None
    most = most_stages(problem, schedule)
    if stages is not None and not 2 <= stages <= most:
        return None
    return replace(schedule, stages=stages or most) if most >= 2 else None


def depth_of(problem: GroupedGemmProblem, columns: int, sizes: tuple[int, ...], parts: int = 1) -> int:
    """K of a tile of so many columns: the deepest that parts of K allow, each of which has a step, where not many
    columns keep the multipliers busy."""
    deep = [
        d
        for d in depths(problem)
        if not why_unscaled(problem, sizes, (64, 64, d))
        and not why_undivided(problem, sizes, WgmmaSchedule((64, 64, d), (1, 1), 2, "cooperative", parts))
    ]
    return deep[-1] if deep and columns < 256 else depths(problem)[0]


def band_of(request: PartialSchedule, problem: GroupedGemmProblem) -> int:
    """The launch's band: see `ucutlass.kernels.grouped_gemm.plan`."""
    if request.raster == "along_m":
        return WHOLE
    if request.raster == "along_n":
        return request.swizzle or 1
    rows = problem.ragged is not None and problem.ragged.mode == "m"
    return request.swizzle or (ACROSS_BAND if rows and problem.gemm.b.contiguous != "k" else BAND)
