"""Convolutions: what their templates share, the description of how operands are accessed (`convolution/access.j2`) and
copied to another order before the product (`convolution/pack.j2`), and of what the multistage GEMM's epilogue
stores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ucutlass.emit.arithmetic import INCLUDES, arithmetic
from ucutlass.emit.gemm import sm80 as gemm_sm80
from ucutlass.emit.gemm import sm80_epilogue as epilogue
from ucutlass.emit.text import over_extents
from ucutlass.ir.elements import BF16, F16, F32
from ucutlass.ir.extents import Extent
from ucutlass.kernels.convolution.plan import (
    ConvolutionProblem,
    GroupJoin,
    OperandAccess,
    OperandAxisExtent,
    merged,
)
from ucutlass.kernels.gemm.plan import GemmProblem

NARROW_INCLUDES = ("<cmath>", "<cstdint>", "cutlass/cutlass.h", "cutlass/bfloat16.h", "cutlass/half.h")
"""All that is needed of CUTLASS where no element but these is converted: nvcc reads the headers of every other
element for as long as it compiles the kernel."""


@dataclass(frozen=True, slots=True)
class WindowText:
    """A window as the templates read it: the axis, its dimension, and its offset as C++."""

    axis: int
    scale: int
    extent: int
    offset: str


@dataclass(frozen=True, slots=True)
class LayoutText:
    """An axis in memory, innermost first; `extent` is C++ over the entry's extent array."""

    axis: int
    extent: str


@dataclass(frozen=True, slots=True)
class AccessText:
    """The access to an operand as the templates read it. A position is the sum of `parts`, each a name and its number
    of modes; `sums` are the statements of each part, `base` those of the batch."""

    name: str
    cpp: str
    data: str
    axes: int
    rows: tuple[int, ...]
    windows: tuple[WindowText, ...]
    layout: tuple[LayoutText, ...]
    parts: tuple[tuple[str, int], ...]
    sums: Mapping[str, tuple[str, ...]]
    base: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FoldText:
    """The axis beside the copy's last one, where the copy begins on it, and its length there, as C++; `count`
    elements are stored together."""

    axis: int
    first: str
    length: str
    count: int


@dataclass(frozen=True, slots=True)
class PackText:
    """An operand's copy in another order, see `convolution/pack.j2`; `before` are the copies before it, `split` says
    that there are two, of TF32 parts or, where the element is one, of f16 parts. `merged` are the axes that are one with the first in both orders, itself
    among them; none where that stays innermost. `join`: groups lie beside each other in it; `beside` are the axes that are one with the last in both orders. `stacked`: it is copied in the order that it has already."""

    name: str
    data: str
    source_cpp: str
    cpp: str
    pointer: int
    axes: int
    declared: tuple[int, ...]
    extents: tuple[int, ...]
    unused: tuple[int, ...]
    layout: tuple[LayoutText, ...]
    elements: str
    count: str
    first: int
    last: int
    before: tuple[str, ...]
    split: bool
    merged: tuple[int, ...]
    fold: FoldText | None
    stacked: bool
    join: GroupJoin | None
    beside: tuple[int, ...]


def accesses(problem: ConvolutionProblem) -> tuple[AccessText, AccessText]:
    """Both operands."""
    return _access(problem, problem.a, "A", problem.m), _access(problem, problem.b, "B", problem.n)


def _access(
    problem: ConvolutionProblem, operand: OperandAccess, name: str, rows: tuple[int, ...]
) -> AccessText:
    number = {axis: i for i, axis in enumerate(operand.windows)}
    windows = tuple(
        WindowText(i, a.window.scale, a.extent, spelled(a.window.offset))
        for i, a in enumerate(operand.axes)
        if a.window is not None
    )
    pointer = f"pack_{name.lower()}" if operand.pack is not None else f"tensors[{operand.pointer}]"
    coordinates = {"row": _names(rows), "column": _names(problem.k)}
    return AccessText(
        name,
        operand.read.cpp,
        pointer,
        len(operand.axes),
        rows,
        windows,
        layout(operand),
        tuple((part, max(1, len(names))) for part, names in coordinates.items()),
        {part: sums(operand, names, number) for part, names in coordinates.items()},
        _base(problem, operand, number),
    )


def spelled(extent: Extent) -> str:
    """An extent as C++ over the entry's extent array; dimensions are called by their positions."""
    return over_extents(extent, "floor_divide", "floor_modulo")


def _names(dims: Sequence[int]) -> dict[int, str]:
    return {d: f"c[{i}]" for i, d in enumerate(dims)}


def layout(operand: OperandAccess) -> tuple[LayoutText, ...]:
    """The axes as the product reads them."""
    axes = [LayoutText(i, f"e[{operand.axes[i].extent}]") for i in reversed(operand.order)]
    if operand.fold is not None:
        axes[1] = LayoutText(operand.fold.axis, spelled(operand.fold.length))
    if operand.pad > 1:
        axes[0] = replace(axes[0], extent=f"ceil_div({axes[0].extent}, {operand.pad}) * {operand.pad}")
    if operand.join is not None:
        axes[0] = replace(axes[0], extent=f"{operand.join.count} * {axes[0].extent}")
    if operand.stack:
        axes[1] = replace(axes[1], extent=f"{axes[1].extent} * {math.prod(s.scale for s in operand.stack)}")
        lengths = {s.axis: f"({spelled(s.length)})" for s in operand.stack}
        axes = [replace(axis, extent=lengths.get(axis.axis, axis.extent)) for axis in axes]
    return tuple(axes)


