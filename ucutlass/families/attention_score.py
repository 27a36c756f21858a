"""What a score's function is: windows of keys around a positive factor, where it is no more than that, so
that the kernel skips blocks of keys and folds the factor into its exponentials."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ucutlass import ir
from ucutlass.extents import Combined, Extent, Fixed, evaluate
from ucutlass.plans.attention import Call, ExtentNumber, Number


@dataclass(frozen=True, slots=True)
class Score:
    """`rest` is what is left of the score where `key - row` is at most each of `above` and at least each of
    `below`; `factor`: it is the dot times this, None where it is more."""

    rest: ir.Value
    above: tuple[Extent, ...]
    below: tuple[Extent, ...]
    factor: Number | None


def score_of(
    value: ir.Value, dot: ir.Dot, row: str | None, key: str | None, sizes: Mapping[str, int]
) -> Score:
    """Takes windows of `key` around `row` (None: no such name) off a score, `where(c, e, -inf)`, and then
    tells whether a factor remains, positive for these extents."""
    above: tuple[Extent, ...] = ()
    below: tuple[Extent, ...] = ()
    while isinstance(value, ir.Apply) and value.function == "where" and row and key:
        condition, taken, other = value.args
        fill = _number(other)
        found = _window(condition, row, key) if fill is not None and worth(fill, sizes) == -math.inf else None
        if found is None:
            break
        above, below, value = above + found[0], below + found[1], taken
    factor = _factor(value, dot)
    size = math.nan if factor is None else worth(factor, sizes)
    return Score(value, above, below, factor if LEAST < size < 1 / LEAST else None)


LEAST = 2.0**-100
"""A factor that is folded lies between this and its inverse."""


# --- windows -----------------------------------------------------------------------

Bounds = tuple[tuple[Extent, ...], tuple[Extent, ...]]
"""Of key - row: what it is at most, and at least."""


def _window(condition: ir.Value, row: str, key: str) -> Bounds | None:
    """The bounds of `key - row` that a condition stands for, if it says just that."""
    if not isinstance(condition, ir.Apply):
        return None
    if condition.function == "and":
        parts = [_window(part, row, key) for part in condition.args]
        both = [part for part in parts if part is not None]
        return None if len(both) < 2 else (both[0][0] + both[1][0], both[0][1] + both[1][1])
    if condition.function not in _LIMITS:
        return None
    left, right = (_linear(part) for part in condition.args)
    if left is None or right is None:
        return None
    sides = _minus(left, right)
    a, b = sides.terms.get(key, 0), sides.terms.get(row, 0)
    if a + b != 0 or abs(a) != 1 or any(n and d not in (key, row) for d, n in sides.terms.items()):
        return None
    return _LIMITS[condition.function](a, sides.constant)


def _less(a: int, c: Extent) -> Bounds:
    """Where a * (key - row) + c <= 0."""
    return ((_times(-1, c),), ()) if a > 0 else ((), (c,))


_LIMITS: Mapping[str, Callable[[int, Extent], Bounds]] = MappingProxyType(
    {
        "less_equal": _less,
        "less": lambda a, c: _less(a, Combined("+", c, Fixed(1))),
        "greater_equal": lambda a, c: _less(-a, _times(-1, c)),
        "greater": lambda a, c: _less(-a, Combined("+", _times(-1, c), Fixed(1))),
    }
)


@dataclass(frozen=True, slots=True)
class _Linear:
    """The sum of n * coordinate(d) over `terms`, and a constant."""

    terms: Mapping[str, int]
    constant: Extent


def _times(n: int, extent: Extent) -> Extent:
    return Combined("*", Fixed(n), extent)


def _minus(a: _Linear, b: _Linear) -> _Linear:
    terms = {d: a.terms.get(d, 0) - b.terms.get(d, 0) for d in (*a.terms, *b.terms)}
    return _Linear(terms, Combined("-", a.constant, b.constant))


def _linear(value: ir.Value) -> _Linear | None:
    match value:
        case ir.Coordinate(dim):
            return _Linear({dim: 1}, Fixed(0))
        case ir.Size(extent):
            return _Linear({}, extent)
        case ir.Constant(number) if isinstance(number, int) and not isinstance(number, bool):
            return _Linear({}, Fixed(number))
        case ir.Apply(function="add" | "subtract" as function, args=(left, right)):
            a, b = _linear(left), _linear(right)
            if a is None or b is None:
                return None
            return _minus(a, b if function == "subtract" else _minus(_ZERO, b))
        case ir.Apply(function="negate", args=(inner,)):
            found = _linear(inner)
            return None if found is None else _minus(_ZERO, found)
    return None


_ZERO = _Linear({}, Fixed(0))


# --- numbers -----------------------------------------------------------------------


def _factor(value: ir.Value, dot: ir.Dot) -> Number | None:
    """x where the value is the dot times the number x."""
    if value is dot:
        return 1.0
    match value:
        case ir.Apply(function="multiply", args=(left, right)):
            for part, other in ((left, right), (right, left)):
                a, b = _factor(part, dot), _number(other)
                if a is not None and b is not None:
                    return Call("multiply", (a, b))
        case ir.Apply(function="divide", args=(left, right)):
            a, b = _factor(left, dot), _number(right)
            if a is not None and b is not None:
                return Call("divide", (a, b))
    return None


_MEANINGS: Mapping[str, Callable[..., float]] = MappingProxyType(
    {
        "add": lambda a, b: a + b, "subtract": lambda a, b: a - b, "multiply": lambda a, b: a * b,
        "divide": lambda a, b: a / b, "negate": lambda a: -a, "sqrt": math.sqrt,
        "rsqrt": lambda a: 1 / math.sqrt(a), "exp": math.exp, "log": math.log,
    }
)  # fmt: skip
"""Functions of numbers that the launch evaluates; `emit/attention.py` has their C++."""


def _number(value: ir.Value) -> Number | None:
    """A value that is one number in a launch and that needs no tensor; None where it is none."""
    match value:
        case ir.Constant(number) if not isinstance(number, bool):
            return float(number)
        case ir.Size(extent):
            return ExtentNumber(extent)
        case ir.Apply(function, args) if function in _MEANINGS:
            numbers = [_number(a) for a in args]
            parts = tuple(n for n in numbers if n is not None)
            return Call(function, parts) if len(parts) == len(args) else None
    return None


def worth(number: Number, sizes: Mapping[str, int]) -> float:
    """The number for these extents; NaN where it is undefined."""
    match number:
        case ExtentNumber(extent):
            return float(evaluate(extent, sizes))
        case Call(function, args):
            try:
                return _MEANINGS[function](*(worth(a, sizes) for a in args))
            except (ArithmeticError, ValueError):
                return math.nan
        case float():
            return number
