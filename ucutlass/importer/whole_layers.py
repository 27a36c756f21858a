"""Keeps torch's recurrent layers whole while torch.export follows a module.

torch.export finds the shapes that `aten::lstm` and its like give by their code, a step at a time, and does so again where
it decomposes: 40 s for 512 steps of six layers in both directions. The operators here have the same arguments, and
say their shapes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

NAMESPACE = "ucutlass_importer"

NAMES = ("gru", "lstm", "rnn_relu", "rnn_tanh")


def _shapes(states: int, input: Tensor, hx: Any, *options: Any) -> tuple[Tensor, ...]:
    """Returns what a layer gives: the sequence, and its last states."""
    hidden: Sequence[Tensor] = hx if states > 1 else (hx,)
    bidirectional = bool(options[-2])
    width = hidden[0].shape[-1] * (2 if bidirectional else 1)
    return input.new_empty(*input.shape[:-1], width), *(state.new_empty(state.shape) for state in hidden)


def layer(name: str) -> Any:
    """Returns the operator of one of NAMES, which a process defines at the first call."""
    operators = getattr(torch.ops, NAMESPACE)
    if not hasattr(operators, name):
        _define(name)
    return getattr(operators, name).default


def _define(name: str) -> None:
    schema = str(getattr(torch.ops.aten, name).input._schema)
    operator = torch.library.custom_op(
        f"{NAMESPACE}::{name}", getattr(torch, name), mutates_args=(), schema=schema[schema.index("(") :]
    )
    operator.register_fake(partial(_shapes, 2 if name == "lstm" else 1))


TORCHS: Mapping[str, str] = MappingProxyType(
    {f"{NAMESPACE}.{name}.default": f"aten.{name}.input" for name in NAMES}
)
"""torch's operator of each, by which rules and reports know it."""

_CALLS: Mapping[Callable[..., Any], str] = MappingProxyType(
    {getattr(torch._C._VariableFunctions, name): name for name in NAMES}
)


def whole_layers(model: torch.nn.Module) -> AbstractContextManager[object]:
    """Returns what a module's forward is followed in, so that its recurrent layers stay whole."""
    return _WholeLayers() if any(isinstance(m, torch.nn.RNNBase) for m in model.modules()) else nullcontext()


class _WholeLayers(TorchFunctionMode):
    """Calls the operators of NAMES where torch's would be called on padded sequences."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = _CALLS.get(function)
        # A packed sequence has the sizes of its batches second.
        if name is None or kwargs or not isinstance(args[1 if name == "lstm" else 2], list | tuple):
            return function(*args, **(kwargs or {}))
        return layer(name)(*args)
