"""Trees for tests, written as rows."""

from __future__ import annotations

from collections.abc import Iterable

from ucutlass.agent.outcome import Failed, Outcome, Refused, Rejected, Repeated, Timed, Wrong
from ucutlass.agent.tree import Tree

BAD = Failed("build", "no")
NOT = Refused("no")
OFF = Wrong("no")
CAUGHT = Rejected("gaming", "no")
AGAIN = Repeated(0)


def us(value: float) -> Timed:
    return Timed(value * 1e-6)


def tree_of(*rows: tuple[int | None, Outcome], spent: Iterable[int] = ()) -> Tree:
    """By row: the parent, and what became of it."""
    made = Tree()
    for at, (parent, outcome) in enumerate(rows):
        made.add(parent, str(at), str(at), "", outcome)
    made.spent.update(spent)
    return made
