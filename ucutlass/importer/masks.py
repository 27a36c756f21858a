"""Masks of attention that are the same in every call, such as a causal one: whether each row leaves a key."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from ucutlass.importer.operators.products import ATTENDS
from ucutlass.importer.symbolic import Extents

MOST_ELEMENTS = 2**24
"""A mask, or what it is computed from, of more elements is not looked at."""


def noted(graph: fx.Graph, state: Mapping[str, Tensor], number: Extents) -> None:
    """Notes at each attention of a graph where its mask, which no input changes, leaves each row a key. `state`
    has the tensors of inputs that are known, by their nodes' names; `number` is what stands for an extent."""
    values: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or "scaled_dot_product" not in str(node.target) or schema is None:
            continue
        named = dict(zip([a.name for a in schema.arguments], node.args, strict=False)) | dict(node.kwargs)
        mask = named.get("attn_mask", named.get("attn_bias"))
        value = _known(mask, values, state, number) if isinstance(mask, fx.Node) else None
        if isinstance(value, Tensor):
            with unset_fake_temporarily():
                once = value[tuple(slice(1 if step == 0 else None) for step in value.stride())]
                left = once if once.dtype == torch.bool else once > -torch.inf
                node.meta[ATTENDS] = bool(left.any(-1).all())


def _known(node: fx.Node, values: dict[fx.Node, Any], state: Mapping[str, Tensor], number: Extents) -> Any:
    """Returns the value of a node that no input changes, None for others."""
    if node not in values:
        stack = [node]
        while stack:
            last = stack[-1]
            missing = [source for source in last.all_input_nodes if source not in values]
            if missing and last.op == "call_function":
                stack += missing
                continue
            values[last] = _computed(last, values, state, number)
            stack.pop()
    return values[node]


def _computed(
    node: fx.Node, values: Mapping[fx.Node, Any], state: Mapping[str, Tensor], number: Extents
) -> Any:
    if node.name in state:
        return _small(state[node.name])
    fake = node.meta.get("val")
    if isinstance(fake, int | torch.SymInt):
        return number(fake)
    if node.op != "call_function" or any(values[source] is None for source in node.all_input_nodes):
        return None
    if not _is_little(node, fake, number) or _is_random(node):
        return None
    keywords = {k: v for k, v in node.kwargs.items() if k not in ("device", "pin_memory")}
    arguments, named = fx.node.map_arg((node.args, keywords), lambda source: values[source])
    with unset_fake_temporarily(), torch.no_grad():
        return _small(node.target(*arguments, **named))  # type: ignore[operator]


def _small(value: Any) -> Any:
    """Returns a value on the CPU, None for a tensor that is large or has no storage here."""
    if not isinstance(value, Tensor):
        return value
    if isinstance(value, FakeTensor) or value.device.type == "meta":
        return None
    if prod(n for n, step in zip(value.shape, value.stride(), strict=True) if step) > MOST_ELEMENTS:
        return None
    return value.detach().cpu()


def _is_little(node: fx.Node, fake: Any, number: Extents) -> bool:
    """Returns whether an operator gives few elements, or repeats those that are there."""
    values = fake if isinstance(fake, tuple | list) else [fake]
    tensors = [v for v in values if isinstance(v, Tensor)]
    repeats = node.target is torch.ops.aten.expand.default
    return bool(tensors) and (repeats or all(prod(map(number, v.shape)) <= MOST_ELEMENTS for v in tensors))


def _is_random(node: fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
