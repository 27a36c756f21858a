"""Constant folding, in float64 and in Python's unbounded integers cut to 64 bits."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

_FOLDABLE: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "add": operator.add,
        "subtract": operator.sub,
        "multiply": operator.mul,
        "divide": operator.truediv,
        "floor_divide": operator.floordiv,
        "modulo": operator.mod,
        "negate": operator.neg,
        "less": operator.lt,
        "less_equal": operator.le,
        "greater": operator.gt,
        "greater_equal": operator.ge,
        "equal": operator.eq,
        "not_equal": operator.ne,
        "and": lambda a, b: a and b,
        "or": lambda a, b: a or b,
        "not": operator.not_,
        "min": min,
        "max": max,
        "abs": abs,
        "where": lambda c, a, b: a if c else b,
        "power": math.pow,
        "pow": math.pow,
        "sqrt": math.sqrt,
        "rsqrt": lambda x: 1 / math.sqrt(x),
        "exp": math.exp,
        "log": math.log,
        "tanh": math.tanh,
    }
)


def fold(function: str, values: tuple[Any, ...], as_float: bool) -> float | int | bool | None:
    """The value of `function` over constants, or None where folding is not possible.

    What Python would raise for (division by zero, a domain error) is left to run time, whose
    inf and NaN are the language's.
    """
    compute = _FOLDABLE.get(function)
    if compute is None:
        return None
    try:
        result = compute(*(float(v) for v in values) if as_float else values)
    except (ArithmeticError, ValueError):
        return None
    if isinstance(result, float) and math.isnan(result):
        return None
    if isinstance(result, int) and not isinstance(result, bool) and abs(result) >= 2**63:
        return None
    return result  # type: ignore[no-any-return]
