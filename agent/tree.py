"""This module has the tree of candidates of one problem: who was made from whom, and what became of each.

Node 0 is the problem's own program as the compiler schedules it. Nodes are numbered in the order in which
they were judged, so a tree is the same whenever it is built again from its journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from ucutlass.agent.outcome import Outcome, TimedOutcome

ROOT = 0

Objective: TypeAlias = Literal["time", "energy-tie"]
"""What the best candidate is: the fastest, or among those that are as fast the one with the least energy."""

TIED = 1.02
"""Times that differ by more are no tie, however wide their intervals."""


@dataclass(frozen=True, slots=True)
class CandidateNode:
    """`parent` is None for the root. `text` is the candidate's program, `key` what it is told apart by,
    `why` its proposer's reason in one line. `source` is a CUDA file that stands for the program with its plan,
    "" where the candidate is what the program is emitted as."""

    id: int
    parent: int | None
    key: str
    text: str
    why: str
    outcome: Outcome
    source: str = ""

    @property
    def seconds(self) -> float | None:
        """Returns None for what is no result."""
        return self.outcome.seconds if isinstance(self.outcome, TimedOutcome) else None


@dataclass(slots=True)
class CandidateTree:
    """Holds the nodes, which are only added. `spent` are nodes from which the proposer had nothing left to
    propose, `provisional` those whose time is a search's reading that was not confirmed; `objective` says which
    is the best."""

    nodes: list[CandidateNode] = field(default_factory=list)
    spent: set[int] = field(default_factory=set)
    provisional: set[int] = field(default_factory=set)
    objective: Objective = "time"
    _children: dict[int, list[int]] = field(default_factory=dict)
    _by_key: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, at: int) -> CandidateNode:
        return self.nodes[at]

    def add(
        self, parent: int | None, key: str, text: str, why: str, outcome: Outcome, source: str = ""
    ) -> CandidateNode:
        """Raises ValueError for a parent that is not there."""
        if (parent is None) != (not self.nodes) or (parent or 0) > len(self.nodes):
            raise ValueError(f"node {len(self.nodes)} cannot stand below {parent}")
        node = CandidateNode(len(self.nodes), parent, key, text, why, outcome, source)
        self.nodes.append(node)
        self._by_key.setdefault(key, node.id)
        if parent is not None:
            self._children.setdefault(parent, []).append(node.id)
        return node

    def confirm(self, at: int, outcome: Outcome) -> None:
        """Takes what a confirmation says of a node in the place of its reading."""
        self.nodes[at] = replace(self.nodes[at], outcome=outcome)
        self.provisional.discard(at)

    def children(self, at: int) -> list[CandidateNode]:
        return [self.nodes[child] for child in self._children.get(at, ())]

    def siblings(self, at: int) -> list[CandidateNode]:
        parent = self.nodes[at].parent
        return [] if parent is None else [n for n in self.children(parent) if n.id != at]

    def find(self, key: str) -> CandidateNode | None:
        """Returns the first node of this key."""
        at = self._by_key.get(key)
        return None if at is None else self.nodes[at]

    def fastest(self) -> CandidateNode | None:
        """Returns the fastest result; None where nothing is right yet. Of equals the earliest."""
        timed = [n for n in self.nodes if n.seconds is not None]
        return min(timed, key=_seconds, default=None)

    def best(self) -> CandidateNode | None:
        """Returns the fastest result, or by the objective the one with the least energy of those that are as
        fast. What is provisional counts only where nothing else is right."""
        firm = [n for n in self.nodes if n.seconds is not None and n.id not in self.provisional]
        return leading(min(firm, key=_seconds, default=self.fastest()), self.nodes, self.objective)

    def leaders(self, count: int) -> list[CandidateNode]:
        """Returns the fastest results, best first."""
        return sorted((n for n in self.nodes if n.seconds is not None), key=_seconds)[:count]

    def changed(self, before: Sequence[Outcome]) -> list[CandidateNode]:
        """Returns the nodes that are new, or have another outcome than `before`."""
        return [n for n in self.nodes if n.id >= len(before) or n.outcome != before[n.id]]

    def stands_for(self, at: int) -> int:
        """Returns the candidate whose program, as it is emitted, a source stands for; a program is its own."""
        here = self.nodes[at]
        while here.source and here.parent is not None:
            here = self.nodes[here.parent]
        return here.id

    def path(self, at: int) -> list[CandidateNode]:
        """Returns the nodes from the root to the node."""
        nodes: list[CandidateNode] = []
        here: int | None = at
        while here is not None:
            nodes.append(self.nodes[here])
            here = self.nodes[here].parent
        return nodes[::-1]

    def best_so_far(self) -> list[float | None]:
        """Returns seconds of the fastest result among the first nodes, by their count."""
        result: list[float | None] = []
        least: float | None = None
        for node in self.nodes:
            if node.seconds is not None and (least is None or node.seconds < least):
                least = node.seconds
            result.append(least)
        return result


def _seconds(node: CandidateNode) -> float:
    assert node.seconds is not None
    return node.seconds


def leading(
    fastest: CandidateNode | None, nodes: Sequence[CandidateNode], objective: Objective
) -> CandidateNode | None:
    """Returns the best, given the fastest: itself, or of the candidates that are tied with it the one with
    the least energy, where the objective is that."""
    if objective == "time" or fastest is None:
        return fastest
    tied_ = [n for n in nodes if n.id == fastest.id or tied(n, fastest)]
    metered = [n for n in tied_ if isinstance(n.outcome, TimedOutcome) and n.outcome.joules is not None]
    return min(metered, key=_joules, default=fastest)


def tied(node: CandidateNode, fastest: CandidateNode) -> bool:
    """Returns whether two confirmed candidates are equally fast: the intervals of their gains over the
    baseline have a point in common, and their times are at most TIED apart."""
    match node.outcome, fastest.outcome:
        case TimedOutcome(low=float(), high=float(high)) as first, TimedOutcome(low=float(low)) as other:
            return high >= low and first.seconds <= TIED * other.seconds
        case _:
            return False


def _joules(node: CandidateNode) -> float:
    assert isinstance(node.outcome, TimedOutcome) and node.outcome.joules is not None
    return node.outcome.joules
