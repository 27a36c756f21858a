"""Extents: how long the named dimensions are, as far as the text alone can say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class Fixed:
    """An extent that the text gives: `R=3`."""

    value: int


@dataclass(frozen=True, slots=True)
class Free:
    """An extent that a call brings: the dimension's own name."""

    dim: str


@dataclass(frozen=True, slots=True)
class Combined:
    """An extent computed from others: `P=2*H`, `E+1`; `//` and `%` floor."""

    op: Literal["+", "-", "*", "//", "%"]
    left: Extent
    right: Extent


Extent: TypeAlias = Fixed | Free | Combined


def evaluate(extent: Extent, sizes: Mapping[str, int]) -> int:
    """The number of elements, given the free extents by name.

    Raises KeyError for a name that `sizes` lacks and ZeroDivisionError for `// 0`.
    """
    match extent:
        case Fixed(value):
            return value
        case Free(dim):
            return sizes[dim]
        case Combined(op, left, right):
            a, b = evaluate(left, sizes), evaluate(right, sizes)
            match op:
                case "+":
                    return a + b
                case "-":
                    return a - b
                case "*":
                    return a * b
                case "//":
                    return a // b
                case "%":
                    return a % b


def names(extent: Extent) -> tuple[str, ...]:
    """The dimensions whose extents take part, each once, in the order of their first appearance."""
    match extent:
        case Fixed():
            return ()
        case Free(dim):
            return (dim,)
        case Combined(_, left, right):
            return tuple(dict.fromkeys((*names(left), *names(right))))


_TRIALS = 4
_DIVISIBLE = 720720
"""The least common multiple of 1 to 16."""


def agree(a: Extent, b: Extent) -> bool:
    """Whether two extents are one number at every call, as far as can be told without proof: the
    same expression, or equal wherever tried. Tried are multiples of what programs divide by, so
    that `A // 8 * 8` agrees with `A`: the call decides whether it divides."""
    if a == b:
        return True
    free = dict.fromkeys((*names(a), *names(b)))
    for trial in range(_TRIALS):
        draw = Random(trial)
        sizes = {name: _DIVISIBLE * draw.randrange(1, 10**6) for name in free}
        try:
            if evaluate(a, sizes) != evaluate(b, sizes):
                return False
        except ZeroDivisionError:
            continue
    return True


def show(extent: Extent) -> str:
    """The extent as a person would write it."""
    match extent:
        case Fixed(value):
            return str(value)
        case Free(dim):
            return dim
        case Combined(op, left, right):
            return f"({show(left)} {op} {show(right)})"
