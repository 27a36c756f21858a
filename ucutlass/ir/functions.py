"""Element-wise functions: the one table that the checker, the interpreter, the emitters and
the guide read. `emit/function_forms.py` holds the C++ of each under the same name.

Operators of the language are functions too (`a + b` is `add`). Float work is f32 in a
kernel and float64 in the reference, which takes and gives torch tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

Domain: TypeAlias = Literal["float", "number", "bool", "any"]
"""What the arguments may be. `float`: anything numeric, widened to f32. `number`: integers
stay integers, a float among them makes all f32. `any`: `where`'s, all but the first."""

Outcome: TypeAlias = Literal["same", "float", "bool"]
"""`same`: the arguments' common kind."""


@dataclass(frozen=True, slots=True)
class ElementwiseFunction:
    """One function.

    `spelling` is the operator that the language writes for it, "" for a named function.
    `parameters` names its arguments; `defaults` gives the trailing optional ones.
    `error` bounds the relative error of the f32 device form, in units of 2**-24, over the
    range where the result is not denormal; 0 for exactly rounded work.
    """

    name: str
    parameters: tuple[str, ...]
    domain: Domain
    outcome: Outcome
    reference: Callable[..., Tensor]
    meaning: str
    spelling: str = ""
    defaults: tuple[float, ...] = ()
    error: float = 0.0

    @property
    def arity(self) -> tuple[int, int]:
        """The fewest and the most arguments."""
        return len(self.parameters) - len(self.defaults), len(self.parameters)


SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946
"""Klambauer et al., arXiv 1706.02515, as in torch.nn.functional.selu."""


def _op(
    name: str,
    spelling: str,
    domain: Domain,
    outcome: Outcome,
    reference: Callable[..., Tensor],
    meaning: str,
    error: float = 0.0,
) -> ElementwiseFunction:
    parameters = ("a",) if name in ("negate", "not") else ("a", "b")
    return ElementwiseFunction(name, parameters, domain, outcome, reference, meaning, spelling, error=error)


def _unary(
    name: str, reference: Callable[[Tensor], Tensor], meaning: str, error: float = 0.0
) -> ElementwiseFunction:
    return ElementwiseFunction(name, ("x",), "float", "float", reference, meaning, error=error)


def _gelu(x: Tensor) -> Tensor:
    """By erfc: 1 + erf cancels where x is far below 0."""
    return 0.5 * x * (-x * math.sqrt(0.5)).erfc()


def _gelu_tanh(x: Tensor) -> Tensor:
    """By the sigmoid of twice the angle, for the same reason."""
    return x * (2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).sigmoid()


