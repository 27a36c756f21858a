"""Averages of windows of a product without windows, such as a transition of DenseNet: of its operand first, where there
are fewer elements to multiply."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from types import MappingProxyType

from ucutlass.grammar.syntax import Argument, Call, Index, Name
from ucutlass.importer.graph import Computation, Node, OperandRead, TensorGraph, readers
from ucutlass.importer.operators.products import EXACT


def with_pooled_operands(graph: TensorGraph) -> TensorGraph:
    """Returns the graph with `mean[R](dot[C](x, w)[H = 2*P + R])` as `dot[C](mean[R](x[H = 2*P + R]), w)`: sums of finite
    numbers in another order (`ucutlass.algebra.read_rules`, "window of a dot")."""
    nodes: dict[str, Node] = {node.name: node for node in graph.nodes}
    reading = readers(graph.nodes)
    values = dict(graph.values)
    replaced: dict[str, tuple[Node, ...]] = {}
    for node in graph.nodes:
        if not isinstance(node, Computation) or node.kind != "window" or len(node.operands) != 1:
            continue
        dot = nodes.get(node.operands[0].value)
        if not isinstance(dot, Computation) or dot.name in graph.results or len(reading[dot.name]) != 1:
            continue
        pair = _pooled_first(node, dot, graph)
        if pair is not None:
            replaced |= {dot.name: (), node.name: pair}
            del values[dot.name]
            values[pair[0].name] = pair[0].tensor
    if not replaced:
        return graph
    ordered = tuple(new for node in graph.nodes for new in replaced.get(node.name, (node,)))
    return replace(graph, nodes=ordered, values=MappingProxyType(values))


def _pooled_first(
    window: Computation, dot: Computation, graph: TensorGraph
) -> tuple[Computation, Computation] | None:
    """Returns the window of the product's first operand and the product of that; None where another order is no
    quicker, or not the same."""
    if dot.kind != "dot" or not _is_plain(dot) or not _is_average(window):
        return None
    first, second = dot.operands
    read, own = window.operands[0].axes, window.axes
    if not len(read) == len(own) == len(dot.axes) or any(
        len(axis) > 1 for axis in (*read, *own, *first.axes)
    ):
        return None
    moved = [i for i, (before, after) in enumerate(zip(read, own, strict=True)) if before != after]
    others = {label for axis in second.axes for label in axis}
    if any(dot.axes[i] not in first.axes or others.intersection(dot.axes[i]) for i in moved):
        return None
    if prod(window.tensor.shape) >= prod(dot.tensor.shape) or graph.values[first.value].element != "f32":
        return None
    if dot.tensor.element != "f32" or window.tensor.element != "f32":
        return None
    place = {axis: i for i, axis in enumerate(dot.axes) if axis}
    extents = dict(window.extents)
    before, after, shape = [], [], []
    for axis, extent in zip(first.axes, graph.values[first.value].shape, strict=True):
        i = place.get(axis)
        label = (f"_{axis[0]}_",) if axis else ()
        extents |= dict.fromkeys(label, extent) if i is None else {}
        before.append(label if i is None else read[i])
        after.append(label if i is None else own[i])
        shape.append(extent if i is None else window.tensor.shape[i])
    used = {label for axis in (*before, *after) for label in axis}
    inner = {b.name for b in window.body.brackets or ()} if isinstance(window.body, Call) else set()
    tensor = replace(graph.values[first.value], shape=tuple(shape))
    pooled = replace(
        window,
        name=f"{window.name}_pooled",
        operands=(OperandRead(first.value, tuple(before)),),
        axes=tuple(after),
        extents={label: extent for label, extent in extents.items() if label in used | inner},
        tensor=tensor,
    )
    sizes = {axis[0]: window.tensor.shape[i] for axis, i in place.items()}
    product = replace(
        dot,
        name=window.name,
        operands=(replace(first, value=pooled.name), second),
        extents={**dot.extents, **sizes},
        tensor=window.tensor,
    )
    return pooled, product


def _is_plain(dot: Computation) -> bool:
    """Returns whether a product reads its two operands as they are."""
    match dot.body:
        case Call(
            "dot",
            _,
            (
                Argument(Call(callee, None, (_, Argument(left)))),
                Argument(Call(other, None, (_, Argument(right)))),
            ),
        ):
            return (callee, other, left, right) == (EXACT, EXACT, Name("x0"), Name("x1"))
    return False


def _is_average(window: Computation) -> bool:
    match window.body:
        case Call("mean" | "sum", brackets, (Argument(Index(Name("x0"), _)),)):
            return brackets is not None
    return False
