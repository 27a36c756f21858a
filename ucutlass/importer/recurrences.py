"""Rolls up loops over the steps of a sequence, which torch.export has unrolled.

Steps h = tanh(linear(cat(x[t], h))), h = tanh(linear(x[t]) + linear(h)) or of recurrent cells are one recurrent layer,
and what a stack gathers of every step is computed of all steps at once. A long loop would otherwise be hundreds of stages,
each with its own number in it.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import fx

from ucutlass.importer.whole_layers import layer

aten: Any = torch.ops.aten

FxNode: TypeAlias = Any
"""An fx.Node, whose arguments PyTorch types as anything that may stand there."""

FEWEST_STEPS = 8
"""A shorter loop stays as it is."""

_LAYERS: Mapping[Any, str] = MappingProxyType({aten.tanh.default: "rnn_tanh", aten.relu.default: "rnn_relu"})
"""The recurrent layers by what their steps end in."""

_CELLS: Mapping[Any, str] = MappingProxyType(
    {
        aten.gru_cell.default: "gru",
        aten.lstm_cell.default: "lstm",
        aten.rnn_relu_cell.default: "rnn_relu",
        aten.rnn_tanh_cell.default: "rnn_tanh",
    }
)
"""The recurrent layers of cells."""

_OF_EACH_ELEMENT = (*_LAYERS, aten.sigmoid.default, aten.gelu.default, aten.silu.default)


@dataclass(frozen=True, slots=True)
class _Step:
    """A step: `states` computed from those `before` and from place `at` of axis `axis` of `sequence`, where `first`
    is the first operator that is the step's alone. `layer` computes all steps; `weights` are its weights with the
    columns of a matrix that they are, `biases` what it adds. Of an LSTM there are two states, the second one None
    where nothing reads it."""

    first: FxNode
    states: tuple[FxNode, ...]
    before: tuple[FxNode, ...]
    sequence: FxNode
    axis: int
    at: int
    layer: str
    weights: tuple[tuple[FxNode, int, int], tuple[FxNode, int, int]]
    biases: tuple[FxNode | None, FxNode | None]

    def follows(self, other: _Step) -> bool:
        return self.before == other.states and self._kind() == other._kind() and self.at == other.at + 1

    def _kind(self) -> tuple[Any, ...]:
        return self.layer, self.sequence, self.axis, self.weights, self.biases


def rolled(graph: fx.Graph) -> None:
    """Writes unrolled recurrent layers, and what stacks gather of their steps, as one computation each. Extents
    that are symbols stay as they are."""
    steps = [step for node in graph.nodes if (step := _step(node)) is not None]
    by_before = {step.before: step for step in steps}
    states = {step.states for step in steps}
    for first in steps:
        if first.before in states or first.at != 0:
            continue
        run = [first]
        while (after := by_before.get(run[-1].states)) is not None and after.follows(run[-1]):
            run.append(after)
        if len(run) >= FEWEST_STEPS and len(run) == _shape(first.sequence)[first.axis] and _is_chain(run):
            _roll(graph, run)
    for node in list(graph.nodes):
        if node.users and node.target in (aten.stack.default, aten.cat.default):
            _gather(graph, node)


def _is_chain(run: Sequence[_Step]) -> bool:
    """Returns whether second states, of which a layer gives the last alone, are read by the next steps alone."""
    return all(
        set(step.states[1].users) == {after.first}
        for step, after in itertools.pairwise(run)
        if len(step.states) > 1 and step.states[1] is not None
    )


def _step(node: FxNode) -> _Step | None:
    """Returns the step that a node ends, None where it ends none."""
    if node.target in _CELLS:
        return _cell(node)
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


def _cell(node: FxNode) -> _Step | None:
    read, hidden, own, of_state, *biases = node.args
    before = tuple(hidden) if isinstance(hidden, list | tuple) else (hidden,)
    states: tuple[FxNode, ...] = (node,)
    if len(before) > 1:
        results = {user.args[1]: user for user in node.users}
        states = tuple(results.get(i) for i in range(len(before)))
    weights = tuple((weight, 0, _shape(weight)[1]) for weight in (own, of_state) if _shape(weight))
    both = (*biases, None, None)[:2]
    return _of(node, states, read, before, _CELLS[node.target], weights, both) if states[0] else None


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
    name, biases = _LAYERS[node.target], (_bias(linear), None)
    for i in (0, 1):
        weights = tuple((linear.args[1], *columns[j]) for j in (i, 1 - i))
        if (step := _of(linear, (node,), parts[i], (parts[1 - i],), name, weights, biases)) is not None:
            return step
    return None


def _apart(node: FxNode, of_sequence: FxNode, of_state: FxNode) -> _Step | None:
    """Returns a step of two products whose sum is taken."""
    linears = (of_sequence, of_state)
    weights = tuple((linear.args[1], 0, _shape(linear.args[1])[1]) for linear in linears)
    read, state = (linear.args[0] for linear in linears)
    biases = (_bias(of_sequence), _bias(of_state))
    return _of(node.args[0], (node,), read, (state,), _LAYERS[node.target], weights, biases)


def _of(
    first: FxNode, states: Any, read: Any, before: Any, name: str, weights: Any, biases: Any
) -> _Step | None:
    if (part := _part(read)) is None or len(weights) != 2:
        return None
    sequence, axis, at = part
    shapes = {_shape(state) for state in (*states, *before) if state is not None}
    if len(_shape(sequence)) != 3 or axis not in (0, 1) or len(shapes) != 1 or len(min(shapes)) != 2:
        return None
    if len({n.meta["val"].dtype for n in (sequence, *before, states[0])}) != 1:
        return None
    return _Step(first, states, before, sequence, axis, at, name, weights, biases)


def _roll(graph: fx.Graph, run: Sequence[_Step]) -> None:
    """Writes a run of steps as one recurrent layer, of which each step's state is a part."""
    first, last = run[0], run[-1]
    begin, like = first.first, first.before[0].meta["val"]
    with graph.inserting_before(begin):
        parts = [
            node
            if (low, high) == (0, _shape(node)[1])
            else _call(graph, begin, aten.slice.Tensor, node, 1, low, high)
            for node, low, high in first.weights
        ]
        if any(bias is not None for bias in first.biases):
            options = {"dtype": like.dtype, "device": like.device}
            parts += [
                _call(graph, begin, aten.full.default, [_shape(first.weights[0][0])[0]], 0.0, **options)
                if bias is None
                else bias
                for bias in first.biases
            ]
        initial = [_call(graph, begin, aten.unsqueeze.default, state, 0) for state in first.before]
        hidden = initial if len(initial) > 1 else initial[0]
        flags = (len(parts) == 4, 1, 0.0, False, False, first.axis == 1)
        whole_layer = _call(graph, begin, layer(first.layer), first.sequence, hidden, parts, *flags)
        sequence = _result(graph, begin, whole_layer, 0)
        for step in run:
            state = _call(graph, begin, aten.select.int, sequence, first.axis, step.at)
            whole, *_ = step.states
            whole.replace_all_uses_with(state)
        if len(last.states) > 1 and last.states[1] is not None:
            second = _call(graph, begin, aten.select.int, _result(graph, begin, whole_layer, 2), 0, 0)
            last.states[1].replace_all_uses_with(second)
    graph.eliminate_dead_code()


