"""Finds that arguments repeat along a dimension: the reference of one period is then that of every other.

Where each coordinate of every result depends on the arguments at the same coordinate alone, equal arguments have
equal references. A reference and its bounds take a hundred times as long as it takes to see that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ucutlass import ir
from ucutlass.reference.expect import Expected
from ucutlass.reference.interpreter import Argument


@dataclass(frozen=True, slots=True)
class Period:
    """Says that numbers repeat along a dimension after `length` coordinates, a power of two."""

    dim: str
    length: int


def repeated(tensor: Tensor, axis: int, extent: int) -> Tensor:
    """Returns the tensor again and again along an axis, up to this extent."""
    length = tensor.shape[axis]
    at = torch.arange(extent, device=tensor.device) % length
    return tensor if length == extent else tensor.index_select(axis, at)


def sole_axis(kind: ir.ParamType, dim: str) -> int | None:
    """Returns the axis that is this dimension and no other."""
    axes = kind.axes if isinstance(kind, ir.TensorType) else ()
    return next((i for i, axis in enumerate(axes) if axis.dims == (dim,)), None)


def period_of(program: ir.Program, arguments: Sequence[Argument], dim: str, extent: int) -> Period | None:
    """Returns the least period of the arguments along a dimension of the program, bit by bit; None where they do not
    repeat at least twice. All that do not are told by a few of their numbers."""
    tensors = [
        (a, axis)
        for a, p in zip(arguments, program.params, strict=True)
        if isinstance(a, Tensor) and (axis := sole_axis(p.type, dim)) is not None
    ]
    length = 1
    while tensors and 2 * length <= extent:
        if all(_equal(a, axis, 0, length, 1) for a, axis in tensors) and all(
            _equal(a, axis, 0, length, extent - length) for a, axis in tensors
        ):
            return Period(dim, length)
        length *= 2
    return None


def _equal(tensor: Tensor, axis: int, first: int, second: int, count: int) -> bool:
    """Returns whether two ranges of an axis hold the same bits: NaN equals itself."""
    bits = tensor.view(_BITS[tensor.element_size()]) if tensor.dtype.is_floating_point else tensor
    return torch.equal(bits.narrow(axis, first, count), bits.narrow(axis, second, count))


_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def repeated_expected(expected: Expected, axis: int, extent: int) -> Expected:
    """Returns the reference of so many coordinates of an axis, from one period of it."""
    overflows, free = (
        None if m is None else repeated(m, axis, extent) for m in (expected.overflows, expected.free)
    )
    reference, bound = (repeated(t, axis, extent) for t in (expected.reference, expected.bound))
    return replace(expected, reference=reference, bound=bound, overflows=overflows, free=free)
