"""Rolls up loops over the steps of a sequence, which torch.export has unrolled.

Steps h = tanh(linear(cat(x[t], h))), or h = tanh(linear(x[t]) + linear(h)), are one recurrent layer, and what a
stack gathers of every step is computed of all steps at once. A long loop would otherwise be hundreds of stages,
each with its own number in it.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import fx

aten: Any = torch.ops.aten

FxNode: TypeAlias = Any
"""An fx.Node, whose arguments PyTorch types as anything that may stand there."""

FEWEST_STEPS = 8
"""A shorter loop stays as it is."""

_LAYERS: Mapping[Any, Any] = MappingProxyType(
    {aten.tanh.default: aten.rnn_tanh.input, aten.relu.default: aten.rnn_relu.input}
)

_OF_EACH_ELEMENT = (*_LAYERS, aten.sigmoid.default, aten.gelu.default, aten.silu.default)


@dataclass(frozen=True, slots=True)
class _Step:
    """A step: `state` computed from `before` and from place `at` of axis `axis` of `sequence`. `weights` are the
    products' weights with the columns that are theirs, `biases` what is added to each."""

    state: FxNode
    before: FxNode
    sequence: FxNode
    axis: int
    at: int
    weights: tuple[tuple[FxNode, int, int], tuple[FxNode, int, int]]
    biases: tuple[FxNode | None, FxNode | None]

    def follows(self, other: _Step) -> bool:
        return self.before is other.state and self._kind() == other._kind() and self.at == other.at + 1

    def _kind(self) -> tuple[Any, ...]:
        return self.state.target, self.sequence, self.axis, self.weights, self.biases


def rolled(graph: fx.Graph) -> None:
    """Writes unrolled recurrent layers, and what stacks gather of their steps, as one computation each. Extents
    that are symbols stay as they are."""
    steps = [step for node in graph.nodes if (step := _step(node)) is not None]
    by_before = {step.before: step for step in steps}
    states = {step.state for step in steps}
    for first in steps:
        if first.before in states or first.at != 0:
            continue
        run = [first]
        while (after := by_before.get(run[-1].state)) is not None and after.follows(run[-1]):
            run.append(after)
        if len(run) >= FEWEST_STEPS and len(run) == _shape(first.sequence)[first.axis]:
            _roll(graph, run)
    for node in list(graph.nodes):
        if node.users and node.target is aten.stack.default and len(node.args[0]) >= FEWEST_STEPS:
            _gather(graph, node)


def _step(node: FxNode) -> _Step | None:
    """Returns the step that a node ends, None where it ends none."""
    if node.target not in _LAYERS:
        return None
    inner = node.args[0]
    if _is_linear(inner):
        return _joined(node, inner)
    if (
        inner.target is aten.add.Tensor
        and len(inner.args) == 2
        and not inner.kwargs
        and all(map(_is_linear, inner.args))
    ):
        left, right = inner.args
        return _apart(node, left, right) or _apart(node, right, left)
    return None


def _joined(node: FxNode, linear: FxNode) -> _Step | None:
    """Returns a step whose product reads a concatenation of the sequence's part and of the state."""
    joined = linear.args[0]
    if not _calls(joined, aten.cat.default) or len(joined.args[0]) != 2:
        return None
    parts = joined.args[0]
    if any(len(_shape(part)) != 2 for part in parts) or (joined.args[1:] or (0,))[0] not in (1, -1):
        return None
    widths = [_shape(part)[1] for part in parts]
    columns = ((0, widths[0]), (widths[0], sum(widths)))
    for i in (0, 1):
        weights = tuple((linear.args[1], *columns[j]) for j in (i, 1 - i))
        if (step := _of(node, parts[i], parts[1 - i], weights, (_bias(linear), None))) is not None:
            return step
    return None


def _apart(node: FxNode, of_sequence: FxNode, of_state: FxNode) -> _Step | None:
    """Returns a step of two products whose sum is taken."""
    linears = (of_sequence, of_state)
    weights = tuple((linear.args[1], 0, _shape(linear.args[1])[1]) for linear in linears)
    read, state = (linear.args[0] for linear in linears)
    return _of(node, read, state, weights, (_bias(of_sequence), _bias(of_state)))


