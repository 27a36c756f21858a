"""Keeps attention whole where AOTAutograd would take it apart.

With a mask and free extents torch's attention comes as products and a softmax in f32, which store the weights of every
key; whole it is one kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ucutlass.importer.symbolic import symbols_of

NAMESPACE, NAME = "ucutlass_dynamo", "scaled_dot_product_attention"

OPERATOR = f"{NAMESPACE}.{NAME}.default"
"""By this name rules know the operator, whose arguments are those of torch's."""

_TORCHS = torch._C._nn.scaled_dot_product_attention


def keep_attention(graph: fx.GraphModule, inputs: Sequence[Any]) -> None:
    """Lets TorchDynamo's graph call attention as one operator, in place: without gradients, dropout and autocast, and of
    free extents."""
    gradients = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in inputs)
    if gradients or not symbols_of(inputs) or torch.is_autocast_enabled() or _has_regions(graph):
        return
    for node in graph.graph.find_nodes(op="call_function", target=_TORCHS):
        if len(node.args) <= 4 and not node.kwargs.get("dropout_p"):
            node.target = _operator()


def _has_regions(graph: fx.GraphModule) -> bool:
    """Returns whether the graph enters autocast, or lets gradients be computed, itself."""
    entered = (torch.amp.autocast_mode._enter_autocast, torch._C._set_grad_enabled)
    return any(node.target in entered for node in graph.graph.nodes)


def _operator() -> Any:
    """Returns the operator, which a process defines at the first call."""
    operators = getattr(torch.ops, NAMESPACE)
    if not hasattr(operators, NAME):
        schema = str(torch.ops.aten.scaled_dot_product_attention.default._schema)
        arguments = schema[schema.index("(") :]
        whole = torch.library.custom_op(f"{NAMESPACE}::{NAME}", _computed, mutates_args=(), schema=arguments)
        whole.register_fake(_shaped)
    return getattr(operators, NAME).default


def _computed(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **named: Any) -> Tensor:
    return _TORCHS(query, key, value, *rest, **named).contiguous()


def _shaped(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **named: Any) -> Tensor:
    lead = query.shape[:-2]
    if not named.get("enable_gqa"):
        lead = torch.broadcast_shapes(lead, key.shape[:-2], value.shape[:-2])  # type: ignore[no-untyped-call]
    return query.new_empty(*lead, query.shape[-2], value.shape[-1])
