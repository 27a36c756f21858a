"""Element-wise operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ucutlass.grammar.syntax import Expr, Name
from ucutlass.importer.expressions import (
    add,
    binary,
    call,
    div,
    expr,
    mul,
    number,
    operand,
    sub,
    substituted,
    template,
    where,
)
from ucutlass.importer.operators.builder import Arguments, GraphBuilder, ValueRef
from ucutlass.importer.whole_numbers import low_bits, wrapped

Rule = Callable[[GraphBuilder, Arguments], "ValueRef | tuple[ValueRef | None, ...]"]
FLOATS = frozenset({"f64", "f32", "f16", "bf16", "e4m3", "e5m2"})

UNARY: Mapping[str, str] = MappingProxyType(
    {
        "abs": "abs(x0)",
        "acosh": "log(x0 + sqrt(x0 * x0 - 1))",
        "asinh": "sign(x0) * log1p(abs(x0) + x0 * x0 / (1 + sqrt(x0 * x0 + 1)))",
        "atanh": "0.5 * log1p(2 * x0 / (1 - x0))",
        "ceil": "-floor(-x0)",
        "cos": "cos(x0)",
        "cosh": "(exp(x0) + exp(-x0)) / 2",
        "erf": "erf(x0)",
        "erfc": "1 - erf(x0)",
        "exp": "exp(x0)",
        "exp2": "2 ** x0",
        "expm1": "where(abs(x0) < 0.5, 2 * tanh(x0 / 2) / (1 - tanh(x0 / 2)), exp(x0) - 1)",
        "floor": "floor(x0)",
        "frac": "x0 - sign(x0) * floor(abs(x0))",
        "hardsigmoid": "clamp(x0 + 3, 0, 6) / 6",
        "hardswish": "hardswish(x0)",
        "log": "log(x0)",
        "log10": "log(x0) * 0.4342944819032518",
        "log1p": "log1p(x0)",
        "log2": "log(x0) * 1.4426950408889634",
        "log_sigmoid": "-softplus(-x0)",
        "mish": "mish(x0)",
        "neg": "-x0",
        "reciprocal": "1 / x0",
        "relu": "relu(x0)",
        "relu6": "clamp(x0, 0, 6)",
        "round": "round(x0)",
        "rsqrt": "rsqrt(x0)",
        "selu": "selu(x0)",
        "sigmoid": "sigmoid(x0)",
        "sign": "sign(x0)",
        "silu": "silu(x0)",
        "sin": "sin(x0)",
        "sinh": "where(abs(x0) < 0.5, tanh(x0) * (exp(x0) + exp(-x0)) / 2, (exp(x0) - exp(-x0)) / 2)",
        "sqrt": "sqrt(x0)",
        "square": "x0 * x0",
        "tan": "sin(x0) / cos(x0)",
        "tanh": "tanh(x0)",
        "trunc": "sign(x0) * floor(abs(x0))",
    }
)
"""Functions of one tensor, by the first part of the operator's name."""

