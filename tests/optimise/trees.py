"""Trees for tests, written as rows."""

from __future__ import annotations

from collections.abc import Iterable

from ucutlass.agent.outcome import (
    FailedOutcome,
    Outcome,
    RefusedOutcome,
    RejectedOutcome,
    RepeatedOutcome,
    TimedOutcome,
    WrongOutcome,
)
from ucutlass.agent.tree import CandidateTree

BAD = FailedOutcome("build", "no")
NOT = RefusedOutcome("no")
OFF = WrongOutcome("no")
CAUGHT = RejectedOutcome("gaming", "no")
AGAIN = RepeatedOutcome(0)


def us(value: float) -> TimedOutcome:
    return TimedOutcome(value * 1e-6)


def tree_of(*rows: tuple[int | None, Outcome], spent: Iterable[int] = ()) -> CandidateTree:
    """By row: the parent, and what became of it."""
    candidate_tree = CandidateTree()
    for at, (parent, outcome) in enumerate(rows):
        candidate_tree.add(parent, str(at), str(at), "", outcome)
    candidate_tree.spent.update(spent)
    return candidate_tree
