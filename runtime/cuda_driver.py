"""Calls the CUDA driver's C interface and reports its errors."""

from __future__ import annotations

import ctypes
from typing import Any


class DriverRefused(RuntimeError):
    """A call of the CUDA driver failed; the message has its name for the error."""


def library() -> ctypes.CDLL:
    """Returns libcuda. Raises OSError where there is no driver."""
    return ctypes.CDLL("libcuda.so.1")


def call(driver: ctypes.CDLL, name: str, *arguments: Any) -> None:
    """Raises DriverRefused. Arguments that are no `int` in C must be ctypes values."""
    if status := getattr(driver, name)(*arguments):
        raise DriverRefused(f"{name}: {error_text(driver, status)}")


def error_text(driver: ctypes.CDLL, status: int) -> str:
    """Returns the driver's name for a CUresult."""
    text = ctypes.c_char_p()
    driver.cuGetErrorName(status, ctypes.byref(text))
    return text.value.decode(errors="replace") if text.value else f"CUDA error {status}"


def bind_context(device: int) -> None:
    """Makes a device's primary context, which the runtime API shares, this thread's where that has none: torch leaves a
    thread that allocates from its cache alone without one. Raises OSError without a driver, and DriverRefused."""
    driver, context = library(), ctypes.c_void_p()
    call(driver, "cuCtxGetCurrent", ctypes.byref(context))
    if context.value is None:
        call(driver, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        call(driver, "cuCtxSetCurrent", context)


_CAPTURE_THREAD_LOCAL = 1
"""CU_STREAM_CAPTURE_MODE_THREAD_LOCAL of cuda.h."""


def ignore_captures() -> None:
    """Lets this thread load kernels while others capture CUDA graphs: by default a capture forbids it to all threads, and
    fails where one does. Raises OSError without a driver, and DriverRefused."""
    call(library(), "cuThreadExchangeStreamCaptureMode", ctypes.byref(ctypes.c_int(_CAPTURE_THREAD_LOCAL)))


_BLOCKING_SYNC = 4
"""CU_CTX_SCHED_BLOCKING_SYNC of cuda.h."""


def sleep_while_waiting(device: int = 0) -> None:
    """Lets this process sleep while it waits for the device, where it would spin: for processes that do not
    time what they launch, beside others that need the cores. A context that is there already, which takes no
    flags, stays as it is. Raises OSError without a driver, and DriverRefused."""
    driver = library()
    call(driver, "cuInit", 0)
    flags, active = ctypes.c_uint(), ctypes.c_int()
    call(driver, "cuDevicePrimaryCtxGetState", device, ctypes.byref(flags), ctypes.byref(active))
    if active.value:
        return
    call(driver, "cuDevicePrimaryCtxSetFlags_v2", device, _BLOCKING_SYNC)
