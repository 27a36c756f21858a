"""Reductions of concatenations, such as the statistics of DenseNet's batch norms: of each part once, put together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import TypeAlias

from ucutlass.grammar.syntax import Argument, Call, Name
from ucutlass.importer.graph import Axes, Computation, ImportedTensor, Node, OperandRead, TensorGraph

LEAST = 1 << 24
"""Elements of a concatenation from which its parts are reduced by themselves: smaller ones fit the L2."""

Key: TypeAlias = tuple[str, str, tuple[int, ...]]
"""A reduction: of which value, by which function, over which axes."""


@dataclass(frozen=True, slots=True)
class _Reduced:
    """A reduction that keeps the rank of what it reads, along `axes`."""

    node: Computation
    call: Call
    axes: tuple[int, ...]

    def key(self, value: str) -> Key:
        return value, self.call.callee, self.axes


def with_statistics_of_parts(graph: TensorGraph) -> TensorGraph:
    """Returns the graph with `mean[H](cat(x, y))` as `cat(mean[H](x), mean[H](y))`, along another axis than what is
    concatenated: what grows layer by layer is reduced once, and not by every layer."""
    nodes: dict[str, Node] = {node.name: node for node in graph.nodes}
    values = dict(graph.values)
    reductions: dict[Key, str] = {}
    ordered: list[Node] = []
    for node in graph.nodes:
        reduced = _reduced(node)
        if reduced is None:
            ordered.append(node)
            continue
        source = reduced.node.operands[0]
        reductions.setdefault(reduced.key(source.value), node.name)
        whole = nodes.get(source.value)
        if not isinstance(whole, Computation) or not _is_divided(whole, reduced):
            ordered.append(node)
            continue
        parts: list[OperandRead] = []
        for part in whole.operands:
            key = reduced.key(part.value)
            if key not in reductions:
                own = _of_part(reduced, part, values[part.value])
                reductions[key], values[own.name] = own.name, own.tensor
                ordered.append(own)
            parts.append(OperandRead(reductions[key], _without(part.axes, reduced.axes)))
        ordered.append(_together(reduced, whole, tuple(parts)))
    return replace(graph, nodes=tuple(ordered), values=MappingProxyType(values))


def _reduced(node: Node) -> _Reduced | None:
    if not isinstance(node, Computation) or node.kind != "reduction" or len(node.operands) != 1:
        return None
    match node.body:
        case Call("mean" | "var" | "sum" | "max" | "min", brackets, (Argument(Name("x0")),)) as call if (
            brackets
        ):
            read = node.operands[0].axes
            names = {(name.name,) for name in brackets}
            axes = tuple(i for i, axis in enumerate(read) if axis in names)
            if len(axes) == len(names) and node.axes == _without(read, axes):
                return _Reduced(node, call, axes)
    return None


def _without(axes: Axes, reduced: tuple[int, ...]) -> Axes:
    return tuple(() if i in reduced else axis for i, axis in enumerate(axes))


def _is_divided(whole: Computation, reduced: _Reduced) -> bool:
    """Returns whether a value is a concatenation along an axis that is kept, and large."""
    if whole.origin.operator != "aten.cat.default" or whole.kind != "index" or len(whole.operands) < 2:
        return False
    along = [i for i, axis in enumerate(whole.axes) if axis == ("_p",)]
    same = whole.tensor.element == reduced.node.tensor.element == "f32"
    return same and len(along) == 1 and along[0] not in reduced.axes and prod(whole.tensor.shape) >= LEAST


def _of_part(reduced: _Reduced, part: OperandRead, tensor: ImportedTensor) -> Computation:
    """Returns the reduction of one part, under the names of the whole's."""
    read = reduced.node.operands[0].axes
    axes = tuple(axis if n != 1 else () for axis, n in zip(read, tensor.shape, strict=True))
    sizes = {axis[0]: n for axis, n in zip(axes, tensor.shape, strict=True) if axis}
    shape = tuple(1 if i in reduced.axes else n for i, n in enumerate(tensor.shape))
    return replace(
        reduced.node,
        name=f"{reduced.node.name}_{part.value}",
        operands=(OperandRead(part.value, axes),),
        axes=_without(axes, reduced.axes),
        extents={**reduced.node.extents, **sizes},
        tensor=replace(reduced.node.tensor, shape=shape),
    )


def _together(reduced: _Reduced, whole: Computation, parts: tuple[OperandRead, ...]) -> Computation:
    axes = _without(whole.axes, reduced.axes)
    used = {label for each in (axes, *(part.axes for part in parts)) for axis in each for label in axis}
    extents: Mapping[str, int] = {label: n for label, n in whole.extents.items() if label in used}
    node = reduced.node
    return replace(
        whole,
        name=node.name,
        operands=parts,
        axes=axes,
        extents=extents,
        tensor=node.tensor,
        origin=node.origin,
        hint=node.hint,
    )
