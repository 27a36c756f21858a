"""Memory orders of images between stages: channels last, as TMA gathers windows from them and as 1x1 convolutions
are products, where convolutions read or write them and no stage would transpose. What a program computes does not
depend on it: labels say which axis is which.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeVar

from ucutlass.importer.graph import (
    Axes,
    Computation,
    ImportedStage,
    ImportedTensor,
    Node,
    OperatorOrigin,
    Reshape,
    TensorGraph,
    copy_of,
)
from ucutlass.importer.prices import StagePrices
from ucutlass.ir.elements import ELEMENTS

WHOLE_BITS = 128
"""Bits of channels, of which a row of channels must be a multiple: TMA reads others from a padded copy."""

WORTH = 0.97
"""Ratio of estimates below which channels stay first; smaller differences are within the estimates' error, and
kernels write and read several channels at a time where positions are of odd numbers."""

SLOWER, SLOWER_OF_FEW, SECOND_LAUNCH = 1.15, 2.0, 1.2e-5
"""How much longer statistics over positions take channels last than their estimate says, the same of rows of fewer than
`LINE` bytes of channels, and the seconds of the launch that joins their parts: of batch norm's stages, 1 GB of 16 channels
took an H100 2190 us for 1010, 128 MB of 64 channels 152 us for 148, 26 MB of 256 channels 38 us for 22, and 1.6 MB of 64
channels 14 us for 4.9."""

LINE = 128

ROUNDS = 3
"""Most passes over the groups of images, and over computations: the order of one may favour another one of its
neighbour."""

BORDER = "channels"
"""The noun of copies in another order."""

_BORDER_ORIGIN = OperatorOrigin("aten.copy.default")

T = TypeVar("T")


def channels_last(
    graph: TensorGraph, stages: Sequence[ImportedStage], prices: StagePrices
) -> tuple[TensorGraph, list[ImportedStage]]:
    """Returns the graph and its stages with images channels last where the stages that write and read them are
    together estimated to take no longer. Images that one stage reads and writes element by element lie alike."""
    borders = _borders(graph, stages)
    chosen = _search(*_bordered(graph, stages, borders), prices).chosen()
    if not chosen:
        return graph, list(stages)
    needed = [value for value in borders if chosen & {value, _inside(value)}]
    search = _search(*_bordered(graph, stages, needed), prices)
    return search.graph_with(chosen), search.stages_with(chosen)


def _search(graph: TensorGraph, stages: Sequence[ImportedStage], prices: StagePrices) -> _GroupOrders:
    channels = _channel_axes([node for stage in stages for node in stage.nodes])
    return _GroupOrders(graph, stages, _groups(graph, stages, channels), channels, prices)


@dataclass(frozen=True, slots=True)
class _GroupOrders:
    """`groups` are images that lie alike, `channels` has the axes of their channels."""

    graph: TensorGraph
    stages: Sequence[ImportedStage]
    groups: Sequence[frozenset[str]]
    channels: Mapping[str, int]
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
                # A copy at a border must save something; without one, equal estimates are no equal times.
                copied = any(_is_border(self.stages[n]) for n in stages)
                first, behind_others = totals[False], totals[True]
                last[number] = behind_others < WORTH * first if copied else not first < WORTH * behind_others
            if last == before:
                break
        return self._images(last)

    def stages_with(self, chosen: Collection[str]) -> list[ImportedStage]:
        """Returns the stages with these images channels last."""
        return [
            replace(stage, nodes=tuple(self._permuted(node, chosen) for node in stage.nodes))
            for stage in self.stages
        ]

    def graph_with(self, chosen: Collection[str]) -> TensorGraph:
        values = {n: self._last(n, t) if n in chosen else t for n, t in self.graph.values.items()}
        nodes = tuple(self._permuted(node, chosen) for node in self.graph.nodes)
        return replace(self.graph, nodes=nodes, values=MappingProxyType(values))

    def _last(self, name: str, tensor: ImportedTensor) -> ImportedTensor:
        return replace(tensor, shape=behind(tensor.shape, self.channels[name]), channels_last=True)

    def _permuted(self, node: Node, chosen: Collection[str]) -> Node:
        """Returns a node with the axes of the chosen values that it reads or gives in their new order."""
        if not isinstance(node, Computation):
            return node
        operands = tuple(
            replace(operand, axes=behind(operand.axes, self.channels[operand.value]))
            if operand.value in chosen
            else operand
            for operand in node.operands
        )
        if node.name not in chosen:
            return replace(node, operands=operands)
        axes = behind(node.axes, self.channels[node.name])
        return replace(node, operands=operands, axes=axes, tensor=self._last(node.name, node.tensor))

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
        if not own and _is_border(stage):
            return 0.0  # there will be none
        if key not in self.estimates:
            nodes = tuple(self._permuted(node, own) for node in stage.nodes)
            values = {n: self.graph.values[n] for n in (*stage.inputs, *(node.name for node in nodes))}
            values |= {name: self._last(name, self.graph.values[name]) for name in own}
            seconds = self.prices.of_stage(values, nodes, stage.outputs)
            slow = bool(own) and self.prices.exact and self._sums_positions(stage)
            self.estimates[key] = self._slower(own) * seconds + SECOND_LAUNCH if slow else seconds
        return self.estimates[key]

    def _slower(self, images: Collection[str]) -> float:
        """Returns how much longer a stage takes that sums over positions of these images channels last."""
        rows = (self.graph.values[image] for image in images)
        least = min(
            t.shape[self.channels[i]] * ELEMENTS[t.element].bytes for i, t in zip(images, rows, strict=True)
        )
        return SLOWER if least >= LINE else SLOWER_OF_FEW

    def _sums_positions(self, stage: ImportedStage) -> bool:
        """Returns whether a stage reduces over positions of images, as batch norm does in training."""
        return any(
            axis and axis not in node.axes and i != self.channels[operand.value]
            for node in stage.nodes
            if isinstance(node, Computation) and node.kind == "reduction"
            for operand in node.operands
            if operand.value in self.channels
            for i, axis in enumerate(operand.axes)
        )


# --- at the borders of a graph --------------------------------------------------------------


def _borders(graph: TensorGraph, stages: Sequence[ImportedStage]) -> list[str]:
    """Returns the images among a graph's results and the inputs that several stages read, whose order is given."""
    channels = _channel_axes([node for stage in stages for node in stage.nodes])
    inputs = {i.name for i in graph.inputs}
    counts = Counter(value for stage in stages for value in dict.fromkeys(stage.inputs) if value in inputs)
    # A convolution that alone reads an image copies it as quickly itself.
    read = [value for value in counts if counts[value] > 1]
    return [
        value
        for value in dict.fromkeys((*read, *graph.results))
        if _is_image(graph.values[value])
        and _comes_first(value, graph, channels)
        and _whole_rows(graph.values[value], channels[value])
    ]


