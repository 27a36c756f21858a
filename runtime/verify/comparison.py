"""Compares one result with its reference, element by element."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from ucutlass.reference.host_numbers import extremes_of, numbers

FEWEST = 64
"""Elements below which a root mean square says nothing of a distribution: a single result may well
be wrong by all that its bound allows."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One result against its reference.

    `worst` is the largest error over its bound: 0 where all are equal, infinite where the bound is 0
    or a NaN or infinity is not the reference's. `index` is where; `in_tile` that index modulo
    the tile, over the last two axes. `bad` counts elements beyond their bound, `exact` those that had
    to be equal, `unbounded` those whose bound is infinite: they may hold anything. `rms` is the
    root mean square of error over bound where both are finite, None where all must be exact or
    there are fewer than FEWEST. `varies` and `reference_varies` tell whether not all elements are equal.
    `useless` counts elements of which the bound says nothing (`useless`), the unbounded ones too.
    """

    name: str
    ok: bool
    worst: float
    index: tuple[int, ...]
    in_tile: tuple[int, int] | None
    out: float
    reference: float
    bound: float
    bad: int
    elements: int
    exact: int
    unbounded: int
    rms: float | None = None
    varies: bool = True
    reference_varies: bool = True
    useless: int = 0

    @property
    def decided(self) -> bool:
        """Whether the bounds of at least half of the elements say something."""
        return 2 * self.useless <= self.elements

    def __str__(self) -> str:
        place = f"at {list(self.index)}" + (f", tile position {self.in_tile}" if self.in_tile else "")
        beyond = f"{self.bad} of {self.elements} elements beyond the bound"
        verdict = "within the bound" if self.ok else beyond
        if self.useless:
            verdict += f", which says nothing of {self.useless} of {self.elements} elements"
            verdict += f" ({self.unbounded} infinite)" if self.unbounded else ""
        return (
            f"{self.name or 'result'}: {verdict}; worst error is {self.worst:.3g} of the bound {place}: "
            f"{self.out:.9g}, reference {self.reference:.9g} +- {self.bound:.3g}"
        )


def compare(
    out: Tensor,
    reference: Tensor,
    bound: Tensor,
    *,
    tile: tuple[int, int] | None = None,
    name: str = "",
    overflows: Tensor | None = None,
    free: Tensor | None = None,
    scale: float = 0.0,
    origin: Sequence[int] = (),
) -> Comparison:
    """Compares every element of `out` with `reference`, within `bound` (all of one shape, any dtypes).

    NaN only passes for NaN and an infinity for the same infinity, within any finite bound, but where
    `overflows` (`Expected.overflows`) lets infinity stand for the largest number of `out`'s dtype; where
    `free` (`Expected.free`), or where the bound is infinite, everything passes, and counts as useless.
    `tile` gives the tile's extents along the last two axes; `scale` as in `useless`; `origin` is where these
    are a slice of a larger result. Raises ValueError where the shapes differ.
    """
    if not out.shape == reference.shape == bound.shape:
        raise ValueError(
            f"out has shape {tuple(out.shape)}, the reference {tuple(reference.shape)}, "
            f"the bound {tuple(bound.shape)}"
        )
    floating = out.is_floating_point() and reference.dtype == torch.float64
    bounds, *others = extremes_of(bound, *((out, reference) if floating else ()))
    plain = overflows is None and floating and all(map(_finite, (bounds, *others)))
    ratio = _finite_ratios(out, reference, bound) if plain else _ratios(out, reference, bound, overflows)
    idle = _useless(reference, bound, scale, bounds, others[1] if floating else None)
    if free is not None:
        ratio, idle = ratio.masked_fill(free, 0.0), free if idle is None else idle | free
    at = int(ratio.argmax()) if ratio.numel() else -1
    index = unravel(at, out.shape) if at >= 0 else ()
    nothing = torch.zeros((), dtype=torch.int64, device=bound.device)
    exact_count, useless_count, *picked = numbers(
        nothing if bounds[0] > 0 else (bound == 0).sum(),
        nothing if idle is None else idle.sum(),
        *(t[index] for t in (ratio, out, reference, bound) if at >= 0),
    )
    worst, *picked = picked or [0.0] * 4
    bad = int((~(ratio <= 1)).sum()) if not worst <= 1 else 0
    index = tuple(i + o for i, o in zip(index, origin, strict=True)) if origin and index else index
    return Comparison(
        name=name,
        ok=bad == 0,
        worst=worst,
        index=index,
        in_tile=(index[-2] % tile[0], index[-1] % tile[1]) if tile and len(index) > 1 else None,
        out=picked[0],
        reference=picked[1],
        bound=picked[2],
        bad=bad,
        elements=out.numel(),
        exact=int(exact_count),
        unbounded=0 if _finite(bounds) else int(bound.isinf().sum()),
        rms=_rms(ratio, bound, bounds, worst),
        varies=_varies(out),
        reference_varies=_varies(reference),
        useless=int(useless_count),
    )


Extremes: TypeAlias = tuple[float, float]


def _finite(ends: Extremes) -> bool:
    return all(map(math.isfinite, ends))


def _finite_ratios(out: Tensor, reference: Tensor, bound: Tensor) -> Tensor:
    """Works as `_ratios`, where all are finite: in a quarter of its passes over memory."""
    error = (out.to(torch.float64) - reference).abs_()
    return error.div_(bound).nan_to_num_(nan=0.0, posinf=math.inf)  # 0 / 0: what must be exact, and is


def merged(slices: Sequence[Comparison]) -> Comparison:
    """Merges the comparisons of all slices of a result. Where bounds say nothing is told slice by slice."""
    worst = max(slices, key=lambda c: c.worst)
    finite = [(c.rms, c.elements - c.unbounded) for c in slices if c.rms is not None]
    weight = sum(n for _, n in finite)
    return replace(
        worst,
        ok=all(c.ok for c in slices),
        bad=sum(c.bad for c in slices),
        elements=sum(c.elements for c in slices),
        exact=sum(c.exact for c in slices),
        unbounded=sum(c.unbounded for c in slices),
        rms=math.sqrt(sum(r * r * n for r, n in finite) / weight) if weight else None,
        # Where no slice varies, any of its elements stands for all; NaN equals NaN.
        varies=any(c.varies for c in slices) or len({str(c.out) for c in slices}) > 1,
        reference_varies=any(c.reference_varies for c in slices)
        or len({str(c.reference) for c in slices}) > 1,
        useless=sum(c.useless for c in slices),
    )


FLUSHED = 2.0**-110
"""What a few operations make of numbers that f32 flushes to 0: a bound below this always says something."""


NOUGHT = 2.0**-40
"""Of the arguments' size: a result no larger is 0 whatever they are, such as a maximum less itself."""


