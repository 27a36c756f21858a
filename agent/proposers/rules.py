"""This module has the proposer without a model: first it proposes what algebra derives, then for a kernel other
schedules, for a pipeline other cuts and other schedules of its stages. Schedules come from the tuner's space,
drawn as `nominate` says."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
    explore,
    nominate,
    nominate_uniformly,
    predicted,
    widths,
)
from ucutlass.agent.proposers.stages import StageProposer
from ucutlass.agent.session import Ask, ProposedProgram, SessionState
from ucutlass.diagnostics import ProgramError
from ucutlass.ir.hardware import Device
from ucutlass.kernels.planned import Plan
from ucutlass.shapes import complete
from ucutlass.tune.source import ScheduleNotWritten, with_schedule
from ucutlass.tune.space import ScheduleSpace

__all__ = ["PROGRAMS", "Draw", "ScheduleProposer", "StageProposer", "rules"]


@dataclass(slots=True)
class ScheduleProposer:
    """Proposes schedules of a kernel, from the spaces of `widths`. Every group is proposed at most once."""

    problem: OptimizationProblem
    device: Device | None
    seed: int = 0
    draw: Draw = nominate
    count: int = PROGRAMS
    _checked: frontend.Checked = field(init=False)
    _kernel: ir.Kernel = field(init=False)
    _spaces: dict[bool, ScheduleSpace] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)
    _plans: dict[str, Plan | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises ProgramError and ShapeError: the problem's own."""
        self._checked = self.problem.start
        self._kernel = frontend.kernel(self._checked, self.problem.program)
        sizes = complete(self._kernel, self.problem.sizes)
        frontend.plan_kernel(self._checked, self._kernel, sizes, self.problem.arch, self.device)

    def prepare(self) -> None:
        """Explores the first space, which takes a second for a GEMM."""
        self._space(widths(self.draw)[0])

    def _space(self, free: bool) -> ScheduleSpace:
        with self._lock:
            if free not in self._spaces:
                sizes = complete(self._kernel, self.problem.sizes)
                bare = replace(self._kernel, schedules=())
                self._spaces[free] = explore(
                    self._checked, bare, sizes, self.problem.arch, self.device, free=free
                )
            return self._spaces[free]

    def propose(self, ask: Ask, state: SessionState, on_spend: OnSpend) -> Answer:
        chance = random.Random(f"{self.seed}:{ask.call}:propose")
        for free in widths(self.draw):
            programs = self._drawn(self._space(free), state, ask.pick.parent, chance)
            if programs:
                return Answer(programs)
        return Answer(exhausted=True)

    def _drawn(
        self, space: ScheduleSpace, state: SessionState, parent: int, chance: random.Random
    ) -> list[ProposedProgram]:
        groups = {group.plan: at for at, group in enumerate(space.groups)}
        nodes = [(self._plan(node.text), node.seconds) for node in state.tree.nodes]
        measured = {groups[plan]: seconds for plan, seconds in nodes if plan is not None and plan in groups}
        here = self._plan(state.tree[parent].text)

        def write(at: int) -> str | None:
            winner = space.groups[at].members[0]
            with suppress(ScheduleNotWritten):
                text = with_schedule(self._checked, self._kernel, self.problem.sizes, winner, self.device)
                self._plans[text] = winner.plan
                return text
            return None

        own = None if here is None else groups.get(here)
        choices = draw_programs(self.draw, write, space, measured, own, chance, self.count)
        return [ProposedProgram(text, predicted(space, at)) for at, text in choices]

    def _plan(self, text: str) -> Plan | None:
        """Returns the plan of a candidate; None for a text that is no program."""
        if text not in self._plans:
            self._plans[text] = self._planned(text)
        return self._plans[text]

    def _planned(self, text: str) -> Plan | None:
        try:
            checked = candidate_text(text).checked
            kernel = frontend.kernel(checked, self.problem.program)
            sizes = complete(kernel, self.problem.sizes)
            return frontend.plan_kernel(checked, kernel, sizes, self.problem.arch, self.device).planned.plan
        except ProgramError:
            return None


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
