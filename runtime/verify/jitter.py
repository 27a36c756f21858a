"""Keeps another stream busy while a kernel runs, so that a missing barrier shows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from ucutlass.runtime.verify.judge import Jitter

_BYTES = 64 << 20
"""More than the L2 of most devices: the copies move its lines about, too."""

_MOST_COPIES = 24


def copies(device: torch.device, seed: int) -> Jitter:
    """Runs a launch on a stream of high priority, beside a random number of copies and additions of
    random lengths on one of low priority. On other devices than CUDA nothing goes on."""
    if device.type != "cuda":
        return lambda _: nullcontext()
    source, target = (torch.zeros(_BYTES, dtype=torch.uint8, device=device) for _ in range(2))

    @contextmanager
    def around(number: int) -> Iterator[None]:
        draw = random.Random(f"{seed}/{number}")
        low: Any = torch.cuda.Stream(device, priority=0)  # type: ignore[no-untyped-call]
        high: Any = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        torch.cuda.synchronize(device)
        with torch.cuda.stream(low):
            for _ in range(draw.randint(1, _MOST_COPIES)):
                length = draw.randint(1, _BYTES)
                target[:length].copy_(source[:length], non_blocking=True)
                source[:length].add_(1)
        with torch.cuda.stream(high):
            yield
        torch.cuda.synchronize(device)

    return around
