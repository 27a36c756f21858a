"""Starts a Dask cluster on this machine: one worker for each GPU, each with its share of the cores."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ucutlass.engine.errors import EngineMissing
from ucutlass.runtime.switches import BUILD_JOBS


@contextmanager
def local_cluster(
    gpus: Sequence[str], cpus_per_gpu: int, *, environs: Sequence[Mapping[str, str]] = ()
) -> Iterator[str]:
    """Gives what `ucutlass.engine.open` takes. `gpus` are UUIDs (`gpu_lock.gpu_uuids()`), a worker each, which
    its nanny starts again where it dies; `environs` are further variables of each, in their order.

    Scripts need `if __name__ == "__main__":` around it: workers are started by multiprocessing's spawn.
    Raises EngineMissing.
    """
    try:
        from distributed import Nanny, Scheduler, SpecCluster
    except ImportError as error:
        words = f"a cluster needs Dask distributed ({error})"
        raise EngineMissing(words, "pip install 'ucutlass[distributed]'") from error
    more = [*environs, *[{}] * (len(gpus) - len(environs))]
    workers = {
        f"gpu-{i}": {
            "cls": Nanny,
            "options": {
                # One thread for the GPU, so that builds never hold it up.
                "nthreads": cpus_per_gpu + 1,
                "resources": {"GPU": 1, "CPU": cpus_per_gpu},
                "env": {"CUDA_VISIBLE_DEVICES": gpu, BUILD_JOBS: str(cpus_per_gpu), **extra},
                # Compilers' memory is not the worker's; a nanny that counted would kill it for theirs.
                "memory_limit": 0,
                "host": "127.0.0.1",
                "dashboard_address": "127.0.0.1:0",
                "silence_logs": logging.ERROR,
            },
        }
        for i, (gpu, extra) in enumerate(zip(gpus, more, strict=True))
    }
    scheduler = {
        "cls": Scheduler,
        "options": {"host": "127.0.0.1", "port": 0, "dashboard": False, "dashboard_address": "127.0.0.1:0"},
    }
    start: Any = SpecCluster  # which has no types
    with start(workers=workers, scheduler=scheduler, silence_logs=logging.ERROR) as cluster:
        yield f"dask://{cluster.scheduler_address.removeprefix('tcp://')}"