def _result(graph: fx.Graph, origin: FxNode, layer: FxNode, number: int) -> FxNode:
    node = graph.call_function(operator.getitem, (layer, number))
    node.meta = {**origin.meta, "val": layer.meta["val"][number]}
    return node


def _gather(graph: fx.Graph, gathered: FxNode) -> None:
    """Writes a stack of what is computed alike of every part of a tensor as computed of the whole."""
    parts, shape = list(gathered.args[0]), _shape(gathered)
    if len(parts) < FEWEST_STEPS or not shape:
        return
    dim = int((gathered.args[1:] or (0,))[0]) % len(shape)
    if gathered.target is aten.cat.default:  # a stack, where each part has one element along the axis
        if not all(
            _calls(part, aten.unsqueeze.default) and part.args[1] % len(shape) == dim for part in parts
        ):
            return
        parts = [part.args[0] for part in parts]
    with graph.inserting_before(gathered):
        whole = _whole(graph, gathered, parts, dim)
    if whole is not None:
        gathered.replace_all_uses_with(whole)
        graph.eliminate_dead_code()


def _whole(graph: fx.Graph, at: FxNode, parts: list[FxNode], dim: int) -> FxNode | None:
    """Returns the parts, stacked along an axis, as a computation of what they are parts of, None where they are
    not alike."""
    target, first = parts[0].target, parts[0]
    if any(part.target is not target or part.kwargs != first.kwargs for part in parts):
        return None
    if (of_first := _part(first)) is not None:
        source, axis, _ = of_first
        if not _shape(source):
            return None
        if [_part(part) for part in parts] != [(source, axis, i) for i in range(_shape(source)[axis])]:
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
    mode: Any = torch._guards.detect_fake_mode((values, origin.meta["val"]))
    with mode:
        value = target(*values[0], **values[1])
    node.meta = {**origin.meta, "val": value}
    return node


def _part(node: FxNode) -> tuple[FxNode, int, int] | None:
    """Returns the tensor of which a node is one place of an axis, the axis and the place; None for what is none."""
    if _calls(node, aten.select.int):
        source, axis, at = node.args
    elif _calls(node, operator.getitem) and _calls(node.args[0], aten.unbind.int):
        (source, *axes), at = node.args[0].args, node.args[1]
        axis = axes[0] if axes else 0
    else:
        return None
    while _calls(source, aten.slice.Tensor) and _shape(source) == _shape(source.args[0]) != ():
        source = source.args[0]  # all of it
    return source, axis % len(source.meta["val"].shape), at


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
