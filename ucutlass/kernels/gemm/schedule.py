"""A planning case, and how a request becomes a concrete candidate of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ucutlass.ir.hardware import Arch, Device
from ucutlass.ir.schedule import RASTERS, PartialSchedule
from ucutlass.kernels.gemm.candidate import Candidate, Shape, routes_of, shape_of
from ucutlass.kernels.gemm.plan import (
    GemmProblem,
    GemvSchedule,
    LaunchParameters,
    Math,
    Sm80Schedule,
    Sm90Schedule,
)
from ucutlass.kernels.gemm.rules.multistage import ACCUMULATORS
from ucutlass.kernels.gemm.rules.vector import COLUMNS
from ucutlass.kernels.gemm.smem import sm90_stages, stage_bytes
from ucutlass.kernels.gemm.transpose import transpose
from ucutlass.kernels.gemm.variants import BY_WORD

Swap: TypeAlias = Literal["no", "yes"]

MOST_STAGES = 12
"""More stages than this hide nothing: 12 x 16 KiB cover DRAM's latency several times."""

SM80_STAGES = 4
"""cp.async stages beyond this hide nothing on A100 (CUTLASS's generator takes 3 to 5)."""


@dataclass(frozen=True, slots=True)
class Orientation:
    """The problem in one orientation, with its extents."""

    problem: GemmProblem
    shape: Shape
    swapped: bool


@dataclass(frozen=True, slots=True)
class PlanningCase:
    """A problem with concrete extents, for an architecture and a device. `turned` is its
    transpose."""

    arch: Arch
    device: Device
    sizes: tuple[int, ...]
    written: Orientation
    turned: Orientation

    def side(self, swap: Swap | None) -> Orientation:
        return self.turned if swap == "yes" else self.written


def case_of(problem: GemmProblem, sizes: tuple[int, ...], arch: Arch, device: Device) -> PlanningCase:
    """The case; `sizes` has the extent of every dimension by position."""
    turned = transpose(problem)
    return PlanningCase(
        arch,
        device,
        sizes,
        Orientation(problem, shape_of(problem, sizes), False),
        Orientation(turned, shape_of(turned, sizes), True),
    )


def build(case: PlanningCase, request: PartialSchedule) -> Candidate:
    """The candidate that a request stands for; fields still left out get their plain default.

    The request fixes `warps`, and `tile` for the tiled kernels. Legality is the rules' matter.
    """
    side = case.side(request.swap)
    splits = 0 if request.split_k == "stream" else request.split_k or 1
    launch = LaunchParameters(RASTERS[request.raster or "heuristic"], request.swizzle or 1, splits)
    assert request.warps is not None
    routes = routes_of(side.problem, BY_WORD[request.warps])
    schedule: Sm90Schedule | Sm80Schedule | GemvSchedule
    match request.warps:
        case "gemv":
            schedule = _gemv(side, case.device, request)
        case "multistage":
            schedule = _sm80(side.problem, case.arch, request)
        case "pingpong" | "cooperative" as warps:
            assert request.tile is not None
            most = sm90_stages(
                side.problem, routes, request.tile, warps, case.arch.shared_memory, MOST_STAGES
            )
            schedule = Sm90Schedule(
                request.tile,
                request.cluster or (1, 1),
                request.stages or max(2, most),
                warps,
                "persistent" if splits == 1 else "stream_k",
                _math(side.problem, request),
            )
    return Candidate(case.arch, side.problem, case.sizes, side.shape, schedule, launch, routes, side.swapped)


def _math(problem: GemmProblem, request: PartialSchedule) -> Math:
    return request.math or ("tf32x3" if problem.lane.name == "f32" else "tensor")


def _sm80(problem: GemmProblem, arch: Arch, request: PartialSchedule) -> Sm80Schedule:
    tile = request.tile
    assert tile is not None
    math = _math(problem, request)
    most = min(arch.shared_memory // stage_bytes(problem, tile), SM80_STAGES)
    return Sm80Schedule(
        tile, request.warp_tile or warp_tile(tile, math), request.stages or max(2, most), math
    )


def warp_tile(tile: tuple[int, int, int], math: Math) -> tuple[int, int]:
    """Four or eight warps, as square as can be, none with more accumulators than its lane holds."""
    m, n, _ = tile
    steps = (16, 32) if math == "simt" else (16, 16)
    most = ACCUMULATORS[math] * 32

    def worth(warp: tuple[int, int]) -> tuple[bool, bool, int, int]:
        warps = (m // warp[0]) * (n // warp[1])
        return warp[0] * warp[1] <= most, warps in (4, 8), -abs(warps - 4), -abs(warp[0] - warp[1])

    rows, columns = (
        [d for d in (16, 32, 64, 128) if side % d == 0 and d % step == 0] or [side]
        for side, step in zip((m, n), steps, strict=True)
    )
    return max(((a, b) for a in rows for b in columns), key=worth)


_LONG_ROW = 4096
"""Bytes of a matrix row from which 128 threads share it."""


def _gemv(side: Orientation, device: Device, request: PartialSchedule) -> GemvSchedule:
    """Columns as N needs, and as many rows a block as leave every SM some blocks."""
    problem, shape = side.problem, side.shape
    columns = request.columns or next((w for w in COLUMNS if w >= shape.n), COLUMNS[-1])
    rows = shape.m * shape.batch
    if problem.a.contiguous == "m":
        vector = min(problem.a.align, 16 // problem.a.elem.bytes, 8)
        wide = request.rows or next((r for r in (32, 16, 8, 4) if rows >= device.sms * r * vector), 4)
        return GemvSchedule(wide, columns, request.threads or max(1, 256 // wide))
    threads = request.threads or (128 if shape.k * problem.a.elem.bytes >= _LONG_ROW else 64)
    tall = request.rows or next((r for r in (4, 2) if rows >= 4 * r * device.sms), 1)
    return GemvSchedule(tall, columns, threads)
