"""A convolution's pattern with concrete extents: the plan's ConvolutionProblem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from itertools import accumulate
from operator import mul

from ucutlass import ir
from ucutlass.ir.extents import Combined, Extent, Fixed, Free, evaluate
from ucutlass.kernels.access import MAX_BATCH_MODES, Access, Output, Reduction, Store
from ucutlass.kernels.addresses import MergedModes, Operand, Sizes, access, runs, vector_width
from ucutlass.kernels.convolution.match import ConvolutionOperand, ConvolutionPattern
from ucutlass.kernels.convolution.plan import (
    AxisWindow,
    ConvolutionProblem,
    OperandAccess,
    OperandAxisExtent,
    unit_dim,
)
from ucutlass.kernels.epilogue import ReduceTo, arithmetic
from ucutlass.kernels.gemm.plan import GemmProblem
from ucutlass.kernels.refused import Refused


def convolution_problem(
    pattern: ConvolutionPattern,
    sizes: Sequence[int],
    aligned: Sequence[bool] | None = None,
    apart: bool = False,
    positions: bool = False,
    beside: bool = False,
) -> ConvolutionProblem:
    """The pattern with concrete extents, in the order of `kernel.dims`. `apart`: every result name is a
    batch mode of its own, as the direct kernel addresses them, m and n are empty. `positions`: of rows that
    lie apart in memory, those of windows are the product's own, though others may be more, and every name
    of the batch is a mode of its own, as TMA's coordinates are. `beside`: of results apart, names of B's alone that
    all tensors have beside each other are one mode.

    Raises Refused UC0305 where more batch modes remain than a kernel addresses.
    """
    at = Sizes(pattern.position, tuple(sizes))
    modes = _apart(pattern, beside) if apart else _modes(pattern, at, positions)
    tensors = sum(isinstance(p.type, ir.TensorType) for p in pattern.kernel.params)
    pointers = tensors + len(pattern.kernel.results)
    fine = tuple(aligned) if aligned is not None else (True,) * pointers

    def reach(tensor: Operand) -> Access:
        return access(tensor, modes, at, fine[tensor.pointer])

    outputs: tuple[Output, ...] = tuple(
        Reduction(o.reduce.op, reach(o.tensor)) if isinstance(o.reduce, ReduceTo) else Store(reach(o.tensor))
        for o in pattern.epilogue.outputs
    )
    operands = [_operand_access(side, at, fine[side.pointer]) for side in (pattern.a, pattern.b)]
    none = tuple(None for _ in modes.batch)
    gemm = GemmProblem(
        compute_type=pattern.dot.compute_type,
        accumulate=pattern.dot.accumulate,
        m=at.product(modes.m),
        n=at.product(modes.n),
        k=tuple(at.product((d,)) for d in pattern.k),
        batch=tuple(at.product(run) for run in modes.batch),
        a=Access(pattern.a.pointer, pattern.a.elem, None, None, (), none, 1),
        b=Access(pattern.b.pointer, pattern.b.elem, None, None, (), none, 1),
        inputs=tuple(reach(t) for t in pattern.epilogue.inputs),
        outputs=outputs,
        arithmetic=arithmetic(pattern.epilogue, modes, at),
        dims=len(pattern.kernel.dims),
        pointers=pointers,
        scalars=sum(isinstance(p.type, ir.ScalarType) for p in pattern.kernel.params),
    )
    place = pattern.position
    return ConvolutionProblem(
        gemm,
        at.product(modes.m),
        at.product(modes.n),
        tuple(place[d] for d in _contracted(pattern, operands)),
        tuple(at.product(run) for run in modes.batch),
        *operands,
    )


def offsets(pattern: ConvolutionPattern, sizes: Sequence[int]) -> tuple[int, ...]:
    """The windows' offsets for these extents, A's first."""
    by_name = dict(zip(pattern.kernel.dims, sizes, strict=True))
    axes = (*pattern.a.axes, *pattern.b.axes)
    return tuple(evaluate(p.position.at.offset, by_name) for p in axes if p.position is not None)


def _operand_access(side: ConvolutionOperand, at: Sizes, aligned: bool) -> OperandAccess:
    axes = []
    for axis in side.axes:
        if axis.position is None:
            axes.append(OperandAxisExtent(at.position[axis.name]))
            continue
        terms = tuple((at.position[d], c) for d, c in axis.position.at.terms)
        offset = renamed(axis.position.at.offset, at.position)
        axes.append(OperandAxisExtent(at.position[axis.name], AxisWindow(axis.position.scale, terms, offset)))
    operand = OperandAccess(side.pointer, side.elem, tuple(axes), 1)
    if unit_dim(operand) is None:
        return operand
    # The extent of the innermost axis, then the stride of each axis around it.
    strides = accumulate((at.values[a.extent] for a in reversed(axes)), mul)
    return replace(operand, align=vector_width(side.elem.bits, aligned, strides))


def renamed(extent: Extent, position: Mapping[str, int]) -> Extent:
    """Returns the extent with dimensions called by their positions."""
    match extent:
        case Free(dim):
            return Free(str(position[dim]))
        case Combined(op, left, right):
            return Combined(op, renamed(left, position), renamed(right, position))
        case Fixed():
            return extent


def _contracted(pattern: ConvolutionPattern, operands: Sequence[OperandAccess]) -> list[str]:
    """The contracted names, the one along which an operand is contiguous innermost (A's first)."""
    names = list(pattern.k)
    by_position = {i: name for name, i in pattern.position.items()}
    for operand in reversed(operands):
        unit = unit_dim(operand)
        if unit is not None and by_position[unit] in names:
            names.remove(by_position[unit])
            names.append(by_position[unit])
    return names


def _tensors(pattern: ConvolutionPattern) -> tuple[Operand, ...]:
    return (*(o.tensor for o in pattern.epilogue.outputs), *pattern.epilogue.inputs)


def _modes(pattern: ConvolutionPattern, at: Sizes, positions: bool) -> MergedModes:
    tensors = _tensors(pattern)
    windows = [axis.position.at.terms for axis in pattern.a.axes if axis.position is not None]
    first = {d for terms in windows for d, _ in terms} if positions else set()
    m, m_rest = _longest(runs(pattern.m, tensors), at, first)
    n, n_rest = _longest(runs(pattern.n, tensors), at)
    parts = [*runs(pattern.batch, tensors), *m_rest, *n_rest]
    merged = runs([name for part in parts for name in part], tensors)
    batch = merged if len(merged) < len(parts) else tuple(parts)
    if positions:
        batch = tuple((name,) for run in batch for name in run)
    if len(batch) > MAX_BATCH_MODES:
        raise Refused(
            "UC0305",
            f"{len(batch)} batch dimensions lie apart in memory; a kernel addresses {MAX_BATCH_MODES}",
            pattern.dot.span,
            "store operands or the result with these names next to each other",
        )
    return MergedModes(m, n, (), batch)


def _longest(
    parts: tuple[tuple[str, ...], ...], at: Sizes, first: Set[str] = frozenset()
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """The run that becomes the product's own mode, one with most names of `first`, and the rest."""
    if not parts:
        return (), ()
    best = max(
        range(len(parts)), key=lambda i: (len(first & {*parts[i]}), at.number(at.product(parts[i])), i)
    )
    return parts[best], tuple(p for i, p in enumerate(parts) if i != best)


def _apart(pattern: ConvolutionPattern, beside: bool) -> MergedModes:
    """Every result name a batch mode, or of `beside` every run of columns, in the order in which the first result stores
    them."""
    names = (*pattern.m, *pattern.n, *pattern.batch)
    stored = [d for tensor in _tensors(pattern) for d in tensor.order if d in names]
    order = dict.fromkeys((*stored, *names))
    columns = runs(pattern.n, _tensors(pattern)) if beside else ()
    run_of = {d: run for run in columns for d in run}
    return MergedModes((), (), (), tuple(dict.fromkeys(run_of.get(d, (d,)) for d in order)))
