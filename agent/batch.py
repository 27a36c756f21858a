"""This module runs many problems as one batch: each has a session. The first program of each is judged and confirmed
before anything is improved; from then on the next attempt goes where it promises most.

A run is written down like a session: its own events say which problem became which session and which could
not be used, so a run that was killed anywhere goes on as it would have. What a session learns stands in its
own events.

    run      the problems' names, in order, and whatever the caller wants to find again (`about`)
    member   a problem's session, written before that is opened
    unusable a problem that cannot be one, with its code and words
    stuck    a session that cannot go on, with words
    changed  another `about`, such as other budgets
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import Any, TypeAlias

from ucutlass.agent.budget import NOTHING, Budget, Spend, exhausted, spend_of_json
from ucutlass.agent.budget import to_json as spend_to_json
from ucutlass.agent.integrity.precision import UnknownComputeType
from ucutlass.agent.journal import RUN_PREFIX, Journal, JournalEvent, NoSuchSession
from ucutlass.agent.outcome import TimedOutcome
from ucutlass.agent.priority import CONFIRMING, expected_gain, urgency
from ucutlass.agent.problem import OptimizationProblem, StartProgramMismatch
from ucutlass.agent.proposer import Proposer
from ucutlass.agent.run import CandidateEvaluator, OptimizationSession, step
from ucutlass.agent.session import SessionState, replay_events
from ucutlass.agent.step_time import StepTime, timed_step
from ucutlass.diagnostics import ProgramError
from ucutlass.runtime.module.signature import Unusable
from ucutlass.runtime.statistics import geomean
from ucutlass.shapes import ShapeError
from ucutlass.sol.bounds import TimeBounds
from ucutlass.spans import span


class NoStart(Exception):
    """Raised where a proposer that writes no first program is asked about a problem that has none."""


class NotABatchRun(Exception):
    """Raised where a journal's events are those of no run."""


@dataclass(slots=True)
class BatchMember:
    """Describes a problem of a run: its session, or why there is none (`code`, `words`), and what that took;
    `stuck` says why a session does not go on."""

    name: str
    session: OptimizationSession | None = None
    code: str = ""
    words: str = ""
    stuck: str = ""
    spend: Spend = NOTHING


@dataclass(slots=True)
class BatchRun:
    """Describes a run that is open in this process. `members` has those that were looked at, in order."""

    id: str
    journal: Journal
    names: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    members: dict[str, BatchMember] = field(default_factory=dict)
    number: int = 0

    def write(self, kind: str, **body: Any) -> None:
        """Raises a StoreError where the journal cannot take it."""
        self.take(self.journal.append(self.id, self.number, kind, body))

    def take(self, event: JournalEvent) -> None:
        """Raises KeyError, ValueError for an event of no run."""
        body = event.body
        self.number += 1
        match event.kind:
            case "run":
                self.names, self.about = tuple(body["names"]), body["about"]
            case "member":
                session = OptimizationSession(body["session"], self.journal)
                self.members[body["name"]] = BatchMember(body["name"], session)
            case "unusable":
                spend = spend_of_json(body.get("spend", {}))
                self.members[body["name"]] = BatchMember(
                    body["name"], None, body["code"], body["words"], spend=spend
                )
            case "changed":
                self.about = body["about"]
            case "stuck":
                self.members[body["name"]].stuck = body["words"]
            case other:
                raise ValueError(f"no event of a run is of kind {other!r}")

    @property
    def sessions(self) -> list[OptimizationSession]:
        return [m.session for m in self.members.values() if m.session is not None]

    @property
    def spend(self) -> Spend:
        unusable = (m.spend for m in self.members.values())
        return reduce(add, (*unusable, *(s.state.spend for s in self.sessions)), NOTHING)


def open_batch(journal: Journal, names: Sequence[str], about: Mapping[str, Any]) -> BatchRun:
    """Returns a new run; nothing is looked at yet. Raises StoreError."""
    run = BatchRun(f"{RUN_PREFIX}{uuid.uuid4().hex}", journal)
    run.write("run", names=list(names), about=dict(about))
    return run


