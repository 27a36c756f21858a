"""Lower bounds on a value, whatever it is computed from.

A wide interval about a mean of squares may reach below 0, where the square root of its end is not a number.
No kernel computes such a mean: rounding is monotone, so a sum of rounded numbers that are not negative is not
negative, and x + c, rounded, is at least c where x is not negative (Higham, Accuracy and Stability of
Numerical Algorithms, 2nd edition, section 2.1; IEEE 754's roundings are monotone).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from ucutlass.ir import Apply, Cast, Constant, Read, Reduce, Softmax, Value
from ucutlass.ir.elements import F32
from ucutlass.ir.function_facts import facts
from ucutlass.reference.rounding import round_float


def lower_bound(node: Value) -> float:
    """Returns a number that neither the node's reference nor an honest kernel's value for it lies below; -inf
    where nothing is known. Either may be NaN."""
    bounds: dict[Value, float] = {}

    def visit(node: Value) -> float:
        if node not in bounds:
            bounds[node] = _lowest(node, visit)
        return bounds[node]

    return visit(node)


def _lowest(node: Value, visit: Callable[[Value], float]) -> float:
    match node:
        case Constant(value=value):
            return _below(float(value))
        case Apply(function="multiply", args=(a, b)) if a is b:
            return 0.0
        case Apply(function="power" | "pow", args=(_, Constant(value=2))):
            return 0.0
        case Apply(function="multiply" | "divide", args=(a, b)):
            return _never_negative(visit(a), visit(b))
        case Apply(function="add", args=(a, b)):
            return _below(visit(a) + visit(b))
        case Apply(function="max", args=(a, b)):
            return max(visit(a), visit(b))
        case Apply(function="min", args=(a, b)):
            return min(visit(a), visit(b))
        case Apply(function=function) if facts(function).range[0] == 0.0:
            return 0.0
        case Apply(function="rsqrt", args=(a,)) if visit(a) > 0:  # of -0 it is -infinity
            return 0.0
        case Reduce(op="var") | Softmax(log=False):
            return 0.0
        case Reduce(op="sum" | "mean", value=inner) | Cast(value=inner):
            return _never_negative(visit(inner))
        case Reduce(op="max" | "min", value=inner):
            return visit(inner)
        case Read(value=inner, fill=fill):
            return min(visit(inner), fill)
        case _:
            return -math.inf


def _never_negative(*parts: float) -> float:
    return 0.0 if min(parts) >= 0 else -math.inf


def _below(value: float) -> float:
    """Returns the lower of a number and its rounding to f32."""
    if not math.isfinite(value):
        return -math.inf
    return min(value, float(round_float(torch.tensor(value, dtype=torch.float64), F32)))
