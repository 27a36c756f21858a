"""The largest or smallest elements of a short axis, by how many others precede each of them."""

from __future__ import annotations

from ucutlass.grammar.syntax import Expr
from ucutlass.importer.expressions import binary, both, index, number, operand, over, where
from ucutlass.importer.graph import Axes
from ucutlass.importer.operators.builder import GraphBuilder, ValueRef
from ucutlass.importer.operators.pointwise import FLOATS

MOST_RANKED = 256
"""Elements of an axis up to which each is compared with all others."""


def ranked(b: GraphBuilder, x: ValueRef, dim: int, count: int, largest: bool) -> tuple[ValueRef, ValueRef]:
    """Adds the first `count` elements of an axis in falling or rising order, and their positions. NaN counts as
    the largest; of equal elements the first precedes."""
    labels, axes, extents = b.labels(x)
    label = labels[dim]
    other = [(label, "_q") if i == dim else (own, own) for i, own in enumerate(labels)]
    others: Axes = tuple((new,) if axis else () for (_, new), axis in zip(other, axes, strict=True))
    precedes = _precedes(b.element(x) in FLOATS, largest, binary("<", index("_q"), index(label)))
    ranks = b.add(
        "reduction",
        [(x, axes), (x, others)],
        over("sum", ("_q",), where(precedes, 1, 0)),
        axes,
        extents | {"_q": extents[label]},
        "i64",
        "ranks",
    )
    place = index("_j") if count != 1 else number(0)
    chosen = binary("==", operand(0), place)
    new: Axes = tuple((("_j",) if count != 1 else ()) if i == dim else axis for i, axis in enumerate(axes))
    extents = extents | {"_j": count}
    element = b.element(x)
    value = (
        over("max", (label,), where(chosen, operand(1), float("-inf")))
        if element in FLOATS
        else over("sum", (label,), where(chosen, operand(1), 0))
    )
    values = b.add("reduction", [(ranks, axes), (x, axes)], value, new, extents, element, "values")
    position = over("sum", (label,), where(chosen, index(label), 0))
    places = b.add("reduction", [(ranks, axes)], position, new, extents, "i64", "places")
    return values, places


def _precedes(floats: bool, largest: bool, earlier: Expr) -> Expr:
    """Returns whether the other element, `x1`, precedes `x0`."""
    own, other = operand(0), operand(1)
    first, second = (other, own) if largest else (own, other)
    before: Expr = binary(">", first, second)
    equal: Expr = binary("==", own, other)
    if floats:
        before = binary("or", before, both(binary("!=", first, first), binary("==", second, second)))
        equal = binary("or", equal, both(binary("!=", own, own), binary("!=", other, other)))
    return binary("or", before, both(equal, earlier))
