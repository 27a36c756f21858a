"""A GEMM's schedule: a candidate with every field fixed, how a partial schedule becomes one, and one a partial
schedule again. The rules judge candidates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from ucutlass.ir.hardware import ARCHES, Arch, Device
from ucutlass.ir.schedule import FIELDS, RASTERS, PartialSchedule
from ucutlass.kernels.access import Access, Reduction
from ucutlass.kernels.gemm.plan import (
    GemmPlan,
    GemmProblem,
    GemmSchedule,
    GemvSchedule,
    LaunchParameters,
    Math,
    Route,
    Sm80Schedule,
    Sm90Schedule,
    epilogue_tensors,
)
from ucutlass.kernels.gemm.problem import Shape, ceil_div, shape_of, transpose
from ucutlass.kernels.gemm.smem import SharedMemory, lean_stages, memory_of, sm90_stages, stage_bytes
from ucutlass.kernels.gemm.variants import BY_WORD
from ucutlass.kernels.planned import Planned

Swap: TypeAlias = Literal["no", "yes"]

_MOST_REMEMBERED = 4096
"""Problems whose transposes and routes a process remembers."""

MOST_STAGES = 12
"""More stages than this hide nothing: 12 x 16 KiB cover DRAM's latency several times."""

SM80_STAGES = 4
"""cp.async stages beyond this hide nothing on A100 (CUTLASS's generator takes 3 to 5)."""

COLUMNS = (1, 2, 4, 8)
"""Columns that a matrix-vector kernel computes."""

ACCUMULATORS = {"tensor": 128, "f16": 128, "tf32x3": 64, "tf32x3_rs": 64, "tf32x3_fused": 64, "simt": 64}
"""32-bit accumulators a thread of a multistage kernel may hold: the rest of 255 registers is fragments, of which
tf32x3 has five times as many and FFMA four steps of K."""

RASTER_WORD: dict[int, Literal["heuristic", "along_m", "along_n"]] = {
    0: "heuristic",
    1: "along_m",
    2: "along_n",
}
"""`raster` words by the launch parameter's number: `ir.schedule.RASTERS` the other way round."""

TMA_BYTES = 16
"""Alignment in bytes of a TMA tensor's address and of all its strides but the unit one (CUDA
driver API, cuTensorMapEncodeTiled)."""


@dataclass(frozen=True, slots=True)
class GemmCandidate:
    """`problem` is what the kernel computes: already transposed where `swapped`. `routes` is
    as in GemmPlan."""

    arch: Arch
    problem: GemmProblem
    sizes: tuple[int, ...]
    shape: Shape
    schedule: GemmSchedule
    launch: LaunchParameters
    routes: tuple[Route, ...]
    swapped: bool

    @property
    def family(self) -> str:
        match self.schedule:
            case Sm90Schedule():
                return "sm90"
            case Sm80Schedule():
                return "sm80"
            case GemvSchedule():
                return "gemv"

    @property
    def k_tiles(self) -> int:
        """Steps of the main loop; the whole of K for a matrix-vector kernel."""
        match self.schedule:
            case GemvSchedule():
                return 1
            case schedule:
                return ceil_div(self.shape.k, schedule.tile[2])

    @property
    def tensors(self) -> tuple[Access, ...]:
        """Epilogue tensors, inputs first: `routes` has an entry for each."""
        return epilogue_tensors(self.problem)

    @property
    def memory(self) -> SharedMemory:
        """Its shared memory."""
        return memory_of(self.problem, self.schedule, self.routes)


def candidate_of(planned: Planned) -> GemmCandidate:
    """The candidate that was planned: everything of it stands in the plan, the launch and the request."""
    plan = planned.plan
    assert isinstance(plan, GemmPlan), type(plan)
    return GemmCandidate(
        ARCHES[plan.arch],
        plan.problem,
        planned.sizes,
        shape_of(plan.problem, planned.sizes),
        plan.schedule,
        LaunchParameters(*planned.launch),
        plan.routes,
        planned.request.swap == "yes",
    )


# --- how epilogue tensors move --------------------------------------------------------


def tma_alignable(access: Access) -> bool:
    """Whether TMA can move an epilogue tensor: over M and N, one of them contiguous, 16-byte
    strides, and an element that CUTLASS's epilogue copies take."""
    return (
        access.shape == "full"
        and (access.m == () or access.n == ())
        and access.align * access.elem.bytes >= TMA_BYTES
        and access.elem.name in _TMA_ELEMENTS
    )


_TMA_ELEMENTS = frozenset({"f32", "f16", "bf16", "e4m3", "e5m2", "s8", "u8", "i32"})


@lru_cache(_MOST_REMEMBERED)
def routes_of(problem: GemmProblem, family: str) -> tuple[Route, ...]:
    """How each epilogue tensor moves, inputs first: by TMA wherever it can, on sm90."""
    reduced = {id(o.access) for o in problem.outputs if isinstance(o, Reduction)}
    return tuple(
        "tma" if family == "sm90" and id(t) not in reduced and tma_alignable(t) else "direct"
        for t in epilogue_tensors(problem)
    )


# --- a partial schedule filled ----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Orientation:
    """The problem in one orientation, with its extents."""

    problem: GemmProblem
    shape: Shape
    swapped: bool


@dataclass(frozen=True, slots=True)
class PlanningCase:
    """A problem with concrete extents, for an architecture and a device. `transposed` is its
    transpose."""

    arch: Arch
    device: Device
    sizes: tuple[int, ...]
    written: Orientation
    transposed: Orientation

    def side(self, swap: Swap | None) -> Orientation:
        return self.transposed if swap == "yes" else self.written