def resume_batch(journal: Journal, id: str, *, to_go_on: bool = True) -> BatchRun:
    """Returns a run as it was left, with its sessions; `to_go_on` as `Journal.events` takes it, for whoever
    writes. Raises NoSuchSession, NotABatchRun, NotASession, StoreError."""
    full = journal.full_id(id)
    run = BatchRun(full, journal)
    try:
        for event in journal.events(full, to_go_on=to_go_on):
            run.take(event)
    except (KeyError, TypeError, ValueError) as problem:
        raise NotABatchRun(f"{full[:16]} is no run: {problem!r}"[:300]) from problem
    if not run.number:
        raise NoSuchSession(f"run {full[:16]} has no events")
    for session in run.sessions:
        session.state = replay_events(journal.events(session.id, to_go_on=to_go_on))
    return run


# --- opening ---------------------------------------------------------------------

ProblemOf: TypeAlias = Callable[[str], OptimizationProblem]
"""The problem of a name. Raises Unusable, NoStart, StartProgramMismatch, ProgramError, ShapeError, UnknownComputeType."""

Open: TypeAlias = Callable[[OptimizationProblem, str, StepTime, TimeBounds | None], OptimizationSession]
"""Opens a problem's session under an id; the time is what reading the problem took, the bounds are of its program."""


@dataclass(frozen=True, slots=True)
class Opening:
    """Describes how problems become members; `on_member` is told of each. `bounds_of` gives the bounds of a problem's
    first program where they are known, which takes seconds for a network."""

    problem_of: ProblemOf
    open: Open
    on_member: Callable[[BatchMember], None] = lambda _: None
    bounds_of: Callable[[OptimizationProblem], TimeBounds | None] = lambda _: None


_ReadProblem: TypeAlias = tuple[OptimizationProblem | Exception, StepTime, TimeBounds | None]
"""A problem, or what is wrong with it, what reading it took, and the bounds of its program."""


def _read(name: str, opening: Opening) -> _ReadProblem:
    with timed_step() as clock:
        try:
            problem = opening.problem_of(name)
            with span("problem"):
                bounds = opening.bounds_of(problem)
            return problem, clock.time(), bounds
        except (
            Unusable,
            NoStart,
            StartProgramMismatch,
            ProgramError,
            ShapeError,
            UnknownComputeType,
        ) as wrong:
            return wrong, clock.time(), None


def _enter(run: BatchRun, name: str, opening: Opening, reading: _ReadProblem) -> BatchMember:
    problem, read_time, bounds = reading
    if isinstance(problem, Exception):
        spend = spend_to_json(Spend(seconds=read_time.working))
        run.write("unusable", name=name, code=_code(problem), words=str(problem)[:1000], spend=spend)
    else:
        if name not in run.members:
            run.write("member", name=name, session=uuid.uuid4().hex)
        session = run.members[name].session
        assert session is not None
        run.members[name].session = opening.open(problem, session.id, read_time, bounds)
    opening.on_member(run.members[name])
    return run.members[name]


def _code(wrong: Exception) -> str:
    match wrong:
        case Unusable():
            return wrong.code
        case ShapeError():
            return wrong.code
        case ProgramError():
            return wrong.diagnostics[0].code
        case NoStart():
            return "no-start"
        case StartProgramMismatch():
            return "unbound"
        case _:
            return "lane"


# --- working ---------------------------------------------------------------------

Place: TypeAlias = tuple[Proposer, CandidateEvaluator]


def work(
    run: BatchRun,
    opening: Opening,
    place_of: Callable[[OptimizationSession], Place],
    budget: Budget,
    on_event: Callable[[str, SessionState], None],
    *,
    at_once: int = 1,
    now: Callable[[], float] = time.monotonic,
) -> str:
    """Opens the problems and works on their sessions until all have ended or the run's budget is spent; says
    which. At most `at_once` problems are worked on at the same time. A
    step that has begun ends. The budget's seconds are those of this call, by `now`. Raises ProposerFailed,
    StoreError and MachineError; resume it then."""
    under_way = _StepsUnderWay(run, opening, place_of, on_event)
    start, stopped = now(), None
    with ThreadPoolExecutor(at_once, thread_name_prefix="ucutlass-problem") as pool:
        while True:
            stopped = stopped or exhausted(budget, replace(run.spend, seconds=now() - start))
            left = None if budget.attempts is None else budget.attempts - run.spend.attempts
            while stopped is None and len(under_way.busy) < (at_once if left is None else min(at_once, left)):
                if not under_way.begin(pool, at_once):
                    break
            if not under_way.busy:
                return (
                    "every problem's session has ended" if stopped is None else f"of the whole run, {stopped}"
                )
            under_way.end()


