"""Infers the extents of a call: what the shapes of its arguments say about a program's dimensions.

The launcher and the reference interpreter share it; each words a `Problem` in its own errors. It works on
torch.SymInt as on int, where each comparison becomes a guard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import TypeAlias

from ucutlass.ir import Dims, MemoryAxis
from ucutlass.ir.extents import Combined, Extent, Fixed, Free, evaluate, names

Dimensions: TypeAlias = Mapping[str, Extent]
"""Every dimension of a program with its extent, in the program's order."""


@dataclass(frozen=True, slots=True)
class OperandAxis:
    """One axis of one argument: the caller's name of the argument, the axis, its declaration, and its number
    of elements."""

    argument: str
    axis: int
    declared: MemoryAxis
    size: int


@dataclass(frozen=True, slots=True)
class Inferred:
    """Every dimension's extent, in the program's order, and the axis that each was read from; dimensions that
    the program's text gives or computes have no such axis."""

    sizes: Mapping[str, int]
    origin: Mapping[str, OperandAxis]


@dataclass(frozen=True, slots=True)
class UnknownExtents:
    """No axis determines the extents of these dimensions."""

    dims: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DividesByZero:
    """The extent of `dim` is computed by a division by zero; `inferred` are the extents so far."""

    dim: str
    inferred: Inferred


@dataclass(frozen=True, slots=True)
class TooSmall:
    """`dim` has fewer elements than a call may have."""

    dim: str
    inferred: Inferred


@dataclass(frozen=True, slots=True)
class UnevenSplit:
    """The composite axis cannot be split evenly: `inner` names its other dimensions."""

    operand_axis: OperandAxis
    inner: Dims
    length: int
    inferred: Inferred


@dataclass(frozen=True, slots=True)
class ExtentConflict:
    """The axis should have `length` elements, by extents that other axes give."""

    operand_axis: OperandAxis
    length: int
    inferred: Inferred


Problem: TypeAlias = UnknownExtents | DividesByZero | TooSmall | UnevenSplit | ExtentConflict


def operand_axes(
    argument: str, axes: Sequence[MemoryAxis], shape: Sequence[int], packed: int = 1
) -> tuple[OperandAxis, ...]:
    """Returns the axes of one argument, as many as its shape has. `packed` values share a unit of the last
    axis."""
    sizes = (*shape[:-1], *(size * packed for size in shape[-1:]))
    pairs = zip(axes, sizes, strict=True)
    return tuple(OperandAxis(argument, i, axis, size) for i, (axis, size) in enumerate(pairs))


def infer(
    dims: Dimensions,
    axes: Sequence[OperandAxis],
    around: Mapping[str, int] = MappingProxyType({}),
    least: int = 0,
) -> Inferred | Problem:
    """Returns every dimension's extent, or the first thing that is wrong.

    Axes that name one free dimension are read first, so that composite axes are checked against them; then
    every axis with one unknown left is solved. `around` gives free extents that no axis does; `least` is the
    fewest elements that a dimension may have.
    """
    sizes: dict[str, int] = {}
    origin: dict[str, OperandAxis] = {}
    for operand_axis in axes:
        match operand_axis.declared.dims:
            case (dim,) if dims[dim] == Free(dim) and dim not in sizes:
                sizes[dim], origin[dim] = operand_axis.size, operand_axis
    while solution := next(_solutions(dims, axes, sizes), None):
        dim, value, operand_axis = solution
        sizes[dim], origin[dim] = value, operand_axis
    for dim, value in around.items():
        sizes.setdefault(dim, value)
    unknown = tuple(d for d, e in dims.items() if not sizes.keys() >= {*names(e)})
    if unknown:
        short = next((d for d in sizes if sizes[d] < least), None)
        inferred = Inferred(sizes, origin)
        return TooSmall(short, inferred) if short is not None else UnknownExtents(unknown)
    return _completed(dims, axes, sizes, origin, least)


def length(axis: MemoryAxis, sizes: Mapping[str, int]) -> int:
    """Returns the length of an axis: the product of its dimensions' extents, or its own extent where it is
    nameless."""
    return prod(sizes[d] for d in axis.dims) if axis.dims else evaluate(axis.extent, sizes)


def _completed(
    dims: Dimensions,
    axes: Sequence[OperandAxis],
    free: Mapping[str, int],
    origin: Mapping[str, OperandAxis],
    least: int,
) -> Inferred | Problem:
    """Evaluates what the text computes, then checks every axis against the result."""
    full: dict[str, int] = {}
    for dim, extent in dims.items():
        try:
            full[dim] = evaluate(extent, free)
        except ZeroDivisionError:
            return DividesByZero(dim, Inferred({**free, **full}, origin))
    inferred = Inferred(full, origin)
    for operand_axis in axes:
        expected = length(operand_axis.declared, full)
        if expected == operand_axis.size:
            continue
        inner = tuple(d for d in operand_axis.declared.dims if origin.get(d) is not operand_axis)
        split = 0 < len(inner) < len(operand_axis.declared.dims)
        return (
            UnevenSplit(operand_axis, inner, expected, inferred)
            if split
            else ExtentConflict(operand_axis, expected, inferred)
        )
    short = next((d for d, value in full.items() if value < least), None)
    return inferred if short is None else TooSmall(short, inferred)


def _solutions(
    dims: Dimensions, axes: Sequence[OperandAxis], sizes: Mapping[str, int]
) -> Iterator[tuple[str, int, OperandAxis]]:
    """Yields each axis that has exactly one unknown left, solved for it."""
    for operand_axis in axes:
        solved = _solve(_extent(operand_axis.declared, dims), operand_axis.size, sizes)
        if solved is not None:
            yield (*solved, operand_axis)


def _extent(axis: MemoryAxis, dims: Dimensions) -> Extent:
    if not axis.dims:
        return axis.extent
    total = dims[axis.dims[0]]
    for d in axis.dims[1:]:
        total = Combined("*", total, dims[d])
    return total


def _solve(extent: Extent, size: int, sizes: Mapping[str, int]) -> tuple[str, int] | None:
    """Returns the one unknown name in `extent == size` and its value; None where that is not unique.

    A value that does not divide is rounded down: `_completed` then finds its axis too long.
    """
    if isinstance(extent, Fixed) or len({*names(extent)} - sizes.keys()) != 1:
        return None
    match extent:
        case Free(dim):
            return dim, size
        case Combined("+" | "-" | "*" as op, left, right):
            if sizes.keys() >= {*names(right)}:
                other = evaluate(right, sizes)
                inverse = {"+": size - other, "-": size + other}
                return _solve(left, inverse[op], sizes) if op != "*" else _divide(left, size, other, sizes)
            if sizes.keys() >= {*names(left)}:
                other = evaluate(left, sizes)
                inverse = {"+": size - other, "-": other - size}
                return _solve(right, inverse[op], sizes) if op != "*" else _divide(right, size, other, sizes)
    return None


def _divide(extent: Extent, size: int, by: int, sizes: Mapping[str, int]) -> tuple[str, int] | None:
    return _solve(extent, size // by, sizes) if by > 0 else None
