"""A profiler that drops what its clock puts before its start: the session is run again, waiting longer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ucutlass.runtime.bench import cuda
from ucutlass.runtime.bench.cuda import Cuda
from ucutlass.runtime.bench.frequency import STAMP
from ucutlass.runtime.bench.trace import DeviceEvent


def gpu(monkeypatch: pytest.MonkeyPatch, late: float, waited: list[float]) -> Any:
    """A device whose profiler drops all within `late` seconds after its start."""
    made = object.__new__(Cuda)
    made._waits = cuda._OPEN_SECONDS
    launched: list[int] = []

    def watched(work: Callable[[], None], seconds: float) -> tuple[DeviceEvent, ...]:
        waited.append(seconds)
        launched.clear()
        work()
        kept = launched if seconds >= late else launched[1:]
        return tuple(DeviceEvent(STAMP, "kernel", at, at + 1, 7, at) for at in kept)

    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda shape, dtype, device: zeros(shape, dtype=dtype))
    monkeypatch.setattr(made, "idle", lambda: None)
    monkeypatch.setattr(made, "_watched", watched)
    monkeypatch.setattr(made, "_launch_stamp", lambda slots: launched.append(len(launched)))
    return made


def two(stamp: Callable[[], None]) -> None:
    stamp()
    stamp()


def test_lost_stamps_are_waited_for_and_the_wait_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    made = gpu(monkeypatch, 0.05, waited)
    for _ in range(2):
        session = made.session(two, 2, True)
        assert len(session.events) == len(session.stamps) == 2
    assert waited == [0.005, 0.02, 0.1, 0.1]


def test_records_that_no_wait_brings_back_are_left_to_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    session = gpu(monkeypatch, 9.0, waited).session(two, 2, True)
    assert len(session.events) == 1
    assert waited == list(cuda._OPEN_SECONDS)
