"""This module has the flat measure-implement search: every attempt goes on from the fastest candidate there
is.

The baseline that other searches must beat (arXiv 2603.29010, its MI).
"""

from __future__ import annotations

import random

from ucutlass.agent.search.selection import Selection, TimeScale, broken, open_nodes
from ucutlass.agent.tree import CandidateTree


def pick(tree: CandidateTree, scale: TimeScale, chance: random.Random) -> Selection | None:
    """Returns the fastest open node; while nothing is right, the last broken one, to be repaired."""
    candidates = open_nodes(tree)
    if not candidates:
        return None
    right = [n for n in candidates if n.seconds is not None]
    if right:
        return Selection(min(right, key=lambda n: n.seconds or 0.0).id)
    return Selection(candidates[-1].id, repair=broken(candidates[-1]))
