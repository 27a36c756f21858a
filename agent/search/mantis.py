"""This module has MANTIS as an order of attempts (arXiv 2603.29010): iterations of hypotheses, each with
attempts.

Five iterations of two hypotheses with four attempts are its forty. A hypothesis starts from the fastest
candidate at the start of its iteration, and its later attempts go on from its own best, or fix its last
where none of its own is right. What a hypothesis is, is its proposer's: analysis, nomination and triage
come before the first attempt of each.
"""

from __future__ import annotations

import random

from ucutlass.agent.search.selection import Selection, TimeScale, broken, usable
from ucutlass.agent.tree import ROOT, CandidateNode, CandidateTree

ITERATIONS, HYPOTHESES, ATTEMPTS = 5, 2, 4


def pick(tree: CandidateTree, scale: TimeScale, chance: random.Random) -> Selection | None:
    """Returns the next attempt's parent; None where no node is left that a proposer has ideas for. Beyond the
    forty attempts iterations go on in the same way: the budget is another's to keep."""
    attempts = len(tree) - 1  # the root is no attempt
    hypothesis = attempts // ATTEMPTS
    start = 1 + hypothesis // HYPOTHESES * HYPOTHESES * ATTEMPTS
    before = [n for n in tree.nodes[:start] if _open(tree, n)]
    mine = [n for n in tree.nodes[1 + hypothesis * ATTEMPTS :] if _open(tree, n)]
    parent = _best(mine) or (mine[-1] if mine else None) or _best(before) or _any(tree)
    return None if parent is None else Selection(parent.id, broken(parent), hypothesis)


def _open(tree: CandidateTree, node: CandidateNode) -> bool:
    return usable(node) and node.id not in tree.spent


def _best(nodes: list[CandidateNode]) -> CandidateNode | None:
    right = [n for n in nodes if n.seconds is not None]
    return min(right, key=lambda n: n.seconds or 0.0, default=None)


def _any(tree: CandidateTree) -> CandidateNode | None:
    candidates = [n for n in tree.nodes if _open(tree, n)]
    return _best(candidates) or (candidates[ROOT] if candidates else None)
