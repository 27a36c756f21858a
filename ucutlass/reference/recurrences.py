"""Recurrent layers and scattered writes as torch functions of tensors and numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

LAYER_PARAMETERS = (4, 2)
"""Weights of one direction of one layer: with biases, and without."""


@contextmanager
def _without_tf32() -> Iterator[None]:
    """Switches cuDNN's TF32 off, for all threads of the process meanwhile. torch has no switch of a thread, and while that of
    recurrent layers alone (`torch.backends.cudnn.rnn`) differs, every reader of `allow_tf32` gets a RuntimeError."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


def recurrence(name: str, states: int) -> Callable[..., tuple[Tensor, ...]]:
    """Returns `torch.NAME` of x, `states` initial states and the weights in torch's order, with its results: the outputs
    of all steps, then the last states. cuDNN's layers multiply without TF32, whose
    errors grow from step to step."""

    def layer(
        x: Tensor, *tensors: Tensor, layers: int = 1, bidirectional: bool = False, batch_first: bool = False
    ) -> tuple[Tensor, ...]:
        initial, weights = tensors[:states], tensors[states:]
        runs = layers * (2 if bidirectional else 1)
        biased = len(weights) == runs * LAYER_PARAMETERS[0]
        state = initial if states > 1 else initial[0]
        function = getattr(torch, name)
        with _without_tf32():
            results: tuple[Tensor, ...] = function(
                x, state, list(weights), biased, layers, 0.0, False, bidirectional, batch_first
            )
        return results

    return layer


def scattered(x: Tensor, index: Tensor, source: Tensor, dim: int) -> Tensor:
    return torch.scatter(x, dim, index, source)


def scattered_sum(x: Tensor, index: Tensor, source: Tensor, dim: int) -> Tensor:
    return torch.scatter_add(x, dim, index, source)