def _is_border(stage: ImportedStage) -> bool:
    return len(stage.nodes) == 1 and stage.nodes[0].hint == BORDER


def _inside(value: str) -> str:
    """The name of what stages read in place of an input, or of what is returned in place of a result."""
    return f"{value}_border"


def _bordered(
    graph: TensorGraph, stages: Sequence[ImportedStage], borders: Collection[str]
) -> tuple[TensorGraph, list[ImportedStage]]:
    """Returns the graph and its stages with copies of these inputs, which stages read, and copies of these results,
    which are returned, so that each may lie in either order on the inside."""
    inputs = {i.name for i in graph.inputs} & {*borders}
    copies = {
        value: replace(copy_of(_inside(value), value, graph.values[value], _BORDER_ORIGIN), hint=BORDER)
        for value in borders
    }
    before = [_copying(copies[value]) for value in borders if value in inputs]
    behind = [_copying(copies[value]) for value in borders if value not in inputs]
    results = tuple(_inside(r) if r in copies and r not in inputs else r for r in graph.results)
    values = {**graph.values, **{copy.name: copy.tensor for copy in copies.values()}}
    nodes: list[Node] = [copies[v] for v in borders if v in inputs]
    nodes += [_reading(node, inputs) for node in graph.nodes]
    nodes += [copies[v] for v in borders if v not in inputs]
    own = [
        replace(
            stage,
            nodes=tuple(_reading(node, inputs) for node in stage.nodes),
            inputs=tuple(_inside(v) if v in inputs else v for v in stage.inputs),
        )
        for stage in stages
    ]
    whole = replace(graph, nodes=tuple(nodes), results=results, values=MappingProxyType(values))
    return whole, [*before, *own, *behind]


def _copying(copy: Computation) -> ImportedStage:
    return ImportedStage((copy,), (copy.operands[0].value,), (copy.name,))


def _reading(node: Node, inputs: Collection[str]) -> Node:
    """Returns a node that reads the copies of these inputs."""
    if isinstance(node, Reshape):
        return replace(node, value=_inside(node.value)) if node.value in inputs else node
    operands = tuple(replace(o, value=_inside(o.value)) if o.value in inputs else o for o in node.operands)
    return replace(node, operands=operands)


# --- where channels are ---------------------------------------------------------------------