_TABLE: tuple[ElementwiseFunction, ...] = (
    _op("add", "+", "number", "same", lambda a, b: a + b, "sum"),
    _op("subtract", "-", "number", "same", lambda a, b: a - b, "difference"),
    _op("multiply", "*", "number", "same", lambda a, b: a * b, "product"),
    _op("divide", "/", "float", "float", lambda a, b: a / b, "quotient, always float"),
    _op(
        "floor_divide",
        "//",
        "number",
        "same",
        lambda a, b: a.div(b, rounding_mode="floor"),
        "quotient rounded down",
    ),
    _op("modulo", "%", "number", "same", lambda a, b: a.remainder(b), "a - b * (a // b)"),
    _op("power", "**", "float", "float", lambda a, b: a**b, "power", 16.0),
    _op("negate", "-", "number", "same", lambda a: -a, "negative"),
    _op("less", "<", "number", "bool", lambda a, b: a < b, "comparison"),
    _op("less_equal", "<=", "number", "bool", lambda a, b: a <= b, "comparison"),
    _op("greater", ">", "number", "bool", lambda a, b: a > b, "comparison"),
    _op("greater_equal", ">=", "number", "bool", lambda a, b: a >= b, "comparison"),
    _op("equal", "==", "number", "bool", lambda a, b: a == b, "comparison"),
    _op("not_equal", "!=", "number", "bool", lambda a, b: a != b, "comparison"),
    _op("and", "and", "bool", "bool", lambda a, b: a & b, "both"),
    _op("or", "or", "bool", "bool", lambda a, b: a | b, "either"),
    _op("not", "not", "bool", "bool", lambda a: ~a, "negation"),
    ElementwiseFunction(
        "where", ("c", "a", "b"), "any", "same", lambda c, a, b: a.where(c, b), "a where c holds, else b"
    ),
    ElementwiseFunction(
        "min", ("a", "b"), "number", "same", lambda a, b: a.minimum(b), "smaller of two; NaN if either is"
    ),
    ElementwiseFunction(
        "max", ("a", "b"), "number", "same", lambda a, b: a.maximum(b), "larger of two; NaN if either is"
    ),
    ElementwiseFunction("abs", ("x",), "number", "same", lambda x: x.abs(), "magnitude"),
    ElementwiseFunction(
        "clamp",
        ("x", "lo", "hi"),
        "number",
        "same",
        lambda x, lo, hi: x.maximum(lo).minimum(hi),
        "min(max(x, lo), hi)",
    ),
    ElementwiseFunction(
        "hardtanh",
        ("x", "lo", "hi"),
        "float",
        "float",
        lambda x, lo, hi: x.maximum(lo).minimum(hi),
        "clamp with bounds -1, 1",
        defaults=(-1.0, 1.0),
    ),
    ElementwiseFunction("pow", ("x", "y"), "float", "float", lambda x, y: x**y, "x ** y", error=16.0),
    _unary("relu", lambda x: x.clamp(min=0), "max(x, 0)"),
    ElementwiseFunction(
        "leaky_relu",
        ("x", "slope"),
        "float",
        "float",
        lambda x, slope: x.where(x > 0, x * slope),
        "x where positive, else slope * x",
        defaults=(0.01,),
    ),
    _unary("gelu", _gelu, "x * Phi(x), by erf", 64.0),
    _unary("gelu_tanh", _gelu_tanh, "gelu's tanh form", 64.0),
    _unary("silu", lambda x: x * x.sigmoid(), "x * sigmoid(x)", 32.0),
    _unary("sigmoid", lambda x: x.sigmoid(), "1 / (1 + exp(-x))", 32.0),
    _unary("tanh", lambda x: x.tanh(), "hyperbolic tangent", 32.0),
    _unary("softplus", lambda x: x.clamp(min=0) + (-x.abs()).exp().log1p(), "log(1 + exp(x))", 32.0),
    ElementwiseFunction(
        "elu",
        ("x", "alpha"),
        "float",
        "float",
        lambda x, alpha: x.where(x > 0, alpha * x.expm1()),
        "x where positive, else alpha * (exp(x) - 1)",
        defaults=(1.0,),
        error=32.0,
    ),
    _unary("selu", lambda x: SELU_SCALE * x.where(x > 0, SELU_ALPHA * x.expm1()), "scaled elu", 32.0),
    _unary(
        "mish",
        lambda x: x * (x.clamp(min=0) + (-x.abs()).exp().log1p()).tanh(),
        "x * tanh(softplus(x))",
        64.0,
    ),
    _unary("hardswish", lambda x: x * (x + 3).clamp(0, 6) / 6, "x * clamp(x + 3, 0, 6) / 6", 4.0),
    _unary("exp", lambda x: x.exp(), "exponential", 16.0),
    _unary("log", lambda x: x.log(), "natural logarithm", 16.0),
    _unary("log1p", lambda x: x.log1p(), "log(1 + x)", 16.0),
    _unary("sqrt", lambda x: x.sqrt(), "square root", 4.0),
    _unary("rsqrt", lambda x: x.rsqrt(), "1 / sqrt(x)", 8.0),
    _unary("erf", lambda x: x.erf(), "error function", 32.0),
    _unary("sin", lambda x: x.sin(), "sine", 16.0),
    _unary("cos", lambda x: x.cos(), "cosine", 16.0),
    _unary("floor", lambda x: x.floor(), "largest integer not above x, as float"),
    _unary("round", lambda x: x.round(), "nearest integer, ties to even, as float"),
    _unary("sign", lambda x: x.sign(), "-1, 0 or 1"),
)

FUNCTIONS: Mapping[str, ElementwiseFunction] = MappingProxyType({f.name: f for f in _TABLE})
"""By name."""

NAMED: Mapping[str, ElementwiseFunction] = MappingProxyType({f.name: f for f in _TABLE if not f.spelling})
"""Those that a program calls by name."""

OPERATORS: Mapping[tuple[str, int], ElementwiseFunction] = MappingProxyType(
    {(f.spelling, len(f.parameters)): f for f in _TABLE if f.spelling}
)
"""By the language's spelling and the number of operands."""
