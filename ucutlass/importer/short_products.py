"""Products that sum a handful of elements, such as a convolution of an image's three colours by single pixels: term by
term, which a thread computes for each element and which joins what is computed around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from math import prod

from ucutlass.grammar.syntax import Argument, Call, Expr, Name
from ucutlass.importer.expressions import add, at, mul, operand
from ucutlass.importer.graph import Computation, Node, TensorGraph
from ucutlass.importer.operators.products import EXACT
from ucutlass.importer.prices import StagePrices
from ucutlass.pipeline.pricing import pays

MOST_SUMMED = 4
"""Elements that a product sums: of 3 term by term took an H200 a tenth of the matrix-vector kernel's time, of 6 as long
as a product."""

LEAST_GAIN = 0.3
"""Share of the estimate that must be saved."""


def with_short_products(graph: TensorGraph, prices: StagePrices) -> TensorGraph:
    """Returns the graph with `dot[C](x, w)` as `x[C = 0] * w[C = 0] + x[C = 1] * w[C = 1] + ..` where C is short and that
    is estimated to take less time."""
    if not prices.exact:
        return graph
    nodes: list[Node] = []
    for node in graph.nodes:
        short = _by_terms(node, graph)
        if short is not None and pays(
            [_seconds(node, graph, prices)], [_seconds(short, graph, prices)], LEAST_GAIN
        ):
            nodes.append(short)
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def _seconds(node: Node, graph: TensorGraph, prices: StagePrices) -> float:
    return prices.of_stage(graph.values, (node,), (node.name,))


def _by_terms(node: Node, graph: TensorGraph) -> Computation | None:
    """Returns a product of two f32 tensors term by term; None where it sums more, or reads otherwise."""
    if not isinstance(node, Computation) or node.kind != "dot" or "attention" in node.origin.operator:
        return None
    if any(graph.values[value].element != "f32" for value in (node.name, *(o.value for o in node.operands))):
        return None
    match node.body:
        case Call(
            "dot",
            brackets,
            (
                Argument(Call(callee, None, (_, Argument(Name("x0"))))),
                Argument(Call(other, None, (_, Argument(Name("x1"))))),
            ),
        ) if brackets and callee == other == EXACT:
            extents = {bracket.name: node.extents[bracket.name] for bracket in brackets}
            if prod(extents.values()) <= MOST_SUMMED:
                return replace(node, kind="pointwise", body=_terms(node, extents))
    return None


def _terms(node: Computation, extents: Mapping[str, int]) -> Expr:
    """Returns the sum of products at each position along the labels that are summed."""
    total: Expr | None = None
    for positions in product(*map(range, extents.values())):
        at_labels = dict(zip(extents, positions, strict=True))
        factors = [
            at(operand(i), {label: n for label, n in at_labels.items() if any(label in a for a in read.axes)})
            for i, read in enumerate(node.operands)
        ]
        term = mul(*factors)
        total = term if total is None else add(total, term)
    assert total is not None
    return total
