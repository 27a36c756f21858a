"""What TMA writes to shared memory and what wgmma reads there, after the PTX manual: a model in numpy.

Sources: PTX ISA, "Tensor" (swizzling modes) and "Shared memory matrix layout" (canonical layouts of wgmma,
as also written at the head of cute/arch/mma_sm90_desc.hpp). Addresses are bytes from a 1024-byte border.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Addresses: TypeAlias = npt.NDArray[np.int64]
Memory: TypeAlias = npt.NDArray[np.int64]
"""For each byte of shared memory what was written there, or EMPTY."""

EMPTY = -1
MOST = 256
"""Elements of a TMA box along one mode."""


def number(expression: str, **names: int) -> int:
    """A sum of products of numbers and names, as the emitter writes places and coordinates."""
    terms = (re.split(r" \* ", term) for term in expression.split(" + "))
    return sum(math.prod(names[f] if f in names else int(f) for f in term) for term in terms)


def swizzled(address: Addresses, width: int) -> Addresses:
    """Where TMA and wgmma put what lies at `address` of rows of `width` bytes: 16-byte parts are exchanged
    by the number of the 128 bytes that they lie in."""
    bits = {128: 7, 64: 3, 32: 1, 16: 0}[width]
    return address ^ (address >> 7 & bits) << 4


@dataclass(frozen=True)
class Box:
    """A TMA copy's box: elements along the inner and the outer mode, of `size` bytes."""

    inner: int
    outer: int
    size: int

    @property
    def width(self) -> int:
        return self.inner * self.size

    def bytes_at(self, place: int) -> Addresses:
        """[outer, inner, byte]: where each byte lands."""
        extents = (self.outer, self.inner, self.size)
        outer, inner, byte = np.ix_(*(np.arange(n, dtype=np.int64) for n in extents))
        return swizzled(place + outer * self.width + inner * self.size + byte, self.width)


def write(memory: Memory, box: Box, place: int, what: npt.NDArray[Any]) -> None:
    """Puts `what` [outer, inner], with each byte's number behind it. Nothing may lie there."""
    assert box.inner <= MOST and box.outer <= MOST
    assert place % 128 == 0, "TMA asks for it"
    at = box.bytes_at(place)
    assert (memory[at] == EMPTY).all(), "written twice"
    memory[at] = what[:, :, None] * box.size + np.arange(box.size)


@dataclass(frozen=True)
class Descriptor:
    """Of a matrix that wgmma reads: its fields in 16 bytes, and the mode that is contiguous."""

    leading: int
    stride: int
    swizzle: int
    k_major: bool

    @property
    def width(self) -> int:
        return {1: 128, 2: 64, 3: 32}[self.swizzle]

    def addresses(self, start: int, rows: int, size: int) -> Addresses:
        """[row, element of K]: the first byte of each, of 32 bytes of K from `start`, in bytes."""
        assert start % 16 == 0
        row, k = np.ix_(np.arange(rows, dtype=np.int64), np.arange(32 // size, dtype=np.int64))
        if self.k_major:
            offset = row // 8 * (self.stride * 16) + row % 8 * self.width + k * size
        else:
            wide = self.width // size
            offset = row // wide * (self.leading * 16) + row % wide * size
            offset = offset + k // 8 * (self.stride * 16) + k % 8 * self.width
        return swizzled(start + offset, self.width)


def read(memory: Memory, addresses: Addresses, size: int) -> Addresses:
    """What was written, once a element: its bytes must lie together and in order."""
    bytes_ = memory[addresses[..., None] + np.arange(size)]
    first = bytes_[..., 0]
    assert (first % size == 0).all() and (bytes_ == first[..., None] + np.arange(size)).all()
    return np.asarray(first // size)
