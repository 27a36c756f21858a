"""The neutral element that a position outside a tensor reads, by the operation around it.

`NEUTRAL` gives it by operation, `in_element` by element type. The checker, the interpreter and the emitters
use both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from ucutlass.ir.elements import E4M3, E5M2, Element

NEUTRAL: Mapping[str, float] = MappingProxyType(
    {
        "sum": 0.0,
        "mean": 0.0,
        "var": 0.0,
        "prod": 1.0,
        "cumsum": 0.0,
        "cumprod": 1.0,
        "max": -math.inf,
        "argmax": -math.inf,
        "logsumexp": -math.inf,
        "min": math.inf,
        "argmin": math.inf,
    }
)
"""By reduction or scan. -inf stands for the least value of a type and inf for the largest."""


def in_element(fill: float, elem: Element) -> float | int | bool:
    """Returns a neutral element as a value of this type, which its memory can hold: it may be stored there
    beside loaded values."""
    match elem.kind:
        case "float":
            return fill
        case "bool":
            return fill > 0
        case "int" if math.isinf(fill):
            low, high = elem.ends
            return high if fill > 0 else low
        case "int":
            return int(fill)


def survives(inner: Element, elem: Element) -> bool:
    """Returns whether an infinity that stands for no value of `inner` is still neutral once it is cast to
    `elem`: integers, bools and the floats that saturate have none."""
    return inner.kind == elem.kind == "float" and elem not in (E4M3, E5M2)
