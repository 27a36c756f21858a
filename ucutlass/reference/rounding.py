"""Rounds float64 values to element types as the generated kernels do.

Floats round to nearest, ties to even, in one step from float64 (torch's own casts go through float32 and so
round twice). f16, bf16, f32 and f64 overflow to infinity. e4m3 and e5m2 saturate to 448 and 57344, infinities
included, as `cvt.rn.satfinite` does, the only form that the hardware and CUTLASS have (torch returns infinity
for e5m2). tf32 has f32's exponents (`cvt.rn.tf32.f32`, and TMA, which was measured on an H200 to round ties
to even). NaN stays NaN.

Integers round to nearest, ties to even, and then saturate to the type's range; NaN becomes 0 (`cvt.rni.sat`).
Arithmetic in i32 and i64 wraps instead. As bool, anything but 0 is true.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from ucutlass.ir.elements import BF16, E4M3, E5M2, F16, F32, F64, I32, I64, S4, S8, TF32, U8, Element
from ucutlass.reference.errors import UnsupportedError
from ucutlass.reference.host_numbers import extremes


@dataclass(frozen=True, slots=True)
class Format:
    """A binary float format: fraction bits including the implicit one, the exponent of the smallest normal
    number, the largest finite value, and whether it saturates."""

    precision: int
    smallest: int
    largest: float
    saturates: bool


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        F32.name: Format(24, -126, (2 - 2**-23) * 2.0**127, False),
        TF32.name: Format(11, -126, (2 - 2**-10) * 2.0**127, False),
        F16.name: Format(11, -14, 65504.0, False),
        BF16.name: Format(8, -126, (2 - 2**-7) * 2.0**127, False),
        E4M3.name: Format(4, -6, 448.0, True),
        E5M2.name: Format(3, -14, 57344.0, True),
    }
)
"""IEEE 754 binary32 and binary16; the OCP 8-bit specification for e4m3 and e5m2."""

RANGES: Mapping[str, tuple[int, int]] = MappingProxyType({e.name: e.ends for e in (S4, S8, U8, I32, I64)})
"""The smallest and largest value of each integer type."""


def inner_dtype(elem: Element) -> torch.dtype:
    """Returns the dtype in which the interpreter keeps values of this element type."""
    match elem.kind:
        case "float":
            return torch.float64
        case "int":
            return torch.int64
        case "bool":
            return torch.bool


def outer_dtype(elem: Element) -> torch.dtype:
    """Returns the torch dtype of a tensor in memory, or of its bytes where several values share one. Raises
    UnsupportedError for an element type that is never stored."""
    if not elem.storable:
        raise UnsupportedError(f"{elem.name} never lies in memory: the reference cannot take or return it")
    dtype: torch.dtype = getattr(torch, elem.torch)
    return dtype


_EXPONENT = 0x7FF << 52


def quantum(x: Tensor, form: Format) -> Tensor:
    """Returns the spacing of the format's numbers around each float64 value. It is a power of two and taken
    from the bits of the value's exponent, because torch's exp2 and ldexp need not be exact on every
    device."""
    power = (x.view(torch.int64) & _EXPONENT).view(torch.float64)
    return power.clamp_(2.0**form.smallest, 2.0**1023).mul_(2.0 ** (1 - form.precision))


def round_float(x: Tensor, elem: Element) -> Tensor:
    """Returns float64 values rounded to a float element type, kept in float64."""
    if elem is F64:
        return x
    if elem is F32:
        return x.to(torch.float32).to(torch.float64)  # from float64 torch rounds to it once
    form = FORMATS[elem.name]
    step = quantum(x, form)
    rounded = (x / step).round_().mul_(step)
    if form.saturates:
        return rounded.clamp_(-form.largest, form.largest)
    # The first number beyond the largest is a power of two: at float64's end it overflows as it must here.
    lift = 2.0 ** (1024 - math.frexp(form.largest)[1])
    return rounded.mul_(lift).mul_(1 / lift)


def round_int(x: Tensor, elem: Element) -> Tensor:
    """Returns values of any kind converted to an integer element type, kept in int64."""
    low, high = RANGES[elem.name]
    if x.dtype != torch.float64:
        return x.to(torch.int64).clamp(low, high)
    nearest = x.nan_to_num(nan=0.0, posinf=2.0**63, neginf=-(2.0**63)).round()
    inside = nearest.clamp(max(low, -(2.0**62)), min(high, 2.0**62)).to(torch.int64)
    if elem is not I64:
        return inside
    exact = nearest.clamp(-(2.0**63), 2.0**63 - 1024).to(torch.int64)
    return torch.where(nearest >= 2.0**63, torch.full_like(exact, high), exact)


def wrap(x: Tensor, elem: Element) -> Tensor:
    """Returns an int64 result wrapped to an integer element type: its low bits in two's complement, as on the
    device. i64 wraps by itself; values of other types are returned as they are."""
    return ((x + 2**31) & 0xFFFFFFFF) - 2**31 if elem is I32 else x


def overflow_of(elem: Element) -> float:
    """Returns the least magnitude that rounds to infinity."""
    form = FORMATS[elem.name]
    return form.largest + 2.0 ** (math.frexp(form.largest)[1] - form.precision - 1)


def in_range(x: Tensor, elem: Element) -> Tensor:
    """Returns float64 values of work in a float element type, infinite where they are beyond its range."""
    limit = overflow_of(elem)
    least, most = extremes(x)
    if -limit < least and most < limit:
        return x
    return torch.where(x.abs() >= limit, torch.copysign(torch.full_like(x, torch.inf), x), x)


def cast(x: Tensor, elem: Element) -> Tensor:
    """Returns a value rounded or converted to `elem`, in the interpreter's dtype for it."""
    match elem.kind:
        case "float":
            return round_float(x.to(torch.float64), elem)
        case "int":
            return round_int(x, elem)
        case "bool":
            return x != 0


def store(x: Tensor, elem: Element) -> Tensor:
    """Returns the rounded value in its memory dtype; every value that `cast` returns converts exactly. Raises
    UnsupportedError for element types of which several share a byte, since no kernel writes them."""
    if elem.packed > 1:
        raise UnsupportedError(f"{elem.name} is read from memory and not written: the reference returns none")
    return cast(x, elem).to(outer_dtype(elem))
