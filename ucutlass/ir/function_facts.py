"""What is true of element-wise functions for all arguments: the one table that algebra, the reference's bounds and the
speed-of-light model read. `tests/algebra/test_function_facts.py` holds every entry against the function's reference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

Range = tuple[float, float]
"""A least and a greatest value."""

EVERYWHERE: Range = (-math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class FunctionFacts:
    """- `range`: in which the function lies, its f32 forms too, of all arguments that are no NaN and give none
    - `keeps_zero`: it is 0 where its first argument is, with any finite constants behind it
    - `rises`: it never falls as its first argument rises, infinities too, and passes NaN on, with constants behind it
      that are not negative (the bounds of `clamp` and `hardtanh` may be)
    - `keeps_positive`: it is its first argument where that is not negative, with any finite constants behind it
    - `commutes`: its two arguments in the other order give the same bits
    """

    range: Range = EVERYWHERE
    keeps_zero: bool = False
    rises: bool = False
    keeps_positive: bool = False
    commutes: bool = False


_NOT_NEGATIVE: Range = (0.0, math.inf)
_UNIT: Range = (-1.0, 1.0)
_NOTHING = FunctionFacts()
_COMMUTES = FunctionFacts(commutes=True)
_KEEPS_ZERO = FunctionFacts(keeps_zero=True)

FACTS: Mapping[str, FunctionFacts] = MappingProxyType(
    {
        **dict.fromkeys(("add", "multiply", "min", "max", "and", "or", "equal", "not_equal"), _COMMUTES),
        **dict.fromkeys(("negate", "gelu", "gelu_tanh", "silu", "mish", "hardswish", "log1p"), _KEEPS_ZERO),
        "clamp": FunctionFacts(rises=True),
        "hardtanh": FunctionFacts(rises=True),
        "abs": FunctionFacts(_NOT_NEGATIVE, keeps_zero=True, keeps_positive=True),
        "relu": FunctionFacts(_NOT_NEGATIVE, keeps_zero=True, rises=True, keeps_positive=True),
        "leaky_relu": FunctionFacts(keeps_zero=True, rises=True, keeps_positive=True),
        "elu": FunctionFacts(keeps_zero=True, rises=True, keeps_positive=True),
        "selu": FunctionFacts(keeps_zero=True, rises=True),
        "softplus": FunctionFacts(_NOT_NEGATIVE, rises=True),
        "exp": FunctionFacts(_NOT_NEGATIVE, rises=True),
        "sqrt": FunctionFacts(_NOT_NEGATIVE, keeps_zero=True),
        "sigmoid": FunctionFacts((0.0, 1.0), rises=True),
        "tanh": FunctionFacts(_UNIT, keeps_zero=True, rises=True),
        "erf": FunctionFacts(_UNIT, keeps_zero=True, rises=True),
        "sign": FunctionFacts(_UNIT, keeps_zero=True),
        "sin": FunctionFacts(_UNIT, keeps_zero=True),
        "cos": FunctionFacts(_UNIT),
        "floor": FunctionFacts(keeps_zero=True, rises=True),
        "round": FunctionFacts(keeps_zero=True, rises=True),
    }
)
"""By name, of functions of which something here is true."""


def facts(function: str) -> FunctionFacts:
    return FACTS.get(function, _NOTHING)


def named(fact: str) -> frozenset[str]:
    """Returns the functions of which a fact is true, by the fact's name."""
    return frozenset(name for name, entry in FACTS.items() if getattr(entry, fact))
