"""Measures joules a launch by NVML's own counter over windows of seconds.

`nvmlDeviceGetTotalEnergyConsumption` counts millijoules of the whole board since the driver was
loaded (NVML API reference, Volta and later). The power sensor behind it samples only a part of
the time, so a window lasts at least two seconds of nothing but replays. Idle power is not
subtracted: the energy is what the board took while the kernel ran.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ucutlass.runtime.bench import nvml

WINDOW_SECONDS = 2.0


class EnergyCounter(Protocol):
    """A board with an energy counter, as measurements ask for it."""

    def millijoules(self) -> int | None:
        """Returns the counter; None where the board has none."""

    def sample(self) -> nvml.Sample | None:
        """SM clock and throttle reasons now."""


@dataclass(frozen=True, slots=True)
class Energy:
    """A window's account. `joules` a launch, idle power not subtracted; `watts` the mean power of the
    board; `clock` the median SM clock in Hz, `start_clock` that of the first sample under load;
    `throttled` names what held the clock."""

    joules: float
    watts: float
    seconds: float
    launches: int
    clock: float | None
    start_clock: float | None
    throttled: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoEnergy:
    """Why there is none."""

    reason: str


def measure(
    meter: EnergyCounter,
    replay: Callable[[], None],
    launches: int,
    finish: Callable[[], None],
    *,
    now: Callable[[], float] = time.monotonic,
    window: float = WINDOW_SECONDS,
) -> Energy | NoEnergy:
    """Replays for `window` seconds between two readings of the counter.

    `replay` runs `launches` launches without waiting; `finish` waits for the device. One replay before
    the window warms up.
    """
    replay()
    finish()
    before = meter.millijoules()
    if before is None:
        return NoEnergy("NVML has no energy counter for this GPU")
    began, replays, samples = now(), 0, list[nvml.Sample]()
    while now() - began < window:
        replay()
        replays += 1
        if (sample := meter.sample()) is not None:  # while the replay runs: idle GPUs report other clocks
            samples.append(sample)
        finish()
    took, after = now() - began, meter.millijoules()
    if after is None or after <= before:
        return NoEnergy(f"NVML's energy counter did not move in {took:.1f} s")
    joules = (after - before) / 1000.0
    clocks = [s.clock for s in samples]
    return Energy(
        joules / (replays * launches),
        joules / took,
        took,
        replays * launches,
        statistics.median(clocks) if clocks else None,
        clocks[0] if clocks else None,
        nvml.throttled(samples),
    )


@dataclass(frozen=True, slots=True)
class NvmlMeter:
    """A board by NVML, through the driver's own library."""

    library: ctypes.CDLL
    handle: ctypes.c_void_p
    sampler: nvml.Sampler

    def millijoules(self) -> int | None:
        counter = ctypes.c_ulonglong()
        if self.library.nvmlDeviceGetTotalEnergyConsumption(self.handle, ctypes.byref(counter)):
            return None
        return counter.value

    def sample(self) -> nvml.Sample | None:
        return self.sampler()


def open_meter(uuid: str, library: ctypes.CDLL | None = None) -> NvmlMeter | NoEnergy:
    """Returns the meter of the GPU with this UUID (`GPU-...`)."""
    try:
        lib = library if library is not None else ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        return NoEnergy(f"no NVML: {error}")
    match nvml.sampler(uuid, lib):
        case nvml.NoNvml(reason):
            return NoEnergy(f"no NVML: {reason}")
        case sampler:
            pass
    handle = ctypes.c_void_p()
    if status := lib.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)):
        return NoEnergy(f"NVML has no GPU {uuid}: error {status}")
    return NvmlMeter(lib, handle, sampler)
