"""A Dask worker that ends with whoever started it.

Dask's own workers notice a lost scheduler after half a minute, and until then hold their GPU's lane.
`local_cluster` names this module as each worker's preload.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
"""linux/prctl.h: the signal sent to this process when its parent dies."""


def dask_setup(worker: object) -> None:
    """Called by Dask in the worker's process. Its processes are tied to it in the same way."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:  # the parent died before it could be watched
        os.kill(os.getpid(), signal.SIGKILL)