def _of(node: FxNode, read: Any, state: Any, weights: Any, biases: Any) -> _Step | None:
    if not _calls(read, aten.select.int):
        return None
    sequence, axis, at = read.args
    if len(_shape(sequence)) != 3 or axis not in (0, 1) or not len(_shape(state)) == len(_shape(node)) == 2:
        return None
    if _shape(state) != _shape(node) or len({n.meta["val"].dtype for n in (sequence, state, node)}) != 1:
        return None
    return _Step(node, state, sequence, axis, at, weights, biases)


def _roll(graph: fx.Graph, run: Sequence[_Step]) -> None:
    """Writes a run of steps as one recurrent layer, of which each step's state is a part."""
    first = run[0]
    begin = first.state.args[0]
    with graph.inserting_before(begin):
        parts = [
            node
            if (low, high) == (0, _shape(node)[1])
            else _call(graph, begin, aten.slice.Tensor, node, 1, low, high)
            for node, low, high in first.weights
        ]
        if any(bias is not None for bias in first.biases):
            like = first.state.meta["val"]
            options = {"dtype": like.dtype, "device": like.device}
            parts += [
                _call(graph, begin, aten.full.default, [like.shape[1]], 0.0, **options)
                if bias is None
                else bias
                for bias in first.biases
            ]
        initial = _call(graph, begin, aten.unsqueeze.default, first.before, 0)
        flags = (len(parts) == 4, 1, 0.0, False, False, first.axis == 1)
        layer = _call(graph, begin, _LAYERS[first.state.target], first.sequence, initial, parts, *flags)
        sequence = graph.call_function(operator.getitem, (layer, 0))
        sequence.meta = {**begin.meta, "val": layer.meta["val"][0]}
        for step in run:
            state = _call(graph, begin, aten.select.int, sequence, first.axis, step.at)
            step.state.replace_all_uses_with(state)
    graph.eliminate_dead_code()


def _gather(graph: fx.Graph, stack: FxNode) -> None:
    """Writes a stack of what is computed alike of every part of a tensor as computed of the whole."""
    dim = int((stack.args[1:] or (0,))[0])
    if not _shape(stack):
        return
    with graph.inserting_before(stack):
        whole = _whole(graph, stack, list(stack.args[0]), dim % len(_shape(stack)))
    if whole is not None:
        stack.replace_all_uses_with(whole)
        graph.eliminate_dead_code()


def _whole(graph: fx.Graph, at: FxNode, parts: list[FxNode], dim: int) -> FxNode | None:
    """Returns the parts, stacked along an axis, as a computation of what they are parts of, None where they are
    not alike."""
    target, first = parts[0].target, parts[0]
    if any(part.target is not target or part.kwargs != first.kwargs for part in parts):
        return None
    if target is aten.select.int:
        source, axis = first.args[:2]
        if not _shape(source):
            return None
        if [part.args for part in parts] != [(source, axis, i) for i in range(_shape(source)[axis])]:
            return None
        order = [i for i in range(len(_shape(source))) if i != axis]
        order.insert(dim, axis)
        return source if order == sorted(order) else _call(graph, at, aten.permute.default, source, order)
    if target not in _OF_EACH_ELEMENT and not (_is_linear(first) and dim < len(_shape(first))):
        return None
    if any(part.args[1:] != first.args[1:] for part in parts):
        return None
    inner = _whole(graph, at, [part.args[0] for part in parts], dim)
    return None if inner is None else _call(graph, at, target, inner, *first.args[1:], **first.kwargs)


def _call(graph: fx.Graph, origin: FxNode, target: Any, *arguments: Any, **options: Any) -> FxNode:
    """Adds an operator, from the line of the module that `origin` is from, with what it gives."""
    node = graph.call_function(target, arguments, options)
    values = torch.utils._pytree.tree_map_only(fx.Node, lambda n: n.meta["val"], (arguments, options))
    with origin.meta["val"].fake_mode:
        value = target(*values[0], **values[1])
    node.meta = {**origin.meta, "val": value}
    return node


def _calls(node: Any, target: Any) -> bool:
    return isinstance(node, fx.Node) and node.target is target


def _is_linear(node: Any) -> bool:
    return _calls(node, aten.linear.default) and not node.kwargs


def _bias(linear: FxNode) -> FxNode | None:
    return linear.args[2] if len(linear.args) > 2 else None


def _shape(node: FxNode) -> tuple[Any, ...]:
    """Returns the extents of a tensor, () where one is a symbol."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    if not isinstance(value, torch.Tensor) or not all(isinstance(n, int) for n in value.shape):
        return ()
    return tuple(value.shape)
