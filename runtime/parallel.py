"""Builds several kernels at once, with as many compilers as cores and memory allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, TypeAlias

from ucutlass.runtime import switches, system
from ucutlass.runtime.build import BUILD_SECONDS, Artifact, Recipe, make, nvcc_recipe
from ucutlass.runtime.cache import Cache, CacheEntry
from ucutlass.runtime.errors import ArchUnknown, BuildCancelled, BuildError, BuildTimedOut, MachineError
from ucutlass.runtime.progress import OnProgress, Progress, ignore
from ucutlass.runtime.toolchain import Toolchain
from ucutlass.runtime.translation_unit import Unit, UnitMember, build_unit, units

if TYPE_CHECKING:
    from ucutlass.emit.text import Source

COMPILER_BYTES = 4 * 2**30
"""Memory that one nvcc may take on a CUTLASS kernel (measured: 3.7 GB for an sm90a GEMM)."""

BuildFailure: TypeAlias = BuildError | BuildTimedOut | BuildCancelled | ArchUnknown | MachineError


UNIT_SHARE = 4
"""Each further kernel of a unit takes this part of the memory of the first (measured: 6.6 GB for four sm90a
GEMMs)."""


CROWD = 1.5
"""Builds that are under way for each core: one waits for files and for parts that others compile, and builds of
unlike length would leave cores idle at the end."""


def jobs(
    requested: int | None = None, group: int = 1, first: int = COMPILER_BYTES, a_core: float = 1.0
) -> int:
    """Returns compilers to run at once, each on `group` kernels, the first of which takes `first` bytes:
    `requested`, else UCUTLASS_BUILD_JOBS, else so many `a_core`, and no more than free memory holds; at least
    1."""
    if limit := requested or switches.read().jobs:
        return limit
    each = first + (group - 1) * first // UNIT_SHARE
    return max(1, min(int(system.cores() * a_core), system.memory_available() // each))


def build_many(
    sources: Sequence[Source],
    toolchain: Toolchain,
    cache: Cache,
    *,
    on_progress: OnProgress = ignore,
    cancel: Event | None = None,
    max_jobs: int | None = None,
    group: int = 1,
    limit_seconds: float = BUILD_SECONDS,
) -> tuple[Artifact | BuildFailure, ...]:
    """Builds the sources by nvcc; `make_many` says how. A source without a recipe has its failure as result."""
    members = [_member(source, toolchain, limit_seconds) for source in sources]
    artifacts = make_many(
        [member for member in members if isinstance(member, UnitMember)],
        cache,
        on_progress=on_progress,
        cancel=cancel,
        max_jobs=max_jobs,
        group=group,
        toolchain=toolchain,
        limit_seconds=limit_seconds,
    )
    results = iter(artifacts)
    return tuple(next(results) if isinstance(member, UnitMember) else member for member in members)


def make_many(
    builds: Sequence[Recipe | UnitMember],
    cache: Cache,
    *,
    on_progress: OnProgress = ignore,
    cancel: Event | None = None,
    max_jobs: int | None = None,
    compiler_bytes: int = COMPILER_BYTES,
    group: int = 1,
    toolchain: Toolchain | None = None,
    limit_seconds: float = BUILD_SECONDS,
) -> tuple[Artifact | BuildFailure, ...]:
    """Makes artifacts, as many at once as the machine takes, and returns one result for each, in their order; a
    failure takes its place and stops no other build. A compiler takes `compiler_bytes` of memory.

    Recipes of one key are made once. With `group` above 1 up to so many members that the cache lacks are
    compiled as one unit by `toolchain` (`ucutlass.runtime.translation_unit`), where there are more builds than
    can run at once: less work in all, later results. A unit that fails is announced, and its members are built
    alone.

    `on_progress` is called from worker threads, one call at a time. When `cancel` is set, or this
    is interrupted, every compiler is killed with its group; after an interruption the exception
    goes on to the caller.
    """
    stop = cancel or Event()
    distinct = {_recipe(build).key: build for build in builds}
    alone = {key: build for key, build in distinct.items() if isinstance(build, Recipe)}
    members = {key: build for key, build in distinct.items() if isinstance(build, UnitMember)}
    report = _ProgressCounter(on_progress, len(distinct))
    most = group if members else 1
    workers = jobs(max_jobs, most, compiler_bytes)
    crowd = jobs(max_jobs, most, compiler_bytes, CROWD)
    results: dict[str, Artifact | BuildFailure] = {}
    with ThreadPoolExecutor(max_workers=crowd, thread_name_prefix="ucutlass-build") as pool:
        futures = [
            *(  # first, since they take the longest
                pool.submit(_unit, unit, toolchain, cache, report, stop, limit_seconds)
                for unit in _units(members, cache, group, workers, len(alone))
            ),
            *(pool.submit(_alone, recipe, cache, report, stop) for recipe in alone.values()),
        ]
        try:
            _wait_for(futures)
        except BaseException:
            stop.set()
            raise
    for future in futures:
        results |= future.result()
    return tuple(results[_recipe(build).key] for build in builds)


def _recipe(build: Recipe | UnitMember) -> Recipe:
    return build if isinstance(build, Recipe) else build.recipe


def _units(
    distinct: Mapping[str, UnitMember], cache: Cache, group: int, workers: int, others: int
) -> tuple[Unit, ...]:
    """Returns the members in units, for workers that build so many `others` besides."""
    if group <= 1:
        return tuple((member,) for member in distinct.values())
    there = {key for key in distinct if isinstance(cache.load(key), CacheEntry)}
    absent = [member for key, member in distinct.items() if key not in there]
    return (*((distinct[key],) for key in distinct if key in there), *units(absent, group, workers, others))


def _unit(
    unit: Unit,
    toolchain: Toolchain | None,
    cache: Cache,
    report: OnProgress,
    stop: Event,
    limit_seconds: float,
) -> Mapping[str, Artifact | BuildFailure]:
    if len(unit) > 1 and toolchain is not None and not stop.is_set():
        try:
            return build_unit(
                unit, toolchain, cache, on_progress=report, cancel=stop, limit_seconds=limit_seconds
            )
        except BuildCancelled:
            pass  # so is each of them, below
        except (BuildError, BuildTimedOut, MachineError) as failure:
            for member in unit:
                report(Progress("alone", member.recipe.entry, f"the unit failed: {failure}"))
    return {m.recipe.key: _build_recipe(m.recipe, cache, report, stop) for m in unit}


def _alone(
    recipe: Recipe, cache: Cache, report: OnProgress, stop: Event
) -> Mapping[str, Artifact | BuildFailure]:
    return {recipe.key: _build_recipe(recipe, cache, report, stop)}


def _member(source: Source, toolchain: Toolchain, limit_seconds: float) -> UnitMember | BuildFailure:
    try:
        return UnitMember(source, nvcc_recipe(source, toolchain, limit_seconds))
    except (ArchUnknown, MachineError) as failure:
        return failure


def _build_recipe(recipe: Recipe, cache: Cache, report: OnProgress, stop: Event) -> Artifact | BuildFailure:
    if stop.is_set():
        return BuildCancelled(recipe.entry)
    try:
        return make(recipe, cache, on_progress=report, cancel=stop)
    except (BuildError, BuildTimedOut, BuildCancelled, MachineError) as failure:
        report(Progress("failed", recipe.entry, str(failure), done=1))
        return failure


def _wait_for(pending: Sequence[Future[Any]]) -> None:
    """Raises what a worker raised unexpectedly as soon as it does."""
    waiting = set(pending)
    while waiting:
        done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
        for future in done:
            future.result()


class _ProgressCounter:
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
