"""A session's loop: what is due is done, and written down before anything else is."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from ucutlass.agent.dialogue import WRITERS
from ucutlass.agent.journal import Event, Journal
from ucutlass.agent.outcome import Outcome, Refused, Repeated, outcome_to_json
from ucutlass.agent.proposer import Answer, Proposer, ProposerFailed
from ucutlass.agent.session import (
    Ask,
    End,
    Judge,
    Kind,
    Settings,
    State,
    Written,
    advance,
    ask_to_json,
    due,
    replayed,
    settings_to_json,
)
from ucutlass.agent.spend import NOTHING, Budget, Spend, to_json


@dataclass(frozen=True, slots=True)
class Judged:
    """What a judge says of a program. `spend` has its seconds; the attempt itself is counted here."""

    outcome: Outcome
    spend: Spend = NOTHING


class Bench(Protocol):
    """Where programs are judged."""

    def key(self, text: str) -> str | Refused:
        """What tells candidates apart: the algorithm and the schedule, not the spelling. Refused for what
        is no program of the problem."""

    def judge(self, text: str) -> Judged:
        """Checks, builds, verifies, times and audits. Never raises for what a candidate does."""


class Sink(Protocol):
    """Where events go: a `Journal`, or a list for what need not outlast the process."""

    def append(self, session: str, number: int, kind: str, body: Mapping[str, Any]) -> Event: ...


@dataclass(slots=True)
class Session:
    """A session that is open in this process. Everything it learns is in the journal first."""

    id: str
    journal: Sink
    state: State = field(default_factory=State)

    def write(self, kind: Kind, **body: Any) -> None:
        """Raises a StoreError where the journal cannot take it: then nothing was learnt either."""
        advance(self.state, self.journal.append(self.id, self.state.number, kind, body))


def opened(
    journal: Sink, problem: Mapping[str, Any], settings: Settings, *,
    bound: float, baseline: float | None, id: str | None = None, sol: Mapping[str, Any] | None = None,
) -> Session:
    """A new session. `problem` has at least its `text`; `bound` and `baseline` in seconds; `sol` is what
    `ucutlass.sol.report.row` says of the problem, kept for its report."""
    session = Session(id or uuid.uuid4().hex, journal)
    more = {} if sol is None else {"sol": dict(sol)}
    session.write(
        "opened", problem=dict(problem), settings=settings_to_json(settings), bound=bound,
        baseline=baseline, **more,
    )  # fmt: skip
    return session


def resumed(journal: Journal, id: str, budget: Budget | None = None) -> Session:
    """A session as it was left, with another budget if one is given. Raises NoSuchSession, NotASession."""
    full = journal.full_id(id)
    session = Session(full, journal, replayed(journal.events(full)))
    if budget is not None and budget != session.state.settings.budget:
        session.write("changed", budget=to_json(budget))
    return session


OnEvent: TypeAlias = Callable[[State], None]


def run(session: Session, proposer: Proposer, bench: Bench, on_event: OnEvent = lambda _: None) -> State:
    """Works until the session ends. Raises ProposerFailed and StoreError; resume it then."""
    while step(session, proposer, bench):
        on_event(session.state)
    return session.state


def step(session: Session, proposer: Proposer, bench: Bench) -> bool:
    """Does what is due, once; False where the session has ended. Raises as `run`."""
    match due(session.state):
        case End(why):
            if session.state.ended != why:
                session.write("ended", why=why)
            return False
        case Ask() as ask:
            _ask(session, ask, proposer)
        case Judge() as judge:
            _judge(session, judge, bench)
    return True


def _ask(session: Session, ask: Ask, proposer: Proposer) -> None:
    asked(session, ask)

    def on_spend(spend: Spend) -> None:
        session.write("spent", call=ask.call, spend=to_json(spend))

    try:
        answer = proposer.propose(ask, session.state, on_spend)
    except ProposerFailed as failure:
        session.write("failed", call=ask.call, words=str(failure))
        raise
    tell(session, ask, answer)


def asked(session: Session, ask: Ask) -> None:
    """Writes down that a proposer is asked, wherever it is: what that costs is then somebody's."""
    if not ask.repeated:
        session.write("asked", **ask_to_json(ask))


def tell(session: Session, ask: Ask, answer: Answer) -> None:
    """Takes an answer, wherever it was made. One of a writer that has no program is an attempt that
    failed: else a proposer that only talks would go on for ever."""
    programs = list(answer.programs)[: session.state.settings.keep] if ask.role in WRITERS else []
    if ask.role in WRITERS and not programs and not answer.exhausted:
        programs = [Written("", "the answer held no program")]
    session.write(
        "answered", call=ask.call, note=answer.note, exhausted=answer.exhausted,
        programs=[{"text": p.text, "why": p.why} for p in programs], spend=to_json(answer.spend),
        said=list(answer.said),
    )  # fmt: skip


def _judge(session: Session, judge: Judge, bench: Bench) -> None:
    if not judge.text:
        judged, key = Judged(Refused(judge.why)), f"empty:{judge.call}:{judge.index}"
    else:
        judged, key = _looked_at(session.state, judge, bench)
    told(session, judge, judged, key)


def told(session: Session, judge: Judge, judged: Judged, key: str) -> None:
    """Takes an outcome, wherever it was measured."""
    one = Spend(attempts=0 if judge.call is None else 1)
    session.write(
        "judged", call=judge.call, index=judge.index, key=key,
        outcome=outcome_to_json(judged.outcome), spend=to_json(judged.spend + one),
    )  # fmt: skip


def _looked_at(state: State, judge: Judge, bench: Bench) -> tuple[Judged, str]:
    key = bench.key(judge.text)
    if isinstance(key, Refused):
        return Judged(key), f"refused:{judge.call}:{judge.index}"
    before = state.tree.find(key)
    if before is not None:
        return Judged(Repeated(before.id)), key
    return bench.judge(judge.text), key

