"""Checks a call's arguments against a kernel's declaration and infers the extent of each dimension. Every
mistake is a class of its own; each message names the places and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

from ucutlass import inference
from ucutlass.inference import Inferred, OperandAxis
from ucutlass.ir import MemoryAxis
from ucutlass.ir.elements import Element
from ucutlass.ir.extents import Extent, Fixed, names, show
from ucutlass.reference.packing import dtypes_of
from ucutlass.runtime.launch_spec import LaunchSpec, ScalarSlot, SlotAxis, TensorSlot

# --- mistakes --------------------------------------------------------------------


class ArgumentError(Exception):
    """A call's arguments do not fit the kernel; nothing was launched."""


class WrongCount(ArgumentError):
    """More or fewer arguments, or `out` tensors, than the kernel declares."""


class NotATensor(ArgumentError):
    """Something else stands where a tensor was declared."""


class NoMemory(ArgumentError):
    """A tensor without memory of its own: meta, fake, functorch-wrapped, sparse or a wrapper."""


class WrongDtype(ArgumentError):
    """A tensor's dtype is not the declared element type."""


class WrongRank(ArgumentError):
    """A tensor has more or fewer axes than declared."""


class ExtentMismatch(ArgumentError):
    """Two places give one dimension different extents."""


class NotDivisible(ArgumentError):
    """A composite axis cannot be split into its dimensions."""


class EmptyExtent(ArgumentError):
    """A dimension has no elements, or fewer than none."""


class RequirementFailed(ArgumentError):
    """A condition that the program states on its extents does not hold."""


class NotContiguous(ArgumentError):
    """A tensor's strides are not those of its declared order."""


class LazyView(ArgumentError):
    """A tensor whose memory holds the negative or conjugate of its values."""


class WrongDevice(ArgumentError):
    """A tensor lies on a device that the kernel was not built for, or apart from the others."""


class NeedsGrad(ArgumentError):
    """A tensor requires a gradient, which compiled kernels do not compute."""


class Overlap(ArgumentError):
    """An `out` tensor shares memory with an argument or with another `out` tensor."""


class BadScalar(ArgumentError):
    """A host scalar of the wrong kind, or out of its element type's range."""


class Undetermined(Exception):
    """No tensor of the declaration determines a dimension: the declaration is at fault."""


# --- extents ---------------------------------------------------------------------

ArgumentShapes: TypeAlias = Sequence[tuple[str, tuple[int, ...], TensorSlot]]
"""What each tensor is called in messages, its shape, and its declaration."""


def bind(spec: LaunchSpec, shapes: ArgumentShapes) -> tuple[int, ...]:
    """Returns the extent of every dimension, in the order of `spec.dims`: `ucutlass.inference.infer`, with
    at least one element each. Works on torch.SymInt too, where each comparison becomes a guard.

    Raises WrongRank, EmptyExtent, ExtentMismatch, NotDivisible, RequirementFailed, Undetermined.
    """
    axes: list[OperandAxis] = []
    for label, shape, slot in shapes:
        if len(shape) != len(slot.axes):
            raise WrongRank(
                f"{spec.name}: {label} has {len(shape)} axes, shape {_shape(shape)}, but is declared "
                f"with {len(slot.axes)}: {_axes(spec, slot)}"
            )
        axes += inference.operand_axes(
            label, [_named(spec, axis) for axis in slot.axes], shape, slot.elem.packed
        )
    inferred = inference.infer(dict(spec.dims), axes, least=1)
    if not isinstance(inferred, inference.Inferred):
        raise _mistake(spec, inferred)
    for requirement in spec.requires:
        if not requirement.holds(inferred.sizes):
            raise RequirementFailed(
                f"{spec.name}: requires {requirement.text}, which does not hold for "
                + ", ".join(f"{name} = {value}" for name, value in inferred.sizes.items())
            )
    return tuple(inferred.sizes.values())


def _named(spec: LaunchSpec, axis: SlotAxis) -> MemoryAxis:
    return MemoryAxis(tuple(spec.dims[d][0] for d in axis.dims), axis.extent)


