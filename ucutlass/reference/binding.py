"""Extents of a call: what the shapes of the arguments say about a program's dimensions.

Knows shapes only, so that launching and the reference interpreter share it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from ucutlass import extents
from ucutlass.extents import Combined, Extent, Fixed, Free
from ucutlass.ir import Kernel, MemoryAxis, Pipeline, TensorType
from ucutlass.reference.errors import (
    ExtentMismatchError,
    ExtentRangeError,
    ExtentUnknownError,
    RankMismatchError,
)


@dataclass(frozen=True, slots=True)
class Place:
    """One axis of one argument, for messages."""

    argument: str
    axis: int
    size: int

    def __str__(self) -> str:
        return f"axis {self.axis} of {self.argument} is {self.size}"


def bind(
    program: Kernel | Pipeline,
    shapes: Sequence[tuple[int, ...] | None],
    around: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, int]:
    """Every dimension's extent, in the program's order, from its parameters' shapes.

    `shapes` has one entry per parameter, None for a number. `around` gives the extents of the
    pipeline that a kernel is a stage of, for dimensions that none of its parameters has. Raises
    RankMismatchError, ExtentMismatchError (naming both places), ExtentUnknownError and
    ExtentRangeError.
    """
    axes: list[tuple[Place, MemoryAxis]] = []
    for decl, shape in zip(program.params, shapes, strict=True):
        if isinstance(decl.type, TensorType) and shape is not None:
            axes += _axes(decl.name, decl.type, shape)
    sizes: dict[str, int] = {}
    origin: dict[str, Place] = {}
    while _infer(program.dims, axes, sizes, origin):
        pass
    sizes = {**around, **sizes}
    unknown = [d for d, e in program.dims.items() if extents.names(e) - sizes.keys()]
    if unknown:
        raise ExtentUnknownError(
            f"no argument of {program.name} determines the extent of {', '.join(unknown)}; "
            "give the dimension an extent in the program's text"
        )
    full = {d: _derive(d, e, sizes) for d, e in program.dims.items()}
    for place, axis in axes:
        _verify(place, axis, full, origin)
    return full


def shape_of(tensor: TensorType, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape in memory, given every dimension's extent."""
    return tuple(axis_length(axis, sizes) for axis in tensor.axes)


def axis_length(axis: MemoryAxis, sizes: Mapping[str, int]) -> int:
    """Composite and single names: the product of their extents; nameless: its own extent."""
    return prod(sizes[d] for d in axis.dims) if axis.dims else extents.evaluate(axis.extent, sizes)


def _axes(name: str, tensor: TensorType, shape: tuple[int, ...]) -> list[tuple[Place, MemoryAxis]]:
    if len(shape) != len(tensor.axes):
        wanted = ", ".join(_show(axis) for axis in tensor.axes)
        raise RankMismatchError(
            f"{name} has {len(shape)} axes, shape {tuple(shape)}; its type {tensor.elem.name}[{wanted}] "
            f"has {len(tensor.axes)}"
        )
    pairs = zip(tensor.axes, shape, strict=True)
    return [(Place(name, i, size), axis) for i, (axis, size) in enumerate(pairs)]


def _show(axis: MemoryAxis) -> str:
    match axis.dims:
        case ():
            return extents.show(axis.extent)
        case (dim,):
            return dim
        case dims:
            return f"({' '.join(dims)})"


def _infer(
    dims: Mapping[str, Extent],
    axes: Sequence[tuple[Place, MemoryAxis]],
    sizes: dict[str, int],
    origin: dict[str, Place],
) -> bool:
    """Solves every axis that has exactly one unknown left; True if that found anything."""
    found = False
    for place, axis in axes:
        solved = _solve(_axis_extent(axis, dims), place.size, sizes)
        if solved is not None and solved[0] not in sizes:
            sizes[solved[0]] = solved[1]
            origin[solved[0]] = place
            found = True
    return found


def _axis_extent(axis: MemoryAxis, dims: Mapping[str, Extent]) -> Extent:
    if not axis.dims:
        return axis.extent
    whole = dims[axis.dims[0]]
    for d in axis.dims[1:]:
        whole = Combined("*", whole, dims[d])
    return whole


def _solve(extent: Extent, size: int, sizes: Mapping[str, int]) -> tuple[str, int] | None:
    """The one unknown name in `extent == size` and its value; None where that is not unique.

    A value that does not divide is returned rounded down: `_verify` then reports it.
    """
    unknown = extents.names(extent) - sizes.keys()
    if len(unknown) != 1:
        return None
    match extent:
        case Free(dim):
            return dim, size
        case Combined("+", left, right):
            if extents.names(right) <= sizes.keys():
                return _solve(left, size - extents.evaluate(right, sizes), sizes)
            if extents.names(left) <= sizes.keys():
                return _solve(right, size - extents.evaluate(left, sizes), sizes)
        case Combined("-", left, right):
            if extents.names(right) <= sizes.keys():
                return _solve(left, size + extents.evaluate(right, sizes), sizes)
            if extents.names(left) <= sizes.keys():
                return _solve(right, extents.evaluate(left, sizes) - size, sizes)
        case Combined("*", left, right):
            if extents.names(right) <= sizes.keys():
                return _divide(left, size, extents.evaluate(right, sizes), sizes)
            if extents.names(left) <= sizes.keys():
                return _divide(right, size, extents.evaluate(left, sizes), sizes)
    return None


def _divide(extent: Extent, size: int, by: int, sizes: Mapping[str, int]) -> tuple[str, int] | None:
    return _solve(extent, size // by, sizes) if by > 0 else None


def _derive(dim: str, extent: Extent, sizes: Mapping[str, int]) -> int:
    try:
        value = extents.evaluate(extent, sizes)
    except ZeroDivisionError as error:
        raise ExtentRangeError(
            f"the extent of {dim}, {extents.show(extent)}, divides by zero at {_known(extent, sizes)}"
        ) from error
    if value < 0:
        raise ExtentRangeError(
            f"the extent of {dim}, {extents.show(extent)}, is {value} at {_known(extent, sizes)}; "
            "extents are at least 0"
        )
    return value


def _known(extent: Extent, sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{n} = {sizes[n]}" for n in sorted(extents.names(extent))) or "any size"


def _verify(place: Place, axis: MemoryAxis, sizes: Mapping[str, int], origin: Mapping[str, Place]) -> None:
    length = axis_length(axis, sizes)
    if length == place.size:
        return
    if not axis.dims and isinstance(axis.extent, Fixed):
        raise ExtentMismatchError(f"{place}, but the program says {length}")
    taking_part = axis.dims or tuple(sorted(extents.names(axis.extent)))
    sources = [
        f"{d} = {sizes[d]} ({origin.get(d, 'from the program')})" for d in taking_part
    ]
    raise ExtentMismatchError(f"{place}, but {_show(axis)} there is {length}: {'; '.join(sources)}")