def sums(operand: OperandAccess, names: Mapping[int, str], number: Mapping[int, int]) -> tuple[str, ...]:
    """What these coordinates add to an address; scaled windows are divided once all is added."""
    lines: list[str] = []
    for i, axis in enumerate(operand.axes):
        if axis.window is None:
            if axis.extent in names:
                lines.append(f"position.offset += {names[axis.extent]} * stride[{i}];")
            continue
        terms = [(names[d], c) for d, c in axis.window.terms if d in names]
        lines += [f"position.at[{number[i]}] += {c} * int({text});" for text, c in terms]
        if terms and axis.window.scale == 1:
            lines.append(f"position.offset += position.at[{number[i]}] * stride[{i}];")
    return tuple(lines)


def _base(problem: ConvolutionProblem, operand: OperandAccess, number: Mapping[int, int]) -> tuple[str, ...]:
    names: dict[int, str] = {}
    lines: list[str] = []
    for i, run in enumerate(problem.batch):
        if len(run) == 1:
            names[run[0]] = f"batch[{i}]"
            continue
        lines.append(f"int64_t rest{i} = batch[{i}];")
        for d in reversed(run):
            lines.append(f"int64_t const c{d} = rest{i} % e[{d}];")
            lines.append(f"rest{i} /= e[{d}];")
            names[d] = f"c{d}"
    lines += [f"position.at[{w}] += first[{w}];" for w in number.values()]
    added = sums(operand, names, number)
    untouched = [
        f"position.offset += position.at[{number[i]}] * stride[{i}];"
        for i in number
        if operand.axes[i].window is not None and _scale(operand.axes[i]) == 1
    ]
    return (*lines, *(line for line in added if line not in untouched), *untouched)


def _scale(axis: OperandAxisExtent) -> int:
    return axis.window.scale if axis.window is not None else 1


def packs(problem: ConvolutionProblem) -> tuple[PackText, ...]:
    """The operands that are copied before the product."""
    texts: list[PackText] = []
    most = max(len(problem.a.axes), len(problem.b.axes), 1)
    for name, operand in (("A", problem.a), ("B", problem.b)):
        if operand.pack is None:
            continue
        lies = layout(operand)
        texts.append(
            PackText(
                name,
                f"pack_{name.lower()}",
                operand.elem.cpp,
                operand.read.cpp,
                operand.pointer,
                most,
                tuple(reversed(range(len(operand.axes)))),
                tuple(a.extent for a in operand.axes),
                tuple(range(len(operand.axes), most)),
                lies,
                " * ".join(a.extent for a in lies),
                " * ".join(f"e[{a.extent}]" for a in operand.axes),
                len(operand.axes) - 1,
                lies[0].axis,
                tuple(p.data for p in texts),
                operand.split,
                () if operand.fold is not None else merged(operand),
                _fold(operand),
                bool(operand.stack),
                operand.join,
                _beside(operand),
            )
        )
    return tuple(texts)


def _beside(operand: OperandAccess) -> tuple[int, ...]:
    """The axis before the last of a copy without padding, where it is that before it in the tensor too: both are one."""
    if operand.pad > 1 or operand.fold is not None or operand.stack or operand.join is not None:
        return ()
    return tuple(axis for axis in operand.order[-2:-1] if axis + 1 == operand.order[-1])


def _fold(operand: OperandAccess) -> FoldText | None:
    fold = operand.fold
    if fold is None:
        return None
    count = min(operand.pad, 16 // operand.read.bytes)
    return FoldText(fold.axis, spelled(fold.first), spelled(fold.length), count)


def contracted(problem: ConvolutionProblem) -> tuple[str, ...]:
    """The contracted extents as C++; the innermost is padded where an operand is."""
    extents = [f"e[{d}]" for d in problem.k] or ["1"]
    pads = [
        w.pad
        for w in (problem.a, problem.b)
        if w.pad > 1 and w.contiguous and w.contiguous.extent == problem.k[-1]
    ]
    if pads:
        extents[-1] = f"ceil_div({extents[-1]}, {max(pads)}) * {max(pads)}"
    return tuple(extents)


def numeric_includes(problem: ConvolutionProblem, arithmetic: str) -> Sequence[str]:
    """Returns CUTLASS's headers that the kernel's elements and its arithmetic need."""
    gemm = problem.gemm
    tensors = (gemm.a, gemm.b, *gemm.inputs, *(output.access for output in gemm.outputs))
    elements = {problem.a.read, problem.b.read, *(tensor.elem for tensor in tensors)}
    narrow = problem.passes == "tensor" and elements <= {F16, BF16, F32} and "cutlass::" not in arithmetic
    return NARROW_INCLUDES if narrow else INCLUDES


def values(
    problem: ConvolutionProblem, layout: epilogue.EpilogueLayout, row: str = epilogue.ROW
) -> dict[str, object]:
    """The variables of the templates that multiply tiles; `row` is the coordinate of a row as C++."""
    gemm = epilogue_gemm(problem)
    return {
        **epilogue.values(gemm, layout, arithmetic(gemm), row),
        **gemm_sm80.staged(layout),
        # Extents along K are `contracted_extents`; epilogues get their number alone.
        "k": ["1"] * max(1, len(problem.k)),
        "contracted": max(1, len(problem.k)),
        "accesses": accesses(problem),
        "packs": packs(problem),
        "contracted_extents": contracted(problem),
    }


def epilogue_gemm(problem: ConvolutionProblem) -> GemmProblem:
    """Returns the GEMM that the epilogue follows, with operands' elements as they are read."""
    gemm = problem.gemm
    return replace(gemm, a=replace(gemm.a, elem=problem.a.read), b=replace(gemm.b, elem=problem.b.read))
