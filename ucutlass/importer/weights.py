"""Weights of convolutions in the order that TMA reads, channels last, by launches of their own: these wait for no
image, so that they run beside the convolutions before, where a convolution that copies its weights itself makes all
behind it wait. ResNet-18 in bf16 took 410 us for 477 on an H100 (16 images, CUDA graphs); f32 gained nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from ucutlass.importer.graph import (
    Computation,
    ImportedStage,
    ImportedTensor,
    Node,
    OperatorOrigin,
    TensorGraph,
    copy_of,
)
from ucutlass.importer.orders import behind
from ucutlass.importer.prices import StagePrices

LEAST_CONVOLUTIONS = 4
"""Of fewer, little runs beside a copy."""

LEAST_GAIN = 1e-6
"""Seconds that a convolution must save: less than that, an event costs too."""

LEAST_SHARE = 0.5
"""Of a copy's estimate that its convolution must save: it takes a part of the GPU from what runs beside it."""


def weights_ahead(
    graph: TensorGraph, stages: Sequence[ImportedStage], prices: StagePrices
) -> tuple[TensorGraph, list[ImportedStage]]:
    """Returns the graph and its stages with copies of weights for which convolutions behind the first are estimated to
    take less time."""
    if sum(_convolution(stage) is not None for stage in stages) < LEAST_CONVOLUTIONS:
        return graph, list(stages)
    ahead = _WeightCopies(graph, prices)
    ordered = [new for number, stage in enumerate(stages) for new in ahead.stages(stage, number == 0)]
    nodes = [
        new
        for node in graph.nodes
        for new in (*ahead.before.get(node.name, ()), ahead.nodes.get(node.name, node))
    ]
    values = MappingProxyType({**graph.values, **{copy.name: copy.tensor for copy in ahead.copies.values()}})
    return replace(graph, nodes=tuple(nodes), values=values), ordered


@dataclass(slots=True)
class _WeightCopies:
    """`copies` are by the weight, `nodes` are convolutions that read copies, `before` the copies that a convolution is
    the first to read."""

    graph: TensorGraph
    prices: StagePrices
    copies: dict[str, Computation] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    before: dict[str, tuple[Computation, ...]] = field(default_factory=dict)

    def stages(self, stage: ImportedStage, first: bool) -> list[ImportedStage]:
        """Returns a stage, or one that reads its weights from a copy, behind the copy where that is new."""
        convolution = None if first else _convolution(stage)
        if convolution is None:
            return [stage]
        operand = convolution.operands[1]
        weight, channels = operand.value, _channels(convolution)
        reads = [value for node in stage.nodes for o in node.operands if (value := o.value) == weight]
        inputs = {i.name for i in self.graph.inputs}
        if channels is None or weight not in inputs or weight in self.graph.results or len(reads) != 1:
            return [stage]
        copy = self.copies.get(weight) or _copy(weight, channels, self.graph.values[weight])
        operands = list(convolution.operands)
        operands[1] = replace(operand, value=copy.name, axes=behind(operand.axes, channels))
        reader = replace(convolution, operands=tuple(operands))
        reading_copy = replace(
            stage,
            nodes=tuple(reader if node is convolution else node for node in stage.nodes),
            inputs=tuple(copy.name if value == weight else value for value in stage.inputs),
        )
        if not self._pays(stage, reading_copy, copy):
            return [stage]
        self.nodes[convolution.name] = reader
        if weight in self.copies:
            return [reading_copy]
        self.copies[weight] = copy
        self.before[convolution.name] = (copy,)
        return [ImportedStage((copy,), (weight,), (copy.name,)), reading_copy]

    def _pays(self, stage: ImportedStage, reading_copy: ImportedStage, copy: Computation) -> bool:
        values = {**self.graph.values, copy.name: copy.tensor}
        saved = self.prices.of_stage(values, stage.nodes, stage.outputs)
        saved -= self.prices.of_stage(values, reading_copy.nodes, stage.outputs)
        return saved > max(LEAST_GAIN, LEAST_SHARE * self.prices.of_stage(values, (copy,), (copy.name,)))


def _convolution(stage: ImportedStage) -> Computation | None:
    """The one convolution of a stage, of several images and all channels in one group."""
    products = [node for node in stage.nodes if node.kind == "dot"]
    if len(products) != 1 or len(stage.outputs) != 1:
        return None
    (product,) = products
    if not isinstance(product, Computation) or "conv" not in product.origin.operator:
        return None
    return product if product.extents.get("G", 0) == 1 and "B" in product.extents else None


def _channels(convolution: Computation) -> int | None:
    """The axis of the weights along which the channels that are summed lie; None where it is the last."""
    axes = convolution.operands[1].axes
    summed = [i for i, axis in enumerate(axes) if axis == ("C",)]
    return summed[0] if len(summed) == 1 and summed[0] != len(axes) - 1 else None


def _copy(weight: str, channels: int, tensor: ImportedTensor) -> Computation:
    last = replace(tensor, shape=behind(tensor.shape, channels), channels_last=channels == 1)
    copy = copy_of(f"{weight}_ahead", weight, tensor, OperatorOrigin("aten.copy.default"))
    return replace(copy, axes=behind(copy.axes, channels), tensor=last, hint="weights")
