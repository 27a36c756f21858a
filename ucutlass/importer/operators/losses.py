"""Losses: element-wise work, and a mean or a sum of it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ucutlass.grammar.syntax import Expr, Unary
from ucutlass.importer.expressions import add, at, binary, div, mul, operand, over, sub, template, where
from ucutlass.importer.operators.builder import Arguments, GraphBuilder, ValueRef
from ucutlass.importer.operators.pointwise import FLOATS, Rule
from ucutlass.importer.operators.reductions import reduce, softmax_of
from ucutlass.importer.operators.views import gathered


def _mean_or_sum(b: GraphBuilder, x: ValueRef, reduction: int, element: str) -> ValueRef:
    """`reduction` is ATen's: 0 none, 1 mean, 2 sum."""
    if reduction == 0:
        return x
    dims = range(len(b.shape(x)))
    return reduce(b, x, "mean" if reduction == 1 else "sum", tuple(dims), False, element)


def _mse_loss(b: GraphBuilder, a: Arguments) -> ValueRef:
    element = a.result.element
    error = b.pointwise(template("x0 - x1"), [a["self"], a["target"]], element, "error")
    square = b.pointwise(template("x0 * x0"), [error], element, "square")
    return _mean_or_sum(b, square, a["reduction"], element)


def _l1_loss(b: GraphBuilder, a: Arguments) -> ValueRef:
    element = a.result.element
    error = b.pointwise(template("abs(x0 - x1)"), [a["self"], a["target"]], element, "error")
    return _mean_or_sum(b, error, a["reduction"], element)


def _huber(smooth: bool) -> Rule:
    def rule(b: GraphBuilder, a: Arguments) -> ValueRef:
        element = a.result.element
        delta = a["beta"] if smooth else a["delta"]
        error = b.pointwise(template("abs(x0 - x1)"), [a["self"], a["target"]], element, "error")
        e = operand(0)
        near: Expr = mul(mul(0.5, e), e)
        far: Expr = sub(e, 0.5 * delta)
        if smooth and delta != 1:
            near = div(near, delta)
        if not smooth and delta != 1:
            far = mul(delta, far)
        loss = b.pointwise(where(binary("<", e, delta), near, far), [error], element, "loss")
        return _mean_or_sum(b, loss, a["reduction"], element)

    return rule


def _kl_div(b: GraphBuilder, a: Arguments) -> ValueRef:
    element = a.result.element
    text = "exp(x1) * (x1 - x0)" if a["log_target"] else "where(x1 == 0, 0, x1 * log(x1)) - x1 * x0"
    loss = b.pointwise(template(text), [a["self"], a["target"]], element, "loss")
    return _mean_or_sum(b, loss, a["reduction"], element)


def _cross_entropy(b: GraphBuilder, a: Arguments) -> ValueRef:
    """Classes lie along axis 1, or 0 of one example."""
    x, target = a["self"], a["target"]
    dim = 1 if len(b.shape(x)) > 1 else 0
    of_probabilities = b.element(target) in FLOATS
    return _of_probabilities(b, a, x, target, dim) if of_probabilities else _of_classes(b, a, x, target, dim)


def _surprise(b: GraphBuilder, a: Arguments, x: ValueRef, shares: ValueRef | None, dim: int) -> ValueRef:
    """Adds the negative sum over classes of log softmax, by shares and the classes' weights."""
    element = a.result.element
    logs = softmax_of(b, x, "log_softmax", dim, element)
    refs = [logs, *([shares] if shares else [])]
    weight: ValueRef | None = a.get("weight")
    if weight is not None:
        shape = b.shape(weight) if dim == 0 else (*b.shape(weight), *(1 for _ in b.shape(x)[2:]))
        refs.append(b.reshape(weight, shape))
    body: Expr = Unary("-", operand(0))
    for i in range(1, len(refs)):
        body = mul(body, operand(i))
    return reduce(b, b.pointwise(body, refs, element, "terms"), "sum", (dim,), False, element, "loss")


def _of_probabilities(b: GraphBuilder, a: Arguments, x: ValueRef, target: ValueRef, dim: int) -> ValueRef:
    smoothing, element = a.get("label_smoothing", 0.0), a.result.element
    if smoothing:
        body = add(mul(operand(0), 1 - smoothing), smoothing / b.shape(x)[dim])
        target = b.pointwise(body, [target], element, "shares")
    return _mean_or_sum(b, _surprise(b, a, x, target, dim), a["reduction"], element)


def _of_classes(b: GraphBuilder, a: Arguments, x: ValueRef, target: ValueRef, dim: int) -> ValueRef:
    """logsumexp less the target's logit, 0 where the target is to be ignored. A mean is by the weights of the
    targets."""
    element, ignored = a.result.element, a.get("ignore_index", -100)
    smoothing, classes = a.get("label_smoothing", 0.0), b.shape(x)[dim]
    ignores = not (ignored < 0 and target.name in b.positions)
    labels, axes, extents = b.labels(x)
    total = reduce(b, x, "logsumexp", (dim,), False, element, "logsumexp")
    ids = target
    if ignores:
        ids = b.pointwise(where(binary("==", operand(0), ignored), 0, operand(0)), [target], "i64", "ids")
    rest = tuple(axis for i, axis in enumerate(axes) if i != dim)
    picked = x
    if axes[dim]:
        body = at(operand(0), {labels[dim]: operand(1)})
        picked = b.add("index", [(x, axes), (ids, rest)], body, rest, extents, element, "picked")
    else:
        picked = b.view(x, axes, rest, extents)
    loss = b.pointwise(template("x0 - x1"), [total, picked], element, "loss")
    weight = a.get("weight")
    by_target = None if weight is None else gathered(b, weight, 0, ids)
    if by_target is not None:
        loss = b.pointwise(template("x0 * x1"), [loss, by_target], element, "loss")
    if smoothing:
        smooth = _surprise(b, a, x, None, dim)
        mixed = add(mul(operand(0), 1 - smoothing), mul(operand(1), smoothing / classes))
        loss = b.pointwise(mixed, [loss, smooth], element, "loss")
    if ignores:
        counted = where(binary("==", operand(0), ignored), 0, operand(1))
        loss = b.pointwise(counted, [target, loss], element, "loss")
    if a["reduction"] != 1 or (by_target is None and not ignores):
        return _mean_or_sum(b, loss, a["reduction"], element)
    share: Expr = operand(1) if by_target is not None else template("1.0")
    if ignores:
        share = where(binary("==", operand(0), ignored), 0.0, share)
    refs = [target, *([by_target] if by_target is not None else [])]
    shares = b.pointwise(share, refs, element, "shares")
    labels, axes, extents = b.labels(loss)
    over_all = tuple(label for label, axis in zip(labels, axes, strict=True) if axis)
    mean = div(over("sum", over_all, operand(0)), over("sum", over_all, operand(1)))
    return b.add("reduction", [(loss, axes), (shares, axes)], mean, (), extents, element)


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "aten.cross_entropy_loss.default": _cross_entropy,
        "aten.huber_loss.default": _huber(False),
        "aten.kl_div.default": _kl_div,
        "aten.l1_loss.default": _l1_loss,
        "aten.mse_loss.default": _mse_loss,
        "aten.smooth_l1_loss.default": _huber(True),
    }
)
