"""This module has the proposer without a model: first it proposes what algebra derives, then for a kernel other
schedules, for a pipeline other cuts and other schedules of its stages. Schedules come from the tuner's space,
drawn as `nominate` says."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from threading import Lock

from ucutlass import frontend, ir
from ucutlass.agent.candidate_text import candidate_text
from ucutlass.agent.problem import OptimizationProblem
from ucutlass.agent.proposer import Answer, OnSpend, Proposer
from ucutlass.agent.proposers.algebra import AlgebraProposer
from ucutlass.agent.proposers.schedule_sampling import (
    PROGRAMS,
    Draw,
    draw_programs,
    nominate,
    nominate_uniformly,
    predicted,
)
from ucutlass.agent.proposers.stages import StageProposer
from ucutlass.agent.session import Ask, ProposedProgram, SessionState
from ucutlass.agent.tree import CandidateNode
from ucutlass.diagnostics import ProgramError
from ucutlass.ir.hardware import Device
from ucutlass.shapes import complete
from ucutlass.tune.source import ScheduleNotWritten, with_schedule
from ucutlass.tune.space import ScheduleSpace, explore

__all__ = ["PROGRAMS", "Draw", "ScheduleProposer", "StageProposer", "rules"]


@dataclass(slots=True)
class ScheduleProposer:
    """Proposes schedules of a kernel. Every group of the space is proposed at most once."""

    problem: OptimizationProblem
    device: Device | None
    seed: int = 0
    draw: Draw = nominate
    count: int = PROGRAMS
    _checked: frontend.Checked = field(init=False)
    _kernel: ir.Kernel = field(init=False)
    _explored: ScheduleSpace | None = field(default=None, init=False)
    _lock: Lock = field(default_factory=Lock)
    _groups: dict[str, int | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises ProgramError and ShapeError: the problem's own."""
        self._checked = self.problem.start
        self._kernel = frontend.kernel(self._checked, self.problem.program)
        sizes = complete(self._kernel, self.problem.sizes)
        frontend.plan_kernel(self._checked, self._kernel, sizes, self.problem.arch, self.device)

    def prepare(self) -> None:
        """Explores the space, which takes seconds for a GEMM."""
        with self._lock:
            if self._explored is None:
                sizes = complete(self._kernel, self.problem.sizes)
                self._explored = explore(
                    self._checked, self._kernel, sizes, self.problem.arch, self.device, free=True
                )

    @property
    def _space(self) -> ScheduleSpace:
        self.prepare()
        assert self._explored is not None
        return self._explored

    def propose(self, ask: Ask, state: SessionState, on_spend: OnSpend) -> Answer:
        measured: dict[int, float | None] = {}
        for node in state.tree.nodes:
            at = self._group(node)
            if at is not None:
                measured[at] = node.seconds
        parent = self._group(state.tree[ask.pick.parent])
        chance = random.Random(f"{self.seed}:{ask.call}:propose")
        drawn_groups = draw_programs(
            self.draw, self._written, self._space, measured, parent, chance, self.count
        )
        programs = [ProposedProgram(text, predicted(self._space, at)) for at, text in drawn_groups]
        return Answer(programs, exhausted=not programs)

    def _written(self, at: int) -> str | None:
        winner = self._space.groups[at].members[0]
        try:
            text = with_schedule(self._checked, self._kernel, self.problem.sizes, winner, self.device)
        except ScheduleNotWritten:
            return None
        self._groups[text] = at
        return text

    def _group(self, node: CandidateNode) -> int | None:
        """Returns the group that a candidate belongs to; None for one of another proposer's that is in no
        group, or for a text that is no program."""
        if node.text not in self._groups:
            self._groups[node.text] = self._planned(node.text)
        return self._groups[node.text]

    def _planned(self, text: str) -> int | None:
        try:
            checked = candidate_text(text).checked
            kernel = frontend.kernel(checked, self.problem.program)
            sizes = complete(kernel, self.problem.sizes)
            plan = frontend.plan_kernel(checked, kernel, sizes, self.problem.arch, self.device).planned
        except ProgramError:
            return None
        return next((i for i, g in enumerate(self._space.groups) if g.plan == plan.plan), None)


def rules(
    problem: OptimizationProblem,
    device: Device | None,
    seed: int = 0,
    draw: Draw = nominate,
    count: int = PROGRAMS,
) -> Proposer:
    """Returns the proposer for a problem: `count` programs an answer, schedules drawn by `draw`. By
    `nominate_uniformly` it is random legal search: of a pipeline every stage and cut is as likely too, and there
    is no algebra. Raises ProgramError and ShapeError."""
    knowing = draw is not nominate_uniformly
    stages = StageProposer(problem, device, seed, draw, knowing, count)
    kernel = isinstance(problem.typed, ir.Kernel)
    schedules = ScheduleProposer(problem, device, seed, draw, count) if kernel else None
    if knowing:
        return AlgebraProposer(problem, device, schedules, stages, count)
    return schedules or stages
