"""This module searches on a machine: builds run beside timing, finalists are measured anew, the fastest that
is right wins.

Everything that touches a machine is behind `KernelEvaluator`, so the same loop runs over recorded tables.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from ucutlass.kernels.planned import Planned
from ucutlass.runtime.statistics import Ratio, paired_ratio, shrinkage, summary
from ucutlass.tune.policy import POLICIES, Name, SearchLimits, best, stop_reason
from ucutlass.tune.space import BinaryGroup, ScheduleSpace

MOST_IN_UNIT = 4
"""Kernels that one compiler takes at once: with more, too many wait for the last."""

FINALISTS = 3
"""Binaries whose best kernels are measured again, besides what the compiler would choose."""


@dataclass(frozen=True, slots=True)
class FailedTrial:
    """Says where a kernel was lost, and why in words."""

    stage: Literal["build", "timing", "verification"]
    words: str


@dataclass(frozen=True, slots=True)
class TimedGroup:
    """Holds the seconds of each member of a group, in its order; None for one that would not run, or was not
    tried since the binary is far from the best."""

    seconds: tuple[float | None, ...]

    @property
    def best(self) -> tuple[int, float]:
        """Returns the fastest member and its seconds. Raises ValueError where none ran."""
        seconds, at = min((s, i) for i, s in enumerate(self.seconds) if s is not None)
        return at, seconds


@dataclass(frozen=True, slots=True)
class ConfirmedKernel:
    """Describes a finalist in a fresh process: right, with its seconds by round; all finalists took turns."""

    rounds: tuple[float, ...]


class KernelEvaluator(Protocol):
    """Builds, times and judges kernels."""

    def build(self, groups: Sequence[BinaryGroup]) -> Sequence[FailedTrial | None]:
        """Makes the groups' binaries by one compiler. Called in threads; ends soon after `cancel`."""

    def time(self, groups: Sequence[BinaryGroup]) -> Sequence[TimedGroup | FailedTrial]:
        """Times every member of groups that are built. A process that is lost with one costs the others
        nothing."""

    def confirm(self, finalists: Sequence[Planned]) -> Sequence[ConfirmedKernel | FailedTrial]:
        """Verifies kernels against the reference and times those that are right, in turns, in a process
        that took no part in the search."""

    def cancel(self) -> None:
        """Ends the builds that are under way."""

    def now(self) -> float:
        """Returns the seconds of a clock that goes forward."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Describes one binary that was looked at: its group's number, and what its members took, or how it was
    lost. `at` is when this was known, in seconds since the start."""

    group: int
    result: FailedTrial | TimedGroup
    at: float

    @property
    def seconds(self) -> float | None:
        """Returns the seconds of the fastest member; None where none ran."""
        return None if isinstance(self.result, FailedTrial) else self.result.best[1]


