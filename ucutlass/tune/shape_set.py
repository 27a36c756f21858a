"""This module tunes a set of shapes: each by itself, then few schedules for all of them.

Binaries are built once: a plan holds no extents, so another shape's build is found in the cache. After
the searches every winner is also timed at the other shapes where its binary serves, without a build,
since few of the kernels that searches look at are the same. What a shape is then given in place of its
own winner is verified there and timed beside it in turns, in a fresh process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from ucutlass import frontend
from ucutlass.ir.hardware import ARCHES
from ucutlass.ir.schedule import PartialSchedule, show
from ucutlass.kernels.families import plan_pattern
from ucutlass.kernels.planned import Plan, Planned
from ucutlass.runtime.statistics import summary
from ucutlass.tune.dispatch import KEEP, DispatchEntry, ShapeTimes, cover_shapes, geomean
from ucutlass.tune.job import JobEvaluator, TuningJob, TuningOutcome, TuningSettings, describe, tune
from ucutlass.tune.shapes_file import WeightedShape
from ucutlass.tune.space import BinaryGroup, ScheduleSpace
from ucutlass.tune.tune import ConfirmedKernel, FailedTrial, OnTrial, TimedGroup

EvaluatorFactory: TypeAlias = Callable[[TuningJob], JobEvaluator]
"""Returns the evaluator of a job, which the caller closes."""


@dataclass(frozen=True, slots=True)
class ScheduleShapes:
    """Describes a schedule and the shapes that take it: each one's number, and the share of its winner's
    speed that it keeps (above 1 where it is faster)."""

    request: PartialSchedule
    shapes: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class TunedShape:
    """Describes one shape of a set: `row` as `job.describe` gives it, `gain` as of the outcome. `kernel` is
    what it is dispatched to, None where it has no winner or the limit of schedules left it out."""

    shape: WeightedShape
    row: Mapping[str, Any]
    gain: float | None
    kernel: Planned | None = None


@dataclass(frozen=True, slots=True)
class TunedSet:
    """`gain` is the weighted geometric mean of the winners' speed over that of what the compiler would
    choose, over the shapes where both ran; None where there are none."""

    shapes: tuple[TunedShape, ...]
    gain: float | None
    dispatch: tuple[ScheduleShapes, ...]

    @property
    def ok(self) -> bool:
        """Returns whether every shape has a winner."""
        return all(shape.row["ok"] for shape in self.shapes)


@dataclass(frozen=True, slots=True)
class _ShapeMeasurements:
    """Describes what was measured at one shape; `at` is its number, `job` has the first group of its space
    only: hundreds of whole spaces would not fit in memory. `confirmed_shares` are shares of the winner's
    speed that turns in a fresh process gave, 0 for what is wrong."""

    at: int
    job: TuningJob
    winner: Planned
    weight: float
    seconds: dict[PartialSchedule, float] = field(default_factory=dict)
    kernels: dict[PartialSchedule, Planned] = field(default_factory=dict)
    confirmed_shares: dict[PartialSchedule, float] = field(default_factory=dict)

    def add(self, group: BinaryGroup, result: TimedGroup | FailedTrial) -> None:
        if isinstance(result, TimedGroup):
            for member, took in zip(group.members, result.seconds, strict=True):
                if took is not None:
                    self.seconds[member.request], self.kernels[member.request] = took, member


def tune_set(
    shapes: Sequence[WeightedShape],
    job_of: Callable[[Mapping[str, int]], TuningJob],
    evaluator_of: EvaluatorFactory,
    settings: TuningSettings,
    *,
    most: int | None = None,
    on_job: Callable[[int, TuningJob], OnTrial],
) -> TunedSet:
    """Tunes every shape and finds the dispatch table of at most `most` schedules. The settings' builds are
    of each shape, their seconds of all: each shape may take an equal part of them, and of what those
    before it left over. A build that runs beyond a part takes nothing from the shapes behind.
    `on_job` hears of each job with its number before it is tuned, and says who hears of its trials.

    Raises what `job_of` and `tune` raise; what was tuned before stays recorded.
    """
    benches: list[_ShapeMeasurements] = []
    tuned_shapes: list[TunedShape] = []
    left = total = settings.limits.seconds
    for at, shape in enumerate(shapes):
        job = job_of(shape.sizes)
        part = max(left / (len(shapes) - at), total / len(shapes))
        limits = replace(settings.limits, seconds=part)
        with closing(evaluator_of(job)) as evaluator:
            outcome = tune(job, evaluator, settings, limits, on_job(at, job))
        left -= outcome.tuned.seconds
        tuned_shapes.append(TunedShape(shape, describe(outcome, settings), outcome.gain))
        if outcome.tuned.winner is not None:
            benches.append(_bench(at, outcome, shape.weight))
    _time_across_shapes(benches, evaluator_of)
    entries = _confirmed(benches, evaluator_of, most)
    for entry in entries:
        for bench in (benches[i] for i in entry.shapes):
            tuned_shapes[bench.at] = replace(tuned_shapes[bench.at], kernel=bench.kernels[entry.request])
    gain = geomean(
        (tuned_shape.gain, tuned_shape.shape.weight)
        for tuned_shape in tuned_shapes
        if tuned_shape.gain is not None
    )
    return TunedSet(tuple(tuned_shapes), gain, tuple(_dispatched(benches, e) for e in entries))


def _dispatched(benches: Sequence[_ShapeMeasurements], entry: DispatchEntry) -> ScheduleShapes:
    taking = [benches[i] for i in entry.shapes]
    return ScheduleShapes(entry.request, tuple((b.at, b.confirmed_shares[entry.request]) for b in taking))


def _bench(at: int, outcome: TuningOutcome, weight: float) -> _ShapeMeasurements:
    space, tuned = outcome.job.space, outcome.tuned
    assert tuned.winner is not None and isinstance(tuned.winner.result, float)
    job = replace(outcome.job, space=ScheduleSpace(space.groups[:1]))
    bench = _ShapeMeasurements(at, job, tuned.winner.kernel, weight)
    for trial in tuned.trials:
        bench.add(space.groups[trial.group], trial.result)
    for final in tuned.finals:
        took = final.result
        bench.confirmed_shares[final.kernel.request] = (
            0.0 if isinstance(took, FailedTrial) else tuned.winner.result / took
        )
    return bench


# --- at each other's shapes ------------------------------------------------------


def _time_across_shapes(benches: Sequence[_ShapeMeasurements], evaluator_of: EvaluatorFactory) -> None:
    """Times each winner at the other shapes, where it is legal and its binary is one of those built."""
    built = {kernel.plan for bench in benches for kernel in bench.kernels.values()}
    winners = dict.fromkeys(bench.winner.request for bench in benches)
    for bench in benches:
        legal_kernels = _planned(bench.job, [r for r in winners if r not in bench.seconds])
        if groups := _groups([kernel for kernel in legal_kernels if kernel.plan in built]):
            # An evaluator of its own: the search's may have been cancelled.
            with closing(evaluator_of(bench.job)) as evaluator:
                failures = evaluator.build(groups)
                ready = [group for group, failed in zip(groups, failures, strict=True) if failed is None]
                for group, result in zip(ready, evaluator.time(ready) if ready else [], strict=True):
                    bench.add(group, result)


def _planned(job: TuningJob, requests: Iterable[PartialSchedule]) -> list[Planned]:
    """Returns the schedules that are legal at a job's extents."""
    first = job.first
    what, arch = frontend.pattern(job.checked, job.program), ARCHES[first.plan.arch]
    plans = (plan_pattern(what, first.sizes, arch, first.device, r) for r in requests)
    return [plan for plan in plans if not isinstance(plan, tuple)]


