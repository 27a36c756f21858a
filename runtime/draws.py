"""Draws the numbers that the arguments of a verified run hold, by distribution."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import torch
from torch import Generator, Tensor

from ucutlass.ir.elements import F32, TF32, Element
from ucutlass.reference.rounding import FORMATS, RANGES
from ucutlass.runtime.distributions import Distribution

MOST_POWER = 8


def reach(elem: Element) -> int:
    """`wide` and `powers` go from 2**-reach to 2**reach: half of the element's exponents at most."""
    return min(MOST_POWER, -FORMATS[elem.name].smallest // 2) if elem.name in FORMATS else MOST_POWER


def floats(elem: Element, shape: Sequence[int], distribution: Distribution, random: Generator) -> Tensor:
    """Returns float64 numbers of a distribution that is not in EXACT, before rounding to `elem`."""
    return _FLOATS[distribution](elem, tuple(shape), random)


def integers(elem: Element, shape: Sequence[int], distribution: Distribution, random: Generator) -> Tensor:
    """Returns int64 numbers within `elem`'s range and 1000 of 0, in the spirit of the distribution."""
    low, high = RANGES[elem.name]
    low, high = max(low, -1000), min(high, 1000)
    match distribution:
        case "zeros":
            return torch.zeros(tuple(shape), dtype=torch.int64, device=random.device)
        case "one_hot":
            return one_hot(tuple(shape), random).to(torch.int64)
        case "positive":
            return uniform_integers(high // 2, high, tuple(shape), random)
        case "negated":
            return uniform_integers(low, low // 2, tuple(shape), random)
        case _:
            return uniform_integers(low, high, tuple(shape), random)


def one_hot(shape: tuple[int, ...], random: Generator) -> Tensor:
    out = torch.zeros(shape, dtype=torch.float64, device=random.device)
    if not shape or not out.numel():
        return out + 1
    rows = out.reshape(-1, shape[-1])
    rows[
        torch.arange(len(rows), device=random.device),
        uniform_integers(0, shape[-1] - 1, (len(rows),), random),
    ] = 1.0
    return out


# --- floats --------------------------------------------------------------------------

_Shape: TypeAlias = tuple[int, ...]


def uniform_integers(low: int, high: int, shape: _Shape, random: Generator) -> Tensor:
    """Returns int64 numbers from `low` to `high`, both included."""
    return torch.randint(low, high + 1, shape, generator=random, device=random.device)


def _normal(shape: _Shape, random: Generator) -> Tensor:
    return torch.randn(shape, generator=random, dtype=torch.float64, device=random.device)


def _uniform(shape: _Shape, random: Generator, low: float, high: float) -> Tensor:
    unit = torch.rand(shape, generator=random, dtype=torch.float64, device=random.device)
    return unit * (high - low) + low


def _powers(elem: Element, shape: _Shape, random: Generator) -> Tensor:
    r = reach(elem)
    return 2.0 ** uniform_integers(-r, r, shape, random).to(torch.float64)


def _signs(shape: _Shape, random: Generator) -> Tensor:
    return uniform_integers(0, 1, shape, random).to(torch.float64) * 2 - 1


def _denormal(elem: Element, shape: _Shape, random: Generator) -> Tensor:
    """Returns multiples of the smallest positive number below the smallest normal one.

    In f32 memory they are multiples of tf32's smallest, 2**-136: a compute type that multiplies f32 in tf32
    parts has those exactly, too, so that only flushing to 0 can change them.
    """
    if elem.name not in FORMATS:
        return _normal(shape, random)
    form = FORMATS[TF32.name if elem is F32 else elem.name]
    steps = 1 << (form.precision - 1)
    units = uniform_integers(1, steps - 1, shape, random).to(torch.float64)
    return units * _signs(shape, random) * 2.0 ** (form.smallest - form.precision + 1)


def _special(elem: Element, shape: _Shape, random: Generator) -> Tensor:
    """A tensor with fewer than 4 elements keeps one finite number at least."""
    out = _normal(shape, random)
    special = [torch.nan, torch.inf, -torch.inf][: max(0, out.numel() - 1)]
    marks = torch.tensor(special, dtype=torch.float64, device=random.device)
    at = torch.randperm(out.numel(), generator=random, device=random.device)[: len(marks)]
    out.reshape(-1)[at] = marks
    return out


_FLOATS: Mapping[Distribution, Callable[[Element, _Shape, Generator], Tensor]] = MappingProxyType(
    {
        "normal": lambda e, s, r: _normal(s, r),
        "uniform": lambda e, s, r: _uniform(s, r, -1, 1),
        "large": lambda e, s, r: 3 * _normal(s, r),
        "small": lambda e, s, r: 0.01 * _normal(s, r),
        "positive": lambda e, s, r: _uniform(s, r, 4, 8),
        "negated": lambda e, s, r: _uniform(s, r, -8, -4),
        "zeros": lambda e, s, r: torch.zeros(s, dtype=torch.float64, device=r.device),
        "one_hot": lambda e, s, r: one_hot(s, r),
        "powers": lambda e, s, r: _powers(e, s, r) * _signs(s, r),
        "wide": lambda e, s, r: _powers(e, s, r) * _normal(s, r),
        "denormal": _denormal,
        "special": _special,
    }
)
