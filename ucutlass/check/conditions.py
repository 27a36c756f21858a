"""Whether conditions on extents can hold together: guards and requirements, as far as intervals tell.

A condition is taken apart into cases, each a conjunction of comparisons. A comparison bounds a sum of
extents, quotients and remainders; a case is impossible where bounds of one sum exclude each other, or the sum
cannot reach them since every extent is at least 1. What is called impossible is so for every call; the
converse does not hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from ucutlass import ir
from ucutlass.ir import Value
from ucutlass.ir.extents import Combined, Extent, Fixed, Free, Polynomial, difference_of

MOST_CASES = 64

Interval: TypeAlias = tuple[float, float]
Bound: TypeAlias = tuple[Polynomial, Interval]
"""A sum without constant part, and what it may be."""
Case: TypeAlias = tuple[Bound, ...]


class _Undecided(Exception):
    """Beyond what intervals tell."""


def impossible(conditions: Sequence[Value], refuted: Sequence[Value], dims: Mapping[str, Extent]) -> bool:
    """Whether in every call one of `conditions` fails or one of `refuted` holds. `dims` are the extents of
    the program, by free ones alone."""
    if any(_divides_by_zero(c) for c in conditions):
        return True
    # A condition that divides by zero never holds, so it is refuted already.
    rest = [(c, False) for c in refuted if not _divides_by_zero(c)]
    try:
        cases: list[Case] = [()]
        for condition, positive in [*((c, True) for c in conditions), *rest]:
            cases = _every(cases, _cases(condition, positive, dims))
    except _Undecided:
        return False
    return not any(_possible(case) for case in cases)


def _divides_by_zero(condition: Value) -> bool:
    match condition:
        case ir.Apply("modulo" | "floor_divide", (_, ir.Constant(0))):
            return True
        case _:
            return any(_divides_by_zero(child) for child in ir.children(condition))


def _every(left: Sequence[Case], right: Sequence[Case]) -> list[Case]:
    if len(left) * len(right) > MOST_CASES:
        raise _Undecided
    return [(*a, *b) for a in left for b in right]


def _either(left: Sequence[Case], right: Sequence[Case]) -> list[Case]:
    if len(left) + len(right) > MOST_CASES:
        raise _Undecided
    return [*left, *right]


_NEGATED = {
    "less": "greater_equal",
    "less_equal": "greater",
    "greater": "less_equal",
    "greater_equal": "less",
    "equal": "not_equal",
    "not_equal": "equal",
}


def _cases(condition: Value, positive: bool, dims: Mapping[str, Extent]) -> list[Case]:
    match condition:
        case ir.Constant(value):
            return [()] if bool(value) is positive else []
        case ir.Apply("not", (inner,)):
            return _cases(inner, not positive, dims)
        case ir.Apply("and" | "or" as word, (left, right)):
            join = _every if (word == "and") is positive else _either
            return join(_cases(left, positive, dims), _cases(right, positive, dims))
        case ir.Apply(function, (left, right)) if function in _NEGATED:
            return _compared(function if positive else _NEGATED[function], left, right, dims)
    raise _Undecided


def _compared(function: str, left: Value, right: Value, dims: Mapping[str, Extent]) -> list[Case]:
    apart = difference_of(_extent(left, dims), _extent(right, dims))
    if apart is None:
        raise _Undecided
    constant = -apart.get((), 0)
    terms = {key: factor for key, factor in apart.items() if key and factor}
    ranges: Mapping[str, list[Interval]] = {
        "less": [(-math.inf, constant - 1)],
        "less_equal": [(-math.inf, constant)],
        "greater": [(constant + 1, math.inf)],
        "greater_equal": [(constant, math.inf)],
        "equal": [(constant, constant)],
        "not_equal": [(-math.inf, constant - 1), (constant + 1, math.inf)],
    }
    return [(_normal(terms, interval),) for interval in ranges[function]]


def _normal(terms: Polynomial, interval: Interval) -> Bound:
    """Returns the condition divided by its greatest common factor, the first factor positive: `64 >= 2*M`
    bounds M, as `M <= 32` does."""
    if not terms:
        return {}, interval
    common = math.gcd(*terms.values())
    sign = 1 if terms[min(terms, key=repr)] > 0 else -1
    low, high = interval if sign > 0 else (-interval[1], -interval[0])
    low = low if math.isinf(low) else -(-int(low) // common)
    high = high if math.isinf(high) else int(high) // common
    return {key: sign * factor // common for key, factor in terms.items()}, (low, high)


def _extent(value: Value, dims: Mapping[str, Extent]) -> Extent:
    """Arithmetic of a condition as an extent, by free ones alone. Raises _Undecided."""
    match value:
        case ir.Constant(number) if isinstance(number, int):
            return Fixed(int(number))
        case ir.Size(extent):
            return _resolved(extent, dims)
        case ir.Apply("negate", (inner,)):
            return Combined("-", Fixed(0), _extent(inner, dims))
        case ir.Apply("add" | "subtract" | "multiply" as function, (left, right)):
            sign = {"add": "+", "subtract": "-", "multiply": "*"}[function]
            return Combined(sign, _extent(left, dims), _extent(right, dims))  # type: ignore[arg-type]
        case ir.Apply("floor_divide" | "modulo" as function, (left, right)):
            divisor = _extent(right, dims)
            if isinstance(divisor, Fixed) and divisor.value > 0:
                return Combined("//" if function == "floor_divide" else "%", _extent(left, dims), divisor)
    raise _Undecided


def _resolved(extent: Extent, dims: Mapping[str, Extent]) -> Extent:
    match extent:
        case Free(dim):
            resolved = dims[dim]
            return resolved if resolved == extent else _resolved(resolved, dims)
        case Combined(op, left, right):
            return Combined(op, _resolved(left, dims), _resolved(right, dims))
        case _:
            return extent


# --- one case -------------------------------------------------------------------------


def _possible(case: Case) -> bool:
    """Whether intervals leave a case possible."""
    bounds: dict[frozenset[tuple[tuple[Extent, ...], int]], Interval] = {}
    bounds_of: dict[Extent, Interval] = {}
    for terms, interval in case:
        key = frozenset(terms.items())
        bounds[key] = _meet(bounds.get(key, (-math.inf, math.inf)), interval)
    for key, interval in bounds.items():
        match tuple(key):
            case (((part,), 1),):
                bounds_of[part] = interval
    parts = (_part(part, bounds_of) for part in bounds_of)
    sums = (_meet(_sum(dict(key), bounds_of), interval) for key, interval in bounds.items())
    return all(map(_some, parts)) and all(map(_some, sums))


def _some(interval: Interval) -> bool:
    return interval[0] <= interval[1]


def _meet(a: Interval, b: Interval) -> Interval:
    return max(a[0], b[0]), min(a[1], b[1])


def _sum(terms: Polynomial, bounds_of: Mapping[Extent, Interval]) -> Interval:
    low = high = 0.0
    for parts, factor in terms.items():
        interval: Interval = (factor, factor)
        for part in parts:
            interval = _product(interval, _part(part, bounds_of))
        low, high = low + interval[0], high + interval[1]
    return low, high


def _product(a: Interval, b: Interval) -> Interval:
    ends = [0.0 if 0 in (x, y) else x * y for x in a for y in b]
    return min(ends), max(ends)


def _part(part: Extent, bounds_of: Mapping[Extent, Interval]) -> Interval:
    return _meet(_natural(part, bounds_of), bounds_of.get(part, (-math.inf, math.inf)))


def _natural(part: Extent, bounds_of: Mapping[Extent, Interval]) -> Interval:
    """What an extent, a quotient or a remainder may be by itself."""
    match part:
        case Free():
            return 1, math.inf
        case Combined("%", _, Fixed(divisor)) if divisor > 0:
            return 0, divisor - 1
        case Combined("//", inner, Fixed(divisor)) if divisor > 0:
            low, high = _part(inner, bounds_of)
            return low if math.isinf(low) else low // divisor, high if math.isinf(high) else high // divisor
    return -math.inf, math.inf
