"""Memory orders of what is read through a transposition, such as heads that a projection behind attention reads side by
side: stored in the order in which it is read where that is estimated to take less time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias, TypeVar

from ucutlass.importer.graph import Axes, Computation, ImportedStage, ImportedTensor, Node, TensorGraph
from ucutlass.importer.prices import StagePrices

WORTH = 0.97
"""Ratio of estimates below which another order is taken; smaller differences are within the estimates' error."""

Order: TypeAlias = tuple[int, ...]
"""The axes of a tensor as they shall lie, outermost first."""

T = TypeVar("T")


def as_viewed(
    graph: TensorGraph, stages: Sequence[ImportedStage], prices: StagePrices
) -> tuple[TensorGraph, list[ImportedStage]]:
    """Returns the graph and its stages with stored tensors in the order of a view that reads them, where the stages that
    write and read them are together estimated to take less time."""
    program = _Program(graph, list(stages))
    for value, orders in _viewed(graph, stages).items():
        current = program.seconds(value, prices)
        for order in orders:
            if order[-1] != len(order) - 1 and not program.multiplies(value):
                continue  # other kernels would write or read single elements, which their estimates do not tell
            turned = program.turned(value, order)
            worth = WORTH if prices.exact or not program.multiplies(value) else math.inf
            if turned.seconds(value, prices) < worth * current:
                program, current = turned, turned.seconds(value, prices)
                break
    return program.graph, program.stages


@dataclass(frozen=True, slots=True)
class _Program:
    graph: TensorGraph
    stages: list[ImportedStage]

    def turned(self, value: str, order: Order) -> _Program:
        """Returns the program with a stored tensor in another order."""
        stages = [
            replace(stage, nodes=tuple(_turned(node, value, order) for node in stage.nodes))
            if value in (*stage.inputs, *stage.outputs)
            else stage
            for stage in self.stages
        ]
        nodes = tuple(_turned(node, value, order) for node in self.graph.nodes)
        values = {**self.graph.values, value: _lying(self.graph.values[value], order)}
        return _Program(replace(self.graph, nodes=nodes, values=MappingProxyType(values)), stages)

    def touching(self, value: str) -> list[ImportedStage]:
        return [s for s in self.stages if value in (*s.inputs, *s.outputs) and s.torch is None]

    def multiplies(self, value: str) -> bool:
        """Returns whether all stages that write or read a tensor are products."""
        return all(any(node.kind == "dot" for node in stage.nodes) for stage in self.touching(value))

    def seconds(self, value: str, prices: StagePrices) -> float:
        """Returns the estimate of the stages that write and read a tensor, infinity where one has no kernel."""
        return sum(prices.of_stage(self.graph.values, s.nodes, s.outputs) for s in self.touching(value))


def _viewed(graph: TensorGraph, stages: Sequence[ImportedStage]) -> Mapping[str, list[Order]]:
    """Returns the stored tensors whose order nothing fixes, with the orders in which views read them."""
    nodes = [node for stage in stages for node in stage.nodes]
    fixed = {*graph.results} | {
        o.value for node in nodes if not isinstance(node, Computation) for o in node.operands
    }
    givers: dict[str, Node] = {node.name: node for node in nodes}
    stored = [
        value
        for stage in stages
        for value in stage.outputs
        if value not in fixed and isinstance(g := givers.get(value), Computation) and g.kind != "view"
    ]
    orders: dict[str, list[Order]] = {}
    for node in nodes:
        if node.kind != "view" or not isinstance(node, Computation):
            continue
        (operand, *_) = node.operands
        order = _order(operand.axes, node.axes)
        if operand.value in stored and order is not None and order not in orders.get(operand.value, ()):
            orders.setdefault(operand.value, []).append(order)
    return orders


def _order(own: Axes, viewed: Axes) -> Order | None:
    """Returns the order in which a view has the axes of a tensor, None where it is the tensor's own, or no order of all
    of them."""
    if len(own) != len(viewed) or any(axis and own.count(axis) != 1 for axis in viewed):
        return None
    rest = iter([i for i, axis in enumerate(own) if axis not in viewed or not axis])
    order = tuple(own.index(axis) if axis else next(rest, -1) for axis in viewed)
    identity = tuple(range(len(own)))
    return order if sorted(order) == [*identity] and order != identity else None


def _turned(node: Node, value: str, order: Order) -> Node:
    if not isinstance(node, Computation):
        return node
    operands = tuple(replace(o, axes=_in(o.axes, order)) if o.value == value else o for o in node.operands)
    if node.name != value:
        return replace(node, operands=operands)
    return replace(node, operands=operands, axes=_in(node.axes, order), tensor=_lying(node.tensor, order))


def _lying(tensor: ImportedTensor, order: Order) -> ImportedTensor:
    return replace(tensor, shape=_in(tensor.shape, order))


def _in(axes: tuple[T, ...], order: Order) -> tuple[T, ...]:
    return tuple(axes[axis] for axis in order)
