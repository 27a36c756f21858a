"""Locks a GPU for timing: a comparison holds the lock from its first launch to its last.

The lock is the system's, on a file named after the GPU's UUID, so it goes with the process that held it
and does not depend on CUDA_VISIBLE_DEVICES. It is between processes of one user on one machine;
those of other users and containers are not seen.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from threading import Event

from ucutlass.runtime.cache import Cache
from ucutlass.runtime.errors import LockTimeout, MachineError


class NoGpu(MachineError):
    """There is no CUDA device to time on."""


WAIT_SPAN = "waiting"
"""The span of the wait for a GPU's lock."""

_LOOK_SECONDS = 0.05
"""Between two looks at whether a GPU is idle."""


@contextmanager
def hold_gpu(
    gpu: str,
    *,
    timeout_seconds: float,
    on_wait: Callable[[str], None],
    folder: Path | None = None,
    shared: bool = False,
    cancel: Event | None = None,
    purpose: str = "",
) -> Iterator[None]:
    """Holds the lock of the GPU with this UUID: alone, for whoever times, or `shared` with others that compute what
    is not timed. `on_wait` is told once who holds it, and for what `purpose`.

    Those who wait have turns. Raises LockTimeout, BuildCancelled where `cancel` is set before it is held, and
    CacheError where the lock's folder cannot be written.
    """
    # Not the cache's own folder: two caches must not make two locks.
    root = folder if folder is not None else Path(tempfile.gettempdir()) / f"ucutlass-{os.getuid()}"
    cache, name = Cache(root, 0), f"lane-{gpu}"

    def locked(key: str, shared: bool) -> AbstractContextManager[None]:
        return cache.locked(
            key,
            timeout_seconds=timeout_seconds,
            cancel=cancel,
            on_wait=on_wait,
            wait_span=WAIT_SPAN,
            shared=shared,
            purpose=purpose,
        )

    with ExitStack() as held:
        # Who is next waits alone: whoever holds the lock again and again would else keep all others waiting.
        with locked(f"next-{gpu}", False):
            held.enter_context(locked(name, shared))
        yield


@contextmanager
def hold_idle_gpu(
    gpu: str,
    *,
    timeout_seconds: float,
    quiet_seconds: float = 0.0,
    folder: Path | None = None,
    purpose: str = "",
) -> Iterator[None]:
    """Holds the lock alone, as `hold_gpu`, but for what nobody waits for: it is taken where nobody else holds it or
    waits for it, and nobody did for so many seconds. Raises LockTimeout after so many seconds without that, and
    CacheError."""
    deadline = quiet_since = time.monotonic()
    deadline += timeout_seconds
    while True:
        with ExitStack() as held:
            try:
                # Nobody who waits finds it taken for longer than it takes to look.
                held.enter_context(
                    hold_gpu(gpu, timeout_seconds=0.0, on_wait=lambda _: None, folder=folder, purpose=purpose)
                )
            except LockTimeout:
                if time.monotonic() >= deadline:
                    raise
                quiet_since = time.monotonic() + _LOOK_SECONDS
            else:
                if time.monotonic() - quiet_since >= quiet_seconds:
                    yield
                    return
        time.sleep(_LOOK_SECONDS)


def gpu_uuid() -> str:
    """Returns `GPU-...` of the first CUDA device that this process sees. Makes no context. Raises NoGpu."""
    return gpu_uuids()[0]


def gpu_uuids() -> tuple[str, ...]:
    """Returns `GPU-...` of every CUDA device that this process sees, at least one. Makes no context. Raises
    NoGpu."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise NoGpu(f"no NVIDIA driver: {error}", "run on a machine with an NVIDIA GPU") from error

    def call(name: str, *arguments: object) -> None:
        if status := getattr(cuda, name)(*arguments):
            raise NoGpu(f"{name} gave CUDA error {status}", "see `nvidia-smi`, and CUDA_VISIBLE_DEVICES")

    count, device, raw = ctypes.c_int(), ctypes.c_int(), (ctypes.c_ubyte * 16)()
    call("cuInit", 0)
    call("cuDeviceGetCount", ctypes.byref(count))
    uuids: list[str] = []
    # At least one is asked for: the driver says why there is none.
    for index in range(max(1, count.value)):
        call("cuDeviceGet", ctypes.byref(device), index)
        call("cuDeviceGetUuid_v2", raw, device)
        uuids.append(f"GPU-{uuid.UUID(bytes=bytes(raw))}")
    return tuple(uuids)