def _channel_axes(nodes: Sequence[Node]) -> dict[str, int]:
    """Returns the axis of the channels of each image that convolutions write or read, and of what is computed of these
    element by element or by windows."""
    axes: dict[str, int] = {}
    computations = [node for node in nodes if isinstance(node, Computation)]
    for node in computations:
        if _convolves(node):
            axes[node.name] = axes[node.operands[0].value] = 1
    for _ in range(ROUNDS):
        before = len(axes)
        for forward in (True, False):
            for node in computations if forward else reversed(computations):
                if node.kind not in ("dot", "constant"):
                    _propagate(node, axes, forward)
        if len(axes) == before:
            break
    return axes


def _propagate(node: Computation, axes: dict[str, int], forward: bool) -> None:
    """Adds the axis of a computation's result by those of its operands, or the other way round."""
    for operand in node.operands:
        if len(operand.axes) != len(node.axes):
            continue
        source, target = (operand.value, node.name) if forward else (node.name, operand.value)
        sides = (operand.axes, node.axes) if forward else (node.axes, operand.axes)
        if source in axes and target not in axes:
            axis = _counterpart(*sides, axes[source])
            if axis is not None:
                axes[target] = axis


def _counterpart(own: Axes, other: Axes, axis: int) -> int | None:
    """Returns the axis of the same label, or the one that is left over where the labels of all others agree."""
    if own[axis] and own[axis] in other:
        return other.index(own[axis])
    left = [i for i, labels in enumerate(other) if not labels or labels not in own]
    rest = [i for i, labels in enumerate(own) if not labels or labels not in other]
    return left[0] if rest == [axis] and len(left) == 1 else None


# --- which images lie alike -----------------------------------------------------------------


def _groups(
    graph: TensorGraph, stages: Sequence[ImportedStage], channels: Mapping[str, int]
) -> list[frozenset[str]]:
    """Returns the stored images that may lie channels last, in groups that lie alike: those of a convolution, and what
    other stages read and write with them. Images whose channels are last as they come are in none."""
    free = _free(graph, stages, channels)
    alike: dict[str, set[str]] = {image: {image} for image in free}
    fixed: set[str] = set()
    for stage in stages:
        images = [v for v in _alike(graph, stage) if _comes_first(v, graph, channels)]
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


def _free(graph: TensorGraph, stages: Sequence[ImportedStage], channels: Mapping[str, int]) -> list[str]:
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
        and _comes_first(value, graph, channels)
        and _whole_rows(graph.values[value], channels[value])
    ]


def _comes_first(value: str, graph: TensorGraph, channels: Mapping[str, int]) -> bool:
    """Returns whether an image's channels are known and before others as it comes."""
    return value in channels and channels[value] != len(graph.values[value].shape) - 1


def _whole_rows(tensor: ImportedTensor, axis: int) -> bool:
    return tensor.shape[axis] * ELEMENTS[tensor.element].bits % WHOLE_BITS == 0


def _convolutions(stage: ImportedStage) -> list[Computation]:
    return [node for node in stage.nodes if isinstance(node, Computation) and _convolves(node)]


def _convolves(node: Computation) -> bool:
    """Returns whether a computation is a convolution of several images."""
    return node.kind == "dot" and "conv" in node.origin.operator and "B" in node.extents


def _convolved(stage: ImportedStage) -> Iterator[str]:
    """The stored images that a convolution reads or writes."""
    for convolution in _convolutions(stage):
        yield from stage.outputs
        yield from (operand.value for operand in convolution.operands[:1] if operand.value in stage.inputs)


def _alike(graph: TensorGraph, stage: ImportedStage) -> list[str]:
    """Returns the images that a stage reads and writes element by element: in one order, or it would transpose. What
    a convolution itself reads is none of them where all channels are one group."""
    if _is_border(stage):
        return []  # which transposes
    gathering = [node.name for node in _convolutions(stage) if node.extents.get("G", 0) == 1]
    reads = dict.fromkeys(
        operand.value
        for node in stage.nodes
        if node.name not in gathering
        for operand in node.operands
        if operand.value in stage.inputs
    )
    images = [value for value in (*stage.outputs, *reads) if _is_image(graph.values[value])]
    rank = max((len(graph.values[value].shape) for value in images), default=0)
    return [value for value in images if len(graph.values[value].shape) == rank]


def _is_image(tensor: ImportedTensor) -> bool:
    return 3 <= len(tensor.shape) <= 5 and math.prod(tensor.shape[2:]) > 1


def behind(axes: tuple[T, ...], channels: int) -> tuple[T, ...]:
    """Returns axes with that of the channels behind all others."""
    return (*axes[:channels], *axes[channels + 1 :], axes[channels])
