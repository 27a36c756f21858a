"""A value with its radius, and the constants of error bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ucutlass.reference.chunks import CHUNK
from ucutlass.reference.host_numbers import extremes
from ucutlass.reference.named_tensor import Named

UNIT = 2.0**-24
"""The unit round-off of f32."""

FAILURE = 1e-9
"""The probability that an honest kernel's result exceeds its bound anywhere. It enters the bound under the
root of a logarithm: 1e-6 instead narrows bounds by a tenth."""


@dataclass(frozen=True, slots=True, eq=False)
class Bounded:
    """A value with its radius, in float64 over the value's data; None means that the device has exactly this
    value. Where the radius is infinite the device may have anything, NaN and infinities too; `unknown` says
    that it is infinite somewhere."""

    value: Named
    radius: Tensor | None
    unknown: bool = False


def finite(x: Tensor) -> bool:
    """Returns whether every number is finite; it reads the tensor once, where `isfinite` writes arrays."""
    return all(map(math.isfinite, extremes(x)))


def rounding(x: Tensor) -> Tensor:
    """Returns the distance of float64 values from the nearest f32."""
    return (x.to(torch.float32) - x).abs_()


def bounded(value: Named, radius: Tensor | None) -> Bounded:
    """Returns the value with its radius. An undefined radius of a finite value is infinite. A value that is
    not finite is returned by every kernel, so its radius is 0 unless the rule that derived the radius says
    that it is infinite."""
    if radius is None or not radius.numel():
        return Bounded(value, None)
    least, most = extremes(radius)
    if least == most == 0:
        return Bounded(value, None)
    if math.isfinite(most) and (value.data.dtype != torch.float64 or finite(value.data)):
        return Bounded(value, radius.expand(value.data.shape))
    expanded = radius.expand(value.data.shape)
    if value.data.dtype == torch.float64:
        expanded = torch.where((value.data.abs() < torch.inf) | (expanded == torch.inf), expanded, 0.0)
    expanded = expanded.nan_to_num(nan=torch.inf, posinf=torch.inf)
    return Bounded(value, expanded, extremes(expanded)[1] == torch.inf)


def with_nonfinite(value: Tensor, radius: Tensor, unknown: Tensor | None) -> Tensor:
    """Returns the radius corrected for infinities and NaN, for which rounding errors have no meaning:
    infinite where `unknown`, else 0 where the value is not finite."""
    if unknown is None and finite(radius):
        return radius
    adjusted = torch.where(value.isfinite(), radius, torch.zeros_like(radius))
    return adjusted if unknown is None else adjusted.masked_fill(unknown, torch.inf)


def deviation(additions: int, results: int) -> float:
    """Returns how many standard steps a sum of rounding errors strays: the lambda of Connolly, Higham and
    Mary (SIAM J. Sci. Comput. 43, 2021, theorem 4.8). With probability 1 - FAILURE no error of `results` sums
    of `additions` terms exceeds lambda * sqrt(additions) * u * sum|terms|."""
    return math.sqrt(2 * math.log(2 * max(additions, 1) * max(results, 1) / FAILURE))


def growth(additions: int, results: int) -> float:
    """Returns the factor of u * sum|terms| in the error of a sum: the statistical one, or the worst case
    where that is smaller."""
    return min(float(additions), deviation(additions, results) * math.sqrt(additions))


def exact_sums(total: Tensor, most: float, *terms: Tensor) -> Tensor | None:
    """Returns where the sums of magnitudes `total` are at most `most` times the product of the terms'
    granules, so that nothing rounds; None where that holds nowhere."""
    # A few terms tell mostly: their granule is no smaller than that of all.
    few_limit = most * math.prod(_granule(t.reshape(-1)[:_FEW]) for t in terms)
    if math.isfinite(few_limit) and not bool((total <= few_limit).any()):
        return None
    exact = total <= most * math.prod(map(granule, terms))
    return exact if bool(exact.any()) else None


_FEW = 4096


def granule(x: Tensor) -> float:
    """Returns the largest power of two that divides every element: 1 where all are 0, 0 where one is not
    finite."""
    smallest = min(map(_granule, torch.split(x.reshape(-1), CHUNK)))
    return smallest if math.isfinite(smallest) else 1.0


def _granule(x: Tensor) -> float:
    """Returns what `granule` does, but infinity where all elements are 0."""
    if not finite(x):
        return 0.0
    mantissa, exponent = torch.frexp(x[x != 0].to(torch.float64))
    if mantissa.numel() == 0:
        return math.inf
    integers = (mantissa * 2.0**53).to(torch.int64)
    trailing_zeros = torch.frexp((integers & -integers).to(torch.float64)).exponent - 1
    return math.ldexp(1.0, int((exponent.to(torch.int64) - 53 + trailing_zeros).min()))
