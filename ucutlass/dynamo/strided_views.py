"""Views by strides as views that programs can say, where they read the whole of a dense tensor."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import fx

from ucutlass.dynamo.region import Order, dense_order, inverse

_ATEN = torch.ops.aten


def without_strided_views(graph: fx.GraphModule) -> None:
    """Replaces `as_strided` of a dense tensor as a dense tensor of as many elements, and `as_strided_scatter` over
    all of one, by a reshape between two permutations, in place. Extents that are symbols stay as they are."""
    for node in list(graph.graph.nodes):
        if node.target is _ATEN.as_strided.default:
            source, size, stride, *offset = node.args
            _replace(graph, node, source, size, stride, source, offset)
        elif node.target is _ATEN.as_strided_scatter.default:
            base, source, size, stride, *offset = node.args
            _replace(graph, node, source, size, stride, base, offset)


def _replace(
    graph: fx.GraphModule,
    node: fx.Node,
    source: fx.Node,
    size: Sequence[Any],
    stride: Sequence[Any],
    base: fx.Node,
    offset: Sequence[Any],
) -> None:
    """Replaces a node that reads, or writes, `source` through a view of `base` with these extents and strides."""
    whole = base.meta["val"]
    numbers = [*size, *stride, *whole.shape, *whole.stride()]
    if not all(isinstance(n, int) for n in numbers) or prod(size) != whole.numel():
        return
    if offset and offset[0] not in (None, whole.storage_offset()):
        return
    order, stored = dense_order(size, stride), dense_order(whole.shape, whole.stride())
    if order is None or stored is None:
        return
    if node.target is _ATEN.as_strided.default:
        steps = _reshaped(stored, [size[axis] for axis in order], order)
    else:
        steps = _reshaped(order, [whole.shape[axis] for axis in stored], stored)
    value, fake = source, source.meta["val"]
    for operator, argument in steps:
        fake = operator(fake, argument)
        with graph.graph.inserting_before(node):
            value = graph.graph.call_function(operator, (value, argument))
        value.meta = {**node.meta, "val": fake}
    node.replace_all_uses_with(value)
    graph.graph.erase_node(node)


def _reshaped(before: Order, shape: Sequence[int], after: Order) -> list[tuple[Any, list[int]]]:
    """Returns the operators that read a tensor whose axes lie in the order `before` as one of this shape, in
    memory order, whose axes lie in the order `after`."""
    return [
        (_ATEN.permute.default, list(before)),
        (_ATEN.reshape.default, list(shape)),
        (_ATEN.permute.default, list(inverse(after))),
    ]
