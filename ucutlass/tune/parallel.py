"""This module tunes many kernels at once on one engine: a thread a search, several searches a GPU, so that
one builds while another is timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

from ucutlass.diagnostics import ProgramError
from ucutlass.engine.work import LIMIT_SECONDS, WAIT_SECONDS, Engine
from ucutlass.runtime.errors import MachineError
from ucutlass.runtime.switches import BuildPath
from ucutlass.tune.build_cache import BuildCache
from ucutlass.tune.evaluator import EngineEvaluator
from ucutlass.tune.job import TuningJob, TuningSettings
from ucutlass.tune.tune import SearchResult, search

IN_FLIGHT = 3
"""Searches a GPU."""


@dataclass(frozen=True, slots=True)
class FinishedSearch:
    """Describes a search that came to its end, with a winner or not; `evaluator` knows what was built for
    it."""

    tuned: SearchResult
    evaluator: EngineEvaluator


Ended: TypeAlias = FinishedSearch | ProgramError | MachineError


def tune_many(
    jobs: Sequence[TuningJob],
    engine: Engine,
    settings: TuningSettings,
    *,
    limit: float = LIMIT_SECONDS,
    wait: float = WAIT_SECONDS,
    build_path: BuildPath | None = None,
    on_done: Callable[[int, Ended], None] = lambda _, __: None,
) -> tuple[Ended, ...]:
    """Returns one result a job, in their order; a search that fails gives its error and stops no other.

    As many run at once as the engine's GPUs take; its compilers are shared among them, and
    `settings.limits` are of each. `on_done` hears of each job that ended, by its number, in threads. Any
    other exception is raised once all have ended. Keeps no record.
    """
    together = max(1, min(len(jobs), IN_FLIGHT * engine.gpus))
    compilers = max(1, engine.cpus // together)
    build_cache = BuildCache()

    def run_job(number: int) -> Ended:
        ended = _search_job(jobs[number], engine, settings, build_cache, compilers, limit, wait, build_path)
        on_done(number, ended)
        return ended

    with ThreadPoolExecutor(together, thread_name_prefix="ucutlass-search") as pool:
        return tuple(pool.map(run_job, range(len(jobs))))


def _search_job(
    job: TuningJob,
    engine: Engine,
    settings: TuningSettings,
    build_cache: BuildCache,
    compilers: int,
    limit: float,
    wait: float,
    build_path: BuildPath | None,
) -> Ended:
    arch, seed = job.first.plan.arch, settings.seed
    evaluator = EngineEvaluator(
        job.checked,
        job.program,
        job.sizes,
        arch,
        seed,
        limit,
        wait,
        engine=engine,
        build_path=build_path,
        build_cache=build_cache,
    )
    try:
        evaluator.prepare()
        tuned = search(job.space, evaluator, settings.policy, settings.limits, seed=seed, jobs=compilers)
    except (ProgramError, MachineError) as problem:
        return problem
    finally:
        evaluator.close()
    return FinishedSearch(tuned, evaluator)
