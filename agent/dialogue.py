"""This module has the dialogues: which calls to a proposer make one attempt of a candidate.

A search says where to go on from; a dialogue says in which steps. All steps but the last answer with a
note, which the next one reads; the last answers with programs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

from ucutlass.agent.search.mantis import ATTEMPTS, HYPOTHESES
from ucutlass.agent.search.selection import Selection

Role: TypeAlias = Literal[
    "implement", "phases", "plan", "code", "debug", "analyse", "nominate", "triage", "summarise"
]

WRITERS: frozenset[Role] = frozenset({"implement", "phases", "code", "debug"})
"""Roles that answer with programs."""

Name: TypeAlias = Literal["single", "in-prompt", "stark", "mantis"]

Steps: TypeAlias = Callable[[Selection, int], tuple[Role, ...]]
"""The roles of an attempt, by what it goes on from and how many attempts were made before."""


def single(pick: Selection, attempts: int) -> tuple[Role, ...]:
    """Returns the roles of a single call."""
    return ("implement",)


def in_prompt(pick: Selection, attempts: int) -> tuple[Role, ...]:
    """Returns the roles of one call that is told to go through MANTIS's phases by itself: what a strong model
    does best (arXiv 2603.29010)."""
    return ("phases",)


def stark(pick: Selection, attempts: int) -> tuple[Role, ...]:
    """Returns a plan with anchored edits, then code that carries it out; a broken candidate is debugged."""
    return ("debug",) if pick.repair else ("plan", "code")


def mantis(pick: Selection, attempts: int) -> tuple[Role, ...]:
    """Returns the phases before the first attempt of an iteration, and a summary before those of each later
    one."""
    if attempts % (ATTEMPTS * HYPOTHESES) == 0:
        opening: tuple[Role, ...] = ("analyse", "nominate", "triage", "implement")
        return opening if attempts == 0 else ("summarise", *opening)
    return ("implement",)


DIALOGUES: Mapping[Name, Steps] = MappingProxyType(
    {"single": single, "in-prompt": in_prompt, "stark": stark, "mantis": mantis}
)
