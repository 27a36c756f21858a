"""This package searches over one tree of candidates: it says which of them to go on from.

A search is a pure function of the tree, of its settings and of a random generator that the session seeds
by the number of the attempt, so that a session that was killed goes on as it would have. It says nothing
of how a candidate is made: that is a proposer's.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, Protocol, TypeAlias

from ucutlass.agent.search import epsilon, flat, mantis, mcts
from ucutlass.agent.search.selection import Selection, TimeScale
from ucutlass.agent.tree import CandidateTree

Name: TypeAlias = Literal["flat", "epsilon", "mcts", "mantis"]


class Search(Protocol):
    """`pick` gives the node to go on from, or None where nothing is left to try."""

    def __call__(self, tree: CandidateTree, scale: TimeScale, chance: random.Random) -> Selection | None: ...


@dataclass(frozen=True, slots=True)
class SearchEntry:
    """`says` is one line for the command line's help; `source` is where it is from."""

    search: Search
    says: str
    source: str


SEARCHES: Mapping[Name, SearchEntry] = MappingProxyType(
    {
        "flat": SearchEntry(flat.pick, "always from the fastest", "arXiv 2603.29010, MI"),
        "epsilon": SearchEntry(epsilon.pick, "the fastest, or by chance any open leaf", "arXiv 2510.16996"),
        "mcts": SearchEntry(mcts.pick, "Monte Carlo tree search with widening", "arXiv 2606.26453"),
        "mantis": SearchEntry(
            mantis.pick, "rounds of hypotheses, each with attempts of its own", "arXiv 2603.29010, MANTIS"
        ),
    }
)

__all__ = ["SEARCHES", "Name", "Search", "SearchEntry", "Selection", "TimeScale"]
