"""This module tunes and records one kernel at one set of extents: what `ucc tune` and `ucutlass.tune` share.

The evidence record of a search is kept first, then the tuning database's row that names it: what dies
between leaves a record more, never a row without one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ucutlass import frontend, ir
from ucutlass.ir.hardware import Device
from ucutlass.ir.schedule import show
from ucutlass.kernels.planned import Planned
from ucutlass.runtime import parallel
from ucutlass.runtime.evidence import Machine, Record
from ucutlass.runtime.store import EvidenceStore, record
from ucutlass.shapes import complete
from ucutlass.tasks.record_subject import subject_of_built
from ucutlass.tune.database import TunedRow, TuningDatabase, key_of
from ucutlass.tune.fixed import WithheldFields, fixed_by
from ucutlass.tune.policy import Name, SearchLimits
from ucutlass.tune.space import ScheduleSpace, explore
from ucutlass.tune.tune import (
    FailedTrial,
    FinalistResult,
    KernelEvaluator,
    OnTrial,
    SearchResult,
    Trial,
    search,
)

if TYPE_CHECKING:
    from ucutlass.backend import Built


class JobEvaluator(KernelEvaluator, Protocol):
    """Is an evaluator that can say what it used: `machine` are the fields of the confirming process's
    `evidence.Machine`."""

    machine: dict[str, Any]

    def prepare(self) -> None:
        """Starts what takes a while to start, and does not wait for it."""

    def close(self) -> None:
        """Gives the GPU free. Nothing is built, timed or confirmed afterwards."""

    def built(self, kernel: Planned) -> Built:
        """Returns a kernel of the search as it lies on disk."""


@dataclass(frozen=True, slots=True)
class TuningSettings:
    """Describes how to search. `limits.seconds` bounds the search, over all shapes of a set. `free` looks at
    every legal schedule, not only at what the program denotes."""

    limits: SearchLimits = SearchLimits()  # noqa: RUF009
    policy: Name = "guided"
    seed: int = 0
    free: bool = False


@dataclass(frozen=True, slots=True)
class TuningJob:
    """Describes one kernel at one set of extents; `sizes` has the free dimensions by name, `device` the facts
    of the GPU, None where the table lacks it. `fixed` is what the program's schedule withholds, None where that
    is nothing."""

    checked: frontend.Checked
    program: ir.Kernel
    sizes: Mapping[str, int]
    device: Device | None
    space: ScheduleSpace
    fixed: WithheldFields | None = None

    @property
    def first(self) -> Planned:
        return self.space.groups[0].members[0]


@dataclass(frozen=True, slots=True)
class TuningOutcome:
    """`record` is the evidence's id and `best` what the tuning database holds afterwards, which may be an
    older row that is faster; None where nothing won."""

    job: TuningJob
    tuned: SearchResult
    record: str | None = None
    best: TunedRow | None = None

    @property
    def gain(self) -> float | None:
        """Returns the winner's speed over that of the kernel that the compiler would choose; 1 where it is
        that one, None where one of them did not run."""
        winner, (group, member) = self.tuned.winner, self.job.space.start
        if winner is None:
            return None
        if self.tuned.gain is not None:
            return 1 / self.tuned.gain.median
        own = self.job.space.groups[group].members[member]
        return 1.0 if winner.kernel.request == own.request else None


def job_of(
    checked: frontend.Checked,
    program: ir.Kernel,
    sizes: Mapping[str, int],
    arch: str,
    device: Device | None = None,
    free: bool = False,
) -> TuningJob:
    """`sizes` has the free dimensions by name. Raises ShapeError, ProgramError."""
    extents = complete(program, sizes)
    space = explore(checked, program, extents, arch, device, free)
    fixed = None if free else fixed_by(checked, program, extents, arch, device, space)
    return TuningJob(checked, program, sizes, device, space, fixed)


def prepare() -> None:
    """Makes the evidence store and the tuning database ready. Raises StoreError: whoever tunes for
    minutes wants to know before."""
    EvidenceStore.open().prepare()
    TuningDatabase.open().prepare()


def tune(
    job: TuningJob,
    evaluator: JobEvaluator,
    settings: TuningSettings,
    limits: SearchLimits | None = None,
    on_trial: OnTrial = lambda _: None,
) -> TuningOutcome:
    """Searches, confirms, and keeps the winner as a record and in the tuning database. `limits` in place
    of those of the settings. Raises StoreError, and what `KernelEvaluator` raises."""
    evaluator.prepare()
    tuned = search(
        job.space,
        evaluator,
        settings.policy,
        limits or settings.limits,
        seed=settings.seed,
        jobs=parallel.jobs(),
        on_trial=on_trial,
    )
    if tuned.winner is None:
        return TuningOutcome(job, tuned)
    tune_record = _record(job, evaluator, tuned, settings)
    winner = tuned.winner.kernel
    versions = dict(evaluator.built(winner).artifact.versions)
    versions |= {n: v for n, v in tune_record.machine.versions.items() if n == "ucutlass"}
    assert isinstance(tuned.winner.result, float)
    row = TunedRow(
        winner.request,
        tuned.winner.result * 1e6,
        job.space.bound * 1e6,
        versions,
        tune_record.id,
        tune_record.created,
    )
    key = key_of(job.program, winner.sizes, tune_record.machine.device, winner.plan.arch)
    # The record before the row that names it.
    record_id = EvidenceStore.open().add(tune_record)
    return TuningOutcome(job, tuned, record_id, TuningDatabase.open().keep(key, row))


def _record(job: TuningJob, evaluator: JobEvaluator, tuned: SearchResult, settings: TuningSettings) -> Record:
    """Returns the record of a search, with its winner as the subject."""
    assert tuned.winner is not None
    subject = subject_of_built(job.checked, job.program, evaluator.built(tuned.winner.kernel))
    protocol = {
        "clock": "events over graphs, rotated buffers",
        "final": "a fresh process, in turns, verified",
        "policy": settings.policy,
        "seed": settings.seed,
        "free": settings.free,
        "builds": settings.limits.builds,
    }
    result = describe(TuningOutcome(job, tuned), settings)
    return record("tune", subject, Machine(**evaluator.machine), protocol, json.loads(json.dumps(result)))


# --- as JSON values --------------------------------------------------------------


def describe(outcome: TuningOutcome, settings: TuningSettings) -> dict[str, Any]:
    """Returns a search as JSON values; times in microseconds."""
    job, tuned = outcome.job, outcome.tuned
    first, winner = job.first, tuned.winner
    row: dict[str, Any] = {
        "kernel": job.program.name,
        "sizes": dict(zip(job.program.dims, first.sizes, strict=True)),
        "arch": first.plan.arch,
        "device": first.device.name,
        "kernels": job.space.kernels,
        "binaries": len(job.space.groups),
        "fixed": None if job.fixed is None else asdict(job.fixed) | {"words": job.fixed.words},
        "bound": job.space.bound * 1e6,
        "ok": winner is not None,
        "schedule": None if winner is None else show(winner.kernel.request),
        "microseconds": None if winner is None else _micro(winner.result),
        "shrinkage": tuned.shrinkage,
        "gain": None if tuned.gain is None else asdict(tuned.gain),
        "stopped": tuned.stopped,
        "seconds": tuned.seconds,
        "trials": [_trial(job.space, t) for t in tuned.trials],
        "finals": [_final(f) for f in tuned.finals],
        "policy": settings.policy,
        "seed": settings.seed,
        "free": settings.free,
    }
    if outcome.record is not None:
        row["record"] = outcome.record
    if outcome.best is not None and outcome.best.record != outcome.record:
        best = outcome.best
        row["faster"] = {
            "schedule": show(best.request),
            "microseconds": best.microseconds,
            "record": best.record,
        }
    return row


def _trial(space: ScheduleSpace, trial: Trial) -> dict[str, Any]:
    group = space.groups[trial.group]
    row: dict[str, Any] = {"estimate": group.estimate * 1e6, "at": trial.at}
    if isinstance(trial.result, FailedTrial):
        return row | {"schedule": show(group.request), "lost": asdict(trial.result)}
    member, seconds = trial.result.best
    kernel = group.members[member]
    return row | {"schedule": show(kernel.request), "microseconds": seconds * 1e6}


def _final(final: FinalistResult) -> dict[str, Any]:
    row: dict[str, Any] = {"schedule": show(final.kernel.request), "search": final.search * 1e6}
    if isinstance(final.result, FailedTrial):
        return row | {"lost": asdict(final.result)}
    return row | {"microseconds": _micro(final.result)}


def _micro(seconds: float | FailedTrial) -> float | None:
    return None if isinstance(seconds, FailedTrial) else seconds * 1e6
