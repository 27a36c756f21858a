"""Operators that become stages which torch computes: sorts, scattered writes, recurrent layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType

from ucutlass.grammar.syntax import Expr
from ucutlass.importer.expressions import (
    add,
    at,
    binary,
    both,
    call,
    expr,
    index,
    mul,
    number,
    operand,
    over,
    template,
    where,
)
from ucutlass.importer.graph import Axes, ImportedTensor
from ucutlass.importer.operators.builder import Arguments, GraphBuilder, ValueRef, axis_number, broadcast
from ucutlass.importer.operators.pointwise import FLOATS, Rule, cast
from ucutlass.importer.operators.ranks import MOST_RANKED, ranked
from ucutlass.importer.operators.views import constant, permuted, sliced


def _sort(b: GraphBuilder, a: Arguments) -> tuple[ValueRef | None, ...]:
    x = a["self"]
    keywords = {"dim": int(a.get("dim", -1)), "descending": bool(a.get("descending", False))}
    return b.torch("sort", [x], keywords, a.results[0]), b.torch("argsort", [x], keywords, a.results[1])


def _topk(b: GraphBuilder, a: Arguments) -> tuple[ValueRef | None, ...]:
    """The first elements of the sorted axis: by value and by position."""
    x, count = a["self"], a["k"]
    dim = axis_number(a.get("dim", -1), len(b.shape(x)))
    if b.shape(x) and 1 < b.shape(x)[dim] <= MOST_RANKED and b.element(x) != "bool" and count:
        return ranked(b, x, dim, count, bool(a.get("largest", True)))
    keywords = {"dim": dim, "descending": bool(a.get("largest", True))}
    whole = ImportedTensor(b.shape(x), b.element(x))
    values = b.torch("sort", [x], keywords, whole)
    places = b.torch("argsort", [x], keywords, ImportedTensor(whole.shape, "i64"))
    return sliced(b, values, dim, 0, count), sliced(b, places, dim, 0, count)


def _at_rank(b: GraphBuilder, a: Arguments) -> tuple[ValueRef | None, ...]:
    """One element of the sorted axis, by value and by position: `kthvalue`, and `median`, the lower of two."""
    x = a["self"]
    if "dim" not in a.named:
        x, dim = b.reshape(x, (prod(b.shape(x)),)), 0
    else:
        dim = axis_number(a["dim"], len(b.shape(x)))
    count = b.shape(x)[dim] if b.shape(x) else 1
    place = a["k"] - 1 if "k" in a.named else (count - 1) // 2
    element = b.element(x)
    elements: list[ValueRef] = []
    for function, own in (("sort", element), ("argsort", "i64"))[: len(a.results)]:
        tensor = ImportedTensor(b.shape(x), own)
        whole = b.torch(function, [x], {"dim": dim, "descending": False}, tensor)
        ranked_part = sliced(b, whole, dim, place, 1)
        if function == "sort" and "k" not in a.named and element in FLOATS:
            last = sliced(b, whole, dim, count - 1, 1)  # NaN is sorted behind all numbers
            ranked_part = b.pointwise(
                where(binary("!=", operand(0), operand(0)), operand(0), operand(1)), [last, ranked_part], own
            )
        elements.append(b.reshape(ranked_part, a.results[0].shape))
    return tuple(elements)


def _median(b: GraphBuilder, a: Arguments) -> ValueRef:
    (value,) = _at_rank(b, a)
    assert value is not None
    return value


def _argsort(b: GraphBuilder, a: Arguments) -> ValueRef:
    keywords = {"dim": int(a.get("dim", -1)), "descending": bool(a.get("descending", False))}
    return b.torch("argsort", [a["self"]], keywords, a.result)


# --- scattered writes --------------------------------------------------------------


def _scatter(b: GraphBuilder, a: Arguments, summed: bool, source: ValueRef | None = None) -> ValueRef:
    x, ids = a["self"], a["index"]
    values = source if source is not None else a["src"]
    dim = axis_number(a["dim"], len(b.shape(x)))
    return _scattered(b, x, dim, ids, values, summed)


def _scattered(
    b: GraphBuilder, x: ValueRef, dim: int, ids: ValueRef, values: ValueRef, summed: bool
) -> ValueRef:
    if b.shape(values) == b.shape(ids) and _has_one_place(b, x, dim, ids):
        return _written(b, x, dim, ids, values, summed)
    if has_few_places(b, x, dim, ids) and b.shape(values) == b.shape(ids):
        if not summed:
            return _overwritten(b, x, dim, ids, values)
        return b.pointwise(add(operand(0), operand(1)), [x, at_places(b, x, dim, ids, values)], b.element(x))
    function = "scatter_add" if summed else "scatter"
    tensor = ImportedTensor(b.shape(x), b.element(x))
    return b.torch(function, [x, cast(b, ids, "i64"), cast(b, values, b.element(x))], {"dim": dim}, tensor)


def _has_one_place(b: GraphBuilder, x: ValueRef, dim: int, ids: ValueRef) -> bool:
    """Returns whether one element is written along the axis, at every place of the others."""
    others = tuple(1 if i == dim else n for i, n in enumerate(b.shape(x)))
    return b.shape(ids) == others and b.element(x) != "bool"


def _written(
    b: GraphBuilder, x: ValueRef, dim: int, ids: ValueRef, values: ValueRef, summed: bool
) -> ValueRef:
    """Adds x with the value at the one place that an index names, or with it added there."""
    labels, axes, extents = b.labels(x)
    new = add(operand(0), operand(2)) if summed else operand(2)
    rest: Axes = tuple(() if i == dim else axis for i, axis in enumerate(axes))
    place = index(labels[dim]) if axes[dim] else number(0)
    body = where(binary("==", operand(1), place), new, operand(0))
    reads = [(x, axes), (ids, rest), (cast(b, values, b.element(x)), rest)]
    return b.add("pointwise", reads, body, axes, extents, b.element(x))


MOST_PLACES = 8
"""Written elements along an axis up to which each element of a tensor is compared with all of them, and twice as
many elements of the tensor's axis that each are compared with any number."""


