"""This module lists what a journal holds: a line for each session."""

from __future__ import annotations

from dataclasses import dataclass

from ucutlass.agent import memory
from ucutlass.agent.budget import NOTHING, Spend
from ucutlass.agent.journal import RUN_PREFIX, Journal, JournalDamaged, JournalEvent
from ucutlass.agent.outcome import TimedOutcome
from ucutlass.agent.session import NotASession, replay_events


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """Describes a session's line. `begun` and `last` are times in UTC, ISO 8601; `state` is why it ended,
    "open" where it did not, or why it cannot be read. `own` and `best` are seconds a call of the problem's
    own program and of the fastest candidate, None where there is none; `gain` is the baseline's time over the
    best one's, None where it was not confirmed. `candidates` counts all that were judged."""

    id: str
    problem: str
    lane: str
    proposer: str
    state: str
    begun: str
    last: str
    candidates: int = 0
    own: float | None = None
    best: float | None = None
    gain: float | None = None
    bound: float | None = None
    spend: Spend = NOTHING


def sessions(journal: Journal) -> list[SessionSummary]:
    """Returns a summary of every session, in the order in which they began; one that cannot be read says why.
    Raises StoreError where the file itself cannot be used."""
    others = (memory.SESSION, RUN_PREFIX)
    return [_summary(journal, id) for id in journal.sessions() if not id.startswith(others)]


def _summary(journal: Journal, id: str) -> SessionSummary:
    try:
        events = journal.events(id)
    except JournalDamaged as damage:
        return SessionSummary(id, "", "", "", f"cannot be read: {damage}", "", "")
    try:
        return _of(id, events)
    except NotASession as problem:
        return SessionSummary(id, "", "", "", f"cannot be read: {problem}", events[0].at, events[-1].at)


def _of(id: str, events: list[JournalEvent]) -> SessionSummary:
    state = replay_events(events)
    best = state.tree.best()
    confirmed = best.outcome.gain if best is not None and isinstance(best.outcome, TimedOutcome) else None
    return SessionSummary(
        id,
        memory.problem_name(state),
        str(state.problem.get("lane", "")),
        state.settings.proposer,
        "open" if state.ended is None else state.ended,
        events[0].at,
        events[-1].at,
        len(state.tree),
        state.tree[0].seconds if len(state.tree) else None,
        None if best is None else best.seconds,
        confirmed,
        state.scale.bound or None,
        state.spend,
    )
