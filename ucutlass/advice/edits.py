"""Finds legal neighbours of a plan by freeing fields of its schedule.

The planner enumerates values for the freed fields and checks every candidate by the legality rules, so that
no edit can propose a kernel that does not exist.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ucutlass.advice.facts import KernelFacts
from ucutlass.advice.finding import ExpectedRatio, ScheduleEdit
from ucutlass.ir.schedule import PartialSchedule, differing, show, without
from ucutlass.kernels.families import candidates
from ucutlass.kernels.planned import Planned

PAYS = 0.95
"""An edit is offered where the cost model's ratio of times is at most this. Of the 25,762 ordered pairs of
schedules of one shape in benchmarks/data/h200_bf16.json that the model tells apart by 3 % or more, 78 % of
those at 0.90 to 0.97 were faster on the H200, and 99 % of those below 0.90 (`python -m benchmarks.advice
--data`). The model was fitted to the same recording."""

MODEL_LOW, MODEL_HIGH = 0.82, 1.15
"""Measured over predicted ratio of those pairs: 10th and 90th percentile (median 0.99)."""

UNPRICED = ExpectedRatio(0.8, 1.25, "no model prices this field: measure it")
"""The range of an edit that a family's cost model does not tell from the schedule as it is (a judgement)."""

MOST_EDITS = 2

Keep = Callable[[Planned], bool]

_DEPENDENT_FIELDS = {"tile": ("tile", "stages", "swizzle", "warp_tile"), "warps": ("warps", "stages")}
"""Fields whose values are only meaningful together with another field's: they are freed with it."""


def accept_all(_: Planned) -> bool:
    return True


def neighbours(
    facts: KernelFacts,
    *free: str,
    keep: Keep = accept_all,
    max_ratio: float | None = PAYS,
    expected: ExpectedRatio | None = None,
    **fixed: Any,
) -> tuple[ScheduleEdit, ...]:
    """Returns the best legal kernels with these fields freed (and others fixed), at most two, best first.

    `keep` selects candidates by their plan. `max_ratio` bounds the cost model's ratio of times; None where
    the model does not price what the rule is about, and then `expected` must be given. Where the family's
    model does not tell schedules apart, `keep` alone selects, among those that it prices no higher; without
    one there is no edit.
    """
    freed = {tied for name in free for tied in _DEPENDENT_FIELDS.get(name, (name,))}
    return legal_edits(
        facts, replace(without(facts.planned.request, *freed), **fixed), keep, max_ratio, expected
    )


def legal_edits(
    facts: KernelFacts,
    request: PartialSchedule,
    keep: Keep = accept_all,
    max_ratio: float | None = PAYS,
    expected: ExpectedRatio | None = None,
) -> tuple[ScheduleEdit, ...]:
    """Returns what `neighbours` does, for an explicit request."""
    priced = facts.prices or max_ratio is None
    if not priced and keep is accept_all:
        return ()
    bound = max_ratio if priced else 1.0
    p, edits = facts.planned, list[ScheduleEdit]()
    for planned in candidates(facts.pattern, p.sizes, facts.arch, p.device, request):
        ratio = planned.estimate.seconds / facts.analytic.seconds
        if bound is not None and ratio > bound:
            break
        edit = edit_to(facts, planned, expected)
        if edit.changes and keep(planned) and all(_differ(edit, e) for e in edits):
            edits.append(edit)
        if len(edits) == MOST_EDITS:
            break
    return tuple(edits)


def _differ(left: ScheduleEdit, right: ScheduleEdit) -> bool:
    """Returns whether two edits change the kernel differently, beyond its launch parameters, and so are worth
    showing together."""
    names = ("warps", "tile", "cluster", "swap", "split_k", "math", "vector", "items", "keep", "blocks")
    return any(getattr(left.request, n) != getattr(right.request, n) for n in names)


def single_change(
    facts: KernelFacts, expected: ExpectedRatio | None = None, **fixed: Any
) -> tuple[ScheduleEdit, ...]:
    """Returns the plan with these fields changed and nothing else, where that is legal."""
    changed = facts.plan(replace(facts.planned.request, **fixed))
    if changed is None or changed.request == facts.planned.request:
        return ()
    return (edit_to(facts, changed, expected),)


def edit_to(facts: KernelFacts, planned: Planned, expected: ExpectedRatio | None = None) -> ScheduleEdit:
    """Returns the edit that leads to a plan."""
    ratio = planned.estimate.seconds / facts.analytic.seconds
    return ScheduleEdit(
        planned.request,
        show(planned.request),
        differing(facts.planned.request, planned.request),
        ratio,
        expected or (from_model(ratio) if facts.prices or ratio <= PAYS else UNPRICED),
    )


def from_model(ratio: float) -> ExpectedRatio:
    """Returns the cost model's ratio with the band that held 80 % of the recorded pairs."""
    return ExpectedRatio(ratio * MODEL_LOW, ratio * MODEL_HIGH, f"from the cost model's {ratio:.2f}")


def best(*groups: tuple[ScheduleEdit, ...]) -> tuple[ScheduleEdit, ...]:
    """Returns the two best of several proposals that differ, by the cost model."""
    chosen: list[ScheduleEdit] = []
    for edit in sorted((e for group in groups for e in group), key=lambda e: e.ratio):
        if len(chosen) < MOST_EDITS and all(_differ(edit, c) for c in chosen):
            chosen.append(edit)
    return tuple(chosen)
