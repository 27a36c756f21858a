"""Works off jobs on the GPUs of a machine: a process each, with a time limit, several side by side on one GPU.

What a process launches it launches under its GPU's lock (`benchmarks.turns.DeviceLock`), so that only what the
host does overlaps. A process that hangs, crashes or breaks its CUDA context loses its own job: what it had
written to its notes until then is the job's result.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, lines
from ucutlass.runtime import isolation, system
from ucutlass.runtime.process_template import ProcessTemplate

HELD_SHARE = 4
"""The jobs on one GPU may hold one in so many bytes of its memory while another has the lock."""

PROCESS_BYTES = 2**30
"""Of a CUDA context with its libraries."""


@dataclass(frozen=True, slots=True)
class GpuJob:
    """`bytes` is what it holds of a GPU's memory for as long as it runs."""

    name: str
    facts: Row
    bytes: int = 0


class GpuQueue:
    """Jobs that wait for a GPU. Those on one GPU hold at most `memory` bytes together; one that holds more runs
    alone."""

    def __init__(self, devices: Iterable[int], memory: int) -> None:
        self._free = dict.fromkeys(devices, memory)
        self._memory = memory
        self._jobs: list[GpuJob] = []
        self._closed = False
        self._changed = threading.Condition()

    def put(self, job: GpuJob) -> None:
        with self._changed:
            self._jobs.append(job)
            self._changed.notify_all()

    def close(self) -> None:
        """Says that no more jobs come."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def take(self, device: int) -> GpuJob | None:
        """Returns the largest job that fits, once there is one; None where none will come."""
        with self._changed:
            while True:
                fitting = [job for job in self._jobs if self._weight(job) <= self._free[device]]
                if fitting:
                    job = max(fitting, key=lambda j: j.bytes)
                    self._jobs.remove(job)
                    self._free[device] -= self._weight(job)
                    return job
                if self._closed and not self._jobs:
                    return None
                self._changed.wait()

    def give(self, device: int, job: GpuJob) -> None:
        """Says that a job has ended on a device."""
        with self._changed:
            self._free[device] += self._weight(job)
            self._changed.notify_all()

    def _weight(self, job: GpuJob) -> int:
        return min(self._memory, job.bytes + PROCESS_BYTES)


def serve(
    queue: GpuQueue, devices: Sequence[int], slots: int, work: Callable[[GpuJob, int], None]
) -> ThreadPoolExecutor:
    """Starts `slots` threads a GPU, each of which takes job after job; `work` raises nothing. To be shut down
    by the caller, who closes the queue before."""
    pool = ThreadPoolExecutor(max(1, len(devices) * slots), thread_name_prefix="gpu")

    def serving(device: int) -> None:
        while (job := queue.take(device)) is not None:
            try:
                work(job, device)
            finally:
                queue.give(device, job)

    for _ in range(slots):
        for device in devices:
            pool.submit(serving, device)
    return pool


def environment(device: int | None, compilers: int) -> dict[str, str]:
    """Returns the environment of a process that sees one of the GPUs that this one sees, or none, and runs so many
    compilers."""
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    own = {
        "CUDA_VISIBLE_DEVICES": "" if device is None else visible[device] if visible else str(device),
        "TORCHINDUCTOR_COMPILE_THREADS": str(compilers),
        "UCUTLASS_BUILD_JOBS": str(compilers),
        "OMP_NUM_THREADS": str(compilers),
    }
    return {**os.environ, **own}


def compilers_of(processes: int) -> int:
    """Returns how many compilers each of so many processes may run: all cores are busy and some wait."""
    return max(1, 2 * system.cores() // max(1, processes))


def called(
    target: str,
    arguments: Mapping[str, Any],
    note: Path,
    *,
    limit_seconds: float,
    deadline: float | None = None,
    environ: Mapping[str, str] | None = None,
    memory_bytes: int | None = None,
    template: ProcessTemplate | None = None,
) -> Row:
    """Calls a function in a process of its own, a fork of the template where there is one, which adds its facts
    to the lines of the file `note`. Returns them; where it did not return, `lost` says how it ended, and `status` is `lost` unless it had one. No
    call goes on after the `deadline`, a time of the monotonic clock."""
    note.parent.mkdir(parents=True, exist_ok=True)
    note.unlink(missing_ok=True)
    limit = limit_seconds if deadline is None else min(limit_seconds, deadline - time.monotonic())
    if limit <= 0:
        return {"status": "lost", "stage": "start", "lost": "the run's time was over"}
    process = isolation.WarmProcess(environ, template)
    try:
        outcome = process.call(
            target, {**arguments, "note": str(note)}, limit_seconds=limit, memory_bytes=memory_bytes
        )
    finally:
        process.close()
    facts: Row = {}
    for line in lines(note):
        facts |= line
    if isinstance(outcome, isolation.Returned):
        result: Row = outcome.value
        return facts | result
    words = isolation.failure_text(outcome, "the row")[:600]
    if isinstance(outcome, isolation.Raised) and outcome.traceback:
        words += f"; {' '.join(outcome.traceback.split()[-40:])}"[:400]
    return {"status": "lost", "stage": "start"} | facts | {"lost": words}


def finished(row: Row) -> bool:
    """Returns whether a row need not be measured again: it ended, or it was lost after its times were known."""
    return row["status"] != "lost" and ("lost" not in row or "us" in row)
