"""Has a process that computes on the GPU lock it once it is ready to: what starts and imports holds nobody up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ucutlass.runtime.isolation import STARTS
from ucutlass.spans import span


def open_context() -> None:
    """Makes this process's CUDA context, where there is a device: nothing is computed in the seconds that it takes."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


@contextmanager
def gpu_of(gpu: str, wait: float, *, or_cpu: bool, shared: bool = False) -> Iterator[str]:
    """Gives "cuda" with the lock of the GPU of this UUID held, for which it waits so many seconds at most, once this
    process is ready to use it; "cpu" for "", and with `or_cpu` where the GPU is in use for longer. At the end the
    GPU's memory is returned: a process may wait for the next call of its file while others use the GPU. Raises
    LockTimeout."""
    from contextlib import ExitStack

    import torch

    from ucutlass.runtime.bench.gpu_lock import hold_gpu
    from ucutlass.runtime.errors import LockTimeout

    if not gpu:
        yield "cpu"
        return
    with span(STARTS):
        open_context()
    with ExitStack() as stack:
        device = "cuda"
        try:
            stack.enter_context(
                hold_gpu(
                    gpu,
                    timeout_seconds=wait,
                    on_wait=lambda _: None,
                    shared=shared,
                    purpose="a reference in float64",
                )
            )
        except LockTimeout:
            if not or_cpu:
                raise
            device = "cpu"
        stack.callback(torch.cuda.empty_cache)
        yield device
