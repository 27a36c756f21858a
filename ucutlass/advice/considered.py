"""Why the planner did not choose an edit that its own cost model prices below its choice."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from ucutlass.advice.facts import KernelFacts
from ucutlass.advice.finding import ScheduleEdit
from ucutlass.ir.hardware import ARCHES, Device
from ucutlass.ir.schedule import Request
from ucutlass.kernels.gemm.plan import GemmProblem
from ucutlass.kernels.gemm.planner import candidates

NOT_CONSIDERED = "outside of the planner's search"
SCHEDULE_FIXES = "the planner chooses it, or a cheaper one, where the schedule leaves these fields free"

_PRICED = ("warps", "tile", "cluster", "split_k", "swap", "math", "warp_tile", "rows", "columns", "threads")


def explained(facts: KernelFacts, edit: ScheduleEdit) -> ScheduleEdit:
    """The edit with a note, where the cost model prices it below the plan."""
    if edit.ratio >= 1:
        return edit
    p = facts.planned
    searched = priced(edit.request) in _searched(facts.problem, p.sizes, p.plan.arch, p.device)
    return replace(edit, note=SCHEDULE_FIXES if searched else NOT_CONSIDERED)


def priced(request: Request) -> Request:
    """The fields of a schedule that the cost model prices."""
    return Request(**{name: getattr(request, name) for name in _PRICED})


@lru_cache(maxsize=64)
def _searched(problem: GemmProblem, sizes: tuple[int, ...], arch: str, device: Device) -> frozenset[Request]:
    """The schedules that the planner prices where every field is left to it."""
    return frozenset(priced(p.request) for p in candidates(problem, sizes, ARCHES[arch], device))
