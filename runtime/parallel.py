"""Several kernels at once, as many compilers as cores and memory allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from threading import Event, Lock
from typing import TYPE_CHECKING, TypeAlias

from ucutlass.runtime import switches, system
from ucutlass.runtime.build import BUILD_SECONDS, Artifact, Recipe, make, nvcc_recipe
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.errors import ArchUnknown, BuildCancelled, BuildError, BuildTimedOut, MachineError
from ucutlass.runtime.progress import OnProgress, Progress, ignore
from ucutlass.runtime.toolchain import Toolchain

if TYPE_CHECKING:
    from ucutlass.emit.text import Source

COMPILER_BYTES = 4 * 2**30
"""Memory that one nvcc may take on a CUTLASS kernel (measured: 3.7 GB for an sm90a GEMM)."""

Failure: TypeAlias = BuildError | BuildTimedOut | BuildCancelled | ArchUnknown | MachineError


def jobs(wanted: int | None = None) -> int:
    """Compilers to run at once: `wanted`, else UCUTLASS_BUILD_JOBS, else one a core, and no more
    than free memory holds; at least 1."""
    if asked := wanted or switches.read().jobs:
        return asked
    return max(1, min(system.cores(), system.memory_available() // COMPILER_BYTES))


def build_many(
    sources: Sequence[Source],
    toolchain: Toolchain,
    cache: Cache,
    *,
    on_progress: OnProgress = ignore,
    cancel: Event | None = None,
    max_jobs: int | None = None,
    limit_seconds: float = BUILD_SECONDS,
) -> tuple[Artifact | Failure, ...]:
    """One result a source, in their order; a failure takes its place and stops no other build.

    Sources of one key are built once. `on_progress` is called from worker threads, one call at a
    time. When `cancel` is set, or this is interrupted, every compiler is killed with its
    group; after an interruption the exception goes on to the caller.
    """
    stop = cancel or Event()
    recipes = [_recipe(source, toolchain, limit_seconds) for source in sources]
    distinct = {r.key: r for r in recipes if isinstance(r, Recipe)}
    report = _Counted(on_progress, len(distinct))
    with ThreadPoolExecutor(max_workers=jobs(max_jobs), thread_name_prefix="ucutlass-build") as pool:
        futures = {key: pool.submit(_one, recipe, cache, report, stop) for key, recipe in distinct.items()}
        try:
            _wait_for(list(futures.values()))
        except BaseException:
            stop.set()
            raise
    return tuple(futures[r.key].result() if isinstance(r, Recipe) else r for r in recipes)


def _recipe(source: Source, toolchain: Toolchain, limit_seconds: float) -> Recipe | Failure:
    try:
        return nvcc_recipe(source, toolchain, limit_seconds)
    except (ArchUnknown, MachineError) as failure:
        return failure


def _one(recipe: Recipe, cache: Cache, report: Callable[[Progress], None], stop: Event) -> Artifact | Failure:
    if stop.is_set():
        return BuildCancelled(recipe.entry)
    try:
        return make(recipe, cache, on_progress=report, cancel=stop)
    except (BuildError, BuildTimedOut, BuildCancelled, MachineError) as failure:
        report(Progress("failed", recipe.entry, str(failure), done=1))
        return failure


def _wait_for(pending: list[Future[Artifact | Failure]]) -> None:
    """Raises what a worker raised unexpectedly as soon as it does."""
    waiting = set(pending)
    while waiting:
        done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
        for future in done:
            future.result()


class _Counted:
    """Passes events on, one at a time, with how many kernels have ended."""

    def __init__(self, on_progress: OnProgress, total: int) -> None:
        self._on_progress = on_progress
        self._total = total
        self._done = 0
        self._lock = Lock()

    def __call__(self, event: Progress) -> None:
        with self._lock:
            self._done += event.done
            self._on_progress(replace(event, done=self._done, total=self._total))
