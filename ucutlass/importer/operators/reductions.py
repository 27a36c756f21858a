"""Reductions, softmax, scans and norms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from ucutlass.grammar.syntax import Expr
from ucutlass.importer.expressions import add, call, mul, operand, over, sub, template
from ucutlass.importer.graph import Axes, Kind
from ucutlass.importer.operators.builder import Arguments, GraphBuilder, ValueRef, axis_number, axis_numbers
from ucutlass.importer.operators.pointwise import FLOATS, Rule, cast


def reduce(
    b: GraphBuilder, x: ValueRef, function: str, dims: Sequence[int], keep: bool, element: str, hint: str = ""
) -> ValueRef:
    """Adds `function[dims](x)`."""
    labels, axes, extents = b.labels(x)
    consumed = tuple(labels[d] for d in dims if axes[d])
    body = over(function, consumed, b.numbers(operand(0), [x]))
    kind: Kind = "reduction"
    return b.add(kind, [(x, axes)], body, _left(axes, dims, keep), extents, element, hint)


def _left(axes: Axes, dims: Sequence[int], keep: bool) -> Axes:
    """Returns the axes that remain once `dims` are reduced, as one element each where they are kept."""
    if keep:
        return tuple(() if i in dims else axis for i, axis in enumerate(axes))
    return tuple(axis for i, axis in enumerate(axes) if i not in dims)


def _dims(b: GraphBuilder, a: Arguments) -> tuple[int, ...]:
    return axis_numbers(a.get("dim"), len(b.shape(a["self"])))


def _plain(function: str) -> Rule:
    def rule(b: GraphBuilder, a: Arguments) -> ValueRef:
        x = a["self"]
        if b.element(x) == "bool" and function in ("max", "min"):
            raise b.fail("a reduction of bools")
        return reduce(b, x, function, _dims(b, a), bool(a.get("keepdim", False)), a.result.element)

    return rule


def _any(function: str) -> Rule:
    """`any` and `all` are max and min of 1 and 0."""

    def rule(b: GraphBuilder, a: Arguments) -> ValueRef:
        x = a["self"]
        truth = x if b.element(x) == "bool" else b.pointwise(template("x0 != 0"), [x], "bool")
        most = reduce(b, truth, function, _dims(b, a), bool(a.get("keepdim", False)), "i32", function)
        return b.pointwise(template("x0 != 0"), [most], "bool")

    return rule


def _extreme_pair(function: str) -> Rule:
    """`max(dim)` gives values and indices."""

    def rule(b: GraphBuilder, a: Arguments) -> tuple[ValueRef | None, ...]:
        dims, keep = _dims(b, a), bool(a.get("keepdim", False))
        values = reduce(b, a["self"], function, dims, keep, a.results[0].element, "values")
        indices = reduce(b, a["self"], f"arg{function}", dims, keep, "i64", "indices")
        return values, indices

    return rule


def _arg(function: str) -> Rule:
    def rule(b: GraphBuilder, a: Arguments) -> ValueRef:
        x = a["self"]
        if a.get("dim") is None:
            whole = b.reshape(x, (math.prod(b.shape(x)),))
            flat = reduce(b, whole, function, (0,), False, "i64")
            return b.reshape(flat, a.result.shape)
        return reduce(b, x, function, _dims(b, a), bool(a.get("keepdim", False)), "i64")

    return rule


def variance(
    b: GraphBuilder, x: ValueRef, dims: Sequence[int], keep: bool, element: str, correction: float
) -> ValueRef:
    count = math.prod(b.shape(x)[d] for d in dims)
    biased = reduce(b, x, "var", dims, keep, element, "var")
    if correction == 0:
        return biased
    if count <= correction:
        raise b.fail("a variance of too few elements, which is NaN")
    return b.pointwise(mul(operand(0), count / (count - correction)), [biased], element)


def _var(b: GraphBuilder, a: Arguments) -> ValueRef:
    correction = a.get("correction")
    return variance(
        b,
        a["self"],
        _dims(b, a),
        bool(a.get("keepdim", False)),
        a.result.element,
        1.0 if correction is None else float(correction),
    )


def _std(b: GraphBuilder, a: Arguments) -> ValueRef:
    return b.pointwise(template("sqrt(x0)"), [_var(b, a)], a.result.element)


def _var_mean(b: GraphBuilder, a: Arguments) -> tuple[ValueRef | None, ...]:
    mean = reduce(b, a["self"], "mean", _dims(b, a), bool(a.get("keepdim", False)), a.result.element, "mean")
    return _var(b, a), mean


def _vector_norm(b: GraphBuilder, a: Arguments) -> ValueRef:
    x, order = a["self"], a.get("ord", 2)
    dims, keep, element = _dims(b, a), bool(a.get("keepdim", False)), a.result.element
    if order == 2:
        square = b.pointwise(template("x0 * x0"), [x], element, "square")
        total = reduce(b, square, "sum", dims, keep, element, "sum")
        return b.pointwise(template("sqrt(x0)"), [total], element)
    size = b.pointwise(template("abs(x0)"), [x], element, "abs")
    if order == 1:
        return reduce(b, size, "sum", dims, keep, element)
    if order in (math.inf, -math.inf):
        return reduce(b, size, "max" if order > 0 else "min", dims, keep, element)
    if order == 0:
        raise b.fail("a norm of order 0")
    power = b.pointwise(_power(float(order)), [size], element, "power")
    total = reduce(b, power, "sum", dims, keep, element, "sum")
    return b.pointwise(_power(1.0 / float(order)), [total], element)


def _cdist(b: GraphBuilder, a: Arguments) -> ValueRef:
    """The norms of the differences of all pairs of rows."""
    left, right = a["x1"], a["x2"]
    rows = b.reshape(left, (*b.shape(left)[:-1], 1, b.shape(left)[-1]))
    columns = b.reshape(right, (*b.shape(right)[:-2], 1, *b.shape(right)[-2:]))
    difference = b.pointwise(template("x0 - x1"), [rows, columns], a.result.element, "difference")
    named = {"self": difference, "ord": a["p"], "dim": [-1], "keepdim": False}
    return _vector_norm(b, Arguments(named, a.results))


def _power(exponent: float) -> Expr:
    return call("pow", operand(0), exponent)


def softmax(function: str) -> Rule:
    def rule(b: GraphBuilder, a: Arguments) -> ValueRef:
        x = a["self"]
        return softmax_of(b, x, function, axis_number(a["dim"], len(b.shape(x))), a.result.element)

    return rule


def softmax_of(b: GraphBuilder, x: ValueRef, function: str, dim: int, element: str) -> ValueRef:
    labels, axes, extents = b.labels(x)
    consumed = (labels[dim],) if axes[dim] else ()
    return b.add(
        "reduction", [(x, axes)], over(function, consumed, operand(0)), axes, extents, element, function
    )


def _scan(function: str) -> Rule:
    def rule(b: GraphBuilder, a: Arguments) -> ValueRef:
        x, own = _converted(b, a)
        labels, axes, extents = b.labels(x)
        dim = axis_number(a["dim"], len(axes)) if axes else 0
        if not axes or not axes[dim]:
            return cast(b, x, a.result.element)
        body = over(function, (labels[dim],), b.numbers(operand(0), [x]))
        return cast(b, b.add("scan", [(x, axes)], body, axes, extents, own), a.result.element)

    return rule


# --- norms -----------------------------------------------------------------------


def _normalised(
    b: GraphBuilder,
    x: ValueRef,
    mean: ValueRef | None,
    spread: ValueRef,
    eps: float,
    scale: ValueRef | None,
    shift: ValueRef | None,
    element: str,
) -> ValueRef:
    """Adds `(x - mean) * rsqrt(spread + eps) * scale + shift`."""
    refs = [x]
    value: Expr = operand(0)
    if mean is not None:
        refs.append(mean)
        value = sub(value, operand(1))
    refs.append(spread)
    value = mul(value, call("rsqrt", add(operand(len(refs) - 1), eps)))
    if scale is not None:
        refs.append(scale)
        value = mul(value, operand(len(refs) - 1))
    if shift is not None:
        refs.append(shift)
        value = add(value, operand(len(refs) - 1))
    return b.pointwise(value, refs, element)


def _layer_norm(b: GraphBuilder, a: Arguments) -> ValueRef:
    return layer_norm(b, a, a.result.element)[0]


def layer_norm(b: GraphBuilder, a: Arguments, own: str) -> tuple[ValueRef, ValueRef, ValueRef]:
    """Adds the norm, the means and the variances, whose element is `own`."""
    x = a["input"]
    rank = len(b.shape(x))
    dims = tuple(range(rank - len(a["normalized_shape"]), rank))
    mean = reduce(b, x, "mean", dims, True, own, "mean")
    var = reduce(b, x, "var", dims, True, own, "var")
    y = _normalised(b, x, mean, var, a["eps"], a.get("weight"), a.get("bias"), a.result.element)
    return y, mean, var


def _rms_norm(b: GraphBuilder, a: Arguments) -> ValueRef:
    x, element = a["input"], a.result.element
    rank = len(b.shape(x))
    dims = tuple(range(rank - len(a["normalized_shape"]), rank))
    eps = a.get("eps")
    square = b.pointwise(template("x0 * x0"), [x], element, "square")
    mean = reduce(b, square, "mean", dims, True, element, "mean")
    if eps is None:
        eps = {"f16": 2.0**-10, "bf16": 2.0**-7, "f64": 2.0**-52}.get(element, 2.0**-23)
    return _normalised(b, x, None, mean, eps, a.get("weight"), None, element)


def _per_channel(b: GraphBuilder, ref: ValueRef | None, rank: int) -> ValueRef | None:
    """Returns a vector over channels so that it broadcasts to a tensor of this rank whose axis 1 they are."""
    if ref is None or rank <= 2:
        return ref
    return b.reshape(ref, (b.shape(ref)[0], *(1,) * (rank - 2)))


def _batch_norm(training: bool | None) -> Rule:
    """`training` None: an argument of the operator says it."""

    def rule(b: GraphBuilder, a: Arguments) -> tuple[ValueRef | None, ...]:
        x, element = a["input"], a.results[0].element
        rank = len(b.shape(x))
        by_batch = bool(a["training"]) if training is None else training
        scale, shift = (_per_channel(b, a.get(k), rank) for k in ("weight", "bias"))
        mean: ValueRef | None
        from_batch = by_batch or a.get("running_mean") is None
        if from_batch:
            dims = (0, *range(2, rank))
            own = statistics_element(a)
            mean = reduce(b, x, "mean", dims, True, own, "mean")
            var: ValueRef | None = reduce(b, x, "var", dims, True, own, "var")
        else:
            mean, var = (_per_channel(b, a[k], rank) for k in ("running_mean", "running_var"))
        assert mean is not None and var is not None
        y = _normalised(b, x, mean, var, a["eps"], scale, shift, element)
        if not from_batch:
            return y, *(None for _ in a.results[1:])
        channels = (b.shape(x)[1],)
        saved = b.reshape(mean, channels), b.reshape(reciprocal_deviation(b, var, a["eps"]), channels)
        if a.get("running_mean") is None or len(a.results) < 5:
            return (y, *saved, *(None for _ in a.results[3:]))[: len(a.results)]
        count = math.prod(b.shape(x)[d] for d in (0, *range(2, rank)))
        return y, *saved, *_running(b, a, mean, var, count)

    return rule


def statistics_element(a: Arguments) -> str:
    """Returns the element of the statistics that a norm saves for its gradient, which are wider than its result
    where that is narrow."""
    saved = a.results[1:2]
    return saved[0].element if saved and saved[0].shape else a.results[0].element


def reciprocal_deviation(b: GraphBuilder, var: ValueRef, eps: float) -> ValueRef:
    """Adds the reciprocal of the standard deviation, which norms save for their gradients."""
    return b.pointwise(call("rsqrt", add(operand(0), eps)), [var], b.element(var), "rstd")


def _running(
    b: GraphBuilder, a: Arguments, mean: ValueRef, var: ValueRef, count: int
) -> tuple[ValueRef | None, ...]:
    """Returns the running statistics after a batch, whose variance divides by one less than its size."""
    share = a["momentum"]
    if count < 2:
        return None, None
    unbiased = count / (count - 1)
    new: list[ValueRef | None] = []
    for name, batch, factor in (("running_mean", mean, 1.0), ("running_var", var, unbiased)):
        old: ValueRef = a[name]
        flat = b.reshape(batch, b.shape(old))
        body = add(mul(operand(0), 1 - share), mul(operand(1), share * factor))
        new.append(b.pointwise(body, [old, flat], b.element(old), name))
    return tuple(new)


def _instance_norm(b: GraphBuilder, a: Arguments) -> ValueRef:
    x, element = a["input"], a.result.element
    rank = len(b.shape(x))
    dims = tuple(range(2, rank))
    scale, shift = (_per_channel(b, a.get(k), rank) for k in ("weight", "bias"))
    if not a.get("use_input_stats", True):
        mean, var = (_per_channel(b, a[k], rank) for k in ("running_mean", "running_var"))
        assert mean is not None and var is not None
    else:
        if a.get("running_mean") is not None:
            raise b.fail("instance norm that keeps running statistics")
        mean = reduce(b, x, "mean", dims, True, element, "mean")
        var = reduce(b, x, "var", dims, True, element, "var")
    return _normalised(b, x, mean, var, a["eps"], scale, shift, element)


def _group_norm(b: GraphBuilder, a: Arguments) -> ValueRef:
    return group_norm(b, a, a.result.element)[0]


def group_norm(b: GraphBuilder, a: Arguments, own: str) -> tuple[ValueRef, ValueRef, ValueRef]:
    """Adds the norm, the means and the variances, whose element is `own`. Channels are groups of channels:
    `x[B, (G C), H, W]`, reduced over C, H and W."""
    x, groups = a["input"], a["num_groups"]
    shape = b.shape(x)
    parts = b.reshape(x, (shape[0], groups, shape[1] // groups, *shape[2:]))
    dims = tuple(range(2, len(shape) + 1))
    mean = reduce(b, parts, "mean", dims, True, own, "mean")
    var = reduce(b, parts, "var", dims, True, own, "var")
    ones = (1,) * (len(shape) - 2)
    scale, shift = (
        None if a.get(k) is None else b.reshape(a[k], (groups, shape[1] // groups, *ones))
        for k in ("weight", "bias")
    )
    y = _normalised(b, parts, mean, var, a["eps"], scale, shift, a.result.element)
    return b.reshape(y, shape), mean, var


def _logsumexp(b: GraphBuilder, a: Arguments) -> ValueRef:
    return reduce(b, a["self"], "logsumexp", _dims(b, a), bool(a.get("keepdim", False)), a.result.element)


def _total(function: str) -> Rule:
    def rule(b: GraphBuilder, a: Arguments) -> ValueRef:
        x, own = _converted(b, a)
        total = reduce(b, x, function, _dims(b, a), bool(a.get("keepdim", False)), own)
        return cast(b, total, a.result.element)

    return rule


def _converted(b: GraphBuilder, a: Arguments) -> tuple[ValueRef, str]:
    """Returns what a sum or a product is taken of, which PyTorch converts to the element that is asked for, and the
    element that it is taken in: of 8 bits the low ones of a wider sum are left."""
    x, element = a["self"], a.result.element
    if a.get("dtype") is not None and FLOATS & {b.element(x), element}:
        x = cast(b, x, element)
    return x, "i64" if element in ("s8", "u8") else element


def _rules() -> dict[str, Rule]:
    rules: dict[str, Rule] = {}
    for name, function in {"amax": "max", "amin": "min", "argmax": "argmax", "argmin": "argmin"}.items():
        rules[f"aten.{name}.default"] = _arg(function) if name.startswith("arg") else _plain(function)
    for name in ("max", "min"):
        rules[f"aten.{name}.default"] = _plain(name)
        rules[f"aten.{name}.dim"] = _extreme_pair(name)
    rules |= {f"aten.mean.{o}": _plain("mean") for o in ("default", "dim")}
    rules |= {f"aten.sum.{o}": _total("sum") for o in ("default", "dim_IntList")}
    rules |= {f"aten.prod.{o}": _total("prod") for o in ("default", "dim_int")}
    rules |= {f"aten.any.{o}": _any("max") for o in ("default", "dim", "dims")}
    rules |= {f"aten.all.{o}": _any("min") for o in ("default", "dim", "dims")}
    return rules | {
        "aten._log_softmax.default": softmax("log_softmax"),
        "aten._native_batch_norm_legit_functional.default": _batch_norm(None),
        "aten._native_batch_norm_legit_no_training.default": _batch_norm(False),
        "aten._native_batch_norm_legit.default": _batch_norm(None),
        "aten._native_batch_norm_legit.no_stats": _batch_norm(True),
        "aten._softmax.default": softmax("softmax"),
        "aten.cumprod.default": _scan("cumprod"),
        "aten.cumsum.default": _scan("cumsum"),
        "aten.group_norm.default": _group_norm,
        "aten.instance_norm.default": _instance_norm,
        "aten.layer_norm.default": _layer_norm,
        "aten._cdist_forward.default": _cdist,
        "aten.linalg_vector_norm.default": _vector_norm,
        "aten.log_softmax.int": softmax("log_softmax"),
        "aten.logsumexp.default": _logsumexp,
        "aten.rms_norm.default": _rms_norm,
        "aten.softmax.int": softmax("softmax"),
        "aten.std.correction": _std,
        "aten.var.correction": _var,
        "aten.var_mean.correction": _var_mean,
    }


RULES: Mapping[str, Rule] = MappingProxyType(_rules())
