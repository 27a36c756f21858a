"""Brings numbers of a device to the host. A process waits for the GPU each time, which takes as long as a hundred
operations where others use the GPU too, so that what can be asked together is."""

from __future__ import annotations

import torch
from torch import Tensor


def numbers(*scalars: Tensor) -> list[float]:
    """Returns the only element of each tensor, all of one device."""
    if not scalars or scalars[0].device.type == "cpu":
        return [float(s) for s in scalars]
    together: list[float] = torch.stack([s.to(torch.float64) for s in scalars]).tolist()
    return together


def extremes(x: Tensor) -> tuple[float, float]:
    """Returns the least and the largest number, NaN if one is NaN, and 0 for an empty tensor."""
    return extremes_of(x)[0]


def extremes_of(*tensors: Tensor) -> list[tuple[float, float]]:
    """Returns the `extremes` of each tensor, all of one device."""
    wide = [x.to(torch.float32) if x.is_floating_point() and x.element_size() == 1 else x for x in tensors]
    ends = iter(numbers(*(end for x in wide if x.numel() for end in x.aminmax())))
    return [(next(ends), next(ends)) if x.numel() else (0.0, 0.0) for x in tensors]
