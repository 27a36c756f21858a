"""Memory orders of images between stages: channels last, as TMA gathers windows from them and as 1x1 convolutions
are products, where convolutions read or write them and no stage would transpose. What a program computes does not
depend on it: labels say which axis is which.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from ucutlass.importer.atoms import Conflict
from ucutlass.importer.graph import Computation, ImportedStage, ImportedTensor, Node, OperandRead, TensorGraph
from ucutlass.importer.prices import StagePrices
from ucutlass.ir.elements import ELEMENTS

WHOLE_BITS = 128
"""Bits of channels, of which a row of channels must be a multiple: TMA reads others from a padded copy."""

WORTH = 0.97
"""Ratio of estimates below which channels stay first; smaller differences are within the estimates' error, and
kernels write and read several channels at a time where positions are of odd numbers."""

ROUNDS = 3
"""Most passes over the groups of images: the order of one may favour another one of its neighbour."""


def channels_last(
    graph: TensorGraph, stages: Sequence[ImportedStage], prices: StagePrices
) -> tuple[TensorGraph, list[ImportedStage]]:
    """Returns the graph and its stages with images channels last where the stages that write and read them are
    together estimated to take no longer. Images that one stage reads and writes element by element lie alike."""
    groups = _groups(graph, stages)
    if not groups:
        return graph, list(stages)
    search = _Search(graph, stages, groups, prices)
    chosen = search.chosen()
    return (_turned(graph, chosen), search.turned(chosen)) if chosen else (graph, list(stages))


@dataclass(frozen=True, slots=True)
class _Search:
    """`groups` are images that lie alike."""

    graph: TensorGraph
    stages: Sequence[ImportedStage]
    groups: Sequence[frozenset[str]]
    prices: StagePrices
    estimates: dict[tuple[int, frozenset[str]], float] = field(default_factory=dict)

    def chosen(self) -> frozenset[str]:
        """Returns the images that lie channels last."""
        last = [True] * len(self.groups)
        touching = [self._touching(group) for group in self.groups]
        for _ in range(ROUNDS):
            before = list(last)
            for number, stages in enumerate(touching):
                totals = {
                    turned: self._total(stages, (*last[:number], turned, *last[number + 1 :]))
                    for turned in (True, False)
                }
                last[number] = not totals[False] < WORTH * totals[True]
            if last == before:
                break
        return self._images(last)

    def turned(self, chosen: Collection[str]) -> list[ImportedStage]:
        return [
            replace(stage, nodes=tuple(_permuted(node, chosen) for node in stage.nodes))
            for stage in self.stages
        ]

    def _images(self, last: Sequence[bool]) -> frozenset[str]:
        return frozenset(
            image for group, turned in zip(self.groups, last, strict=True) if turned for image in group
        )

    def _touching(self, group: frozenset[str]) -> list[int]:
        """Returns the numbers of the stages that write or read a group."""
        return [
            number
            for number, stage in enumerate(self.stages)
            if not group.isdisjoint((*stage.inputs, *stage.outputs))
        ]

    def _total(self, numbers: Sequence[int], last: Sequence[bool]) -> float:
        chosen = self._images(last)
        return sum(self._seconds(number, chosen) for number in numbers)

    def _seconds(self, number: int, chosen: frozenset[str]) -> float:
        """Returns the estimate of a stage with these images channels last, infinity where no kernel does it."""
        stage = self.stages[number]
        own = chosen & {*stage.inputs, *stage.outputs}
        key = number, own
        if key not in self.estimates:
            nodes = tuple(_permuted(node, own) for node in stage.nodes)
            values = {name: self.graph.values[name] for name in (*stage.inputs, *stage.outputs)}
            values |= {name: _last(self.graph.values[name]) for name in own}
            values |= {node.name: self.graph.values[node.name] for node in nodes if node.name not in values}
            try:
                self.estimates[key] = self.prices.of_stage(values, nodes, stage.outputs)
            except Conflict:
                self.estimates[key] = math.inf
        return self.estimates[key]


# --- which images lie alike -----------------------------------------------------------------


def _groups(graph: TensorGraph, stages: Sequence[ImportedStage]) -> list[frozenset[str]]:
    """Returns the stored images that may lie channels last, in groups that lie alike: those of a convolution, and what
    other stages read and write with them."""
    free = _free(graph, stages)
    alike: dict[str, set[str]] = {image: {image} for image in free}
    fixed: set[str] = set()
    for stage in stages:
        images = _alike(graph, stage)
        own = [image for image in images if image in alike]
        if len(own) < len(images):
            fixed.update(own)
        for image in own[1:]:
            if alike[image] is not alike[own[0]]:
                merged = alike[own[0]] | alike[image]
                alike.update(dict.fromkeys(merged, merged))
    convolved = {image for stage in stages for image in _convolved(stage)}
    groups = {id(group): frozenset(group) for group in alike.values()}
    return [group for group in groups.values() if not group & fixed and group & convolved]


def _free(graph: TensorGraph, stages: Sequence[ImportedStage]) -> list[str]:
    """Returns the stored images of whole rows of channels whose memory order nothing fixes: no result of the graph,
    and nothing that a reshape or a function of torch reads."""
    nodes = [node for stage in stages for node in stage.nodes]
    fixed = {*graph.results} | {
        operand.value for node in nodes if not isinstance(node, Computation) for operand in node.operands
    }
    givers = {node.name: node for node in nodes}
    return [
        value
        for stage in stages
        for value in stage.outputs
        if value not in fixed
        and isinstance(giver := givers.get(value), Computation)
        and giver.kind != "view"
        and _is_image(graph.values[value])
        and _whole_channels(graph.values[value])
    ]


def _whole_channels(tensor: ImportedTensor) -> bool:
    return tensor.shape[1] * ELEMENTS[tensor.element].bits % WHOLE_BITS == 0


def _convolution(stage: ImportedStage) -> Computation | None:
    """The one convolution of a stage, of several images."""
    products = [node for node in stage.nodes if node.kind == "dot"]
    if len(products) != 1:
        return None
    (product,) = products
    if not isinstance(product, Computation) or "conv" not in product.origin.operator:
        return None
    return product if "B" in product.extents else None


def _convolved(stage: ImportedStage) -> Iterator[str]:
    """The stored images that a convolution reads or writes."""
    convolution = _convolution(stage)
    if convolution is not None:
        yield from stage.outputs
        yield from (operand.value for operand in convolution.operands[:1] if operand.value in stage.inputs)


def _alike(graph: TensorGraph, stage: ImportedStage) -> list[str]:
    """Returns the images that a stage reads and writes element by element: in one order, or it would transpose. What
    a convolution itself reads is none of them."""
    convolution = _convolution(stage)
    reads = dict.fromkeys(
        operand.value
        for node in stage.nodes
        if node is not convolution
        for operand in node.operands
        if operand.value in stage.inputs
    )
    images = [value for value in (*stage.outputs, *reads) if _is_image(graph.values[value])]
    rank = max((len(graph.values[value].shape) for value in images), default=0)
    return [value for value in images if len(graph.values[value].shape) == rank]


def _is_image(tensor: ImportedTensor) -> bool:
    return 3 <= len(tensor.shape) <= 5 and math.prod(tensor.shape[2:]) > 1


# --- the same in another order --------------------------------------------------------------


def _turned(graph: TensorGraph, chosen: Collection[str]) -> TensorGraph:
    values = {name: _last(tensor) if name in chosen else tensor for name, tensor in graph.values.items()}
    nodes = tuple(_permuted(node, chosen) for node in graph.nodes)
    return replace(graph, nodes=nodes, values=MappingProxyType(values))


def _last(tensor: ImportedTensor) -> ImportedTensor:
    batch, channels, *places = tensor.shape
    return replace(tensor, shape=(batch, *places, channels), channels_last=True)


def _permuted(node: Node, chosen: Collection[str]) -> Node:
    """Returns a node with the axes of the chosen values that it reads or gives in their new order."""
    if not isinstance(node, Computation):
        return node
    operands = tuple(_read(operand) if operand.value in chosen else operand for operand in node.operands)
    if node.name not in chosen:
        return replace(node, operands=operands)
    batch, channels, *places = node.axes
    return replace(node, operands=operands, axes=(batch, *places, channels), tensor=_last(node.tensor))


def _read(operand: OperandRead) -> OperandRead:
    batch, channels, *places = operand.axes
    return replace(operand, axes=(batch, *places, channels))
