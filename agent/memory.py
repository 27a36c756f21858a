"""This module keeps what was learnt from finished problems: short conclusions, each from confirmed
measurements.

Nothing is kept but the journal: conclusions are drawn from its sessions whenever they are wanted, and what
was purged is one more event. So a conclusion cannot outlive its evidence, and what the audit rejected is
none (arXiv 2603.29010's inherited gaming).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from ucutlass.agent.journal import Journal
from ucutlass.agent.outcome import TimedOutcome
from ucutlass.agent.session import NotASession, SessionState, replay_events
from ucutlass.agent.tree import CandidateNode

SESSION = "memory"
"""The journal's session that holds what was purged."""

WORTH = 1.02
"""A conclusion is worth remembering where the confirmed time is at least so many times shorter than that of
the problem's own program: less may be two readings of one kernel."""

MOST_LINES = 6
"""Of a difference that is told: more is a program, not a conclusion."""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """`words` are one sentence with its numbers; `session` and `records` are where it comes from."""

    id: str
    problem: str
    lane: str
    words: str
    ratio: float
    session: str
    records: tuple[str, ...]


def conclusions(journal: Journal) -> list[Conclusion]:
    """Returns the conclusions of every session that can be read, the largest gain first, without those that
    were purged. Raises StoreError."""
    purged = {str(event.body["id"]) for event in journal.events(SESSION)}
    result: list[Conclusion] = []
    for session in journal.sessions():
        if session == SESSION:
            continue
        try:
            state = replay_events(journal.events(session))
        except NotASession:
            continue  # what cannot be read says nothing; `ucc optimize --resume` says why
        result += [c for c in (_of(session, state),) if c is not None and c.id not in purged]
    return sorted(result, key=lambda c: -c.ratio)


def conclusion(journal: Journal, id: str) -> Conclusion:
    """Returns the one whose id starts so. Raises LookupError where there is none, or more than one;
    StoreError."""
    matching = [c for c in conclusions(journal) if id and c.id.startswith(id)]
    if len(matching) != 1:
        raise LookupError(f"{len(matching)} conclusions of {journal.path} have an id that starts with {id!r}")
    return matching[0]


def purge(journal: Journal, id: str) -> None:
    """Forgets a conclusion for good: the session stays, but is not drawn from. Raises as `conclusion`."""
    purged = conclusion(journal, id)
    journal.append(SESSION, len(journal.events(SESSION)), "purged", {"id": purged.id})


def conclusions_for(
    candidates: Sequence[Conclusion], compute_type: str, problem: str, most: int = 5
) -> list[Conclusion]:
    """Returns what to tell a proposer of a problem: of its compute type, not of itself, at most so many."""
    return [c for c in candidates if c.lane == compute_type and c.problem != problem][:most]


def _of(session: str, state: SessionState) -> Conclusion | None:
    best, root = state.tree.best(), state.tree.nodes[0] if state.tree.nodes else None
    if best is None or root is None or root.seconds is None or best.seconds is None or best.id == root.id:
        return None
    ratio = root.seconds / best.seconds
    confirmed = isinstance(best.outcome, TimedOutcome) and best.outcome.records
    if not confirmed or ratio < WORTH:
        return None
    assert isinstance(best.outcome, TimedOutcome)
    problem = problem_name(state)
    text = f"{problem}: {ratio:.2f} times as fast as the compiler's own choice with: {_new(root, best)}"
    id = hashlib.sha256(f"{session}:{best.id}".encode()).hexdigest()[:16]
    return Conclusion(
        id, problem, str(state.problem.get("lane", "")), text, ratio, session, best.outcome.records
    )


def problem_name(state: SessionState) -> str:
    """Returns the problem's program and extents."""
    sizes = " ".join(f"{d}={n}" for d, n in state.problem.get("sizes", {}).items())
    return f"{state.problem.get('program', '')} {sizes}".strip()


def _new(root: CandidateNode, best: CandidateNode) -> str:
    """Returns the lines of the best program that the problem's own has not; of a source that it is one."""
    if best.source:
        return "a CUDA source in place of what the compiler emits"
    before = {line.strip() for line in root.text.splitlines()}
    lines = [line.strip() for line in best.text.splitlines() if line.strip() not in before]
    return "; ".join(lines[:MOST_LINES])
