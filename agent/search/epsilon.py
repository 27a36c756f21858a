"""This module has the epsilon-greedy search with STARK's four adaptations (arXiv 2510.16996).

Root throttling: the root has few children. Dead-branch pruning: a node whose children all failed is
closed. A high epsilon. Leaf-biased exploration: by chance an open leaf, not any node. Its published
numbers are epsilon 0.3 to 0.4, three children a node and, from secondary sources, five of the root.
"""

from __future__ import annotations

import random

from ucutlass.agent.search.selection import Selection, TimeScale, broken, open_nodes
from ucutlass.agent.tree import ROOT, CandidateNode, CandidateTree

EPSILON = 0.35
ROOT_CHILDREN = 5
CHILDREN = 3


def pick(tree: CandidateTree, scale: TimeScale, chance: random.Random) -> Selection | None:
    """Returns the fastest open node, or with probability EPSILON an open leaf. Where throttling and pruning
    close every node, the fastest that is not exhausted: the budget decides when to stop, not the caps."""
    candidates = [n for n in open_nodes(tree) if _open(tree, n)] or open_nodes(tree)
    if not candidates:
        return None
    leaves = [n for n in candidates if not tree.children(n.id)]
    right = [n for n in candidates if n.seconds is not None]
    if leaves and (not right or chance.random() < EPSILON):
        chosen = chance.choice(leaves)
    else:
        chosen = min(right or candidates, key=lambda n: n.seconds or 0.0)
    return Selection(chosen.id, repair=broken(chosen))


def _open(tree: CandidateTree, node: CandidateNode) -> bool:
    """Returns whether neither throttling nor pruning closes it. A node may have more than CHILDREN where one
    of them is right: pruning is for branches that are dead."""
    children = tree.children(node.id)
    if node.id == ROOT:
        return len(children) < ROOT_CHILDREN
    return len(children) < CHILDREN or any(c.seconds is not None for c in children)
