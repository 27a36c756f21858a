"""This module has a session's loop: what is due is done, and written down before anything else is."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol, TypeAlias

from ucutlass.agent.budget import NOTHING, Budget, Spend, exhausted, to_json
from ucutlass.agent.dialogue import WRITERS
from ucutlass.agent.journal import Journal, JournalEvent
from ucutlass.agent.outcome import Outcome, RefusedOutcome, RepeatedOutcome, outcome_to_json, words
from ucutlass.agent.proposer import Answer, Measure, OnSpend, Proposer, ProposerFailed
from ucutlass.agent.session import (
    Ask,
    Confirm,
    End,
    Judge,
    Kind,
    Opinion,
    ProposedProgram,
    Review,
    SessionSettings,
    SessionState,
    advance,
    ask_to_json,
    due,
    replay_events,
    settings_to_json,
)
from ucutlass.agent.step_time import StepClock, StepTime, step_time_to_json, timed_step
from ucutlass.agent.tree import CandidateNode
from ucutlass.spans import span


@dataclass(frozen=True, slots=True)
class CandidateJudgement:
    """Holds what a judge says of a program. `spend` has its seconds; the attempt itself is counted here.
    `messages` are words of the machine, for people, each said once. `provisional`: a time is a reading, which
    is to be confirmed if it would lead. `incomplete`: it was confirmed, but not compared with every baseline.
    `behind`: it was not confirmed, since in turns with the fastest it is slower."""

    outcome: Outcome
    spend: Spend = NOTHING
    messages: tuple[str, ...] = ()
    provisional: bool = False
    incomplete: bool = False
    behind: bool = False


class CandidateEvaluator(Protocol):
    """Judges programs."""

    def key(self, text: str, source: str = "") -> str | RefusedOutcome:
        """Returns what tells candidates apart: the algorithm and the schedule, not the spelling; of a `source`
        that stands for the program its code too. Refused for what is no program of the problem."""

    def judge(self, text: str, source: str = "") -> CandidateJudgement:
        """Checks, builds, verifies and times. Never raises for what a candidate does."""

    def confirm(self, due: Confirm) -> CandidateJudgement:
        """Verifies by the whole suite, times by the protocol and audits what `judge` called provisional. Never
        raises for what a candidate does."""


class LeaderReviewer(Protocol):
    """Gives opinions of leaders, which decide nothing. Never raises for what a service or a model does."""

    def look(self, node: CandidateNode, state: SessionState, on_spend: OnSpend) -> Opinion: ...


class EventSink(Protocol):
    """Takes events: a `Journal`, or a list for what need not outlast the process."""

    def append(self, session: str, number: int, kind: str, body: Mapping[str, Any]) -> JournalEvent: ...


@dataclass(slots=True)
class OptimizationSession:
    """Is a session that is open in this process. Everything it learns is in the journal first. `voice` gives
    opinions of leaders, where the settings name a judge."""

    id: str
    journal: EventSink
    state: SessionState = field(default_factory=SessionState)
    voice: LeaderReviewer | None = None

    def write(self, kind: Kind, **body: Any) -> None:
        """Raises a StoreError where the journal cannot take it: then nothing was learnt either."""
        advance(self.state, self.journal.append(self.id, self.state.number, kind, body))


def open_journal_session(
    journal: EventSink,
    problem: Mapping[str, Any],
    settings: SessionSettings,
    *,
    bound: float,
    baseline: float | None,
    id: str | None = None,
    sol: Mapping[str, Any] | None = None,
    time: StepTime | None = None,
) -> OptimizationSession:
    """Opens a new session. `problem` has at least its `text`; `bound` and `baseline` in seconds; `sol` is
    what `ucutlass.sol.report.row` says of the problem, kept for its report; `time` is what reading the problem
    took."""
    session = OptimizationSession(id or uuid.uuid4().hex, journal)
    more = {} if sol is None else {"sol": dict(sol)}
    if time is not None:
        more |= {"spend": to_json(_timed(NOTHING, time)), **_time_body(time)}
    session.write(
        "opened",
        problem=dict(problem),
        settings=settings_to_json(settings),
        bound=bound,
        baseline=baseline,
        **more,
    )
    return session


def resume_session(journal: Journal, id: str, budget: Budget | None = None) -> OptimizationSession:
    """Returns a session as it was left, with another budget if one is given. Raises NoSuchSession,
    NotASession."""
    full = journal.full_id(id)
    session = OptimizationSession(full, journal, replay_events(journal.events(full, to_go_on=True)))
    if budget is not None and budget != session.state.settings.budget:
        session.write("changed", budget=to_json(budget))
    return session


OnEvent: TypeAlias = Callable[[SessionState], None]


def run(
    session: OptimizationSession,
    proposer: Proposer,
    bench: CandidateEvaluator,
    on_event: OnEvent = lambda _: None,
) -> SessionState:
    """Works until the session ends. Raises ProposerFailed and StoreError; resume it then."""
    while step(session, proposer, bench):
        on_event(session.state)
    return session.state


def step(session: OptimizationSession, proposer: Proposer, bench: CandidateEvaluator) -> bool:
    """Does what is due, once; False where the session has ended. Raises as `run`."""
    with timed_step() as clock:
        match due(session.state):
            case End(why):
                if session.state.ended != why:
                    session.write("ended", why=why)
                return False
            case Ask() as ask:
                _ask(session, ask, proposer, clock)
            case Judge() as judge:
                _judge(session, judge, bench, clock)
            case Confirm() as confirm:
                _confirm(session, confirm, bench, clock)
            case Review(node):
                _review(session, node, clock)
    return True


def _timed(spend: Spend, time: StepTime | None) -> Spend:
    """Returns a step's spend with its seconds: those by the clock of this process, or what an evaluator in
    another place says that it took, where that is more."""
    return spend if time is None else replace(spend, seconds=max(spend.seconds, time.working))


def _time_body(time: StepTime | None) -> dict[str, Any]:
    return {} if time is None else {"time": step_time_to_json(time)}


def _ask(session: OptimizationSession, ask: Ask, proposer: Proposer, clock: StepClock) -> None:
    record_ask(session, ask)

    def on_spend(spend: Spend) -> None:
        session.write("spent", call=ask.call, spend=to_json(spend))

    try:
        with span("proposer"):
            answer = proposer.propose(ask, session.state, on_spend)
    except ProposerFailed as failure:
        session.write("failed", call=ask.call, words=str(failure), **_time_body(clock.time()))
        raise
    record_answer(session, ask, answer, clock.time())


def record_ask(session: OptimizationSession, ask: Ask) -> None:
    """Writes down that a proposer is asked, wherever it is: what that costs is then somebody's."""
    if not ask.repeated:
        session.write("asked", **ask_to_json(ask))


