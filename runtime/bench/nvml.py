"""Reads the SM clock and the throttle reasons of a GPU from NVML while it works.

By ctypes, as the driver brings the library (nvml.h; NVML API reference, NvmlClocksEventReasons). The
GPU is found by its UUID: NVML ignores CUDA_VISIBLE_DEVICES, so its ordinals are not CUDA's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

POWER_CAP = 0x004
"""The board draws what its power limit allows; how far that lowers the clock hangs on what runs."""

REASONS: Mapping[int, str] = {
    POWER_CAP: "software power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "hardware power brake",
    0x100: "display clock setting",
}
"""Bits that mean the clock is held down."""

HARMLESS = 0x001 | 0x002
"""Idle and application clocks: no throttling."""

_SM_CLOCK = 1
"""NVML_CLOCK_SM of nvmlClockType_t."""


@dataclass(frozen=True, slots=True)
class Sample:
    """SM clock in Hz, and the mask of reasons."""

    clock: float
    reasons: int


@dataclass(frozen=True, slots=True)
class NoNvml:
    """Why there are no samples."""

    reason: str


Sampler = Callable[[], Sample | None]


def throttled(samples: Iterable[Sample]) -> tuple[str, ...]:
    """Returns the names of the throttle reasons seen in any sample; unknown bits by number."""
    mask = 0
    for sample in samples:
        mask |= sample.reasons
    mask &= ~HARMLESS
    reasons = [name for bit, name in REASONS.items() if mask & bit]
    rest = mask & ~sum(REASONS)
    return (*reasons, *([f"reason {rest:#x}"] if rest else []))


def power_capped(samples: Iterable[Sample]) -> bool:
    """Returns whether the software power cap held the clock down and nothing else did: then the clock
    follows from the power that each kernel draws. Heat, brakes and unknown reasons are conditions that a
    kernel was given."""
    return throttled(samples) == (REASONS[POWER_CAP],)


def sampler(uuid: str, library: ctypes.CDLL | None = None) -> Sampler | NoNvml:
    """Returns a function that samples the GPU of this UUID (`GPU-...`); None from it where NVML has no
    answer."""
    try:
        nvml = library if library is not None else ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        return NoNvml(f"no libnvidia-ml.so.1: {error}")
    if status := nvml.nvmlInit_v2():
        return NoNvml(f"nvmlInit_v2: {_error_text(nvml, status)}")
    handle = ctypes.c_void_p()
    if status := nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)):
        return NoNvml(f"nvmlDeviceGetHandleByUUID {uuid}: {_error_text(nvml, status)}")
    return partial(_sample, nvml, handle)


def _sample(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> Sample | None:
    clock, reasons = ctypes.c_uint(), ctypes.c_ulonglong()
    if nvml.nvmlDeviceGetClockInfo(handle, _SM_CLOCK, ctypes.byref(clock)):
        return None
    # The older name: drivers of every version here know it, the newer one only those from 535 on.
    if nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle, ctypes.byref(reasons)):
        return None
    return Sample(clock.value * 1e6, reasons.value)


def _error_text(nvml: ctypes.CDLL, status: int) -> str:
    with suppress(AttributeError):
        text = nvml.nvmlErrorString
        text.restype = ctypes.c_char_p
        if message := text(status):
            return str(message.decode(errors="replace"))
    return f"NVML error {status}"
