"""Flat measure-implement: every attempt goes on from the fastest candidate there is.

The baseline that other searches must beat (arXiv 2603.29010, its MI).
"""

from __future__ import annotations

import random

from ucutlass.agent.search.selection import Pick, Scale, broken, open_nodes
from ucutlass.agent.tree import Tree


def pick(tree: Tree, scale: Scale, chance: random.Random) -> Pick | None:
    """The fastest open node; while nothing is right, the last broken one, to be mended."""
    found = open_nodes(tree)
    if not found:
        return None
    right = [n for n in found if n.seconds is not None]
    if right:
        return Pick(min(right, key=lambda n: n.seconds or 0.0).id)
    return Pick(found[-1].id, mend=broken(found[-1]))