def record_answer(
    session: OptimizationSession, ask: Ask, answer: Answer, time: StepTime | None = None
) -> None:
    """Takes an answer, wherever it was made, and what it took here. One of a writer that has no program is an attempt that
    failed: else a proposer that only talks would go on for ever."""
    programs = list(answer.programs)[: session.state.settings.keep] if ask.role in WRITERS else []
    if ask.role in WRITERS and not programs and not answer.exhausted:
        programs = [ProposedProgram("", "the answer held no program")]
    session.write(
        "answered",
        call=ask.call,
        note=answer.note,
        exhausted=answer.exhausted,
        programs=[
            {"text": p.text, "why": p.why, **({"source": p.source} if p.source else {})} for p in programs
        ],
        spend=to_json(_timed(answer.spend, time)),
        said=list(answer.messages),
        **_time_body(time),
    )


def _judge(session: OptimizationSession, judge: Judge, bench: CandidateEvaluator, clock: StepClock) -> None:
    if not judge.text:
        judged, key = CandidateJudgement(RefusedOutcome(judge.why)), f"empty:{judge.call}:{judge.index}"
    else:
        name = f"{judge.call}:{judge.index}"
        judged, key = _judge_program(session.state, judge.text, judge.source, name, bench)
    record_judgement(session, judge, judged, key, clock.time())