def _mistake(spec: LaunchSpec, problem: inference.Problem) -> ArgumentError | Undetermined:
    match problem:
        case inference.UnknownExtents(dims):
            return Undetermined(f"{spec.name}: no tensor determines the extent of {', '.join(dims)}")
        case inference.DividesByZero(dim, inferred):
            extent = dict(spec.dims)[dim]
            return EmptyExtent(
                f"{spec.name}: {dim} = {show(extent)} divides by zero: {_extents_with_origin(spec, extent, inferred)}"
            )
        case inference.TooSmall(dim, inferred):
            return EmptyExtent(
                f"{spec.name}: {dim} is {inferred.sizes[dim]} by {_origin(spec, dim, inferred)}; "
                "every extent must be at least 1"
            )
        case inference.UnevenSplit(place, inner, _, inferred):
            return NotDivisible(
                f"{spec.name}: {_where(place)} is {_declared(place.declared)} and has {place.size} elements, "
                "not a multiple of " + " * ".join(f"{n} = {inferred.sizes[n]}" for n in inner)
            )
        case inference.ExtentConflict(place, length, inferred):
            return ExtentMismatch(f"{spec.name}: {_apart(spec, place, length, inferred)}")


def _apart(spec: LaunchSpec, place: OperandAxis, length: int, inferred: Inferred) -> str:
    axis = place.declared
    if not axis.dims:
        because = show(axis.extent) + (
            f", {_extents_with_origin(spec, axis.extent, inferred)}" if names(axis.extent) else ""
        )
        return f"{_where(place)} has {place.size} elements, but is declared as {because}: {length}"
    reasons = ", ".join(f"{n} is {inferred.sizes[n]} by {_origin(spec, n, inferred)}" for n in axis.dims)
    has = f"{_where(place)} is {_declared(axis)} and has {place.size} elements"
    return f"{has}, but must have {length}: {reasons}"


def _origin(spec: LaunchSpec, dim: str, inferred: Inferred) -> str:
    if dim in inferred.origin:
        return _where(inferred.origin[dim])
    extent = dict(spec.dims)[dim]
    if isinstance(extent, Fixed):
        return "the program"
    return f"{dim} = {show(extent)}, {_extents_with_origin(spec, extent, inferred)}"


def _extents_with_origin(spec: LaunchSpec, extent: Extent, inferred: Inferred) -> str:
    return ", ".join(f"{n} = {inferred.sizes[n]} by {_origin(spec, n, inferred)}" for n in names(extent))


def _where(place: OperandAxis) -> str:
    return f"{place.argument} axis {place.axis}"


def _declared(axis: MemoryAxis) -> str:
    inner = " ".join(axis.dims)
    return inner if len(axis.dims) == 1 else f"({inner})"


def _axes(spec: LaunchSpec, slot: TensorSlot) -> str:
    return "[" + ", ".join(_declared(_named(spec, a)) if a.dims else show(a.extent) for a in slot.axes) + "]"


