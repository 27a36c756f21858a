"""Wraps what launching needs of torch: the current device and stream, and memory from its allocator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import torch
from torch._C._dynamo import guards

TorchAllocation: TypeAlias = tuple[tuple[Any, ...], dict[str, Any] | None]
"""Arguments and keywords for the allocating function of a device type."""


def stream(device: torch.device) -> int:
    """Returns the current stream of a device, as cudaStream_t; 0 on the host."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def current(device: torch.device) -> AbstractContextManager[object]:
    """Makes a device the current one, as torch's own functions do for their tensors."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def capturing(device: torch.device) -> bool:
    """Returns whether the current stream of the current device is captured into a CUDA graph."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def exchange_device(device: str) -> Callable[[int], int] | None:
    """Sets the current device and returns the one before; None where there is no choice."""
    if device != "cuda" or torch.cuda.device_count() <= 1:
        return None
    exchange: Callable[[int], int] = torch.cuda._exchange_device
    return exchange


def allocator(device: str) -> tuple[Callable[..., Any], Callable[..., TorchAllocation]]:
    """Returns how tensors are allocated on the current device of this type, and the arguments for it.

    torch.empty spends about a microsecond in parsing and dispatch; the function that Inductor's
    generated code allocates with takes the same memory from the same allocator in a third of that.
    """
    direct = getattr(guards, f"_empty_strided_{device}", None)
    if direct is None:
        return torch.empty, lambda shape, dtype, where: ((shape,), {"dtype": dtype, "device": where})
    return direct, lambda shape, dtype, where: ((shape, _row_major(shape), dtype), None)


def _row_major(shape: Sequence[int]) -> tuple[int, ...]:
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.append(strides[-1] * extent)
    return tuple(reversed(strides))[-len(shape) :] if shape else ()