def useless(reference: Tensor, bound: Tensor, scale: float = 0.0) -> Tensor:
    """Where a bound says nothing: it is larger than the reference's number there and than the standard
    deviation of all its finite numbers (than their root mean square where there are fewer than FEWEST).
    A result that is 0, another row's, or of the other sign may then pass. Of a bool any bound but 0. Where
    the result is 0 whatever the arguments are, of magnitude `scale`, that is what counts."""
    idle = _useless(reference, bound, scale, extremes_of(bound)[0], None)
    return torch.zeros_like(bound, dtype=torch.bool) if idle is None else idle


def _useless(
    reference: Tensor, bound: Tensor, scale: float, bounds: Extremes, of_reference: Extremes | None
) -> Tensor | None:
    """Does as `useless`, with the extremes of what it looks at, where these are known; None where that is nowhere."""
    if reference.dtype == torch.bool:
        return bound > 0
    wide = reference.to(torch.float64)
    finite = wide if _finite(of_reference or extremes_of(wide)[0]) else wide[wide.isfinite()]
    if finite.numel() >= FEWEST:
        spread = float(finite.std(correction=0))
    else:
        spread = float(finite.square().mean().sqrt()) if finite.numel() else 0.0
    least = max(scale if spread <= NOUGHT * scale else spread, FLUSHED)
    if bound.numel() and bounds[1] <= least:
        return None
    return (bound != 0) & ~(bound <= wide.abs().clamp_(min=least))


def _rms(ratio: Tensor, bound: Tensor, bounds: Extremes, worst: float) -> float | None:
    """Elements that must be exact count: where results are coarse, those with a bound are the ones
    near a tie, which an honest kernel may round either way. `bounds` are the extremes of `bound`, `worst` the
    largest ratio."""
    finite = _finite(bounds) and math.isfinite(worst)
    both = ratio if finite else ratio[bound.isfinite() & ratio.isfinite()]
    if both.numel() < FEWEST or not (bounds[1] > 0 if finite else bool((bound > 0).any())):
        return None
    return float(torch.linalg.vector_norm(both)) / math.sqrt(both.numel())


def _varies(values: Tensor) -> bool:
    """Returns whether not all elements are equal; NaN equals NaN."""
    flat = values.reshape(-1)
    # Most results differ somewhere among a few elements: then no pass over all is needed.
    return any(not _uniform(part) for part in (flat[:FEWEST], flat))


def _uniform(flat: Tensor) -> bool:
    wide = flat.to(torch.float64) if flat.is_floating_point() else flat
    first = wide[:1]
    return bool(((wide == first) | (wide.isnan() & first.isnan())).all())


def _ratios(out: Tensor, reference: Tensor, bound: Tensor, overflows: Tensor | None) -> Tensor:
    """Error over bound; infinite where a NaN or infinity is not the reference's."""
    if reference.dtype == torch.float64:
        a, b = out.to(torch.float64), reference
        if overflows is not None:
            largest = torch.finfo(out.dtype).max
            a, b = (torch.where(overflows, v.clamp(-largest, largest), v) for v in (a, b))
        equal = (a == b) | (a.isnan() & b.isnan())
        strange = ~equal & ~(a.isfinite() & b.isfinite())
    else:
        a, b = out.to(torch.int64), reference.to(torch.int64)
        equal = a == b
        strange = torch.zeros_like(equal)
    error = (a - b).abs().to(torch.float64)
    if a.dtype == torch.int64:
        # Where 64 bits do not hold the difference it wraps, to a small or a negative one.
        wide = (a.to(torch.float64) - b.to(torch.float64)).abs()
        error = torch.where(wide < 2.0**62, error, wide)
    ratio = torch.where(equal, 0.0, error / bound)
    ratio = torch.where(strange | (~equal & ((bound == 0) | bound.isnan())), torch.inf, ratio)
    return ratio.masked_fill(bound == torch.inf, 0.0)


def unravel(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the index of an element that comes `flat`-th in row-major order."""
    index: list[int] = []
    for extent in reversed(shape):
        index.append(flat % extent)
        flat //= extent
    return tuple(reversed(index))
