"""Masks of attention that are the same in every call: whether each row leaves a key, and whether the mask is no more
than a window of keys around the row, such as a causal one, which an index says without a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from ucutlass.importer.operators.products import ATTENDS, WINDOW, MaskWindow
from ucutlass.importer.symbolic import Extents, symbols_of

HIDDEN = -65504.0
"""What cuDNN's attention has added in place of an infinity where a key is hidden, or less."""

MOST_ELEMENTS = 2**24
"""A mask, or what it is computed from, of more elements is not looked at."""


def noted(graph: fx.Graph, state: Mapping[str, Tensor], number: Extents) -> None:
    """Notes at each attention of a graph where its mask, which no input changes, leaves each row a key, and the
    window that it is where it follows from the graph alone. `state` has the tensors of inputs that are known, by
    their nodes' names; `number` is what stands for an extent."""
    values: dict[fx.Node, Any] = {}
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or "scaled_dot_product" not in str(node.target) or schema is None:
            continue
        named = dict(zip([a.name for a in schema.arguments], node.args, strict=False)) | dict(node.kwargs)
        mask = named.get("attn_mask", named.get("attn_bias"))
        if not isinstance(mask, fx.Node):
            continue
        value = _known(mask, values, state, number)
        if isinstance(value, Tensor):
            with unset_fake_temporarily():
                once = value[tuple(slice(1 if step == 0 else None) for step in value.stride())]
                left = once if once.dtype == torch.bool else once > HIDDEN
                node.meta[ATTENDS] = bool(left.any(-1).all())
                window = _window(once, left) if node.meta[ATTENDS] and _is_constant(mask) else None
                if window is not None:
                    node.meta[WINDOW] = window


def _window(mask: Tensor, left: Tensor) -> MaskWindow | None:
    """Returns the window of keys that a mask is; None for another mask, or one that adds anything."""
    if mask.dtype != torch.bool and bool((mask[left] != 0).any()):
        return None
    if bool(left.all()):
        return MaskWindow(None, None)
    rows, keys = left.shape[-2:] if left.dim() > 1 else (1, 1)
    if min(rows, keys) == 1:
        return None
    every = left.reshape(-1, rows, keys)
    distance = torch.arange(keys) - torch.arange(rows)[:, None]
    inside = distance[every[0]]
    low, high = int(inside.min()), int(inside.max())
    if not bool((every == ((distance >= low) & (distance <= high))).all()):
        return None
    return MaskWindow(low if low > 1 - rows else None, high if high < keys - 1 else None)


def _is_constant(mask: fx.Node) -> bool:
    """Returns whether neither an input nor an extent that a call gives decides a value."""
    visited: set[fx.Node] = set()
    stack = [mask]
    while stack:
        node = stack.pop()
        if node in visited:
            continue
        visited.add(node)
        if node.op == "call_function" and node.target is torch.ops.aten.expand.default:
            stack += node.all_input_nodes[:1]
        elif node.op == "call_function" and not symbols_of([node.meta.get("val")]):
            stack += node.all_input_nodes
        else:
            return False
    return True


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
