"""Attention's schedule in the fields of a program: a tile of rows x keys x head, blocks of keys as stages."""

from __future__ import annotations

from dataclasses import replace

from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels.attention.plan import GROUP, AttentionProblem, AttentionSchedule, is_tf32
from ucutlass.kernels.attention.rules import SCHEDULE_RULES, AttentionCandidate
from ucutlass.kernels.attention.smem import most_stages
from ucutlass.kernels.rule import broken
from ucutlass.kernels.violation import Violation


def request_of(problem: AttentionProblem, s: AttentionSchedule) -> PartialSchedule:
    """The schedule as fields."""
    return PartialSchedule(tile=(GROUP * s.groups, s.keys, problem.head), stages=s.stages)


def resolve(
    problem: AttentionProblem, own: AttentionSchedule, request: PartialSchedule
) -> AttentionSchedule | tuple[Violation, ...]:
    """The planner's own schedule with what a request fixes, or the rules that are broken."""
    if request.fixed().items() <= request_of(problem, own).fixed().items():
        return own
    rows, keys, _ = request.tile or request_of(problem, own).tile or (GROUP, GROUP, 0)
    schedule = replace(own, groups=rows // GROUP, keys=keys, stages=request.stages or own.stages)
    if request.stages is None and request.tile is not None:
        most = most_stages(problem, schedule) if schedule.groups and schedule.keys else own.stages
        schedule = replace(schedule, stages=max(2, most if is_tf32(problem) else min(own.stages, most)))
    return broken(SCHEDULE_RULES, AttentionCandidate(problem, schedule, request)) or schedule
