"""Tells whether results have the bits of results that were seen before, without keeping those.

The fingerprint of words x is the sum of a x modulo 2**64, of random 64-bit numbers a that a secret key gives
(multilinear hashing; Carter and Wegman, Universal classes of hash functions, 1979). Words have at most 32 bits, so
two results that differ anywhere have one fingerprint with probability 2**-33 at most.

Of many bytes a GPU first multiplies each row of ROW by COLUMNS columns of random bytes, exactly, in one pass over memory
where the sum alone takes ten. Two rows that differ have one product with probability 256**-COLUMNS at most: of the bytes
that differ, one has one value at most in each column that makes up for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from ucutlass.runtime.verify.guards import words

Fingerprint: TypeAlias = tuple[tuple[tuple[int, ...], torch.dtype, int], ...]
"""Of each tensor its shape, its element type, and the sum."""

PART = 2**24
"""Words that are summed at once: their numbers take eight times as much memory as they do."""


def fingerprint(tensors: Sequence[Tensor], key: int) -> Fingerprint:
    """Returns the fingerprint of results, where they lie; equal keys give equal numbers on one device."""
    return tuple((tuple(t.shape), t.dtype, _sum(t, key + number)) for number, t in enumerate(tensors))


ROW = 4096
COLUMNS = 16
LARGE = 2**26
"""Bytes from which on rows are multiplied first."""


def _sum(tensor: Tensor, key: int) -> int:
    bits = words(tensor.detach())
    random = torch.Generator(tensor.device).manual_seed(key)
    # The GPU's product takes rows that lie at multiples of 16 bytes.
    multiplies = bits.is_cuda and bits.nbytes >= LARGE and bits.data_ptr() % 16 == 0
    parts: Sequence[Tensor] = projected(bits, random) if multiplies else (bits,)
    return sum(_summed(part, random) for part in parts) % 2**64


def projected(bits: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Returns the products of the rows of words with random columns, and the words that fill no row."""
    flat = bits.view(torch.int8)
    rows = flat.numel() // ROW
    columns = torch.randint(-128, 128, (ROW, COLUMNS), generator=random, dtype=torch.int8, device=bits.device)
    products = torch._int_mm(flat[: rows * ROW].view(rows, ROW), columns)
    return products.view(-1), flat[rows * ROW :].view(bits.dtype)


def _summed(bits: Tensor, random: torch.Generator) -> int:
    if bits.dtype == torch.int64:
        bits = bits.view(torch.int32)
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for part in bits.split(PART):  # type: ignore[no-untyped-call]
        factors = torch.randint(
            -(2**63), 2**63 - 1, part.shape, generator=random, dtype=torch.int64, device=bits.device
        )
        total += factors.mul_(part).sum()
    return int(total)
