"""Allocates poisoned memory between canaries for the outputs and workspaces of a judged run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

GUARD = 4096
"""Bytes of canary before and after each output and workspace."""

CANARY = 0xA5
POISONS = (0xFF, 0x3C)
"""Bytes that memory holds before a run: all ones, which is NaN in every float type, then a
finite pattern (1.06 in f16, 0.0115 in bf16 and f32)."""


@dataclass(frozen=True, slots=True, eq=False)
class Guarded:
    """A tensor in the middle of a larger buffer, `start` bytes behind its beginning."""

    buffer: Tensor
    result: Tensor
    start: int = GUARD

    def overruns(self) -> list[int]:
        """Returns offsets in bytes, from the tensor's first byte, of canaries that changed (at most one
        before and one behind)."""
        inside = self.result.numel() * self.result.element_size()
        front, back = self.buffer[: self.start], self.buffer[self.start + inside :]
        if not bool((torch.cat((front, back)) != CANARY).any()):
            return []
        hit = [(front != CANARY).nonzero()[-1:] - self.start, (back != CANARY).nonzero()[:1] + inside]
        return [int(h) for part in hit for h in part.reshape(-1)]

    def holds(self, poison: int) -> Tensor:
        """Returns which elements, in a row, are that byte again and again."""
        return words(self.result) == _word(poison, self.result.element_size())


WORDS: Mapping[int, torch.dtype] = MappingProxyType(
    {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
)
"""By bytes of an element."""


def _word(byte: int, size: int) -> int:
    """Returns a word of WORDS that is that byte again and again."""
    return int.from_bytes(bytes([byte] * size), "little", signed=size > 1)


def words(tensor: Tensor) -> Tensor:
    """Returns the bits of a tensor's elements as integers, in a row: NaN equals itself, and a GPU goes over
    them at the speed of its memory, which it does not over single bytes."""
    # Axes of length 1 may have any stride, which a view in another type would refuse.
    dense = tensor.contiguous()
    return dense.as_strided((dense.numel(),), (1,)).view(WORDS[tensor.element_size()])


def guarded(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device, poison: int, offset: int = 0
) -> Guarded:
    """Returns a poisoned tensor between canaries; on CUDA devices its address is `offset` bytes, a multiple
    of the element's, past a multiple of 256."""
    size = dtype.itemsize
    inside = math.prod(shape) * size
    start = GUARD + offset
    buffer = torch.empty((start + inside + GUARD,), dtype=torch.uint8, device=device)
    for canary in (buffer[:start], buffer[start + inside :]):
        canary.fill_(CANARY)
    buffer[start : start + inside].view(WORDS[size]).fill_(_word(poison, size))
    return Guarded(buffer, buffer[start : start + inside].view(dtype).view(tuple(shape)), start)


def shifted(tensor: Tensor, offset: int) -> Tensor:
    """Returns a copy that begins `offset` bytes, a multiple of the element's, past where memory is
    allocated."""
    inside = tensor.numel() * tensor.element_size()
    buffer = torch.empty(offset + inside, dtype=torch.uint8, device=tensor.device)
    return buffer[offset:].view(tensor.dtype).view(tensor.shape).copy_(tensor)
