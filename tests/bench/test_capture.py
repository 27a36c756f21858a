"""A capture that fails must leave nothing behind: what torch leaves, by a torch that does the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from ucutlass.runtime.bench.bench_device import CaptureRefused
from ucutlass.runtime.bench.cuda import Cuda, graph_of

MAIN, SIDE = "the current stream", "the capture's stream"


class Torch:
    """Streams and captures as torch 2.11 has them: ending a broken capture raises, and neither the stream
    nor the allocator nor the default generator is then put back; a capture that ends well puts back the
    generator."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stream = MAIN
        self.underway: list[Any] = []
        self.generator_is_captured = False
        outer = self
        empty = torch.empty

        class Graph:
            replay = None

        class Capture:
            def __init__(self, graph: Graph, pool: Any) -> None:
                self.pool = pool

            def __enter__(self) -> None:
                outer.stream = SIDE
                outer.underway.append(self.pool)
                outer.generator_is_captured = True

            def __exit__(self, kind: Any, *_: object) -> None:
                if kind is not None:
                    raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
                outer.stream = MAIN
                outer.underway.remove(self.pool)
                outer.generator_is_captured = False

        def end(device: int, pool: Any) -> None:
            if pool not in outer.underway:
                raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
            outer.underway.remove(pool)

        def set_stream(stream: str) -> None:
            self.stream = stream

        monkeypatch.setattr(torch, "empty", lambda *shape, device: empty(*shape))
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "graph", Capture)
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: self.stream)
        monkeypatch.setattr(torch.cuda, "set_stream", set_stream)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end)


def test_a_capture_that_works_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Torch(monkeypatch)
    seen: list[str] = []
    graph_of(lambda: seen.append(made.stream))
    assert seen == [SIDE]
    assert made.stream == MAIN and not made.underway and not made.generator_is_captured


def test_a_refused_capture_leaves_stream_and_allocator_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Torch(monkeypatch)

    def launch(at: int) -> Sequence[Any]:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")

    with pytest.raises(CaptureRefused, match=r"operation not permitted.*capturing$"):
        object.__new__(Cuda).capture(launch, [0])
    assert made.stream == MAIN and not made.underway and not made.generator_is_captured
