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


def combined(op: Literal["+", "-", "*"], left: Extent, right: Extent) -> Extent:
    """`left op right` without what adds nothing, numbers folded."""
    match op, left, right:
        case _, Fixed(), Fixed():
            return Fixed(evaluate(Combined(op, left, right), {}))
        case ("+" | "-", _, Fixed(0)) | ("*", _, Fixed(1)):
            return left
        case ("+", Fixed(0), _) | ("*", Fixed(1), _):
            return right
        case "+", Combined("+", inner, Fixed(a)), Fixed(b):
            return combined("+", inner, Fixed(a + b))
        case _:
            return Combined(op, left, right)


def terms(extent: Extent) -> int:
    """How many numbers and names an extent is made of."""
    match extent:
        case Combined(_, left, right):
            return terms(left) + terms(right)
        case _:
            return 1


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


_MOST_MONOMIALS = 32
Polynomial: TypeAlias = "dict[tuple[Extent, ...], int]"
"""Coefficients by what is multiplied: names, and quotients and remainders as they stand."""


def difference(a: Extent, b: Extent) -> int | None:
    """`a - b` where it is one number at every call; None where it is not, or cannot be told."""
    rest = difference_of(a, b)
    if rest is None or any(factor for key, factor in rest.items() if key):
        return None
    return rest.get((), 0)


def difference_of(a: Extent, b: Extent) -> Polynomial | None:
    """`a - b` multiplied out; None where it has too many parts."""
    left, right = _polynomial(a), _polynomial(b)
    return None if left is None or right is None else _added(left, right, -1)


def never_positive(extent: Extent) -> bool:
    """Whether `extent` is 0 or less whatever the free extents, each at least 1; False where that cannot be
    told."""
    polynomial = _polynomial(extent)
    if polynomial is None or any(not isinstance(part, Free) for key in polynomial for part in key):
        return False
    # With each extent written 1 + t, all coefficients of t that are at most 0 leave no way up.
    shifted: Polynomial = {}
    for key, factor in polynomial.items():
        product: Polynomial = {(): factor}
        for part in key:
            product = _added(product, {(*k, part): n for k, n in product.items()}, 1)
            if len(product) > _MOST_MONOMIALS:
                return False
        shifted = _added(shifted, product, 1)
        if len(shifted) > _MOST_MONOMIALS:
            return False
    return all(factor <= 0 for factor in shifted.values())


def _polynomial(extent: Extent) -> Polynomial | None:
    """The extent multiplied out; None beyond _MOST_MONOMIALS."""
    match extent:
        case Fixed(value):
            return {(): value}
        case Combined("//", left, Fixed(1)):
            return _polynomial(left)
        case Combined("%", _, Fixed(1)):
            return {}
        case Free() | Combined("//" | "%"):
            return {(extent,): 1}
        case Combined(op, left, right):
            a, b = _polynomial(left), _polynomial(right)
            if a is None or b is None or len(a) * len(b) > _MOST_MONOMIALS:
                return None
            if op != "*":
                return _added(a, b, 1 if op == "+" else -1)
            product: Polynomial = {}
            for x, m in a.items():
                product = _added(product, {tuple(sorted((*x, *y), key=show)): n for y, n in b.items()}, m)
            return product


def _added(a: Polynomial, b: Polynomial, factor: int) -> Polynomial:
    return {key: a.get(key, 0) + factor * b.get(key, 0) for key in {**a, **b}}


def show(extent: Extent) -> str:
    """The extent as a person would write it."""
    match extent:
        case Fixed(value):
            return str(value)
        case Free(dim):
            return dim
        case Combined(op, left, right):
            return f"({show(left)} {op} {show(right)})"


def bare(extent: Extent) -> str:
    """Shows an extent as `show` does, without parentheses around the whole."""
    text = show(extent)
    return text[1:-1] if isinstance(extent, Combined) else text
