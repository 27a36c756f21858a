"""Energy over a window, by a board that is a simulation."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import pytest

from ucutlass.runtime.bench.nvml import Sample
from ucutlass.runtime.profile import energy


@dataclass
class Board:
    """Takes 400 W while a replay of 0.25 s runs; the clock falls after the first."""

    time: float = 0.0
    millijoule: float | None = 5000.0
    clocks: list[float] = field(default_factory=lambda: [1.98e9, 1.8e9, 1.7e9])
    reasons: int = 0x4

    def replay(self) -> None:
        self.time += 0.25
        if self.millijoule is not None:
            self.millijoule += 400.0 * 0.25 * 1000

    def millijoules(self) -> int | None:
        return None if self.millijoule is None else int(self.millijoule)

    def sample(self) -> Sample | None:
        clock = self.clocks.pop(0) if len(self.clocks) > 1 else self.clocks[0]
        return Sample(clock, self.reasons)


def measure(board: Board, **more: Any) -> energy.Energy | energy.NoEnergy:
    return energy.measure(board, board.replay, 50, lambda: None, now=lambda: board.time, **more)


def test_joules_a_launch() -> None:
    outcome = measure(Board())
    assert isinstance(outcome, energy.Energy)
    assert outcome.seconds >= energy.WINDOW_SECONDS
    assert outcome.launches == 8 * 50
    assert outcome.joules == pytest.approx(400 * 2 / 400)
    assert outcome.watts == pytest.approx(400)
    assert outcome.start_clock == 1.98e9 and outcome.clock == 1.7e9
    assert outcome.throttled == ("software power cap",)


def test_a_board_without_a_counter() -> None:
    outcome = measure(Board(millijoule=None))
    assert isinstance(outcome, energy.NoEnergy) and "no energy counter" in outcome.reason


def test_a_counter_that_stands_still() -> None:
    board = Board()
    outcome = energy.measure(board, lambda: None, 1, lambda: _advance(board), now=lambda: board.time)
    assert isinstance(outcome, energy.NoEnergy) and "did not move" in outcome.reason


def _advance(board: Board) -> None:
    board.time += 1.0


class Library:
    """libnvidia-ml.so.1, as far as it is called."""

    def __init__(self, **status: int) -> None:
        self.status = status

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            if name == "nvmlDeviceGetTotalEnergyConsumption" and not self.status.get(name):
                ctypes.cast(arguments[1], ctypes.POINTER(ctypes.c_ulonglong))[0] = 123_456
            return self.status.get(name, 0)

        return call


def test_the_meter_reads_millijoules() -> None:
    meter = energy.open_meter("GPU-1", Library())  # type: ignore[arg-type]
    assert isinstance(meter, energy.NvmlMeter)
    assert meter.millijoules() == 123_456


def test_a_gpu_that_nvml_does_not_count() -> None:
    library = Library(nvmlDeviceGetTotalEnergyConsumption=3)
    meter = energy.open_meter("GPU-1", library)  # type: ignore[arg-type]
    assert isinstance(meter, energy.NvmlMeter) and meter.millijoules() is None


@pytest.mark.parametrize("call", ["nvmlInit_v2", "nvmlDeviceGetHandleByUUID"])
def test_an_nvml_that_refuses_is_said(call: str) -> None:
    meter = energy.open_meter("GPU-1", Library(**{call: 9}))  # type: ignore[arg-type]
    assert isinstance(meter, energy.NoEnergy) and call in meter.reason
