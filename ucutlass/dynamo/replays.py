"""Calls without gradients as CUDA graphs, one for each set of shapes.

A graph holds addresses. Parameters and buffers are read where they lie, and a graph is captured anew where one
of them lies elsewhere; other tensors are copied into tensors that stay, and results are copied out of the
graph's memory, so that they are the caller's own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from ucutlass.dynamo.fallback import say

MOST_GRAPHS = 32
"""Graphs of one compiled function. Calls of further shapes are not captured."""


@dataclass(frozen=True, slots=True)
class Capture:
    """A captured call: `replay` runs it again on the current stream and writes `results` anew."""

    replay: Callable[[], None]
    results: Any


class ReplayDevice(Protocol):
    """What captures calls, and gives each replay its turn."""

    def capture(self, call: Callable[[], Any]) -> Capture: ...

    def turn(self) -> AbstractContextManager[object]: ...


class CudaReplays:
    """One GPU, with the memory that its graphs share."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._ended: torch.cuda.Event | None = None

    def capture(self, call: Callable[[], Any]) -> Capture:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            results = call()
        return Capture(graph.replay, results)

    @contextmanager
    def turn(self) -> Iterator[None]:
        with torch.cuda.device(self._device):
            if self._ended is not None:
                torch.cuda.current_stream().wait_event(self._ended)
            try:
                yield
            finally:
                self._ended = self._ended or torch.cuda.Event()  # type: ignore[no-untyped-call]
                self._ended.record()


_Key: TypeAlias = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Entry:
    """A captured call with the tensors that arguments are copied into, by the argument's number."""

    copies: tuple[tuple[int, Tensor], ...]
    capture: Capture


class Replays:
    """A function whose calls are replayed. `static` has the numbers of the arguments that are read where they
    lie. Calls that need gradients, or that cannot be captured, run as they are, which is said once."""

    def __init__(self, call: Callable[..., Any], static: Collection[int], device: ReplayDevice) -> None:
        self._call, self._device = call, device
        self._static = frozenset(static)
        self._entries: dict[_Key, _Entry | None] = {}
        self._lock = threading.Lock()

    def __call__(self, *arguments: Any) -> Any:
        if torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in arguments):
            return self._call(*arguments)
        key = self._key(arguments)
        with self._lock:
            if key not in self._entries and len(self._entries) >= MOST_GRAPHS:
                self._refused(f"there are more than {MOST_GRAPHS} sets of shapes")
            elif key not in self._entries:
                # What a first call does, such as loading kernels, cannot be captured.
                results = self._call(*arguments)
                self._entries[key] = self._captured(arguments, results)
                return results
            entry = self._entries.get(key)
            if entry is not None:
                return self._replayed(entry, arguments)
        return self._call(*arguments)

    def _key(self, arguments: Sequence[Any]) -> _Key:
        return tuple(
            [
                a
                if not isinstance(a, Tensor)
                else a.data_ptr()
                if number in self._static
                else (a.shape, a.stride(), a.dtype, a.device)
                for number, a in enumerate(arguments)
            ]
        )

    def _captured(self, arguments: Sequence[Any], results: Any) -> _Entry | None:
        storages = {_storage(a) for a in arguments if isinstance(a, Tensor)}
        if any(isinstance(r, Tensor) and _storage(r) in storages for r in tree_leaves(results)):
            self._refused("a result is a view of an argument")
            return None
        varying = {
            number: a
            for number, a in enumerate(arguments)
            if isinstance(a, Tensor) and number not in self._static
        }
        if any(_overlaps(a) for a in varying.values()):
            self._refused("an argument overlaps itself")
            return None
        # Not as tensors of inference mode, which no call outside of it may write.
        with torch.inference_mode(False), torch.no_grad():
            copies = {
                n: torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device=a.device).copy_(a)
                for n, a in varying.items()
            }
        inputs = [copies.get(number, a) for number, a in enumerate(arguments)]
        try:
            with self._device.turn():
                capture = self._device.capture(lambda: self._call(*inputs))
        except RuntimeError as problem:
            self._refused(str(problem).partition("\n")[0])
            return None
        return _Entry(tuple(copies.items()), capture)

    def _refused(self, why: str) -> None:
        say(f"calls are not replayed as CUDA graphs: {why}")

    def _replayed(self, entry: _Entry, arguments: Sequence[Any]) -> Any:
        with self._device.turn():
            for number, copy in entry.copies:
                copy.copy_(arguments[number])
            entry.capture.replay()
            return tree_map(_own, entry.capture.results)


def _overlaps(tensor: Tensor) -> bool:
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _own(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
