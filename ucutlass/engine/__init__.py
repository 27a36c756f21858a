"""Opens the engine that builds and times kernels, on this machine or on a Dask cluster."""

from __future__ import annotations

import re
from collections.abc import Callable

from ucutlass.engine.errors import EngineUnknown
from ucutlass.engine.local import LocalEngine
from ucutlass.engine.work import Engine
from ucutlass.runtime.bench import gpu_lock

__all__ = ["Engine", "open"]

ACCEPTS = "local, or dask://HOST:PORT for the scheduler of a Dask cluster"


def open(spec: str = "local", *, on_wait: Callable[[str], None] = lambda _: None) -> Engine:
    """Returns the engine that `--engine` names: `local` has every GPU that this process sees.

    `on_wait` is told who holds a GPU of this machine; another machine's worker waits in silence.
    Raises EngineUnknown; NoGpu for `local` without a GPU; EngineMissing, EngineUnreachable for Dask.
    """
    if spec == "local":
        gpus = gpu_lock.gpu_uuids()
        # With one there is nothing to choose, and the processes keep this one's environment.
        return LocalEngine(gpus if len(gpus) > 1 else None, on_wait=on_wait)
    if re.fullmatch(r"dask://[^\s/:]+:\d{1,5}", spec):
        from ucutlass.engine.dask import DaskEngine

        return DaskEngine(f"tcp://{spec.removeprefix('dask://')}")
    raise EngineUnknown(f"{spec!r} is not an engine; there is {ACCEPTS}")