def _confirm(
    session: OptimizationSession, confirm: Confirm, bench: CandidateEvaluator, clock: StepClock
) -> None:
    confirmed = bench.confirm(confirm)
    time = clock.time()
    session.write(
        "confirmed",
        node=confirm.node,
        outcome=outcome_to_json(confirmed.outcome),
        spend=to_json(_timed(confirmed.spend, time)),
        said=list(confirmed.messages),
        incomplete=confirmed.incomplete,
        behind=confirmed.behind,
        **_time_body(time),
    )


def _review(session: OptimizationSession, node: int, clock: StepClock) -> None:
    def on_spend(spend: Spend) -> None:
        session.write("spent", node=node, spend=to_json(spend))

    if session.voice is None:
        heard = Opinion(node, session.state.settings.judge, fault="there was nobody here to ask")
    else:
        with span("proposer"):
            heard = session.voice.look(session.state.tree[node], session.state, on_spend)
    session.write("opinion", opinion=asdict(heard), **_time_body(clock.time()))


def record_judgement(
    session: OptimizationSession,
    judge: Judge,
    judged: CandidateJudgement,
    key: str,
    time: StepTime | None = None,
) -> None:
    """Takes an outcome, wherever it was measured, and what that took here."""
    again = judged.outcome.of if isinstance(judged.outcome, RepeatedOutcome) else None
    # What a call had measured it may answer with: that attempt was counted.
    paid = judge.call is None or again in session.state.measured
    attempt_spend = Spend(attempts=0 if paid else 1)
    session.write(
        "judged",
        call=judge.call,
        index=judge.index,
        key=key,
        outcome=outcome_to_json(judged.outcome),
        spend=to_json(_timed(judged.spend, time) + attempt_spend),
        said=list(judged.messages),
        provisional=judged.provisional,
        **_time_body(time),
    )


def _judge_program(
    state: SessionState, text: str, source: str, name: str, bench: CandidateEvaluator
) -> tuple[CandidateJudgement, str]:
    """Returns what becomes of a program, and its key; `name` tells one that has none apart."""
    key = bench.key(text, source)
    if isinstance(key, RefusedOutcome):
        return CandidateJudgement(key), f"refused:{name}"
    before = state.tree.find(key)
    if before is not None:
        return CandidateJudgement(RepeatedOutcome(before.id)), key
    return bench.judge(text, source), key


def measurer(session: OptimizationSession, bench: CandidateEvaluator) -> Measure:
    """Returns what a proposer may call while it is asked: it judges a program as any other, writes it down
    and says what became of it. It is an attempt; where the budget is spent, nothing is measured."""

    def measure(text: str) -> str:
        state, ask = session.state, session.state.open_ask
        if ask is None:
            raise RuntimeError("a program can be measured only while a proposer is asked")
        over = exhausted(state.settings.budget, state.spend)
        if over is not None:
            return f"not measured: {over}; give your answer"
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        with timed_step() as clock:
            judged, key = _judge_program(state, text, "", f"{ask.call}:{digest}", bench)
        time = clock.time()
        before = state.tree.find(key)
        if before is not None and before.id in state.measured:
            # This call had it measured, perhaps before a death: it is no other attempt.
            return _outcome_line(before)
        session.write(
            "measured",
            call=ask.call,
            text=text,
            why="measured while it was asked",
            key=key,
            outcome=outcome_to_json(judged.outcome),
            spend=to_json(_timed(judged.spend, time) + Spend(attempts=1)),
            said=list(judged.messages),
            provisional=judged.provisional,
            **_time_body(time),
        )
        return _outcome_line(state.tree[len(state.tree) - 1])

    return measure


def _outcome_line(node: CandidateNode) -> str:
    return f"candidate {node.id}: {words(node.outcome)}"
