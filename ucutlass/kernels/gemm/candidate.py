"""What a rule looks at: one problem with concrete extents under one concrete schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ucutlass.ir.hardware import ARCHES, Arch
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels.access import Access, Product, Reduction, Stride
from ucutlass.kernels.gemm.plan import (
    GemmPlan,
    GemmProblem,
    GemvSchedule,
    LaunchParameters,
    Route,
    Sm80Schedule,
    Sm90Schedule,
)
from ucutlass.kernels.planned import Planned

RASTER_WORD: dict[int, Literal["heuristic", "along_m", "along_n"]] = {
    0: "heuristic",
    1: "along_m",
    2: "along_n",
}
"""`raster` words by the knob's number: `schedule.RASTERS` the other way round."""

TMA_BYTES = 16
"""Alignment in bytes of a TMA tensor's address and of all its strides but the unit one (CUDA
driver API, cuTensorMapEncodeTiled)."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Extents of a problem in elements: `k` and `batch` are the products of their modes.
    `operand_bytes` is A and B, `epilogue_bytes` every other tensor, each counted once."""

    m: int
    n: int
    k: int
    batch: int
    operand_bytes: int
    epilogue_bytes: int

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k * self.batch


def extent(product: Product, sizes: tuple[int, ...]) -> int:
    """The value of a product of extents."""
    return math.prod(sizes[d] for d in product)


def stride_bytes(stride: Stride, access: Access, sizes: tuple[int, ...]) -> int:
    """Bytes from one element of a mode to the next; 0 where the tensor does not range over it."""
    return 0 if stride is None else extent(stride, sizes) * access.elem.bytes


def shape_of(problem: GemmProblem, sizes: tuple[int, ...]) -> Shape:
    """The problem's extents and bytes for concrete sizes, by position."""
    return Shape(
        extent(problem.m, sizes),
        extent(problem.n, sizes),
        math.prod(extent(k, sizes) for k in problem.k),
        math.prod(extent(b, sizes) for b in problem.batch),
        sum(tensor_bytes(t, problem, sizes) for t in (problem.a, problem.b)),
        sum(tensor_bytes(t, problem, sizes) for t in epilogue_tensors(problem)),
    )


def tensor_bytes(access: Access, problem: GemmProblem, sizes: tuple[int, ...]) -> int:
    """Bytes of a tensor: the modes it ranges over, nothing for those it is broadcast along."""
    modes = (
        (access.m, problem.m),
        (access.n, problem.n),
        *zip(access.k, problem.k, strict=False),
        *zip(access.batch, problem.batch, strict=False),
    )
    return access.elem.bytes * math.prod(extent(e, sizes) for stride, e in modes if stride is not None)


@dataclass(frozen=True, slots=True)
class Candidate:
    """`problem` is what the kernel computes: already transposed where `swapped`. `routes` is
    as in GemmPlan."""

    arch: Arch
    problem: GemmProblem
    sizes: tuple[int, ...]
    shape: Shape
    schedule: Sm90Schedule | Sm80Schedule | GemvSchedule
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


def candidate_of(planned: Planned) -> Candidate:
    """The candidate that was planned: everything of it stands in the plan, the launch and the request."""
    plan = planned.plan
    assert isinstance(plan, GemmPlan), type(plan)
    return Candidate(
        ARCHES[plan.arch],
        plan.problem,
        planned.sizes,
        shape_of(plan.problem, planned.sizes),
        plan.schedule,
        LaunchParameters(*planned.launch),
        plan.routes,
        planned.request.swap == "yes",
    )


def epilogue_tensors(problem: GemmProblem) -> tuple[Access, ...]:
    """The accesses that `GemmPlan.routes` speaks of, in its order."""
    return problem.inputs + tuple(output.access for output in problem.outputs)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def accumulator_bytes(problem: GemmProblem) -> int:
    """Bytes of one accumulator element."""
    return 2 if problem.accumulate == "f16" else 4


def tma_alignable(access: Access, problem: GemmProblem) -> bool:
    """Whether TMA can move an epilogue tensor: over M and N, one of them contiguous, 16-byte
    strides, and an element that CUTLASS's epilogue copies take."""
    return (
        access.shape == "full"
        and (access.m == () or access.n == ())
        and access.align * access.elem.bytes >= TMA_BYTES
        and access.elem.name in _TMA_ELEMENTS
    )


_TMA_ELEMENTS = frozenset({"f32", "f16", "bf16", "e4m3", "e5m2", "s8", "u8", "i32"})


def routes_of(problem: GemmProblem, family: str) -> tuple[Route, ...]:
    """How each epilogue tensor moves, inputs first: by TMA wherever it can, on sm90."""
    reduced = {id(o.access) for o in problem.outputs if isinstance(o, Reduction)}
    return tuple(
        "tma" if family == "sm90" and id(t) not in reduced and tma_alignable(t, problem) else "direct"
        for t in epilogue_tensors(problem)
    )


def request_of(candidate: Candidate) -> PartialSchedule:
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
