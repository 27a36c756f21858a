"""What a score's function is: windows of keys around a positive factor, where it is no more than that, so
that the kernel skips blocks of keys and folds the factor into its exponentials."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from ucutlass import ir
from ucutlass.ir.extents import Combined, Extent, Fixed, evaluate
from ucutlass.kernels.attention.plan import ExtentNumber, Number, ScoreCall


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
        condition, scored, other = value.args
        fill = number_of(other)
        masks = fill is not None and worth(fill, sizes) == -math.inf
        window = window_of(condition, row, key) if masks else None
        if window is None:
            break
        above += tuple(limit.constant for limit in window if limit.above)
        below += tuple(limit.constant for limit in window if not limit.above)
        value = scored
    factor = _factor(value, dot)
    size = math.nan if factor is None else worth(factor, sizes)
    return Score(value, above, below, factor if LEAST < size < 1 / LEAST else None)


LEAST = 2.0**-100
"""A factor that is folded lies between this and its inverse."""


# --- windows -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Where the sequence of a row (side "q") or of a key ("k") starts in the packed tokens; `after` 1: where
    the next one does."""

    side: str
    after: int


@dataclass(frozen=True, slots=True)
class KeyLimit:
    """`key - row` is at most (`above`) or at least the constant and so many times the starts."""

    above: bool
    constant: Extent
    starts: tuple[tuple[Start, int], ...] = ()


Term: TypeAlias = "str | Start"
"""What a linear expression is made of: coordinates along names, and starts."""


@dataclass(frozen=True, slots=True)
class LinearPosition:
    """The sum of n times each of `terms`, and a constant."""

    terms: Mapping[Term, int]
    constant: Extent


def window_of(
    condition: ir.Value, row: str, key: str, start: Callable[[ir.Value], Start | None] = lambda _: None
) -> tuple[KeyLimit, ...] | None:
    """The limits of `key - row` that a condition stands for, if it says just that. `start` tells the values
    that are starts of sequences."""
    if not isinstance(condition, ir.Apply):
        return None
    if condition.function == "and":
        parts = [window_of(part, row, key, start) for part in condition.args]
        both = [part for part in parts if part is not None]
        return None if len(both) < 2 else (*both[0], *both[1])
    if condition.function not in _LIMITS:
        return None
    left, right = (_linear(part, start) for part in condition.args)
    if left is None or right is None:
        return None
    sides = _minus(left, right)
    a, b = sides.terms.get(key, 0), sides.terms.get(row, 0)
    rest = {of: n for of, n in sides.terms.items() if n and of not in (key, row)}
    if a + b != 0 or abs(a) != 1 or any(isinstance(of, str) for of in rest):
        return None
    return (_LIMITS[condition.function](a, LinearPosition(rest, sides.constant)),)


def _less(a: int, rest: LinearPosition) -> KeyLimit:
    """Where a * (key - row) + rest <= 0."""
    if a > 0:
        rest = _minus(_ZERO, rest)
    starts = tuple((of, n) for of, n in rest.terms.items() if isinstance(of, Start))
    return KeyLimit(a > 0, rest.constant, starts)


def _more(rest: LinearPosition) -> LinearPosition:
    return LinearPosition(rest.terms, Combined("+", rest.constant, Fixed(1)))


_ZERO = LinearPosition({}, Fixed(0))

_LIMITS: Mapping[str, Callable[[int, LinearPosition], KeyLimit]] = MappingProxyType(
    {
        "less_equal": _less,
        "less": lambda a, rest: _less(a, _more(rest)),
        "greater_equal": lambda a, rest: _less(-a, _minus(_ZERO, rest)),
        "greater": lambda a, rest: _less(-a, _more(_minus(_ZERO, rest))),
    }
)


def _minus(a: LinearPosition, b: LinearPosition) -> LinearPosition:
    terms = {d: a.terms.get(d, 0) - b.terms.get(d, 0) for d in (*a.terms, *b.terms)}
    return LinearPosition(terms, Combined("-", a.constant, b.constant))


def _linear(value: ir.Value, start: Callable[[ir.Value], Start | None]) -> LinearPosition | None:
    leaf = start(value)
    if leaf is not None:
        return LinearPosition({leaf: 1}, Fixed(0))
    match value:
        case ir.Coordinate(dim):
            return LinearPosition({dim: 1}, Fixed(0))
        case ir.Size(extent):
            return LinearPosition({}, extent)
        case ir.Constant(number) if isinstance(number, int) and not isinstance(number, bool):
            return LinearPosition({}, Fixed(number))
        case ir.Apply(function="add" | "subtract" as function, args=(left, right)):
            a, b = _linear(left, start), _linear(right, start)
            if a is None or b is None:
                return None
            return _minus(a, b if function == "subtract" else _minus(_ZERO, b))
        case ir.Apply(function="negate", args=(inner,)):
            position = _linear(inner, start)
            return None if position is None else _minus(_ZERO, position)
    return None


# --- numbers -----------------------------------------------------------------------


def _factor(value: ir.Value, dot: ir.Dot) -> Number | None:
    """x where the value is the dot times the number x."""
    if value is dot:
        return 1.0
    match value:
        case ir.Apply(function="multiply", args=(left, right)):
            for part, other in ((left, right), (right, left)):
                a, b = _factor(part, dot), number_of(other)
                if a is not None and b is not None:
                    return ScoreCall("multiply", (a, b))
        case ir.Apply(function="divide", args=(left, right)):
            a, b = _factor(left, dot), number_of(right)
            if a is not None and b is not None:
                return ScoreCall("divide", (a, b))
    return None


_MEANINGS: Mapping[str, Callable[..., float]] = MappingProxyType(
    {
        "add": lambda a, b: a + b,
        "subtract": lambda a, b: a - b,
        "multiply": lambda a, b: a * b,
        "divide": lambda a, b: a / b,
        "negate": lambda a: -a,
        "sqrt": math.sqrt,
        "rsqrt": lambda a: 1 / math.sqrt(a),
        "exp": math.exp,
        "log": math.log,
    }
)
"""Functions of numbers that the launch evaluates; `emit/attention/emitter.py` has their C++."""


def number_of(value: ir.Value) -> Number | None:
    """A value that is one number in a launch and that needs no tensor; None where it is none."""
    match value:
        case ir.Constant(number) if not isinstance(number, bool):
            return float(number)
        case ir.Size(extent):
            return ExtentNumber(extent)
        case ir.Apply(function, args) if function in _MEANINGS:
            numbers = [number_of(a) for a in args]
            parts = tuple(n for n in numbers if n is not None)
            return ScoreCall(function, parts) if len(parts) == len(args) else None
    return None


def worth(number: Number, sizes: Mapping[str, int]) -> float:
    """The number for these extents; NaN where it is undefined."""
    match number:
        case ExtentNumber(extent):
            return float(evaluate(extent, sizes))
        case ScoreCall(function, args):
            try:
                return _MEANINGS[function](*(worth(a, sizes) for a in args))
            except (ArithmeticError, ValueError):
                return math.nan
        case float():
            return number