def has_few_places(b: GraphBuilder, x: ValueRef, dim: int, ids: ValueRef) -> bool:
    """Returns whether few elements are written along the axis, or the axis is short, at every place of the others."""
    if not b.shape(x) or b.element(x) == "bool" or b.shape(x)[dim] == 1:
        return False
    others = [tuple(n for i, n in enumerate(b.shape(r)) if i != dim) for r in (x, ids)]
    count = b.shape(ids)[dim]
    return (
        others[0] == others[1] and count > 1 and (count <= MOST_PLACES or b.shape(x)[dim] <= 2 * MOST_PLACES)
    )


def at_places(b: GraphBuilder, x: ValueRef, dim: int, ids: ValueRef, values: ValueRef | None) -> ValueRef:
    """Adds for each element of x the sum of the values that are written there, or without them how many are."""
    labels, axes, extents = b.labels(x)
    extents["_j"] = b.shape(ids)[dim]
    written: Axes = tuple(("_j",) if i == dim else axis for i, axis in enumerate(axes))
    here = binary("==", operand(0), index(labels[dim]))
    reads, element = [(ids, written)], "i32"
    if values is not None:
        reads, element = [*reads, (cast(b, values, b.element(x)), written)], b.element(x)
    body = over("sum", ("_j",), where(here, 1 if values is None else operand(1), 0))
    return b.add("reduction", reads, body, axes, extents, element, "written")