def case_of(problem: GemmProblem, sizes: tuple[int, ...], arch: Arch, device: Device) -> PlanningCase:
    """The case; `sizes` has the extent of every dimension by position."""
    written, transposed = _sides(problem)
    return PlanningCase(
        arch,
        device,
        sizes,
        Orientation(written, shape_of(written, sizes), False),
        Orientation(transposed, shape_of(transposed, sizes), True),
    )


@lru_cache(_MOST_REMEMBERED)
def _sides(problem: GemmProblem) -> tuple[GemmProblem, GemmProblem]:
    """Returns a problem and its transpose, the same two for equal problems: what is remembered of them is then found
    without comparing them in depth."""
    return problem, transpose(problem)


def build(case: PlanningCase, request: PartialSchedule) -> GemmCandidate:
    """The candidate that a request stands for; fields still left out get their plain default.

    The request fixes `warps`, and `tile` for the tiled kernels. Legality is the rules' matter.
    """
    side = case.side(request.swap)
    splits = 0 if request.split_k == "stream" else request.split_k or 1
    launch = LaunchParameters(RASTERS[request.raster or "heuristic"], request.swizzle or 1, splits)
    assert request.warps is not None
    routes = routes_of(side.problem, BY_WORD[request.warps])
    schedule: GemmSchedule
    match request.warps:
        case "gemv":
            schedule = _gemv(side, case.device, request)
        case "multistage":
            schedule = _sm80(side.problem, case.arch, request)
        case "pingpong" | "cooperative" as warps:
            assert request.tile is not None
            math = _math(side.problem, request)
            most = sm90_stages(
                side.problem, routes, request.tile, warps, case.arch.shared_memory, MOST_STAGES, math
            )
            schedule = Sm90Schedule(
                request.tile,
                request.cluster or (1, 1),
                request.stages or max(2, lean_stages(side.problem, routes, request.tile, warps, most, math)),
                warps,
                _scheduler(splits, request),
                math,
            )
    return GemmCandidate(
        case.arch, side.problem, case.sizes, side.shape, schedule, launch, routes, side.swapped
    )


def _scheduler(splits: int, request: PartialSchedule) -> Literal["persistent", "stream_k", "cluster_k"]:
    if splits == 1:
        return "persistent"
    return "cluster_k" if request.partials == "cluster" else "stream_k"


def _math(problem: GemmProblem, request: PartialSchedule) -> Math:
    return request.math or ("tf32x3" if problem.compute_type.name == "f32" else "tensor")


def _sm80(problem: GemmProblem, arch: Arch, request: PartialSchedule) -> Sm80Schedule:
    tile = request.tile
    assert tile is not None
    math = _math(problem, request)
    most = min(arch.shared_memory // stage_bytes(problem, tile), SM80_STAGES)
    return Sm80Schedule(
        tile, request.warp_tile or warp_tile(tile, math), request.stages or max(2, most), math
    )


def warp_tile(tile: tuple[int, int, int], math: Math) -> tuple[int, int]:
    """Four or eight warps, as square as can be, none with more accumulators than its compute type holds."""
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


# --- a candidate as a partial schedule --------------------------------------------------


def request_of(candidate: GemmCandidate) -> PartialSchedule:
    """The candidate as a request in which every field of its family is fixed."""
    launch = candidate.launch
    swap: Literal["no", "yes"] = "yes" if candidate.swapped else "no"
    match candidate.schedule:
        case Sm90Schedule(tile, cluster, stages, warps, scheduler, math_):
            stream = scheduler == "stream_k" and launch.splits == 0
            return PartialSchedule(
                warps=warps,
                tile=tile,
                cluster=cluster,
                stages=stages,
                swap=swap,
                math=None if math_ == "tensor" else math_,
                split_k="stream" if stream else launch.splits,
                partials="cluster" if scheduler == "cluster_k" else None,
                raster=RASTER_WORD[launch.raster],
                swizzle=launch.swizzle,
            )
        case Sm80Schedule(tile, warp_tile, stages, math_):
            return PartialSchedule(
                warps="multistage",
                tile=tile,
                warp_tile=warp_tile,
                stages=stages,
                swap=swap,
                math=None if math_ == "tensor" else math_,
                split_k=launch.splits,
                raster=RASTER_WORD[launch.raster],
                swizzle=launch.swizzle,
            )
        case GemvSchedule(rows, columns, threads):
            return PartialSchedule(warps="gemv", rows=rows, columns=columns, threads=threads, swap=swap)


def changed(candidate: GemmCandidate, **fields: Any) -> PartialSchedule:
    """The candidate's request with these fields changed."""
    return replace(request_of(candidate), **fields)


def on_family(candidate: GemmCandidate, warps: str) -> PartialSchedule:
    """The candidate moved to another kernel family: that family's fields only, left to `auto`."""
    shared = {
        name: value
        for name, value in request_of(candidate).fixed().items()
        if name in ("swap", "raster", "swizzle") and warps != "gemv" and name in FIELDS
    }
    return replace(PartialSchedule(), **{**shared, "warps": warps})  # type: ignore[arg-type]


def multistage(candidate: GemmCandidate) -> PartialSchedule:
    """What sm90 cannot do, the multistage kernel can."""
    return on_family(candidate, "multistage")


def nearest(value: int, legal: tuple[int, ...]) -> int:
    """The legal value closest to the given one; the smaller of two."""
    return min(legal, key=lambda v: (abs(v - value), v))
