"""Runs builds in threads of this process, and launches in processes of each GPU of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock
from typing import Any

from ucutlass.engine.gpu_slot import GpuSlot
from ucutlass.engine.work import LIMIT_SECONDS, TABLE, WAIT_SECONDS, EngineTask, TaskTable, work_of
from ucutlass.runtime import parallel
from ucutlass.runtime.process_template import ProcessTemplate

SHARING = 4
"""Calls that share a GPU, which time nothing."""


class LocalEngine:
    """`gpus` are UUIDs; None takes the first GPU that this process sees, found when it is first needed.
    `cpus` are compilers at once, by default what cores and memory allow. `on_wait` is told who holds a
    GPU's lock; `template` is forked for
    processes that launch. All artefacts lie in this process's cache, so none is moved."""

    def __init__(
        self,
        gpus: Sequence[str] | None = None,
        cpus: int | None = None,
        *,
        table: TaskTable = TABLE,
        on_wait: Callable[[str], None] = lambda _: None,
        template: ProcessTemplate | None = None,
    ) -> None:
        self._table = table
        self._cpus = cpus or parallel.jobs()
        self._gpu_slots = (
            [GpuSlot(on_wait=on_wait, template=template)]
            if gpus is None
            else [_gpu_slot(g, on_wait, template) for g in gpus]
        )
        self._pool = ThreadPoolExecutor(self._cpus, thread_name_prefix="ucutlass-build")
        # Who times waits in one thread a GPU: what waits does not hold the lock. The others share it.
        self._gpu_pools = [ThreadPoolExecutor(1, thread_name_prefix="ucutlass-gpu") for _ in self._gpu_slots]
        self._shared_pool = ThreadPoolExecutor(
            SHARING * len(self._gpu_slots), thread_name_prefix="ucutlass-shared"
        )
        self._home: dict[str, int] = {}
        self._stops: set[Event] = set()
        self._lock = Lock()

    @property
    def gpus(self) -> int:
        return len(self._gpu_slots)

    @property
    def cpus(self) -> int:
        return self._cpus

    def submit(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        artifacts: Sequence[str] = (),
        limit_seconds: float = LIMIT_SECONDS,
        wait_seconds: float = WAIT_SECONDS,
        near: str = "",
        shared: bool = False,
    ) -> EngineTask:
        work = work_of(self._table, name, arguments, artifacts, limit_seconds, wait_seconds, near, shared)
        with self._lock:
            at = self._at(near)
            stop = Event()
            self._stops.add(stop)
        pool = self._pool if work.row.needs == "cpu" else self._shared_pool if shared else self._gpu_pools[at]
        future = pool.submit(self._gpu_slots[at].run, work, stop)
        future.add_done_callback(lambda _: self._ended(stop))

        def cancel() -> None:
            stop.set()
            future.cancel()

        return EngineTask(future, cancel)

    def _ended(self, stop: Event) -> None:
        with self._lock:
            self._stops.discard(stop)

    def _at(self, near: str) -> int:
        if near not in self._home:
            homes = list(self._home.values())
            self._home[near] = min(range(len(self._gpu_slots)), key=homes.count)
        return self._home[near]

    def leave(self, near: str) -> None:
        with self._lock:
            self._home.pop(near, None)

    def close(self) -> None:
        with self._lock:
            stops = list(self._stops)
        for stop in stops:
            stop.set()
        for pool in (self._pool, self._shared_pool, *self._gpu_pools):
            pool.shutdown(cancel_futures=True)
        for place in self._gpu_slots:
            place.close()


def _gpu_slot(gpu: str, on_wait: Callable[[str], None], template: ProcessTemplate | None) -> GpuSlot:
    return GpuSlot(lambda: gpu, os.environ | {"CUDA_VISIBLE_DEVICES": gpu}, on_wait, template)