def _shape(shape: Sequence[int]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


# --- tensors ---------------------------------------------------------------------


def check_tensor(spec: LaunchSpec, label: str, slot: TensorSlot, tensor: object) -> torch.Tensor:
    """Returns the argument as a tensor whose memory can be read as declared; its extents and strides
    are checked elsewhere.

    Raises NotATensor, NoMemory, LazyView, WrongDtype, WrongDevice.
    """
    if not isinstance(tensor, torch.Tensor):
        raise NotATensor(
            f"{spec.name}: {label} is a {type(tensor).__name__}, but a tensor is declared: {slot.elem.name}"
        )
    if tensor.device.type == "meta":
        raise NoMemory(f"{spec.name}: {label} is a meta tensor, which has no data; give one on {spec.device}")
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise NoMemory(
            f"{spec.name}: {label} is a {type(tensor).__name__}, which has no memory of its own; "
            "under torch.compile or fake tensors call the kernel as an operator (as_operator)"
        )
    if tensor.layout is not torch.strided:
        raise NoMemory(f"{spec.name}: {label} has layout {tensor.layout}; give a dense tensor")
    if tensor.dtype not in (dtypes := dtypes_of(slot.elem)):
        how = "give ucutlass.pack_s4(..) of it" if slot.elem.packed > 1 else "convert it"
        raise WrongDtype(
            f"{spec.name}: {label} is {tensor.dtype}, but is declared {slot.elem.name} ({dtypes[0]}"
            f"{', two values a byte' if slot.elem.packed > 1 else ''}); {how}, or change the declaration"
        )
    if tensor.device.type != spec.device:
        raise WrongDevice(f"{spec.name}: {label} is on {tensor.device}, but the kernel runs on {spec.device}")
    if tensor.is_neg() or tensor.is_conj():
        raise LazyView(f"{spec.name}: {label} is a lazily negated view; give {label}.resolve_neg()")
    try:
        tensor.data_ptr()
    except RuntimeError as error:
        raise NoMemory(f"{spec.name}: {label} has no memory to read: {str(error).splitlines()[0]}") from error
    return tensor


def check_strides(spec: LaunchSpec, label: str, tensor: torch.Tensor) -> None:
    """Raises NotContiguous; axes of one element may have any stride."""
    expected = 1
    for i in reversed(range(tensor.dim())):
        if tensor.shape[i] != 1 and tensor.stride(i) != expected:
            raise NotContiguous(
                f"{spec.name}: {label} axis {i} has stride {tensor.stride(i)} where {expected} was expected "
                f"(shape {_shape(tensor.shape)}, strides {_shape(tensor.stride())}); "
                f"give {label}.contiguous(), or declare the dimensions in the tensor's memory order"
            )
        expected *= tensor.shape[i]


def check_grad(spec: LaunchSpec, label: str, tensor: torch.Tensor) -> None:
    """Raises NeedsGrad where autograd would expect to see this call."""
    if tensor.requires_grad:
        raise NeedsGrad(
            f"{spec.name}: {label} requires a gradient, which compiled kernels do not compute; "
            "call under torch.no_grad(), or give a detached tensor"
        )


def check_overlap(
    spec: LaunchSpec, label: str, out: torch.Tensor, other_label: str, other: torch.Tensor
) -> None:
    """Raises Overlap; both tensors are contiguous."""
    a, b = out.data_ptr(), other.data_ptr()
    if a < b + other.numel() * other.element_size() and b < a + out.numel() * out.element_size():
        raise Overlap(f"{spec.name}: {label} shares memory with {other_label}; give memory of its own")


# --- scalars ---------------------------------------------------------------------

_EXACT = 2**53
"""Scalars cross the binary interface as doubles, which are exact up to here."""


def integer_range(elem: Element) -> tuple[int, int]:
    """Returns the integers that an element type, passed as a double, holds."""
    if elem.name.startswith("u"):
        return 0, min(2**elem.bits - 1, _EXACT)
    return max(-(2 ** (elem.bits - 1)), -_EXACT), min(2 ** (elem.bits - 1) - 1, _EXACT)


def check_scalar(spec: LaunchSpec, slot: ScalarSlot, value: object) -> float:
    """Raises BadScalar. Numbers of other libraries pass through `__float__` and `__index__`."""
    what = f"{spec.name}: {slot.name} is declared {slot.elem.name}"
    if isinstance(value, torch.Tensor):
        raise BadScalar(
            f"{what}, a number of the host, but got a tensor; give .item(), or declare it {slot.elem.name}[]"
        )
    match slot.elem.kind:
        case "float":
            if isinstance(value, (bool, str, bytes)) or not hasattr(value, "__float__"):
                raise BadScalar(f"{what}, but got {type(value).__name__} {value!r}")
            try:
                return float(value)
            except (OverflowError, TypeError, ValueError) as error:
                raise BadScalar(f"{what}, but {value!r} is no such number: {error}") from error
        case "int":
            if isinstance(value, bool) or not hasattr(value, "__index__"):
                raise BadScalar(f"{what}, but got {type(value).__name__} {value!r}")
            low, high = integer_range(slot.elem)
            number = value.__index__()
            if not low <= number <= high:
                raise BadScalar(f"{what}, {low} to {high}, but got {number}")
            return float(number)
        case "bool":
            if not isinstance(value, bool):
                raise BadScalar(f"{what}, but got {type(value).__name__} {value!r}")
            return float(value)
