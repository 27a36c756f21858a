"""A value with its radius, and the constants that radii are made of."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ucutlass.reference.named import Named

UNIT = 2.0**-24
"""Unit round-off of f32."""

FAILURE = 1e-9
"""The probability that an honest kernel's result exceeds its bound anywhere; enters the bound
under a logarithm's root: 1e-6 instead narrows bounds by a tenth."""


@dataclass(frozen=True, slots=True, eq=False)
class Bounded:
    """`radius` is float64 over the value's data; None: the device has exactly this value."""

    value: Named
    radius: Tensor | None


def settle(value: Named, radius: Tensor | None) -> Bounded:
    """Values that are not finite must come out as they are; an undefined radius is infinite."""
    if radius is None or not bool((radius != 0).any()):
        return Bounded(value, None)
    wide = radius.expand(value.data.shape).nan_to_num(nan=torch.inf, posinf=torch.inf)
    if value.data.dtype == torch.float64:
        wide = torch.where(value.data.isfinite(), wide, torch.zeros_like(wide))
    return Bounded(value, wide)


def deviation(additions: int, results: int) -> float:
    """How many standard steps a sum of rounding errors strays: the lambda of Connolly, Higham
    and Mary (SIAM J. Sci. Comput. 43, 2021, theorem 4.8): with probability 1 - FAILURE no error of
    `results` sums of `additions` terms exceeds lambda * sqrt(additions) * u * sum|terms|."""
    return math.sqrt(2 * math.log(2 * max(additions, 1) * max(results, 1) / FAILURE))


def growth(additions: int, results: int) -> float:
    """The factor of u * sum|terms| in the error of a sum: statistical, or the worst case
    where that is smaller."""
    return min(float(additions), deviation(additions, results) * math.sqrt(additions))


def granule(x: Tensor) -> float:
    """The largest power of two that divides every element; 0 where one is not finite."""
    if not bool(x.isfinite().all()):
        return 0.0
    mantissa, exponent = torch.frexp(x[x != 0].to(torch.float64))
    if mantissa.numel() == 0:
        return 1.0
    whole = (mantissa * 2.0**53).to(torch.int64)
    lowest = torch.frexp((whole & -whole).to(torch.float64)).exponent - 1
    return math.ldexp(1.0, int((exponent.to(torch.int64) - 53 + lowest).min()))
