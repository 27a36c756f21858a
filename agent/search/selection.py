"""This module has what a search answers with, and what all searches ask of a tree."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ucutlass.agent.outcome import (
    FailedOutcome,
    RefusedOutcome,
    RejectedOutcome,
    RepeatedOutcome,
    TimedOutcome,
    WrongOutcome,
)
from ucutlass.agent.tree import CandidateNode, CandidateTree


@dataclass(frozen=True, slots=True)
class Selection:
    """Describes a candidate to go on from. `repair`: it is broken, and its next child is to be a minimal
    repair of it instead of an improvement. `hypothesis` numbers the idea that the attempt belongs to, where
    the search works by hypotheses."""

    parent: int
    repair: bool = False
    hypothesis: int | None = None


@dataclass(frozen=True, slots=True)
class TimeScale:
    """Holds the seconds between which results lie: the bound (0: unknown) and the baseline (None:
    unknown)."""

    bound: float = 0.0
    baseline: float | None = None


def broken(node: CandidateNode) -> bool:
    """Returns whether the candidate is no result but may be repaired: what the audit rejects, and what repeats
    another, is no ancestor."""
    match node.outcome:
        case RefusedOutcome() | FailedOutcome() | WrongOutcome():
            return True
        case RejectedOutcome() | RepeatedOutcome() | TimedOutcome():
            return False


def usable(node: CandidateNode) -> bool:
    """Returns whether the node may have children at all."""
    return not isinstance(node.outcome, RejectedOutcome | RepeatedOutcome)


def reward(node: CandidateNode, root_seconds: float | None, scale: TimeScale) -> float:
    """Returns a number between 0, not right or no faster than the root, and 1, at the bound: the logarithm of
    what was gained over the logarithm of what there is to gain, so that a step from 4 to 2 times the bound
    counts as one from 2 to 1. Where no bound is known, a tenfold gain is 1."""
    if node.seconds is None or root_seconds is None:
        return 0.0
    largest_gain = math.log(root_seconds / scale.bound) if 0 < scale.bound < root_seconds else math.log(10.0)
    return min(1.0, max(0.0, math.log(root_seconds / node.seconds) / largest_gain))


def open_nodes(tree: CandidateTree, most_children: int | None = None) -> list[CandidateNode]:
    """Returns the nodes from which a child may still be made: usable, not exhausted, with fewer children than
    the most."""
    return [
        n
        for n in tree.nodes
        if usable(n)
        and n.id not in tree.spent
        and (most_children is None or len(tree.children(n.id)) < most_children)
    ]