def _overwritten(b: GraphBuilder, x: ValueRef, dim: int, ids: ValueRef, values: ValueRef) -> ValueRef:
    """Adds x with the last of the values that are written to each place; PyTorch leaves open which."""
    labels, axes, extents = b.labels(x)
    extents["_j"] = b.shape(ids)[dim]
    written: Axes = tuple(("_j",) if i == dim else axis for i, axis in enumerate(axes))
    here = binary("==", operand(0), index(labels[dim]))
    body = over("max", ("_j",), where(here, index("_j"), -1))
    last = b.add("reduction", [(ids, written)], body, axes, extents, "i32", "last")
    place = b.pointwise(call("max", operand(0), 0), [last], "i32", "place")
    reads = [(cast(b, values, b.element(x)), written), (place, axes)]
    new = b.add("index", reads, at(operand(0), {"_j": operand(1)}), axes, extents, b.element(x))
    return b.pointwise(
        where(binary("<", operand(0), 0), operand(1), operand(2)), [last, x, new], b.element(x)
    )


def _scatter_of_one(b: GraphBuilder, a: Arguments) -> ValueRef:
    x, ids = a["self"], a["index"]
    dim = axis_number(a["dim"], len(b.shape(x)))
    if has_few_places(b, x, dim, ids):
        count = at_places(b, x, dim, ids, None)
        value = constant(b, a["value"], (), a.result.element)
        body = where(binary("!=", operand(0), 0), operand(1), operand(2))
        return b.pointwise(body, [count, value, x], b.element(x))
    values = constant(b, a["value"], b.shape(a["index"]), a.result.element)
    return _scatter(b, a, False, values)


def _index_put(b: GraphBuilder, a: Arguments) -> ValueRef:
    x, values, summed = a["self"], a["values"], bool(a.get("accumulate", False))
    used = [(i, r) for i, r in enumerate(a["indices"]) if r is not None]
    if any(b.element(r) == "bool" for _, r in used):
        return _put_where(b, x, [r for _, r in used], used[0][0], values, summed)
    dims = [i for i, _ in used]
    shape = b.shape(x)
    rest = [i for i in range(len(shape)) if i not in dims]
    whole = broadcast([b.shape(r) for _, r in used])
    place = dims[0] if dims == list(range(dims[0], dims[0] + len(dims))) else 0
    value_shape = (*(shape[i] for i in rest[:place]), *whole, *(shape[i] for i in rest[place:]))
    source = b.pointwise(operand(0), [values], b.element(values), "values", shape=value_shape)
    count = len(whole)
    order = [*range(place, place + count), *range(place), *range(place + count, len(value_shape))]
    rows, width = prod(whole), prod(shape[i] for i in rest)
    source = b.reshape(permuted(b, source, order), (rows, width))
    target = b.reshape(permuted(b, x, [*dims, *rest]), (prod(shape[i] for i in dims), width))
    position: Expr | None = None
    for i, (dim, ids) in enumerate(used):
        own: Expr = operand(i)
        if ids.name not in b.positions:
            own = where(binary("<", own, 0), add(own, shape[dim]), own)
        position = own if position is None else add(mul(position, shape[dim]), own)
    assert position is not None
    flat = b.reshape(b.pointwise(position, [r for _, r in used], "i64", "ids", shape=whole), (rows, 1))
    ids = b.pointwise(operand(0), [flat], "i64", "ids", shape=(rows, width))
    put = _scattered(b, target, 0, ids, source, summed)
    put = b.reshape(put, tuple(shape[i] for i in [*dims, *rest]))
    back = [[*dims, *rest].index(i) for i in range(len(shape))]
    return permuted(b, put, back)


def _put_where(
    b: GraphBuilder, x: ValueRef, masks: Sequence[ValueRef], first: int, values: ValueRef, summed: bool
) -> ValueRef:
    """One value where a mask of the first axes holds."""
    if len(masks) != 1 or first != 0 or prod(b.shape(values)) != 1:
        raise b.fail("a mask as an index: which value goes where depends on values")
    rank = len(b.shape(x))
    mask = b.reshape(masks[0], (*b.shape(masks[0]), *(1,) * (rank - len(b.shape(masks[0])))))
    value = b.reshape(cast(b, values, b.element(x)), ())
    if b.element(x) == "bool":
        body = template("(x0 and x1) or (not x0 and x2)")
    else:
        body = where(operand(0), add(operand(2), operand(1)) if summed else operand(1), operand(2))
    return b.pointwise(body, [mask, value, x], b.element(x))


