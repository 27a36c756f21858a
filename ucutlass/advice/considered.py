"""Why the planner did not choose an edit that its own cost model prices below its choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ucutlass.advice.facts import KernelFacts
from ucutlass.advice.finding import ScheduleEdit
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels.families import candidates

NOT_CONSIDERED = "outside of the planner's search"
SCHEDULE_FIXES = "the planner chooses it, or a cheaper one, where the schedule leaves these fields free"

_PRICED = ("warps", "tile", "cluster", "split_k", "swap", "math", "warp_tile", "rows", "columns", "threads")


def explained(facts: KernelFacts, edits: Sequence[ScheduleEdit]) -> tuple[ScheduleEdit, ...]:
    """Returns the edits, with a note where a cost model that tells schedules apart prices one below the plan."""
    if not facts.prices or all(edit.ratio >= 1 for edit in edits):
        return tuple(edits)
    searched = _searched(facts)
    return tuple(
        edit
        if edit.ratio >= 1
        else replace(edit, note=SCHEDULE_FIXES if priced(edit.request) in searched else NOT_CONSIDERED)
        for edit in edits
    )


def priced(request: PartialSchedule) -> PartialSchedule:
    """The fields of a schedule that the cost model prices."""
    return PartialSchedule(**{name: getattr(request, name) for name in _PRICED})


def _searched(facts: KernelFacts) -> frozenset[PartialSchedule]:
    """Returns the schedules that the planner prices where every field is left to it."""
    p = facts.planned
    every = candidates(facts.pattern, p.sizes, facts.arch, p.device, PartialSchedule())
    return frozenset(priced(other.request) for other in every)
