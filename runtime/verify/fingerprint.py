"""Tells whether results have the bits of results that were seen before, without keeping those.

The fingerprint of words x is the sum of a x modulo 2**64, of random 64-bit numbers a that a secret key gives
(multilinear hashing; Carter and Wegman, Universal classes of hash functions, 1979). Words have at most 32 bits, so
two results that differ anywhere have one fingerprint with probability 2**-33 at most.
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
    sums = [_sum(t, key + number) for number, t in enumerate(tensors)]
    # Together, since a process waits for the GPU each time.
    totals = torch.stack(sums).tolist() if sums else []
    return tuple((tuple(t.shape), t.dtype, total) for t, total in zip(tensors, totals, strict=True))


def _sum(tensor: Tensor, key: int) -> Tensor:
    bits = words(tensor.detach())
    if bits.dtype == torch.int64:
        bits = bits.view(torch.int32)
    random = torch.Generator(tensor.device).manual_seed(key)
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for part in bits.split(PART):  # type: ignore[no-untyped-call]
        factors = torch.randint(
            -(2**63), 2**63 - 1, part.shape, generator=random, dtype=torch.int64, device=tensor.device
        )
        total += factors.mul_(part).sum()
    return total