# --- recurrent layers --------------------------------------------------------------


def _recurrence(function: str, states: int) -> Rule:
    def rule(b: GraphBuilder, a: Arguments) -> tuple[ValueRef | None, ...]:
        x, hidden, weights = a["input"], a["hx"], list(a["params"])
        initial = list(hidden) if states > 1 else [hidden]
        if a["train"] and a["dropout"]:
            raise b.fail("dropout, whose mask is random")
        if len({b.shape(state)[-1] for state in initial}) != 1:
            raise b.fail("a recurrent layer whose outputs are projected")
        keywords = {"layers": a["num_layers"]}
        keywords |= {k: True for k in ("bidirectional", "batch_first") if a[k]}
        refs = [x, *initial, *weights]
        # torch 2.11 gives last states of several layers an axis too many where tensors have no memory.
        last = [ImportedTensor(b.shape(state), b.element(state)) for state in initial]
        return tuple(
            b.torch(function, refs, {**keywords, "gives": i} if i else keywords, tensor)
            for i, tensor in enumerate((a.results[0], *last))
        )

    return rule


def _histogram(b: GraphBuilder, a: Arguments) -> ValueRef:
    """How many elements lie in each of `bins` equal parts of the range; the last holds its end."""
    x, bins, low, high = a["self"], a.get("bins", 100), a.get("min", 0), a.get("max", 0)
    if low == high:
        raise b.fail("a histogram whose range is that of its values")
    flat = b.reshape(x, (prod(b.shape(x)),))
    place = mul(binary("-", operand(0), low), bins / (high - low))
    part = call("min", call("floor", place), bins - 1)
    inside = both(binary(">=", operand(0), low), binary("<=", operand(0), high))
    label = index("P") if bins != 1 else expr(0)
    counted = where(both(inside, binary("==", part, label)), 1.0, 0.0)
    labels, axes, extents = b.labels(flat)
    consumed = tuple(label for label, axis in zip(labels, axes, strict=True) if axis)
    new = (("P",) if bins != 1 else (),)
    body = over("sum", consumed, counted)
    return b.add("reduction", [(flat, axes)], body, new, {**extents, "P": bins}, a.result.element)


def _random(b: GraphBuilder, a: Arguments) -> ValueRef:
    raise b.fail("random numbers: draw them outside, and pass them as an argument")


_RANDOM = (
    *(
        "rand",
        "randn",
        "randint",
        "rand_like",
        "randn_like",
        "randperm",
        "normal_functional",
        "bernoulli",
        "uniform",
    ),
    *("exponential", "geometric", "cauchy", "log_normal", "poisson", "multinomial", "binomial"),
)

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **{f"aten.{name}.default": _random for name in _RANDOM},
        "aten.argsort.default": _argsort,
        "aten.gru.input": _recurrence("gru", 1),
        "aten.histc.default": _histogram,
        "aten.index_put.default": _index_put,
        "aten.kthvalue.default": _at_rank,
        "aten.median.default": _median,
        "aten.median.dim": _at_rank,
        "aten.lstm.input": _recurrence("lstm", 2),
        "aten.rnn_relu.input": _recurrence("rnn_relu", 1),
        "aten.rnn_tanh.input": _recurrence("rnn_tanh", 1),
        "aten.scatter.src": lambda b, a: _scatter(b, a, False),
        "aten.scatter.value": _scatter_of_one,
        "aten.scatter_add.default": lambda b, a: _scatter(b, a, True),
        "aten.sort.default": _sort,
        "aten.sort.stable": _sort,
        "aten.topk.default": _topk,
    }
)
