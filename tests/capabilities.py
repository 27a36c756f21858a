"""Root without the right to pass over the modes of files, so that tests of them run as root too."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

VERSION_3 = 0x20080522
"""_LINUX_CAPABILITY_VERSION_3: two words of 32 capabilities each (capabilities(7), linux/capability.h)."""

OVERRIDES = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Word(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint32) for name in ("effective", "permitted", "inheritable"))


def bound_by_modes(act: Callable[[], T]) -> T:
    """Calls a function in a thread that obeys the modes of files, as threads of other users do. Capabilities are a
    thread's own; access(2) goes by the permitted ones, which a thread cannot have again."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(_give_up_overrides).result()
        return pool.submit(act).result()


def _give_up_overrides() -> None:
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, words = _Header(VERSION_3, 0), (_Word * 2)()
    for function in ("capget", "capset"):
        if getattr(libc, function)(ctypes.byref(header), words):
            raise OSError(ctypes.get_errno(), function)
        words[0].effective &= ~OVERRIDES
        words[0].permitted &= ~OVERRIDES