@dataclass(frozen=True, slots=True)
class FinalistResult:
    """Describes a finalist: its seconds in the search and, where it is right, in the fresh process (the
    median)."""

    kernel: Planned
    search: float
    result: FailedTrial | float


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Holds what came out. `winner` is None where no finalist ran and was right. `shrinkage` is the share of
    the winner's speed in the search that was not confirmed. `gain` is its time over that of the kernel that
    the compiler would choose, in turns; None where it is that one, or that one did not run."""

    trials: tuple[Trial, ...]
    finals: tuple[FinalistResult, ...]
    winner: FinalistResult | None
    shrinkage: float | None
    gain: Ratio | None
    stopped: str
    seconds: float


OnTrial: TypeAlias = Callable[[Trial], None]


def search(
    space: ScheduleSpace,
    evaluator: KernelEvaluator,
    policy: Name,
    limits: SearchLimits,
    *,
    seed: int = 0,
    jobs: int = 1,
    on_trial: OnTrial = lambda _: None,
) -> SearchResult:
    """Runs at most `jobs` compilers at once; what is ready is timed while others build; then confirms.
    Where there is a compiler for each build of the budget all begin at once: a second wave would wait for
    another build, as long as all the rest takes. Else at most half of them begin without knowing of the
    others; where compilers are fewer than that, each takes several kernels as one unit.

    `limits.seconds` bounds the search, not the confirmation. Builds under way when the search ends are
    cancelled and count for nothing.
    """
    start = evaluator.now()
    ahead = limits.builds if jobs >= limits.builds else max(1, -(-limits.builds // 2))
    compilers = max(1, min(jobs, ahead))
    unit = min(MOST_IN_UNIT, -(-ahead // compilers))
    state = _SearchState(space, policy, limits, seed, compilers, unit)
    with ThreadPoolExecutor(max_workers=state.jobs, thread_name_prefix="ucutlass-tune") as pool:
        pending: dict[Future[Sequence[FailedTrial | None]], tuple[int, ...]] = {}
        try:
            while (why := state.stop(evaluator.now() - start)) is None:
                for ats in state.next(tuple(pending.values())):
                    pending[pool.submit(evaluator.build, [space.groups[at] for at in ats])] = ats
                done = wait(pending, _patience(limits, start, evaluator), FIRST_COMPLETED).done
                # In the order of the proposals: as many as are ready share a process for timing.
                ended = [(pending.pop(f), f.result()) for f in list(pending) if f in done]
                ready = [pair for ats, failures in ended for pair in zip(ats, failures, strict=True)]
                for at, result in _timed(space, evaluator, ready):
                    trial = Trial(at, result, evaluator.now() - start)
                    state.add(trial)
                    on_trial(trial)
        finally:
            if pending:
                evaluator.cancel()
    spent = evaluator.now() - start
    finals, rounds = _finals(space, state.trials, evaluator)
    return _judged(space, state.trials, finals, rounds, seed, why, spent)


def _patience(limits: SearchLimits, start: float, evaluator: KernelEvaluator) -> float | None:
    left = limits.seconds - (evaluator.now() - start)
    return max(0.0, left) if left < _LONG else None


_LONG = 1e6
"""Seconds; beyond this a budget is none."""


@dataclass(slots=True)
class _SearchState:
    """Describes what the search knows; `group_times` as policies take it."""

    space: ScheduleSpace
    policy: Name
    limits: SearchLimits
    seed: int
    jobs: int
    unit: int
    trials: list[Trial] = field(default_factory=list)
    group_times: dict[int, float | None] = field(default_factory=dict)

    def add(self, trial: Trial) -> None:
        self.trials.append(trial)
        self.group_times[trial.group] = trial.seconds

    def stop(self, spent: float) -> str | None:
        return stop_reason(self.space, self.group_times, self.limits, spent)

    def next(self, pending: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
        """Yields the units to build beside `pending`; what the compiler would choose comes first."""
        started = {**self.group_times, **dict.fromkeys(itertools.chain.from_iterable(pending))}
        order = POLICIES[self.policy](self.space, started, self.seed)
        first, _ = self.space.start
        if first not in started:
            order = (first, *(at for at in order if at != first))
        order = order[: max(0, self.limits.builds - len(started))]
        for at in range(0, min(len(order), self.unit * (self.jobs - len(pending))), self.unit):
            yield order[at : at + self.unit]


def _timed(
    space: ScheduleSpace, evaluator: KernelEvaluator, ready: Sequence[tuple[int, FailedTrial | None]]
) -> list[tuple[int, FailedTrial | TimedGroup]]:
    """Returns the outcome of each group that was built or was not, those that were not first."""
    lost: list[tuple[int, FailedTrial | TimedGroup]] = [(at, f) for at, f in ready if f is not None]
    built = [at for at, failed in ready if failed is None]
    if not built:
        return lost
    results = evaluator.time([space.groups[at] for at in built])
    return lost + [(at, _ran(result)) for at, result in zip(built, results, strict=True)]


def _ran(result: TimedGroup | FailedTrial) -> TimedGroup | FailedTrial:
    none = isinstance(result, TimedGroup) and set(result.seconds) <= {None}
    return FailedTrial("timing", "none of its launches ran") if none else result


# --- the end ---------------------------------------------------------------------


def _finals(
    space: ScheduleSpace, trials: Sequence[Trial], evaluator: KernelEvaluator
) -> tuple[tuple[FinalistResult, ...], Mapping[int, tuple[float, ...]]]:
    """Returns the finalists, and the rounds of those that are right by their place. Where all of them are
    wrong the next ones are asked, until one is right or none is left."""
    ran = {t.group: t.result for t in trials if isinstance(t.result, TimedGroup)}
    timed = sorted((result.best[1], group, result.best[0]) for group, result in ran.items())
    ahead, behind = timed[:FINALISTS], timed[FINALISTS:]
    group, member = space.start
    if group in ran:
        own = (ran[group].seconds[member] or ran[group].best[1], group, member)
        ahead += [own] if own not in ahead else []
        behind = [t for t in behind if t != own]
    finals: list[FinalistResult] = []
    rounds: dict[int, tuple[float, ...]] = {}
    while ahead and not rounds:
        kernels = [space.groups[group].members[member] for _, group, member in ahead]
        for kernel, (seconds, _, _), result in zip(kernels, ahead, evaluator.confirm(kernels), strict=True):
            if isinstance(result, ConfirmedKernel):
                rounds[len(finals)] = result.rounds
                finals.append(FinalistResult(kernel, seconds, summary(result.rounds).median))
            else:
                finals.append(FinalistResult(kernel, seconds, result))
        ahead, behind = behind[:FINALISTS], behind[FINALISTS:]
    return tuple(finals), rounds


def _judged(
    space: ScheduleSpace,
    trials: Sequence[Trial],
    finals: tuple[FinalistResult, ...],
    rounds: Mapping[int, tuple[float, ...]],
    seed: int,
    why: str,
    spent: float,
) -> SearchResult:
    right = [(f.result, i) for i, f in enumerate(finals) if not isinstance(f.result, FailedTrial)]
    if not right:
        return SearchResult(tuple(trials), finals, None, None, None, why, spent)
    seconds, at = min(right)
    winner = finals[at]
    own = space.groups[space.start[0]].members[space.start[1]].request
    base = next((i for i in rounds if finals[i].kernel.request == own), None)
    gain = None if base is None or base == at else paired_ratio(rounds[at], rounds[base], seed)
    if base is not None and gain is not None and gain.median > 1:
        # Turn by turn the compiler's own choice is the faster one: medians of all turns drift with the clock.
        seconds, winner, gain = summary(rounds[base]).median, finals[base], None
    return SearchResult(tuple(trials), finals, winner, shrinkage(winner.search, seconds), gain, why, spent)


def best_so_far(trials: Sequence[Trial]) -> float | None:
    """Returns the seconds of the fastest kernel so far."""
    fastest = best({t.group: t.seconds for t in trials})
    return None if fastest is None else fastest[1]
