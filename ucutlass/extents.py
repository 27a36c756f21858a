"""Extents: how long the named dimensions are, as far as the text alone can say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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


def names(extent: Extent) -> frozenset[str]:
    """The dimensions whose extents take part."""
    match extent:
        case Fixed():
            return frozenset()
        case Free(dim):
            return frozenset({dim})
        case Combined(_, left, right):
            return names(left) | names(right)


def show(extent: Extent) -> str:
    """The extent as a person would write it."""
    match extent:
        case Fixed(value):
            return str(value)
        case Free(dim):
            return dim
        case Combined(op, left, right):
            return f"({show(left)} {op} {show(right)})"
