"""The reductions of a lean kernel (`ucutlass.emit.gemm.lean`): what its epilogue leaves in the workspace, and the
launch that finishes it. Partial results lie as those of `ucutlass.emit.gemm.sm90_epilogue`, and are added in
the same order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

from ucutlass.emit.arithmetic import ArithmeticText
from ucutlass.emit.functions import CPP
from ucutlass.emit.gemm.sm90_epilogue import element, extent
from ucutlass.kernels.access import Product, Reduction, Stride
from ucutlass.kernels.gemm.plan import GemmProblem, Sm90Schedule

Removed: TypeAlias = Literal["M", "N", "MN"]

_PARTS: Mapping[Removed, str] = MappingProxyType(
    {"MN": "tiles.tiles_m * tiles.tiles_n * {warps}", "M": "tiles.tiles_m * {warps}", "N": "tiles.tiles_n"}
)
"""Partial results of each element that stays, as C++ over the entry's variables."""


@dataclass(frozen=True, slots=True)
class Modes:
    """Batch modes as C++: how many coordinates, and how far apart what they stand for lies."""

    count: str
    stride: str

    @property
    def text(self) -> str:
        return f"{{{self.count}, {self.stride}}}"


ONE = Modes("1", "0")


@dataclass(frozen=True, slots=True)
class PartialReduction:
    """A reduction. In the kernel: its name, the modes that it `removed`, and the types of its values, alone
    (`scalar`) and in arrays and the workspace (`value`). `parts`, `extent` and `stride` are C++ of the
    entry: so many partial results for each of `extent` elements of each batch become the result, an
    `element`'s array whose elements are `stride` apart. `kept` and `summed` lead from batch modes to the
    linear batch, `placed` from kept ones into the result. `columns` of a block's threads are along x."""

    name: str
    pointer: int
    removed: Removed
    operation: str
    scalar: str
    value: str
    element: str
    columns: int
    parts: str
    extent: str
    stride: str
    kept: Modes
    placed: Modes
    summed: Modes


def combines(
    problem: GemmProblem, schedule: Sm90Schedule, operation: ArithmeticText
) -> tuple[PartialReduction, ...]:
    """The reductions among the results. Raises ValueError for one over batch modes alone."""
    warps = 8 if schedule.warps == "cooperative" else 4
    partials = []
    for j, (output, kind) in enumerate(zip(problem.outputs, operation.outputs, strict=True)):
        if not isinstance(output, Reduction):
            continue
        access, value = output.access, "uint8_t" if kind == "bool" else CPP[kind]
        over = removed(output)
        remains, stride = _left(over, access.m, access.n)
        # The kernel has at most one batch mode.
        batched = bool(access.batch)
        stays = batched and access.batch[0] is not None
        partials.append(
            PartialReduction(
                name=f"out{j}",
                pointer=access.pointer,
                removed=over,
                operation=f"{output.op.capitalize()}<{value}>",
                scalar=CPP[kind],
                value=value,
                element=element(access.elem),
                columns=1 if remains == "1" else 32,
                parts=_PARTS[over].format(warps=warps),
                extent=remains,
                stride=extent(stride),
                kept=Modes("L", "1") if stays else ONE,
                placed=Modes("L", extent(access.batch[0] or ())) if stays else ONE,
                summed=Modes("L", "1") if batched and not stays else ONE,
            )
        )
    return tuple(partials)


def removed(output: Reduction) -> Removed:
    """Which of M and N the reduction removes. Raises ValueError for none."""
    match output.access.m is None, output.access.n is None:
        case True, True:
            return "MN"
        case True, False:
            return "M"
        case False, True:
            return "N"
        case _:
            raise ValueError("a reduction over batch modes alone is no epilogue of this family")


def _left(over: Removed, m: Stride, n: Stride) -> tuple[str, Product]:
    """The extent that remains, and its stride in the result."""
    match over:
        case "MN":
            return "1", ()
        case "M":
            return "N", n or ()
        case "N":
            return "M", m or ()


def down(partials: tuple[PartialReduction, ...]) -> bool:
    """Whether steps go down M first, as CUTLASS's subtiles do: then columns finish one step at a time, and
    few registers hold them."""
    return any("M" in combine.removed for combine in partials)
