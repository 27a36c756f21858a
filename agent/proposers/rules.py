"""The proposer without a model: for a kernel other schedules, for a pipeline other cuts.

Schedules come from the tuner's space, drawn as `nominate` says, those first that an advice rule names for
the candidate at hand. Cuts come from the text: a stored binding that a family can do without is fused, one
that was fused is stored again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ucutlass import frontend, ir
from ucutlass.agent.problem import Problem
from ucutlass.agent.proposer import Answer, OnSpend
from ucutlass.agent.proposers import cuts
from ucutlass.agent.proposers.nominate import nominate
from ucutlass.agent.session import Ask, State, Written
from ucutlass.agent.tree import Node
from ucutlass.diagnostics import ProgramError
from ucutlass.hardware import Device
from ucutlass.shapes import complete
from ucutlass.tune.source import NotWritten, with_schedule
from ucutlass.tune.space import Space, explore

PROGRAMS = 4
"""Of one answer, where nothing else is said: as many as compile side by side on a small machine. More of
them fill more cores, and know less of what was measured."""

Draw = Callable[[Space, Mapping[int, float | None], int | None, random.Random, int], Sequence[int]]


@dataclass(slots=True)
class Schedules:
    """Proposes schedules of a kernel. Every group of the space is proposed at most once."""

    problem: Problem
    device: Device | None
    seed: int = 0
    draw: Draw = nominate
    count: int = PROGRAMS
    _checked: frontend.Checked = field(init=False)
    _kernel: ir.Kernel = field(init=False)
    _space: Space = field(init=False)
    _groups: dict[str, int | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises ProgramError and ShapeError: the problem's own."""
        self._checked = frontend.read_text(self.problem.text, self.problem.file)
        self._kernel = frontend.kernel(self._checked, self.problem.program)
        sizes = complete(self._kernel, self.problem.sizes)
        self._space = explore(self._checked, self._kernel, sizes, self.problem.arch, self.device, free=True)

    def propose(self, ask: Ask, state: State, on_spend: OnSpend) -> Answer:
        seen: dict[int, float | None] = {}
        for node in state.tree.nodes:
            at = self._group(node)
            if at is not None:
                seen[at] = node.seconds
        parent = self._group(state.tree[ask.pick.parent])
        chance = random.Random(f"{self.seed}:{ask.call}:propose")
        drawn = self.draw(self._space, seen, parent, chance, self.count)
        programs = [w for at in drawn if (w := self._written(at)) is not None]
        return Answer(programs, exhausted=not programs)

    def _written(self, at: int) -> Written | None:
        winner = self._space.groups[at].members[0]
        try:
            text = with_schedule(self._checked, self._kernel, self.problem.sizes, winner, self.device)
        except NotWritten:
            return None
        self._groups[text] = at
        return Written(text, f"predicted {self._space.groups[at].estimate * 1e6:.2f} us")

    def _group(self, node: Node) -> int | None:
        """The group that a candidate belongs to; None for one of another proposer's that is in no group,
        or for a text that is no program."""
        if node.text not in self._groups:
            self._groups[node.text] = self._planned(node.text)
        return self._groups[node.text]

    def _planned(self, text: str) -> int | None:
        try:
            checked = frontend.read_text(text)
            kernel = frontend.kernel(checked, self.problem.program)
            sizes = complete(kernel, self.problem.sizes)
            made = frontend.plan_kernel(checked, kernel, sizes, self.problem.arch, self.device).planned
        except ProgramError:
            return None
        return next((i for i, g in enumerate(self._space.groups) if g.plan == made.plan), None)


@dataclass(slots=True)
class Cuts:
    """Proposes cuts of a pipeline."""

    problem: Problem
    device: Device | None
    seed: int = 0
    count: int = PROGRAMS

    def propose(self, ask: Ask, state: State, on_spend: OnSpend) -> Answer:
        parent = state.tree[ask.pick.parent].text or self.problem.text
        known = {node.text for node in state.tree.nodes}
        found = [
            one for one in cuts.neighbours(parent, self.problem, self.device) if one.text not in known
        ]
        if not found:
            return Answer(exhausted=True)
        chance = random.Random(f"{self.seed}:{ask.call}:propose")
        return Answer(cuts.drawn(found, chance, self.count))


def rules(
    problem: Problem, device: Device | None, seed: int = 0, draw: Draw = nominate, count: int = PROGRAMS
) -> Schedules | Cuts:
    """The proposer for a problem: `count` programs an answer, schedules drawn by `draw`. Raises ProgramError
    and ShapeError."""
    program = frontend.program(frontend.read_text(problem.text, problem.file), problem.program)
    if isinstance(program, ir.Pipeline):
        return Cuts(problem, device, seed, count)
    return Schedules(problem, device, seed, draw, count)
