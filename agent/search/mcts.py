"""This module has the Monte Carlo tree search as KernelPro adapts it (arXiv 2606.26453): progressive
widening, asymmetric branching, log-scaled reward, dead-end pruning.

The paper's constants could not be found; these are this project's, chosen on half of a recording's tables
(docs/agent.md has the numbers of the other half).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from ucutlass.agent.search.selection import Selection, TimeScale, broken, open_nodes, reward, usable
from ucutlass.agent.tree import ROOT, CandidateNode, CandidateTree

EXPLORE = 0.1
"""Weight of exploration in UCT (Kocsis and Szepesvari, 2006), for rewards between 0 and 1."""

WIDTH, POWER = 1.0, 0.1
"""Progressive widening (Coulom, 2007): a node of v visits has at most WIDTH * v ** POWER children."""

FAVOUR = 1.5
"""Asymmetric branching: how many times as many children a node may have that improved on its parent."""

DEAD = 3
"""Children, none of them right, after which a node is a dead end."""


@dataclass(slots=True)
class _Count:
    visits: int = 0
    best: float = 0.0


def pick(tree: CandidateTree, scale: TimeScale, chance: random.Random) -> Selection | None:
    """Walks down by UCT and stops at the first node that may be widened. Of equals by chance. Where dead
    ends close every node, the fastest that is not exhausted: the budget decides when to stop, not the caps."""
    if not tree.nodes:
        return None
    first = tree[ROOT].seconds or max((n.seconds or 0.0 for n in tree.nodes), default=0.0) or None
    counts = _counts(tree, first, scale)
    closed = _closed(tree)
    if ROOT in closed:
        return _any(tree)
    at = ROOT
    while True:
        node = tree[at]
        children = [c for c in tree.children(at) if c.id not in closed]
        may_widen = at not in tree.spent and not _dead(tree, node)
        if may_widen and (not children or len(tree.children(at)) < _most(tree, node, counts)):
            return Selection(at, repair=broken(node))
        if not children:
            return Selection(at, repair=broken(node)) if at not in tree.spent else None
        total = math.log(max(1, counts[at].visits))
        at = max(children, key=lambda c: (_worth(counts[c.id], total), chance.random())).id


def _any(tree: CandidateTree) -> Selection | None:
    candidates = open_nodes(tree)
    if not candidates:
        return None
    chosen = min(candidates, key=lambda n: math.inf if n.seconds is None else n.seconds)
    return Selection(chosen.id, repair=broken(chosen))


def _worth(count: _Count, log_total: float) -> float:
    return count.best + EXPLORE * math.sqrt(log_total / max(1, count.visits))


def _counts(tree: CandidateTree, root_seconds: float | None, scale: TimeScale) -> list[_Count]:
    """Returns for each node how many candidates lie in its part of the tree, and the best reward among them:
    the best of a branch is what is kept of it, so the mean would blame it for its failures."""
    counts = [_Count() for _ in tree.nodes]
    for node in reversed(tree.nodes):  # children come after their parents
        mine = counts[node.id]
        mine.visits += 1
        mine.best = max(mine.best, reward(node, root_seconds, scale))
        if node.parent is not None:
            above = counts[node.parent]
            above.visits += mine.visits
            above.best = max(above.best, mine.best)
    return counts


def _most(tree: CandidateTree, node: CandidateNode, counts: list[_Count]) -> float:
    most = WIDTH * math.pow(counts[node.id].visits, POWER)
    return most * FAVOUR if _improved(tree, node) else most


def _improved(tree: CandidateTree, node: CandidateNode) -> bool:
    above = None if node.parent is None else tree[node.parent].seconds
    return node.seconds is not None and (above is None or node.seconds < above)


def _dead(tree: CandidateTree, node: CandidateNode) -> bool:
    """Never the root: before the first success nothing is a dead end for good."""
    children = tree.children(node.id)
    return node.id != ROOT and len(children) >= DEAD and all(c.seconds is None for c in children)


def _closed(tree: CandidateTree) -> set[int]:
    """Returns the nodes below which nothing can be widened any more."""
    closed: set[int] = set()
    for node in reversed(tree.nodes):
        below = [c.id for c in tree.children(node.id)]
        itself = node.id in tree.spent or not usable(node) or _dead(tree, node)
        if itself and all(c in closed for c in below):
            closed.add(node.id)
    return closed
