"""Warp-specialised TMA kernels for Hopper: a plan with an Sm90Schedule to CUTLASS 3.x C++.

The main loop and the epilogue are CUTLASS's, chosen by its collective builders. The epilogue's
access structure becomes visitor nodes, one for each operand and result, and one node of ours
that calls the arithmetic for each element. Operands over M and N of route "tma" come through
shared memory, the first as CUTLASS's source C; the first result of that route is D. Reductions
leave partial results in the workspace, which a second small kernel combines in a fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Mapping, Sequence

from ucutlass.elements import BOOL, Element
from ucutlass.emit import text
from ucutlass.emit.arithmetic import Code, code
from ucutlass.emit.functions import CPP
from ucutlass.plan import Access, GemmPlan, GemmProblem, Product, Reduction, ScalarKind, Sm90Schedule, Store, Stride

ACCUMULATORS: Mapping[str, str] = MappingProxyType(
    {"f32": "float", "fast": "float", "f16": "cutlass::half_t", "s32": "int32_t"}
)
"""The accumulator's C++ type, by the word in `GemmProblem.accumulate`."""

_WARPS: Mapping[str, tuple[str, str, int]] = MappingProxyType(
    {
        "pingpong": ("KernelTmaWarpSpecializedPingpong", "TmaWarpSpecialized", 4),
        "cooperative": ("KernelTmaWarpSpecializedCooperative", "TmaWarpSpecializedCooperative", 8),
    }
)
"""Main loop schedule, epilogue schedule and the warps that share a tile's epilogue."""

_SCHEDULERS: Mapping[str, str] = MappingProxyType(
    {"persistent": "PersistentScheduler", "stream_k": "StreamKScheduler"}
)

_OPERATIONS: Mapping[str, str] = MappingProxyType({"sum": "Sum", "max": "Max", "min": "Min"})

FP8_PROMOTION = 4
"""CUTLASS's default: instructions that the tensor core sums before an fp8 partial sum is added
to the f32 accumulator (`mma_promotion_interval`). A k tile of more needs one of whole tiles."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An operand or result as C++: types, and expressions over the entry's arguments."""

    pointer: int
    element: str
    elements_16b: int
    stride_type: str
    stride_value: str
    strides: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """A visitor node: its C++ name, its declaration and the initialiser of its arguments."""

    name: str
    declaration: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Output:
    """A result in the visitor: the array's name and element type, and the child that takes it,
    None for D."""

    value: str
    compute: str
    child: int | None


@dataclass(frozen=True, slots=True)
class Reduced:
    """The second launch of a reduction, as C++ expressions."""

    op: str
    compute: str
    element: str
    pointer: int
    columns: int
    parts: str
    extent: str
    stride: str
    grid: str
    batch_count: str
    kept_l: str
    kept_out: str
    summed_l: str


def render(plan: GemmPlan) -> str:
    """The kernel's code, with `text.PLACEHOLDER` for the entry's name.

    Raises ValueError for a plan that this family cannot hold: another schedule, k in several
    modes, or a reduction over batch modes alone.
    """
    schedule, problem = plan.schedule, plan.problem
    if not isinstance(schedule, Sm90Schedule):
        raise ValueError(f"not a schedule of this family: {schedule}")
    if len(problem.k) != 1:
        raise ValueError(f"a TMA main loop contracts one mode, the plan has {len(problem.k)}")
    a, b = _tensor(problem.a, problem.a.m), _tensor(problem.b, problem.b.n)
    source, destination = _source(plan), _destination(plan)
    c = None if source is None else _matrix(problem.inputs[source])
    d = None if destination is None else _matrix(problem.outputs[destination].access)
    loads = [_load(problem.inputs[i], i, route) for i, route in _loads(plan, source)]
    return text.render(
        "gemm_sm90.j2",
        a=a,
        b=b,
        c=c,
        d=d,
    )
