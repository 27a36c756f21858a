"""Packs values of four bits: two per byte along the innermost axis, the first in the low bits."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ucutlass.ir.elements import Element
from ucutlass.reference.rounding import outer_dtype

LOW, HIGH = -8, 7
"""The range of s4."""


def pack_s4(values: Tensor) -> Tensor:
    """Returns integers from -8 to 7 as torch.uint8 with a last axis of half the length, which is what a
    parameter of s4 takes.

    Raises ValueError for a last axis that is odd or missing, and for numbers that are no integers or out of
    range.
    """
    if values.dim() == 0 or values.shape[-1] % 2:
        raise ValueError(f"two s4 lie in a byte of the last axis, which is odd in {tuple(values.shape)}")
    integers = values.to(torch.int64)
    if bool((integers != values).any()):
        raise ValueError("s4 are integers; round the values first")
    if values.numel() and not LOW <= int(integers.min()) <= int(integers.max()) <= HIGH:
        raise ValueError(
            f"s4 are {LOW} to {HIGH}; the values are {int(integers.min())} to {int(integers.max())}"
        )
    return packed(integers)


def unpack_s4(tensor: Tensor) -> Tensor:
    """Returns the values of a packed tensor as torch.int8, its last axis twice as long."""
    wide = tensor.contiguous().view(torch.uint8).to(torch.int16)
    pairs = torch.stack((wide & 15, wide >> 4), dim=-1)
    return ((pairs ^ 8) - 8).to(torch.int8).flatten(-2)


def packed(values: Tensor) -> Tensor:
    """Returns integers of 4 bits, whose last axis is even, as bytes."""
    low, high = values[..., ::2] & 15, values[..., 1::2] & 15
    return (low | high << 4).to(torch.uint8)


def unpacked(tensor: Tensor, elem: Element) -> Tensor:
    """Returns a tensor in memory with one value per element."""
    return unpack_s4(tensor) if elem.packed > 1 else tensor


def dtypes_of(elem: Element) -> tuple[torch.dtype, ...]:
    """Returns the dtypes that an argument of this element type may have. torch's own 4-bit dtypes are bytes
    of which only the size is defined."""
    return tuple(_dtypes(elem))


def _dtypes(elem: Element) -> Iterator[torch.dtype]:
    yield outer_dtype(elem)
    if elem.packed > 1:
        yield torch.int8
        if (torch_dtype := getattr(torch, "int4", None)) is not None:
            yield torch_dtype
