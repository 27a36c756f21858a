"""Infers the extents of a call of the reference interpreter, and words what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ucutlass import inference
from ucutlass.inference import (
    DividesByZero,
    ExtentConflict,
    Inferred,
    OperandAxis,
    TooSmall,
    UnevenSplit,
    UnknownExtents,
)
from ucutlass.ir import Kernel, MemoryAxis, Pipeline, TensorType, extents
from ucutlass.ir.extents import Extent, Fixed
from ucutlass.reference.errors import (
    CallError,
    ExtentMismatchError,
    ExtentRangeError,
    ExtentUnknownError,
    RankMismatchError,
)


def bind(
    program: Kernel | Pipeline,
    shapes: Sequence[tuple[int, ...] | None],
    around: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, int]:
    """Returns every dimension's extent, in the program's order, from its parameters' shapes.

    `shapes` has one entry per parameter, None for a number. `around` gives the extents of the pipeline that a
    kernel is a stage of, for dimensions that none of its parameters has. Raises RankMismatchError,
    ExtentMismatchError (naming both axes), ExtentUnknownError and ExtentRangeError.
    """
    axes: list[OperandAxis] = []
    for decl, shape in zip(program.params, shapes, strict=True):
        if isinstance(decl.type, TensorType) and shape is not None:
            axes += _axes(decl.name, decl.type, shape)
    inferred = inference.infer(program.dims, axes, around)
    if isinstance(inferred, Inferred):
        return dict(inferred.sizes)
    raise _error(program, inferred)


def shape_of(tensor: TensorType, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Returns the shape in elements, given every dimension's extent."""
    return tuple(inference.length(axis, sizes) for axis in tensor.axes)


def _axes(name: str, tensor: TensorType, shape: tuple[int, ...]) -> tuple[OperandAxis, ...]:
    if len(shape) != len(tensor.axes):
        axes_text = ", ".join(_show(axis) for axis in tensor.axes)
        raise RankMismatchError(
            f"{name} has {len(shape)} axes, shape {tuple(shape)}; its type {tensor.elem.name}[{axes_text}] "
            f"has {len(tensor.axes)}"
        )
    return inference.operand_axes(name, tensor.axes, shape, tensor.elem.packed)


def _error(program: Kernel | Pipeline, problem: inference.Problem) -> CallError:
    match problem:
        case UnknownExtents(dims):
            return ExtentUnknownError(
                f"no argument of {program.name} determines the extent of {', '.join(dims)}; "
                "give the dimension an extent in the program's text"
            )
        case DividesByZero(dim, inferred):
            extent = program.dims[dim]
            return ExtentRangeError(
                f"the extent of {dim}, {extents.show(extent)}, divides by zero at {_extents_text(extent, inferred)}"
            )
        case TooSmall(dim, inferred):
            extent = program.dims[dim]
            return ExtentRangeError(
                f"the extent of {dim}, {extents.show(extent)}, is {inferred.sizes[dim]} at "
                f"{_extents_text(extent, inferred)}; extents are at least 0"
            )
        case UnevenSplit(operand_axis, _, length, inferred) | ExtentConflict(operand_axis, length, inferred):
            return ExtentMismatchError(_mismatch_text(operand_axis, length, inferred))


def _mismatch_text(operand_axis: OperandAxis, length: int, inferred: Inferred) -> str:
    axis = operand_axis.declared
    if not axis.dims and isinstance(axis.extent, Fixed):
        return f"{_axis_text(operand_axis)}, but the program says {length}"
    dims = axis.dims or extents.names(axis.extent)
    sources = (
        f"{d} = {inferred.sizes[d]} ({_axis_text(inferred.origin[d]) if d in inferred.origin else 'from the program'})"
        for d in dims
    )
    return f"{_axis_text(operand_axis)}, but {_show(axis)} there is {length}: {'; '.join(sources)}"


def _axis_text(operand_axis: OperandAxis) -> str:
    return f"axis {operand_axis.axis} of {operand_axis.argument} is {operand_axis.size}"


def _extents_text(extent: Extent, inferred: Inferred) -> str:
    return ", ".join(f"{n} = {inferred.sizes[n]}" for n in extents.names(extent)) or "any size"


def _show(axis: MemoryAxis) -> str:
    match axis.dims:
        case ():
            return extents.show(axis.extent)
        case (dim,):
            return dim
        case dims:
            return f"({' '.join(dims)})"