@dataclass(slots=True)
class _StepsUnderWay:
    """Holds what is under way of a run: `busy` has the problem of each step that has begun."""

    run: BatchRun
    opening: Opening
    place_of: Callable[[OptimizationSession], Place]
    on_event: Callable[[str, SessionState], None]
    places: dict[str, Place] = field(default_factory=dict)
    busy: dict[Future[_ReadProblem | Exception | None], str] = field(default_factory=dict)

    def begin(self, pool: Executor, at_once: int) -> bool:
        """Begins the next step of a problem that is not busy. Returns whether there is one."""
        run, names = self.run, set(self.busy.values())
        member = _next([m for m in run.members.values() if m.name not in names])
        unopened = next((n for n in run.names if n not in names and not _is_open(run.members.get(n))), None)
        awaiting = sum(_awaits_verdict(run.members.get(n), n in names) for n in run.names)
        if unopened is not None and awaiting < at_once and not _is_to_be_confirmed(member):
            self.busy[pool.submit(_read, unopened, self.opening)] = unopened
            return True
        if member is None:
            return False
        self.busy[pool.submit(self._step, member)] = member.name
        return True

    def _step(self, member: BatchMember) -> Exception | None:
        """Returns what is wrong with a problem that cannot go on."""
        assert member.session is not None
        try:
            if member.name not in self.places:
                self.places[member.name] = self.place_of(member.session)
            step(member.session, *self.places[member.name])
        except (ProgramError, ShapeError) as wrong:
            # The problem's own mistake, such as a start program that no kernel of a proposer's serves.
            return wrong
        return None

    def end(self) -> None:
        """Waits until a step has ended and takes what came of it. Raises what the step raised."""
        ended, _ = wait(self.busy, return_when=FIRST_COMPLETED)
        for future in ended:
            name = self.busy.pop(future)
            result = future.result()
            if isinstance(result, tuple):
                _enter(self.run, name, self.opening, result)
                continue
            if result is not None:
                self.run.write("stuck", name=name, words=str(result)[:1000])
            session = self.run.members[name].session
            assert session is not None
            self.on_event(name, session.state)


def _is_open(member: BatchMember | None) -> bool:
    return member is not None and (member.session is None or member.session.state.number > 0)


def _awaits_verdict(member: BatchMember | None, busy: bool) -> bool:
    """Returns whether a problem is open or being read, and its first program was not judged."""
    if member is None or not _is_open(member):
        return busy
    if member.session is None or member.stuck or member.session.state.ended is not None:
        return False
    return not len(member.session.state.tree)


def _is_to_be_confirmed(member: BatchMember | None) -> bool:
    return member is not None and member.session is not None and urgency(member.session.state) == CONFIRMING


def _next(members: Sequence[BatchMember]) -> BatchMember | None:
    """Returns the member whose session is to go on: the most urgent, and of equally urgent ones that with the
    largest expected gain; of equals the first."""
    open_ = [
        (m, m.session.state)
        for m in members
        if m.session is not None and _is_open(m) and not m.stuck and m.session.state.ended is None
    ]
    best = max(open_, key=lambda pair: (urgency(pair[1]), expected_gain(pair[1])), default=None)
    return None if best is None else best[0]


# --- what there is ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """Describes how far a run is: its `problems`, those that were `opened` or could not be used, those of which a
    candidate is right and has a time (`timed`), those with a `confirmed` one, and the geometric mean of what
    these gain over the baseline, None without any."""

    problems: int
    opened: int
    timed: int
    confirmed: int
    gain: float | None
    spend: Spend

    def __str__(self) -> str:
        mean = "" if self.gain is None else f", {self.gain:.3f} of the baseline's speed in the mean"
        return (
            f"{self.opened} of {self.problems} problems opened, {self.timed} right with a time, "
            f"{self.confirmed} confirmed{mean}; {self.spend.attempts} attempts, {self.spend.seconds:.0f} s"
        )


def batch_progress(run: BatchRun) -> BatchProgress:
    """Returns how far a run is."""
    bests = [best for s in run.sessions if (best := s.state.tree.best()) is not None]
    outcomes = [n.outcome for n in bests if isinstance(n.outcome, TimedOutcome)]
    gains = [o.gain for o in outcomes if o.records and o.gain is not None]
    return BatchProgress(
        len(run.names),
        sum(_is_open(m) for m in run.members.values()),
        len(outcomes),
        sum(bool(o.records) for o in outcomes),
        geomean(gains) if gains else None,
        run.spend,
    )
