"""Evaluates element-wise work in chunks, so that temporaries have the size of a chunk, however many arrays
there are, and a chunk may stay in a cache between two operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

CHUNK = 1 << 24
"""Numbers of a chunk: 128 MiB in float64, which takes long beside the launch of an operation on a GPU."""


def in_chunks(function: Callable[..., Tensor], shape: Sequence[int], *tensors: Tensor | None) -> Tensor:
    """Returns `function` of tensors that broadcast to `shape`, each with as many axes; it is called once
    where the shape has at most CHUNK numbers. Where `function` is element-wise the result equals that of one
    call bit by bit."""
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
