"""Memory orders of images between convolutions: channels last, as TMA gathers them, where convolutions alone write
and read them. What a program computes does not depend on it: labels say which axis is which.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import MappingProxyType

from ucutlass.importer.graph import Computation, ImportedStage, ImportedTensor, Node, OperandRead, TensorGraph
from ucutlass.ir.elements import ELEMENTS

WHOLE_BITS = 128
"""Bits of channels, of which a row of channels must be a multiple: TMA reads others from a padded copy."""


def channels_last(
    graph: TensorGraph, stages: Sequence[ImportedStage]
) -> tuple[TensorGraph, list[ImportedStage]]:
    """Returns the graph and its stages with images channels last that convolutions store and convolutions alone read,
    where what is added to a result lies as the result does."""
    chosen = _fitting(graph, stages)
    groups = [group for stage in stages if (group := _images(graph, stage))]
    while True:
        parted = {value for group in groups if not group <= chosen for value in group & chosen}
        if not parted:
            break
        chosen -= parted
    if not chosen:
        return graph, list(stages)
    nodes = {node.name: _permuted(node, chosen) for node in graph.nodes}
    own = {node.name: _permuted(node, chosen) for stage in stages for node in stage.nodes}
    values = {name: _last(tensor) if name in chosen else tensor for name, tensor in graph.values.items()}
    turned = replace(graph, nodes=tuple(nodes.values()), values=MappingProxyType(values))
    return turned, [replace(stage, nodes=tuple(own[node.name] for node in stage.nodes)) for stage in stages]


def _fitting(graph: TensorGraph, stages: Sequence[ImportedStage]) -> set[str]:
    """Returns the stored images whose writer and readers, each for itself, take channels last."""
    stored = {stage.outputs[0] for stage in stages if _writes_images(stage)} - {*graph.results}
    return {
        value
        for value in stored
        if _is_image(graph.values[value])
        and _whole_channels(graph.values[value])
        and all(_reads_images(stage, node, value) for stage, node in _readers(stages, value))
    }


def _whole_channels(tensor: ImportedTensor) -> bool:
    return tensor.shape[1] * ELEMENTS[tensor.element].bits % WHOLE_BITS == 0


def _readers(stages: Sequence[ImportedStage], value: str) -> Iterator[tuple[ImportedStage, Node]]:
    for stage in stages:
        for node in stage.nodes:
            if any(operand.value == value for operand in node.operands):
                yield stage, node


def _convolution(stage: ImportedStage) -> Computation | None:
    """The one convolution of a stage, of several images, that has all channels in one group."""
    products = [node for node in stage.nodes if node.kind == "dot"]
    if len(products) != 1:
        return None
    (product,) = products
    if not isinstance(product, Computation) or "conv" not in product.origin.operator:
        return None
    return product if product.extents.get("G", 0) == 1 and "B" in product.extents else None


def _writes_images(stage: ImportedStage) -> bool:
    giver, convolution = _giver(stage), _convolution(stage)
    if len(stage.outputs) != 1 or not isinstance(giver, Computation) or giver.kind == "view":
        return False
    return convolution is not None and giver.tensor.shape == convolution.tensor.shape


def _giver(stage: ImportedStage) -> Node | None:
    return next((node for node in stage.nodes if node.name in stage.outputs), None)


def _reads_images(stage: ImportedStage, node: Node, value: str) -> bool:
    convolution = _convolution(stage)
    if convolution is None or not isinstance(node, Computation):
        return False
    first = [operand.value for operand in node.operands].index(value) == 0
    return first if node is convolution else node.kind == "pointwise"


def _images(graph: TensorGraph, stage: ImportedStage) -> set[str]:
    """Returns the stored images that a convolution's stage reads or writes element by element: in one order, or it
    would transpose. What the convolution itself reads is none of them."""
    convolution = _convolution(stage)
    if convolution is None:
        return set()
    rank = len(graph.values[stage.outputs[0]].shape)
    reads = {
        operand.value
        for node in stage.nodes
        if node is not convolution and isinstance(node, Computation)
        for operand in node.operands
        if operand.value in stage.inputs
        and len(graph.values[operand.value].shape) == rank
        and _is_image(graph.values[operand.value])
    }
    return reads | {*stage.outputs}


def _is_image(tensor: ImportedTensor) -> bool:
    return 3 <= len(tensor.shape) <= 5 and math.prod(tensor.shape[2:]) > 1


# --- the same in another order --------------------------------------------------------------


def _last(tensor: ImportedTensor) -> ImportedTensor:
    batch, channels, *places = tensor.shape
    return replace(tensor, shape=(batch, *places, channels), channels_last=True)


def _permuted(node: Node, chosen: set[str]) -> Node:
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
