"""Element-wise work a slice at a time: what it makes for a while is then the size of a slice, however many
arrays that are, and a slice may stay in a cache between two of its operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

CHUNK = 1 << 22
"""Numbers of a slice: 32 MiB in float64, long beside the start of an operation on a GPU."""


def in_chunks(function: Callable[..., Tensor], shape: Sequence[int], *tensors: Tensor | None) -> Tensor:
    """`make` of tensors that broadcast to `shape`, each with as many axes; whole where that has at most PIECE
    numbers. Where `make` is element-wise the result is that of the whole, bit by bit."""
    count = math.prod(shape)
    if count <= CHUNK:
        return function(*tensors)
    axis = max(range(len(shape)), key=shape.__getitem__)
    step = max(1, shape[axis] * CHUNK // count)
    result: Tensor | None = None
    for start in range(0, shape[axis], step):
        length = min(step, shape[axis] - start)
        chunk = function(*(_sliced(t, axis, start, length) for t in tensors))
        if result is None:
            result = torch.empty(tuple(shape), dtype=chunk.dtype, device=chunk.device)
        result.narrow(axis, start, length).copy_(chunk)
    assert result is not None
    return result


def _sliced(tensor: Tensor | None, axis: int, start: int, length: int) -> Tensor | None:
    if tensor is None or tensor.shape[axis] == 1:
        return tensor
    return tensor.narrow(axis, start, length)
