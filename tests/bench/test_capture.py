"""A capture that fails must leave nothing behind: what torch leaves, by a torch that does the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from ucutlass.runtime.bench.bench_device import CaptureRefused
from ucutlass.runtime.bench.cuda import Cuda, graph_of

MAIN, SIDE = "the current stream", "the capture's stream"


class Torch:
    """Streams and captures as torch 2.11 has them: ending a broken capture raises, and neither the allocator nor the
    default generator is then put back; a capture that ends well puts back both."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stream = MAIN
        self.underway: list[Any] = []
        self.returned: list[str] = []
        self.generator_is_captured = False
        self.broken = False
        outer = self
        empty = torch.empty

        class Graph:
            replay = None

            def capture_begin(self, pool: Any) -> None:
                self.pool = pool
                outer.underway.append(pool)
                outer.generator_is_captured = True

            def capture_end(self) -> None:
                if outer.broken:
                    outer.broken = False
                    raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
                outer.underway.remove(self.pool)
                outer.generator_is_captured = False

        class Capture:
            def __init__(self, graph: Graph, pool: Any) -> None:
                self.graph, self.pool = graph, pool

            def __enter__(self) -> None:
                self.graph.capture_begin(self.pool)

            def __exit__(self, *_: object) -> None:
                self.graph.capture_end()

        @contextmanager
        def on(stream: str) -> Iterator[None]:
            outer.stream = stream
            try:
                yield
            finally:
                outer.stream = MAIN

        def end(device: int, pool: Any) -> None:
            if pool not in outer.underway:
                raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
            outer.underway.remove(pool)

        def set_stream(stream: str) -> None:
            self.stream = stream

        monkeypatch.setattr(torch, "empty", lambda *shape, device: empty(*shape))
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "graph", Capture)
        monkeypatch.setattr(torch.cuda, "Stream", lambda: SIDE)
        monkeypatch.setattr(torch.cuda, "stream", on)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (0, 1))
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: self.returned.append(""))
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: self.stream)
        monkeypatch.setattr(torch.cuda, "set_stream", set_stream)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end)


def test_a_capture_that_works_is_on_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Torch(monkeypatch)
    seen: list[str] = []
    graph_of(lambda: seen.append(made.stream))
    assert seen == [SIDE] and len(made.returned) == 1
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (3, 4))
    graph_of(lambda: None)
    assert len(made.returned) == 1, "memory is returned where little is free"
    assert made.stream == MAIN and not made.underway and not made.generator_is_captured


def test_a_refused_capture_leaves_stream_and_allocator_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Torch(monkeypatch)

    def launch(at: int) -> Sequence[Any]:
        made.broken = True
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore")

    with pytest.raises(CaptureRefused, match=r"operation not permitted.*capturing$"):
        object.__new__(Cuda).capture(launch, [0])
    assert made.stream == MAIN and not made.underway and not made.generator_is_captured
