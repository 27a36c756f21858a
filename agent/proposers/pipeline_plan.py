"""This module plans a pipeline's candidate as the compiler does, and says what of its measured time each
stage took."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ucutlass import frontend, ir
from ucutlass.agent.candidate_text import candidate_text
from ucutlass.agent.problem import OptimizationProblem
from ucutlass.agent.tree import CandidateTree
from ucutlass.diagnostics import ProgramError
from ucutlass.ir.hardware import Device
from ucutlass.kernels.planned import Plan, Planned
from ucutlass.pipeline.planning import PipelinePlan, StagePlan, plan_pipeline
from ucutlass.runtime.subject import algorithm_digest
from ucutlass.shapes import ShapeError, complete

Place: TypeAlias = tuple[str, tuple[int, ...]]
"""What a stage's space depends on: the digest of its computation, with how its tensors lie, and its extents.
Stages of one place have one space."""

Point: TypeAlias = tuple[tuple[str, Plan | None], ...]
"""What candidates are told apart by: the cuts, and each stage's binary."""


@dataclass(frozen=True, slots=True)
class PlannedCandidate:
    """Describes a candidate that plans. `places` has a stage's place, None for a torch function."""

    text: str
    checked: frontend.Checked
    pipeline: ir.Pipeline
    plan: PipelinePlan
    places: tuple[Place | None, ...]

    @property
    def point(self) -> Point:
        return tuple(
            (s.step.name, None if s.chosen is None else s.chosen.planned.plan) for s in self.plan.stages
        )

    @property
    def estimates(self) -> tuple[float, ...]:
        """Returns seconds of each stage by the cost models, 0 for a torch function."""
        return tuple(0.0 if s.chosen is None else s.chosen.planned.seconds for s in self.plan.stages)

    @property
    def seconds(self) -> float:
        """Returns the estimate of all launches, one after the other."""
        return math.fsum(self.estimates)

    def kernel(self, stage: int) -> Planned:
        """Returns the kernel of a stage that is no torch function."""
        chosen = self.plan.stages[stage].chosen
        assert chosen is not None
        return chosen.planned


Look: TypeAlias = Callable[[str], PlannedCandidate | None]
"""A text as it is planned for the problem; None where it does not plan."""


def look(text: str, problem: OptimizationProblem, device: Device | None) -> PlannedCandidate | None:
    """Returns None for what is no pipeline of the problem's that plans."""
    try:
        checked = candidate_text(text).checked
        pipeline = frontend.program(checked, problem.program)
        if not isinstance(pipeline, ir.Pipeline):
            return None
        sizes = complete(pipeline, problem.sizes)
        plan = plan_pipeline(checked, pipeline, sizes, problem.arch, device)
    except (ProgramError, ShapeError):
        return None
    return PlannedCandidate(text, checked, pipeline, plan, tuple(map(_place, plan.stages)))


def _place(stage: StagePlan) -> Place | None:
    kernel = stage.step.kernel
    return None if kernel is None else (algorithm_digest(kernel), stage.step.sizes)


# --- which stage took how long -----------------------------------------------------------

LEAST = 0.05
"""Of a stage's time, what is left of it at least where a whole became faster by more than all of it."""

Times: TypeAlias = dict[int, tuple[float, ...]]
"""Seconds of each stage, by the node's number."""


def stage_times(tree: CandidateTree, looked: Look) -> Times:
    """Returns what each stage of every timed pipeline took, as far as whole times tell: stages take the
    shares that are estimated, until a candidate is timed that has one stage otherwise than its parent. What
    it gained or lost is that stage's."""
    times: Times = {}
    for node in tree.nodes:  # parents come first
        here = looked(node.text)
        if node.seconds is None or here is None:
            continue
        moved = None
        if node.parent is not None and node.parent in times:
            before, parent = looked(tree[node.parent].text), tree[node.parent].seconds
            assert before is not None and parent is not None
            moved = _moved(before, times[node.parent], here, node.seconds - parent)
        times[node.id] = _shares(here, node.seconds) if moved is None else moved
    return times


def _shares(here: PlannedCandidate, seconds: float) -> tuple[float, ...]:
    total = here.seconds or 1.0
    return tuple(seconds * estimate / total for estimate in here.estimates)


def _moved(
    before: PlannedCandidate, times: tuple[float, ...], here: PlannedCandidate, change: float
) -> tuple[float, ...] | None:
    """Returns the parent's times with the change where the two differ; None where that is not one place."""
    if before.places != here.places:
        return None
    changed = [i for i, (a, b) in enumerate(zip(before.point, here.point, strict=True)) if a[1] != b[1]]
    if len({here.places[i] for i in changed}) != 1:
        return None
    each = change / len(changed)
    return tuple(max(t + each, LEAST * t) if i in changed else t for i, t in enumerate(times))
