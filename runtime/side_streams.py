"""Keeps the side streams and events of a sequence's branches by the caller's stream.

Two threads on two streams share none: a branch of one never waits for work of the other, and a stream
that is being captured takes only its own side streams into the capture. One sequence at a time is
launched with each set; on the way it records and waits by the driver's own calls, a microsecond each.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from ucutlass.runtime import cuda_driver


@dataclass(frozen=True, slots=True)
class Branches:
    """`streams` by number, the caller's first; `events` by number; `functions` are the addresses of
    cuEventRecord and cuStreamWaitEvent. `record` and `wait` take an event and a stream number and return 0 or the
    driver's error."""

    streams: tuple[int, ...]
    events: tuple[int, ...]
    functions: tuple[int, int]

    def record(self, event: int, stream: int) -> int:
        status: int = _RECORD(self.functions[0])(self.events[event], self.streams[stream])
        return status

    def wait(self, event: int, stream: int) -> int:
        status: int = _WAIT(self.functions[1])(self.streams[stream], self.events[event], 0)
        return status


_RECORD = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)
_WAIT = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)

_LOCK = threading.RLock()
_KEPT: dict[tuple[torch.device, int], tuple[list[int], list[int]]] = {}
"""By device and the caller's stream, as long as the process lives: no call can be known to be the last."""


@contextmanager
def branches_of(device: torch.device, main: int, stream_count: int, events: int) -> Iterator[Branches]:
    """The branches beside a stream, of which this thread has the use while it launches."""
    with _LOCK:
        yield branches(device, main, stream_count, events)


def branches(device: torch.device, main: int, stream_count: int, events: int) -> Branches:
    """`stream_count` - 1 streams beside `main`, and `events` events, made where they are not there yet. The
    device must be current; a thread without a context has its primary one then. Raises DriverRefused."""
    cuda_driver.bind_context(device.index or 0)
    with _LOCK:
        streams, marks = _KEPT.setdefault((device, main), ([], []))
        # Not torch's streams: it hands each of those out again, to who may capture on it.
        while len(streams) < stream_count - 1:
            streams.append(_create_handle("cuStreamCreate", _NON_BLOCKING))
        while len(marks) < events:
            marks.append(_create_handle("cuEventCreate", _NO_TIMING))
        return Branches((main, *streams[: stream_count - 1]), tuple(marks[:events]), functions())


_NON_BLOCKING, _NO_TIMING = 1, 2
"""CU_STREAM_NON_BLOCKING, CU_EVENT_DISABLE_TIMING (cuda.h)."""


def _create_handle(create: str, flags: int) -> int:
    handle = ctypes.c_void_p()
    cuda_driver.call(cuda_driver.library(), create, ctypes.byref(handle), flags)
    assert handle.value is not None
    return handle.value


@functools.cache
def functions() -> tuple[int, int]:
    """Returns the addresses of cuEventRecord and cuStreamWaitEvent."""
    driver = cuda_driver.library()
    record, wait = (
        ctypes.cast(getattr(driver, name), ctypes.c_void_p).value
        for name in ("cuEventRecord", "cuStreamWaitEvent")
    )
    assert record is not None and wait is not None
    return record, wait
