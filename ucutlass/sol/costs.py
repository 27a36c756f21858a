"""Lower bounds on the cost of one element of each operator: f32 operations and special functions.

A multiply-add is two operations. Comparisons, selections, minima and magnitudes count as nothing: they run
beside the f32 units or come with another instruction. A special function (exp, log, tanh, rsqrt, erf ..)
counts as one, however many operations its exact form takes, since each has a form of one `MUFU` instruction
or a polynomial.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ucutlass.ir import Apply, Constant, Dot, Reduce, Value

SPECIAL = "mufu"
"""The key of `Work.operations` that counts special functions."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one element. With `folds`, an operation whose operand lacks some of the result's dimensions
    may be folded into its neighbours (a scale into the weights, a bias into the start of a sum), so that no
    kernel must execute it."""

    f32: int = 0
    special: int = 0
    folds: bool = False


_ARITHMETIC = Cost(f32=1, folds=True)

COSTS: Mapping[str, Cost] = MappingProxyType(
    dict.fromkeys(("add", "subtract", "multiply", "divide"), _ARITHMETIC)
    | {
        name: Cost(special=1)
        for name in ("exp", "log", "log1p", "sqrt", "rsqrt", "erf", "sin", "cos", "tanh", "sigmoid")
    }
    | {
        "silu": Cost(1, 1),
        "gelu": Cost(1, 1),
        "gelu_tanh": Cost(1, 1),
        "softplus": Cost(0, 1),
        "mish": Cost(1, 1),
        "elu": Cost(0, 1),
        "selu": Cost(1, 1),
        "leaky_relu": Cost(1),
        "hardswish": Cost(1),
    }
)
"""Costs by function of `ucutlass.ir.functions.FUNCTIONS`; a function that is not listed costs nothing."""


def cost_of(node: Apply) -> Cost:
    """Returns the cost per element of the node; integer work costs nothing."""
    if node.function in ("power", "pow"):
        return _power(node.args[1])
    if node.elem.kind != "float":
        return Cost()
    return COSTS.get(node.function, Cost())


def _power(exponent: Value) -> Cost:
    """Returns the cost of a power: an integer exponent takes at least one multiplication, any other at least
    one special function."""
    match exponent:
        case Constant(value=value) if float(value).is_integer():
            return Cost(f32=1) if float(value) not in (0.0, 1.0) else Cost()
        case _:
            return Cost(special=1)


def folds(node: Apply) -> bool:
    """Returns whether the operation may be folded into its neighbours."""
    return cost_of(node).folds and any(len(a.dims) < len(node.dims) or not a.dims for a in node.args)


def sums_products(node: Reduce) -> bool:
    """Returns whether a sum's terms are products that `folds` leaves out and that must be formed all the
    same: both factors range over the summed dimensions, so neither can be moved out of the sum."""
    match node:
        case Reduce(op="sum" | "mean", over=over, value=Apply(function="multiply", args=(a, b)) as product):
            shared = not set(over).isdisjoint(a.dims) and not set(over).isdisjoint(b.dims)
            return shared and folds(product)
        case _:
            return False


def dot_compute_type(node: Dot) -> str:
    """Returns the key of `Work.operations` for a dot, which is an entry of `Device.peaks`.

    f32 dots count as `tf32x3`, whichever form the device executes faster; `f16_f16` is f16 accumulation,
    which some devices do at twice the rate.
    """
    match node.compute_type.name, node.accumulate:
        case "f32", _:
            return "tf32x3"
        case "f16", "f16":
            return "f16_f16"
        case compute_type, _:
            return compute_type
