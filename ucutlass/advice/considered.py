"""Why the planner did not choose an edit that its own cost model prices below its choice."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from ucutlass.advice.facts import Facts
from ucutlass.advice.finding import Edit
from ucutlass.hardware import Arch, Device
from ucutlass.plan import GemmProblem
from ucutlass.planner import BY_MODEL, candidates
from ucutlass.schedule import Request
from ucutlass.winners import form_of

NOT_CONSIDERED = "outside of the planner's search"
SCHEDULE_FIXES = "the planner chooses it, or a cheaper one, where the schedule leaves these fields free"


def explained(facts: Facts, edit: Edit) -> Edit:
    """The edit with a note, where the cost model prices it below the plan."""
    if edit.ratio >= 1:
        return edit
    p = facts.planned
    if form_of(edit.request) not in _searched(facts.problem, p.sizes, p.candidate.arch, p.device):
        return replace(edit, note=NOT_CONSIDERED)
    if p.origin not in ("", BY_MODEL):
        return replace(edit, note=f"the planner weighed it and took its choice {p.origin}")
    return replace(edit, note=SCHEDULE_FIXES)


@lru_cache(maxsize=64)
def _searched(problem: GemmProblem, sizes: tuple[int, ...], arch: Arch, device: Device) -> frozenset[Request]:
    """The forms of all kernels that the planner weighs where everything is left to it."""
    return frozenset(form_of(p.request) for p in candidates(problem, sizes, arch, device))
