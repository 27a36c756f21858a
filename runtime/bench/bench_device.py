"""Declares what a measurement needs of a device. `cuda.Cuda` implements it for a GPU, tests have their
own. `cuda.Cuda` is the real one, tests bring their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from ucutlass.runtime.bench.frequency import SmTimes
from ucutlass.runtime.bench.nvml import Sample
from ucutlass.runtime.bench.trace import DeviceEvent

Outputs: TypeAlias = Sequence[Any]
"""A launch's result tensors."""

SetLaunch: TypeAlias = Callable[[int], Outputs]
"""Launches once, on the buffers of a set, on the current stream; gives the results of that set."""


class CaptureRefused(Exception):
    """A candidate cannot be captured into a graph; the message has the driver's words."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Many launches in a row, by `play`: one graph, or a loop on the host where capture was refused.

    `launches` in all; `outputs` gives the results of a set as the last `play` left them; `refused` is
    empty for a graph."""

    play: Callable[[], None]
    launches: int
    outputs: Callable[[int], Outputs]
    refused: str = ""


@dataclass(frozen=True, slots=True)
class DeviceTrace:
    """What ran on the device while it was watched. `events` is None where no profiler watched; `stamps`
    are the SMs' counters of each stamp in order, empty where there is no stamp kernel."""

    events: tuple[DeviceEvent, ...] | None
    stamps: tuple[SmTimes, ...]


class BenchDevice(Protocol):
    """A device. Times are microseconds; every method but `sample` leaves the device idle."""

    l2: int
    """Bytes of its L2."""

    device: str
    """Its name in torch."""

    def no_profiler(self) -> str:
        """Returns why device events cannot be had here, or an empty string."""

    def capture(self, launch: SetLaunch, order: Sequence[int]) -> Replay:
        """Returns the launches of `order`, by sets, as one graph. Raises CaptureRefused."""

    def session(self, work: Callable[[Callable[[], None]], None], stamps: int, watch: bool) -> DeviceTrace:
        """Runs `work`, which calls its argument for each of `stamps` stamps; `watch`: with the profiler."""

    def events(self, work: Callable[[], None]) -> float:
        """Times `work` between two CUDA events around `work` on the current stream; `work` may run once
        before."""

    def wall(self, work: Callable[[], None]) -> float:
        """Times `work` by the host's clock, with the device idle before and after."""

    def idle(self) -> None:
        """Waits for the whole device, every stream of it."""

    def poison(self, outputs: Outputs) -> None:
        """Fills results with bytes that no kernel leaves everywhere."""

    def reset_persisting(self) -> str:
        """Makes persisting L2 lines normal again and takes their carve-out away; says what was done."""

    def persisting(self) -> int:
        """Returns bytes of the L2 that are set aside for persisting lines now."""

    def sample(self) -> Sample | None:
        """Returns what NVML says now."""

    def no_nvml(self) -> str:
        """Returns why there are no samples, or an empty string."""
