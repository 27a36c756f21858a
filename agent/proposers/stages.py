"""This module proposes for a pipeline other cuts, and other schedules of its stages.

Each proposal changes one thing of the candidate that the search goes on from: where it is cut, or how one
stage runs, by a schedule from the space of that stage's kernel as it stands there. Cuts and stages are drawn
by what they weigh in seconds. What was measured is put together again: the quickest kernel that each stage
was seen with, whoever had it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TypeAlias

from ucutlass.agent.problem import OptimizationProblem
from ucutlass.agent.proposer import Answer, OnSpend
from ucutlass.agent.proposers import cuts
from ucutlass.agent.proposers.cuts import CutProposal
from ucutlass.agent.proposers.pipeline_plan import Place, PlannedCandidate, Point, Times, look, stage_times
from ucutlass.agent.proposers.schedule_sampling import (
    PROGRAMS,
    Draw,
    draw_programs,
    explore,
    nominate,
    predicted,
    widths,
)
from ucutlass.agent.session import Ask, ProposedProgram, SessionState
from ucutlass.ir.hardware import Device
from ucutlass.ir.schedule import show
from ucutlass.kernels.planned import Plan, Planned
from ucutlass.tune.policy import GroupTimes
from ucutlass.tune.source import ScheduleNotWritten, with_stage_schedule
from ucutlass.tune.space import ScheduleSpace

QUICKER = 0.99
"""What a stage's kernel must take at most, of the time of the one that stands there, to be put in its place:
two readings of one kernel differ by a per cent."""


@dataclass(slots=True)
class StageProposer:
    """Proposes cuts of a pipeline and schedules of its stages; no cut with the same kernels twice.

    `knowing`: estimates and measured times weigh, and what was measured is put together. Else everything
    that is legal is as likely, as `draw` should have it then.
    """

    problem: OptimizationProblem
    device: Device | None
    seed: int = 0
    draw: Draw = nominate
    knowing: bool = True
    count: int = PROGRAMS
    _looked: dict[str, PlannedCandidate | None] = field(default_factory=dict)
    _spaces: dict[tuple[Place, bool], ScheduleSpace] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def propose(self, ask: Ask, state: SessionState, on_spend: OnSpend) -> Answer:
        parent = ask.pick.parent
        here = self.look(state.tree[parent].text)
        if here is None:  # no pipeline, or none that plans: nothing of it can be varied
            return Answer(exhausted=True)
        planned_nodes = {
            n.id: planned for n in state.tree.nodes if (planned := self.look(n.text)) is not None
        }
        chance = random.Random(f"{self.seed}:{ask.call}:propose")
        tried = {planned.point for planned in planned_nodes.values()}
        programs = _Turn(
            self, parent, here, planned_nodes, stage_times(state.tree, self.look), chance, tried
        ).programs()
        return Answer(programs, exhausted=not programs)

    def look(self, text: str) -> PlannedCandidate | None:
        if text not in self._looked:
            self._looked[text] = look(text, self.problem, self.device)
        return self._looked[text]

    def space(self, here: PlannedCandidate, stage: int, free: bool) -> ScheduleSpace:
        """Returns what the stage, which is no torch function, may run by as it stands; `free` as in `widths`."""
        place, step = here.places[stage], here.plan.stages[stage].step
        assert place is not None and step.kernel is not None
        with self._lock:  # a space that is explored ahead, in another thread, is not explored again
            if (place, free) not in self._spaces:
                bare = replace(step.kernel, schedules=())  # the place's, whichever candidate is met first
                self._spaces[place, free] = explore(
                    here.checked, bare, step.sizes, self.problem.arch, self.device, free=free
                )
            return self._spaces[place, free]


LEAST = 1e-9
"""Seconds that anything is taken to last."""

Option: TypeAlias = CutProposal | int
"""What a proposal may change: a cut, or how the stage of this number runs."""


@dataclass(slots=True)
class _Turn:
    """Makes one answer: from candidate `here`, number `parent` of the tree. `tried` grows with what is
    proposed."""

    of: StageProposer
    parent: int
    here: PlannedCandidate
    known: Mapping[int, PlannedCandidate]
    times: Times
    chance: random.Random
    tried: set[Point]

    def programs(self) -> list[ProposedProgram]:
        """Returns at most as many programs as an answer has; none where nothing is left."""
        result = [
            program for program in [self._together() if self.of.knowing else None] if program is not None
        ]
        options = self._options()
        while options and len(result) < self.of.count:
            (option,) = self.chance.choices(list(options), list(options.values()))
            program = self._cut(option) if isinstance(option, CutProposal) else self._varied(option)
            if program is None:
                del options[option]
            else:
                result.append(program)
        return result

    def _options(self) -> dict[Option, float]:
        """Returns the options with what each weighs: a stage its share of the time, all of them together as
        much as a cut that is estimated to take as long."""
        cut_proposals = cuts.neighbours(self.here.text, self.of.problem, self.of.device, self.of.look)
        stages = [i for i, place in enumerate(self.here.places) if place is not None]
        if not self.of.knowing:
            return dict.fromkeys((*cut_proposals, *stages), 1.0)
        times = self.times.get(self.parent, self.here.estimates)
        total = math.fsum(times[i] for i in stages)
        weights: dict[Option, float] = {
            c: (self.here.seconds / max(c.seconds, LEAST)) ** 2 for c in cut_proposals
        }
        return weights | {i: times[i] / max(total, LEAST) for i in stages}

    def _cut(self, cut: CutProposal) -> ProposedProgram | None:
        return ProposedProgram(cut.text, cut.why) if self._new(cut.text) else None

    def _new(self, text: str) -> bool:
        """Returns whether it plans to what was not tried; then it is."""
        planned = self.of.look(text)
        if planned is None or planned.point in self.tried:
            return False
        self.tried.add(planned.point)
        return True

    def _varied(self, stage: int) -> ProposedProgram | None:
        varied = (self._varied_in(stage, free) for free in widths(self.of.draw))
        return next((program for program in varied if program is not None), None)

    def _varied_in(self, stage: int, free: bool) -> ProposedProgram | None:
        space = self.of.space(self.here, stage, free)
        groups = {group.plan: at for at, group in enumerate(space.groups)}

        def write(at: int) -> str | None:
            candidate_text = self._with(self.here, stage, space.groups[at].members[0])
            return candidate_text if candidate_text is not None and self._new(candidate_text) else None

        own = groups.get(self.here.kernel(stage).plan)
        choices = draw_programs(self.of.draw, write, space, self._seen(stage, groups), own, self.chance, 1)
        for at, text in choices:
            name = self.here.plan.stages[stage].step.name
            return ProposedProgram(text, f"{name}: {show(space.groups[at].request)}, {predicted(space, at)}")
        return None

    def _with(self, candidate: PlannedCandidate, stage: int, winner: Planned) -> str | None:
        try:
            return with_stage_schedule(
                candidate.checked, candidate.pipeline, candidate.plan, stage, winner, self.of.device
            )
        except ScheduleNotWritten:
            return None

    def _seen(self, stage: int, groups: Mapping[Plan, int]) -> GroupTimes:
        """Returns the groups that a stage of this place was tried with, in whichever candidate."""
        times: dict[int, float | None] = {}
        for node, other, took in self._at(self.here.places[stage]):
            at = groups.get(self.known[node].kernel(other).plan)
            before = None if at is None else times.get(at)
            if at is not None and (took is not None or at not in times):
                times[at] = took if before is None or took is None else min(before, took)
        return times

    def _at(self, place: Place | None) -> Iterator[tuple[int, int, float | None]]:
        """Yields every stage of a place: the candidate, the stage's number there, and what it took."""
        for node, candidate in self.known.items():
            for stage, other in enumerate(candidate.places):
                if other == place:
                    yield node, stage, self.times[node][stage] if node in self.times else None

    def _together(self) -> ProposedProgram | None:
        """Returns the candidate with the quickest kernel that each stage was measured with, where that is
        another."""
        if self.parent not in self.times:
            return None
        candidate = self.here
        changed: list[str] = []
        for stage, took in enumerate(self.times[self.parent]):
            timed = [(s, n, i) for n, i, s in self._at(self.here.places[stage]) if s is not None]
            if self.here.places[stage] is None or min(timed)[0] > QUICKER * took:
                continue
            _, node, other = min(timed)
            quickest = self.known[node].kernel(other)
            if (
                candidate.kernel(stage).plan == quickest.plan
            ):  # another stage that calls this kernel brought it
                continue
            text = self._with(candidate, stage, quickest)
            then = None if text is None else self.of.look(text)
            if then is not None and then.places == self.here.places:
                candidate, changed = then, [*changed, self.here.plan.stages[stage].step.name]
        if not changed or not self._new(candidate.text):
            return None
        return ProposedProgram(candidate.text, f"the quickest kernels that were seen of {', '.join(changed)}")
