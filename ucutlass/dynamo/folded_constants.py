"""Constants that a graph computes in float64 of constants alone.

NumPy's functions in a module's forward, such as `np.sqrt(width)`, are operators of float64 tensors in TorchDynamo's
graph, which no kernel has. They are computed here, and what reads them reads a number or a constant.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

MOST_ELEMENTS = 65536
"""Elements of a constant that is computed here: a larger one costs memory that its graph does not take."""

_COMMUTES = frozenset({"aten.add.Tensor", "aten.mul.Tensor"})

_TAKES_NUMBERS = _COMMUTES | {"aten.div.Tensor", "aten.sub.Tensor"}
"""Operators whose second operand may be a number."""


def fold_constants(graph: fx.GraphModule) -> None:
    """Computes such constants on the host, in place; operators that nothing reads any more are left in the graph."""
    if not any(_is_double(node.meta.get("val")) for node in graph.graph.nodes):
        return
    values: dict[fx.Node, Tensor] = {}
    for node in list(graph.graph.nodes):
        value = _evaluated(graph, node, values)
        if value is None:
            _read_numbers(node, values)
            continue
        values[node] = value
        if not _is_double(value) and any(_is_double(values[source]) for source in node.all_input_nodes):
            _store(graph, node, value)


def _is_double(value: object) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.float64


def _evaluated(graph: fx.GraphModule, node: fx.Node, values: Mapping[fx.Node, Tensor]) -> Tensor | None:
    """Returns the value of a node on the host, None where it is not a constant of few elements."""
    example = node.meta.get("val")
    if not isinstance(example, Tensor) or example.device.type != "cpu" or not _is_small(example):
        return None
    if node.op == "get_attr":
        value = getattr(graph, str(node.target), None)
        return value if isinstance(value, Tensor) and not isinstance(value, FakeTensor) else None
    operator = node.target
    if not isinstance(operator, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded in operator.tags:
        return None
    is_range = str(operator).startswith("aten.arange.")
    if not (is_range or node.all_input_nodes) or any(source not in values for source in node.all_input_nodes):
        return None
    arguments, keywords = fx.map_arg((node.args, node.kwargs), values.__getitem__)
    with unset_fake_temporarily(), torch.no_grad():
        value = operator(*arguments, **keywords)
    assert isinstance(value, Tensor)
    return value


def _is_small(value: Tensor) -> bool:
    return all(isinstance(n, int) for n in value.shape) and value.numel() <= MOST_ELEMENTS


def _read_numbers(node: fx.Node, values: Mapping[fx.Node, Tensor]) -> None:
    """Puts numbers in the place of operands without axes, of which the result does not take its element type."""
    example = node.meta.get("val")
    if str(node.target) not in _TAKES_NUMBERS or not isinstance(example, Tensor) or _is_double(example):
        return
    first, second, *rest = node.args
    if str(node.target) in _COMMUTES and not node.kwargs and first in values:
        first, second = second, first
    value = values.get(second) if isinstance(second, fx.Node) else None
    if value is not None and _is_double(value) and value.dim() == 0:
        with unset_fake_temporarily():
            node.args = (first, value.item(), *rest)


def _store(graph: fx.GraphModule, node: fx.Node, value: Tensor) -> None:
    """Puts a constant in the place of an operator."""
    name = f"_constant_{node.name}"
    with unset_fake_temporarily():
        graph.register_buffer(name, value)
    with graph.graph.inserting_before(node):
        constant = graph.graph.get_attr(name)
    constant.meta = dict(node.meta)
    node.replace_all_uses_with(constant)
