"""What a score's function is, for concrete extents: a window of keys around a positive factor, where it is
no more than that, so that the kernel skips blocks of keys and folds the factor into its exponentials."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ucutlass import ir
from ucutlass.extents import evaluate
from ucutlass.plans.attention import NO_WINDOW


@dataclass(frozen=True, slots=True)
class Score:
    """`rest` is what is left of the score within the window `below <= key - row <= above`; `factor`: it is
    the dot times this, None where it is more."""

    rest: ir.Value
    above: int
    below: int
    factor: float | None


def score_of(value: ir.Value, dot: ir.Dot, row: str | None, key: str | None, sizes: Mapping[str, int]) -> Score:
    """Takes windows of `key` around `row` (None: no such name) off a score, `where(c, e, -inf)`, and then
    tells whether a positive factor remains."""
    above, below = NO_WINDOW, -NO_WINDOW
    while isinstance(value, ir.Apply) and value.function == "where" and row and key:
        condition, taken, other = value.args
        found = None if _number(other, sizes) != -math.inf else _window(condition, row, key, sizes)
        if found is None:
            break
        above, below, value = min(above, found[0]), max(below, found[1]), taken
    factor = _factor(value, dot, sizes)
    fits = factor is not None and math.isfinite(factor) and 2.0**-100 < factor < 2.0**100
    return Score(value, above, below, factor if fits else None)


# --- windows -----------------------------------------------------------------------


def _window(
    condition: ir.Value, row: str, key: str, sizes: Mapping[str, int]
) -> tuple[int, int] | None:
    """The most and the least that `key - row` may be where the condition holds, if it says just that."""
    if not isinstance(condition, ir.Apply):
        return None
    if condition.function == "and":
        parts = [_window(part, row, key, sizes) for part in condition.args]
        both = [part for part in parts if part is not None]
        return None if len(both) < 2 else (min(p[0] for p in both), max(p[1] for p in both))
    if condition.function not in _LIMITS:
        return None
    left, right = (_linear(part, sizes) for part in condition.args)
    if left is None or right is None:
        return None
    # a * key + b * row + c against 0
    a, b, c = ((left.get(name, 0) - right.get(name, 0)) for name in (key, row, ""))
    others = {name for name in (*left, *right) if name not in (key, row, "")}
    if a + b != 0 or abs(a) != 1 or any(left.get(o, 0) != right.get(o, 0) for o in others):
        return None
    return _LIMITS[condition.function](a, c)


def _less(a: int, c: int) -> tuple[int, int]:
    """Where a * (key - row) + c <= 0."""
    return (-c, -NO_WINDOW) if a > 0 else (NO_WINDOW, c)


_LIMITS: Mapping[str, Callable[[int, int], tuple[int, int]]] = MappingProxyType(
    {
        "less_equal": _less,
        "less": lambda a, c: _less(a, c + 1),
        "greater_equal": lambda a, c: _less(-a, -c),
        "greater": lambda a, c: _less(-a, -c + 1),
    }
)


def _linear(value: ir.Value, sizes: Mapping[str, int]) -> dict[str, int] | None:
    """Coefficients by dimension of a sum of coordinates, that of "" the constant; None if it is none."""
    match value:
        case ir.Coordinate(dim):
            return {dim: 1}
        case ir.Size(extent):
            return {"": evaluate(extent, sizes)}
        case ir.Constant(number) if isinstance(number, int) and not isinstance(number, bool):
            return {"": number}
        case ir.Apply(function="add" | "subtract" as function, args=(left, right)):
            a, b = _linear(left, sizes), _linear(right, sizes)
            sign = 1 if function == "add" else -1
            return None if a is None or b is None else {n: a.get(n, 0) + sign * b.get(n, 0) for n in (*a, *b)}
        case ir.Apply(function="negate", args=(inner,)):
            a = _linear(inner, sizes)
            return None if a is None else {name: -c for name, c in a.items()}
    return None


# --- factors -----------------------------------------------------------------------


def _factor(value: ir.Value, dot: ir.Dot, sizes: Mapping[str, int]) -> float | None:
    """x where the value is the dot times the number x."""
    if value is dot:
        return 1.0
    match value:
        case ir.Apply(function="multiply", args=(left, right)):
            for part, other in ((left, right), (right, left)):
                a, b = _factor(part, dot, sizes), _number(other, sizes)
                if a is not None and b is not None:
                    return a * b
        case ir.Apply(function="divide", args=(left, right)):
            a, b = _factor(left, dot, sizes), _number(right, sizes)
            if a is not None and b:
                return a / b
    return None


_NUMBERS: Mapping[str, Callable[..., float]] = MappingProxyType(
    {
        "add": lambda a, b: a + b, "subtract": lambda a, b: a - b, "multiply": lambda a, b: a * b,
        "divide": lambda a, b: a / b, "negate": lambda a: -a, "sqrt": math.sqrt, "rsqrt": lambda a: a**-0.5,
        "power": lambda a, b: a**b, "pow": lambda a, b: a**b, "exp": math.exp, "log": math.log,
    }
)  # fmt: skip


def _number(value: ir.Value, sizes: Mapping[str, int]) -> float | None:
    """A value that is one number for these extents; None where it is not, or is undefined."""
    match value:
        case ir.Constant(number):
            return float(number)
        case ir.Size(extent):
            return float(evaluate(extent, sizes))
        case ir.Apply(function, args) if function in _NUMBERS:
            numbers = [_number(a, sizes) for a in args]
            try:
                made = _NUMBERS[function](*numbers) if None not in numbers else None
            except (ArithmeticError, ValueError):
                return None
            return made if isinstance(made, float) else None
    return None