COMPARISONS: Mapping[str, str] = MappingProxyType(
    {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
)


def _first(arguments: Arguments) -> ValueRef:
    """Returns the one tensor of an operator, whatever its schema calls it."""
    ref: ValueRef = arguments.get("self") or arguments.get("input")
    return ref


def unary(text: str) -> Rule:
    def rule(b: GraphBuilder, a: Arguments) -> ValueRef:
        x = _first(a)
        return b.pointwise(b.numbers(template(text), [x]), [x], a.result.element)

    return rule


def of_tensors(
    b: GraphBuilder, a: Arguments, body: Callable[..., Expr], *arguments: Any, hint: str = ""
) -> ValueRef:
    """Adds `body` of arguments that are tensors or numbers, bools among the tensors as 1 and 0."""
    element = a.result.element
    refs = [x for x in arguments if isinstance(x, ValueRef)]
    if element == "i32":
        # A 0-dimensional tensor widens nothing: of 64 bits beside 32, the result would saturate where PyTorch's wraps.
        refs = [cast(b, x, element) if b.element(x) == "i64" else x for x in refs]
    exprs: list[Expr] = []
    for value in arguments:
        exprs.append(
            operand(len([e for e in exprs if isinstance(e, Name)]))
            if isinstance(value, ValueRef)
            else _literal(b, value)
        )
    return b.pointwise(b.numbers(body(*exprs), refs), refs, element, hint, a.result.shape)


def _literal(b: GraphBuilder, value: Any) -> Expr:
    if not isinstance(value, bool | int | float):
        raise b.fail(f"the argument {value!r} is no number")
    if isinstance(value, float) and math.isnan(value):
        raise b.fail("the language has no NaN")
    return expr(value)


def _scaled(value: Expr, factor: Any) -> Expr:
    return value if factor == 1 else mul(value, factor)


def _add(b: GraphBuilder, a: Arguments) -> ValueRef:
    alpha, whole = a.get("alpha", 1), a.result.element not in FLOATS
    if whole and a["other"] == 0 and b.element(a["self"]) == a.result.element:
        x: ValueRef = a["self"]
        return x
    if _all_bool(b, a["self"], a["other"]):
        return of_bools(b, a, "or")
    return of_tensors(b, a, lambda x, y: add(x, _scaled(y, alpha)), a["self"], a["other"])


def _sub(b: GraphBuilder, a: Arguments) -> ValueRef:
    alpha = a.get("alpha", 1)
    return of_tensors(b, a, lambda x, y: sub(x, _scaled(y, alpha)), a["self"], a["other"])


def _rsub(b: GraphBuilder, a: Arguments) -> ValueRef:
    alpha = a.get("alpha", 1)
    return of_tensors(b, a, lambda x, y: sub(y, _scaled(x, alpha)), a["self"], a["other"])


def _mul(b: GraphBuilder, a: Arguments) -> ValueRef:
    if _all_bool(b, a["self"], a["other"]):
        return of_bools(b, a, "and")
    return of_tensors(b, a, mul, a["self"], a["other"])


def _div(b: GraphBuilder, a: Arguments) -> ValueRef:
    mode = a.get("rounding_mode")
    whole = a.result.element not in FLOATS
    if mode is None:
        return of_tensors(b, a, div, a["self"], a["other"])
    if mode == "floor":
        return of_tensors(
            b,
            a,
            (lambda x, y: binary("//", x, y)) if whole else (lambda x, y: call("floor", div(x, y))),
            a["self"],
            a["other"],
        )
    return of_tensors(b, a, _whole_quotient if whole else _cut_quotient, a["self"], a["other"])


def _cut_quotient(x: Expr, y: Expr) -> Expr:
    """Returns a quotient rounded towards 0."""
    return mul(call("sign", div(x, y)), call("floor", call("abs", div(x, y))))


def _whole_quotient(x: Expr, y: Expr) -> Expr:
    """Returns the same of whole numbers."""
    size = binary("//", call("abs", x), call("abs", y))
    return mul(mul(call("sign", x), call("sign", y)), size)


def _fmod(b: GraphBuilder, a: Arguments) -> ValueRef:
    quotient = _cut_quotient if a.result.element in FLOATS else _whole_quotient
    return of_tensors(b, a, lambda x, y: sub(x, mul(y, quotient(x, y))), a["self"], a["other"])


def _hypot(b: GraphBuilder, a: Arguments) -> ValueRef:
    return of_tensors(b, a, lambda x, y: call("sqrt", add(mul(x, x), mul(y, y))), a["self"], a["other"])


def _floor_divide(b: GraphBuilder, a: Arguments) -> ValueRef:
    whole = a.result.element not in FLOATS
    return of_tensors(
        b,
        a,
        (lambda x, y: binary("//", x, y)) if whole else (lambda x, y: call("floor", div(x, y))),
        a["self"],
        a["other"],
    )


def _remainder(b: GraphBuilder, a: Arguments) -> ValueRef:
    if a.result.element in FLOATS:
        return of_tensors(b, a, lambda x, y: sub(x, mul(y, call("floor", div(x, y)))), a["self"], a["other"])
    return of_tensors(b, a, lambda x, y: binary("%", x, y), a["self"], a["other"])


def _pow(b: GraphBuilder, a: Arguments) -> ValueRef:
    base, exponent = a["self"], a["exponent"]
    if isinstance(exponent, int | float) and exponent in (2, 3) and isinstance(base, ValueRef):
        square = mul(operand(0), operand(0))
        body = square if exponent == 2 else mul(square, operand(0))
        return b.pointwise(b.numbers(body, [base]), [base], a.result.element)
    if exponent == 0.5:
        return of_tensors(b, a, lambda x: call("sqrt", x), base)
    if exponent == -0.5:
        return of_tensors(b, a, lambda x: call("rsqrt", x), base)
    if a.result.element not in FLOATS:
        return _whole_power(b, a)
    return of_tensors(b, a, lambda x, y: binary("**", x, y), base, exponent)


def _whole_power(b: GraphBuilder, a: Arguments) -> ValueRef:
    base, exponent = a["self"], a["exponent"]
    if not isinstance(base, ValueRef) or not isinstance(exponent, int) or not 0 <= exponent <= MOST_FACTORS:
        raise b.fail("a power of whole numbers")
    power: Expr = number(1)
    for _ in range(exponent):
        power = operand(0) if power == number(1) else mul(power, operand(0))
    return b.pointwise(b.numbers(power, [base]), [base], a.result.element, shape=a.result.shape)


MOST_FACTORS = 8
"""Up to this power whole numbers are multiplied out."""


def _compare(op: str) -> Rule:
    return lambda b, a: of_tensors(b, a, lambda x, y: binary(op, x, y), a["self"], a["other"])


def _clamp(b: GraphBuilder, a: Arguments) -> ValueRef:
    low, high = a.get("min"), a.get("max")
    x = a["self"]
    if b.element(x) == "u8" and any(isinstance(n, int | float) and n < 0 for n in (low, high)):
        raise b.fail("a bound below 0 of numbers that have none")
    if low is None:
        return of_tensors(b, a, lambda v, h: call("min", v, h), x, high)
    if high is None:
        return of_tensors(b, a, lambda v, low_: call("max", v, low_), x, low)
    return of_tensors(b, a, lambda v, low_, high_: call("clamp", v, low_, high_), x, low, high)


def _hardtanh(b: GraphBuilder, a: Arguments) -> ValueRef:
    low, high = a["min_val"], a["max_val"]
    if (low, high) == (-1, 1):
        return of_tensors(b, a, lambda v: call("hardtanh", v), a["self"])
    return of_tensors(b, a, lambda v: call("clamp", v, low, high), a["self"])


def _pair(function: str) -> Rule:
    return lambda b, a: of_tensors(b, a, lambda x, y: call(function, x, y), a["self"], a["other"])


def _gelu(b: GraphBuilder, a: Arguments) -> ValueRef:
    function = "gelu_tanh" if a.get("approximate") == "tanh" else "gelu"
    return of_tensors(b, a, lambda x: call(function, x), a["self"])


def _leaky_relu(b: GraphBuilder, a: Arguments) -> ValueRef:
    slope = a["negative_slope"]
    return of_tensors(
        b, a, lambda x: call("leaky_relu", x) if slope == 0.01 else call("leaky_relu", x, slope), a["self"]
    )


def _elu(b: GraphBuilder, a: Arguments) -> ValueRef:
    alpha, scale, inner = a["alpha"], a.get("scale", 1), a.get("input_scale", 1)
    if inner != 1:
        raise b.fail(f"input_scale={inner}")

    def body(x: Expr) -> Expr:
        return _scaled(call("elu", x) if alpha == 1 else call("elu", x, alpha), scale)

    return of_tensors(b, a, body, a["self"])


def _celu(b: GraphBuilder, a: Arguments) -> ValueRef:
    alpha = a["alpha"]
    return of_tensors(
        b, a, lambda x: where(binary(">", x, 0), x, mul(alpha, call("elu", div(x, alpha)))), a["self"]
    )


def _softplus(b: GraphBuilder, a: Arguments) -> ValueRef:
    beta, threshold = a["beta"], a["threshold"]

    def body(x: Expr) -> Expr:
        if (beta, threshold) == (1, 20):
            return call("softplus", x)
        scaled = _scaled(x, beta)
        soft = div(call("softplus", scaled), beta) if beta != 1 else call("softplus", scaled)
        return where(binary(">", scaled, threshold), x, soft)

    return of_tensors(b, a, body, a["self"])


def _threshold(b: GraphBuilder, a: Arguments) -> ValueRef:
    limit, value = a["threshold"], a["value"]
    return of_tensors(b, a, lambda x: where(binary("<=", x, limit), value, x), a["self"])


def _prelu(b: GraphBuilder, a: Arguments) -> ValueRef:
    x, w = a["self"], a["weight"]
    channels = b.shape(w)[0] if b.shape(w) else 1
    if channels != 1 and len(b.shape(x)) > 1:
        w = b.reshape(w, (channels, *(1 for _ in b.shape(x)[2:])))
    elif channels == 1:
        w = b.reshape(w, ())
    return of_tensors(b, a, lambda v, s: where(binary(">", v, 0), v, mul(s, v)), x, w)


def _where(b: GraphBuilder, a: Arguments) -> ValueRef:
    condition, yes, no = a["condition"], a["self"], a["other"]
    refs = [r for r in (condition, yes, no) if isinstance(r, ValueRef)]
    exprs: list[Expr] = []
    for value in (condition, yes, no):
        exprs.append(operand(refs.index(value)) if isinstance(value, ValueRef) else _literal(b, value))
    if a.result.element == "bool":
        c, y, n = exprs
        body = binary("or", binary("and", c, y), binary("and", expr_not(c), n))
    else:
        body = where(*exprs)
    return b.pointwise(body, refs, a.result.element, shape=a.result.shape)


def expr_not(value: Expr) -> Expr:
    return substituted(template("not x0"), {"x0": value})


def _masked_fill(b: GraphBuilder, a: Arguments) -> ValueRef:
    x, mask, value = a["self"], a["mask"], a["value"]
    if a.result.element == "bool":
        raise b.fail("masked_fill of bools")
    return (
        of_tensors(b, a, lambda m, v, t: where(m, v, t), mask, value, x)
        if isinstance(value, ValueRef)
        else (b.pointwise(where(operand(0), _literal(b, value), operand(1)), [mask, x], a.result.element))
    )


def _all_bool(b: GraphBuilder, *values: Any) -> bool:
    return all(isinstance(v, ValueRef) and b.element(v) == "bool" for v in values)


def of_bools(b: GraphBuilder, a: Arguments, op: str) -> ValueRef:
    refs = [a["self"], a["other"]]
    truths = [
        operand(i) if b.element(r) == "bool" else binary("!=", operand(i), 0) for i, r in enumerate(refs)
    ]
    return b.pointwise(binary(op, *truths), refs, "bool")


def _bitwise(op: str) -> Rule:
    def rule(b: GraphBuilder, a: Arguments) -> ValueRef:
        if not _all_bool(b, a["self"], a["other"]):
            raise b.fail("bits of whole numbers")
        return of_bools(b, a, op)

    return rule


def _not(b: GraphBuilder, a: Arguments) -> ValueRef:
    x = _first(a)
    if b.element(x) == "bool":
        return b.pointwise(template("not x0"), [x], "bool")
    return b.pointwise(template("x0 == 0"), [x], "bool")


def _bitwise_not(b: GraphBuilder, a: Arguments) -> ValueRef:
    if b.element(_first(a)) != "bool":
        raise b.fail("bits of whole numbers")
    return _not(b, a)


def _xor(b: GraphBuilder, a: Arguments) -> ValueRef:
    if not _all_bool(b, a["self"], a["other"]):
        raise b.fail("bits of whole numbers")
    return _logical_xor(b, a)


def _logical_xor(b: GraphBuilder, a: Arguments) -> ValueRef:
    refs = [a["self"], a["other"]]
    truths = [
        operand(i) if b.element(r) == "bool" else binary("!=", operand(i), 0) for i, r in enumerate(refs)
    ]
    return b.pointwise(binary("!=", *(where(t, 1, 0) for t in truths)), refs, "bool")


def _masked_bits(b: GraphBuilder, a: Arguments) -> ValueRef:
    """The low bits of whole numbers are a remainder."""
    mask = a["other"]
    if isinstance(mask, int) and not isinstance(mask, bool) and mask > 0 and (mask & (mask + 1)) == 0:
        return of_tensors(b, a, lambda x: binary("%", x, mask + 1), a["self"])
    return _bitwise("and")(b, a)  # type: ignore[return-value]


def cast(b: GraphBuilder, x: ValueRef, element: str) -> ValueRef:
    """Adds a conversion in plain sight; none to an element that holds the tensor's already."""
    own = b.element(x)
    if own == element:
        return x
    if own == "bool":
        value = template("where(x0, 1, 0)")
        return b.pointwise(call(element, value) if element in FLOATS else value, [x], element)
    if element == "bool":
        return b.pointwise(template("x0 != 0"), [x], "bool")
    if own in FLOATS and element not in FLOATS:
        # PyTorch rounds towards 0, the language to nearest.
        inner = template("sign(x0) * floor(abs(x0))")
        return b.pointwise(call(element, inner), [x], element)
    if (own, element) == ("i64", "i32") and x.name not in b.constants:  # coordinates are less than 2^31
        return b.pointwise(call(element, low_bits(operand(0), element)), [x], element)
    return b.pointwise(call(element, wrapped(operand(0), element, [own])), [x], element)


def _to(b: GraphBuilder, a: Arguments) -> ValueRef:
    return cast(b, _first(a), a.result.element)


def _lerp(b: GraphBuilder, a: Arguments) -> ValueRef:
    return of_tensors(b, a, lambda x, y, w: add(x, mul(w, sub(y, x))), a["self"], a["end"], a["weight"])


def _addc(op: Callable[[Any, Any], Expr]) -> Rule:
    def rule(b: GraphBuilder, a: Arguments) -> ValueRef:
        value = a.get("value", 1)
        return of_tensors(
            b, a, lambda x, y, z: add(x, _scaled(op(y, z), value)), a["self"], a["tensor1"], a["tensor2"]
        )

    return rule


def _xlogy(b: GraphBuilder, a: Arguments) -> ValueRef:
    return of_tensors(
        b, a, lambda x, y: where(binary("==", x, 0), 0, mul(x, call("log", y))), a["self"], a["other"]
    )


def _isinf(b: GraphBuilder, a: Arguments) -> ValueRef:
    return of_tensors(b, a, lambda x: binary("==", call("abs", x), float("inf")), a["self"])


def _negative(x: Expr) -> Expr:
    """Returns whether a number has a sign, which -0 has too."""
    return binary("or", binary("<", x, 0), binary("and", binary("==", x, 0), binary("<", div(1, x), 0)))


def _signbit(b: GraphBuilder, a: Arguments) -> ValueRef:
    body = _negative if b.element(a["self"]) in FLOATS else (lambda x: binary("<", x, 0))
    return of_tensors(b, a, body, a["self"])


def _copysign(b: GraphBuilder, a: Arguments) -> ValueRef:
    def body(x: Expr, y: Expr) -> Expr:
        size = call("abs", x)
        return where(_negative(y), sub(0, size), size)

    return of_tensors(b, a, body, a["self"], a["other"])


def _without_nan(function: str) -> Rule:
    """`fmin` and `fmax`: the other number, where one is NaN."""

    def body(x: Expr, y: Expr) -> Expr:
        return where(binary("!=", x, x), y, where(binary("!=", y, y), x, call(function, x, y)))

    return lambda b, a: of_tensors(b, a, body, a["self"], a["other"])


def _round_to(b: GraphBuilder, a: Arguments) -> ValueRef:
    decimals = a["decimals"]
    if decimals >= 0:
        ten = 10.0**decimals
        return of_tensors(b, a, lambda x: div(call("round", mul(x, ten)), ten), a["self"])
    ten = 10.0**-decimals
    return of_tensors(b, a, lambda x: mul(call("round", div(x, ten)), ten), a["self"])


def _rrelu(b: GraphBuilder, a: Arguments) -> tuple[ValueRef | None, ...]:
    if a["training"]:
        raise b.fail("slopes that are random")
    slope = (a["lower"] + a["upper"]) / 2
    return of_tensors(b, a, lambda x: call("leaky_relu", x, slope), a["self"]), None


def _shifted(left: bool) -> Rule:
    """Shifts of whole numbers are products and quotients by powers of two."""

    def rule(b: GraphBuilder, a: Arguments) -> ValueRef:
        count = a["other"]
        if not isinstance(count, int) or not 0 <= count < 32:
            raise b.fail("a shift by a tensor, or of more than the bits")
        return of_tensors(b, a, lambda x: mul(x, 2**count) if left else binary("//", x, 2**count), a["self"])

    return rule


def _isnan(b: GraphBuilder, a: Arguments) -> ValueRef:
    return of_tensors(b, a, lambda x: binary("!=", x, x), a["self"])


def _angle(b: GraphBuilder, x: ValueRef, element: str, hint: str) -> ValueRef:
    """Adds the arctangent: of what is at most 1 by a polynomial that is right within 0.005, whose error is the
    arctangent of a small number, by its series."""
    work = "f64" if element == "f64" else "f32"
    small = b.pointwise(template("where(abs(x0) > 1, 1 / abs(x0), abs(x0))"), [x], work, "tangent")
    near = b.pointwise(template("x0 * (0.97239411 - 0.19194795 * x0 * x0)"), [small], work, "near")
    over_near = template("(x0 * cos(x1) - sin(x1)) / (cos(x1) + x0 * sin(x1))")
    rest = b.pointwise(over_near, [small, near], work, "rest")
    series = template("x0 + x1 - x1 * x1 * x1 / 3 + x1 * x1 * x1 * x1 * x1 / 5")
    angle = b.pointwise(series, [near, rest], work, "angle")
    whole = template("sign(x1) * where(abs(x1) > 1, 1.5707963267948966 - x0, x0)")
    return b.pointwise(whole, [angle, x], element, hint)


def _arctangent_of(text: str, result: str, hint: str) -> Rule:
    """Returns a rule for a function that is `result` of the arctangent of `text`."""

    def rule(b: GraphBuilder, a: Arguments) -> ValueRef:
        element = a.result.element
        work = "f64" if element == "f64" else "f32"
        x = b.pointwise(b.numbers(template(text), [_first(a)]), [_first(a)], work)
        angle = _angle(b, x, work, "angle")
        return b.pointwise(template(result), [angle], element, hint)

    return rule


def _atan2(b: GraphBuilder, a: Arguments) -> ValueRef:
    """The angle of a point: of the quotient, turned by half a circle on the left."""
    y, x, element = a["self"], a["other"], a.result.element
    work = "f64" if element == "f64" else "f32"
    both = "where(x0 == 0 and x1 == 0, 0, where(abs(x0) == inf and abs(x1) == inf, sign(x0) * sign(x1), x0 / x1))"
    quotient = b.pointwise(b.numbers(template(both), [y, x]), [y, x], work, "quotient", a.result.shape)
    angle = _angle(b, quotient, work, "angle")
    left = "x1 < 0 or 1 / x1 < 0"
    below = "x0 < 0 or 1 / x0 < 0"
    pi = "3.141592653589793"
    whole = template(f"where({left}, x2 + where({below}, -{pi}, {pi}), x2)")
    return b.pointwise(b.numbers(whole, [y, x, angle]), [y, x, angle], element, "atan2", a.result.shape)


def _rules() -> dict[str, Rule]:
    rules: dict[str, Rule] = {f"aten.{name}.default": unary(text) for name, text in UNARY.items()}
    rules["aten.log_sigmoid.default"] = unary(UNARY["log_sigmoid"])
    rules["aten.atan.default"] = _arctangent_of("1.0 * x0", "x0", "atan")
    rules["aten.asin.default"] = _arctangent_of("x0 / sqrt((1 - x0) * (1 + x0))", "x0", "asin")
    rules["aten.acos.default"] = _arctangent_of("sqrt((1 - x0) / (1 + x0))", "2 * x0", "acos")
    rules["aten.atan2.default"] = _atan2
    for name, op in COMPARISONS.items():
        rules |= {f"aten.{name}.{overload}": _compare(op) for overload in ("Tensor", "Scalar")}
    for name, rule in {"add": _add, "sub": _sub, "mul": _mul, "div": _div, "remainder": _remainder}.items():
        rules |= {f"aten.{name}.{overload}": rule for overload in ("Tensor", "Scalar")}
    rules |= {f"aten.rsub.{overload}": _rsub for overload in ("Tensor", "Scalar")}
    rules |= {f"aten.div.{overload}": _div for overload in ("Tensor_mode", "Scalar_mode")}
    rules |= {f"aten.floor_divide.{overload}": _floor_divide for overload in ("default", "Scalar")}
    rules |= {f"aten.pow.{overload}": _pow for overload in ("Tensor_Scalar", "Tensor_Tensor", "Scalar")}
    rules |= {f"aten.clamp.{overload}": _clamp for overload in ("default", "Tensor")}
    rules |= {f"aten.clamp_min.{overload}": _clamp for overload in ("default", "Tensor")}
    rules |= {f"aten.clamp_max.{overload}": _clamp for overload in ("default", "Tensor")}
    rules |= {f"aten.masked_fill.{overload}": _masked_fill for overload in ("Scalar", "Tensor")}
    rules |= {
        f"aten.where.{overload}": _where for overload in ("self", "ScalarSelf", "ScalarOther", "Scalar")
    }
    rules |= {f"aten.fmod.{overload}": _fmod for overload in ("Tensor", "Scalar")}
    rules |= {f"aten.bitwise_and.{o}": _masked_bits for o in ("Tensor", "Scalar")}
    rules |= {f"aten.bitwise_or.{o}": _bitwise("or") for o in ("Tensor", "Scalar")}
    return rules | {
        "aten._to_copy.default": _to,
        "aten.addcdiv.default": _addc(div),
        "aten.addcmul.default": _addc(mul),
        "aten.bitwise_not.default": _bitwise_not,
        "aten.bitwise_xor.Tensor": _xor,
        "aten.celu.default": _celu,
        "aten.elu.default": _elu,
        "aten.gelu.default": _gelu,
        "aten.hardtanh.default": _hardtanh,
        "aten.hypot.default": _hypot,
        "aten.__lshift__.Scalar": _shifted(True),
        "aten.__rshift__.Scalar": _shifted(False),
        "aten.bitwise_left_shift.Tensor_Scalar": _shifted(True),
        "aten.bitwise_right_shift.Tensor_Scalar": _shifted(False),
        "aten.copysign.Scalar": _copysign,
        "aten.copysign.Tensor": _copysign,
        "aten.fmax.default": _without_nan("max"),
        "aten.fmin.default": _without_nan("min"),
        "aten.isinf.default": _isinf,
        "aten.isnan.default": _isnan,
        "aten.round.decimals": _round_to,
        "aten.rrelu_with_noise_functional.default": _rrelu,
        "aten.signbit.default": _signbit,
        "aten.leaky_relu.default": _leaky_relu,
        "aten.lerp.Scalar": _lerp,
        "aten.lerp.Tensor": _lerp,
        "aten.logical_and.default": lambda b, a: of_bools(b, a, "and"),
        "aten.logical_not.default": _not,
        "aten.logical_or.default": lambda b, a: of_bools(b, a, "or"),
        "aten.logical_xor.default": _logical_xor,
        "aten.maximum.default": _pair("max"),
        "aten.minimum.default": _pair("min"),
        "aten.prelu.default": _prelu,
        "aten._prelu_kernel.default": _prelu_kernel,
        "aten.softplus.default": _softplus,
        "aten.threshold.default": _threshold,
        "aten.to.dtype": _to,
        "aten.xlogy.Tensor": _xlogy,
    }


def _prelu_kernel(b: GraphBuilder, a: Arguments) -> ValueRef:
    return of_tensors(b, a, lambda v, s: where(binary(">", v, 0), v, mul(s, v)), a["self"], a["weight"])


RULES: Mapping[str, Rule] = MappingProxyType(_rules())