def _groups(kernels: Iterable[Planned]) -> list[BinaryGroup]:
    groups: dict[Plan, list[Planned]] = {}
    for kernel in kernels:
        groups.setdefault(kernel.plan, []).append(kernel)
    return [BinaryGroup(plan, tuple(members)) for plan, members in groups.items()]


# --- the dispatch table ----------------------------------------------------------


def _confirmed(
    benches: Sequence[_ShapeMeasurements], evaluator_of: EvaluatorFactory, most: int | None
) -> tuple[DispatchEntry, ...]:
    """Returns a table in which every shape's schedule was verified there and, in turns with its winner, kept
    its speed. One that did not is ruled out for that shape, and the table is made anew: each turn settles at
    least one pair, so it ends."""
    shapes = [ShapeTimes(b.winner.request, b.seconds, b.weight) for b in benches]
    while True:
        banned = {
            (i, r) for i, b in enumerate(benches) for r, share in b.confirmed_shares.items() if share < KEEP
        }
        entries = cover_shapes(shapes, banned, most)
        pairs = [(benches[i], entry.request) for entry in entries for i in entry.shapes]
        unsure = [(bench, request) for bench, request in pairs if request not in bench.confirmed_shares]
        if not unsure:
            return entries
        for bench, request in unsure:
            with closing(evaluator_of(bench.job)) as evaluator:
                bench.confirmed_shares[request] = _in_turns(evaluator, bench.winner, bench.kernels[request])


def _in_turns(evaluator: JobEvaluator, winner: Planned, kernel: Planned) -> float:
    """Returns the share of the winner's speed that a kernel keeps; 0 where one of the two is wrong or does
    not run."""
    if any(failed is not None for failed in evaluator.build(_groups([winner, kernel]))):
        return 0.0
    own, other = evaluator.confirm([winner, kernel])
    if not (isinstance(own, ConfirmedKernel) and isinstance(other, ConfirmedKernel)):
        return 0.0
    return summary(own.rounds).median / summary(other.rounds).median


def to_json(done: TunedSet) -> dict[str, Any]:
    """Returns what `ucc tune -s shapes.csv --json` prints: of each shape what one search gives, with its
    `weight`, `speedup`, the number of its schedule in `dispatch` and the share of the winner's speed that it
    `keeps`."""
    place = {at: (n, share) for n, d in enumerate(done.dispatch) for at, share in d.shapes}
    rows: list[dict[str, Any]] = []
    for at, shape in enumerate(done.shapes):
        number, share = place.get(at, (None, None))
        more = {"weight": shape.shape.weight, "speedup": shape.gain, "dispatch": number, "keeps": share}
        rows.append({**shape.row, **more})
    return {
        "kernel": rows[0]["kernel"],
        "arch": rows[0]["arch"],
        "device": rows[0]["device"],
        "ok": done.ok,
        "gain": done.gain,
        "shapes": rows,
        "dispatch": [
            {"schedule": show(d.request), "shapes": [at for at, _ in d.shapes]} for d in done.dispatch
        ],
    }
