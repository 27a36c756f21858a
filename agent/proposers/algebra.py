"""This module proposes what algebra derives of a problem's program, and its products in 16 bits where the problem
allows them, before what varies candidates."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock

from ucutlass import ir
from ucutlass.agent.candidate_text import candidate_text
from ucutlass.agent.compute_type_casts import in_half
from ucutlass.agent.problem import OptimizationProblem, ProgramCandidate, candidate_of
from ucutlass.agent.proposer import Answer, OnSpend, Preparing, Proposer
from ucutlass.agent.session import Ask, ProposedProgram, SessionState
from ucutlass.algebra.derivation import AlgebraCandidate, derive
from ucutlass.algebra.egraph import Full
from ucutlass.algebra.saturation import Bounds
from ucutlass.diagnostics import ProgramError
from ucutlass.ir.hardware import Device
from ucutlass.shapes import ShapeError

BOUNDS = Bounds(terms=3_000, seconds=0.8, pricing=0.8)
"""Of a session's time: a problem that takes longer is searched as far as this goes."""


@dataclass(slots=True)
class AlgebraProposer:
    """Answers with the programs in 16 bits and those that algebra derives, each once a session, and then as
    `kernels` and `pipelines` do, by which of the two the candidate is. What the problem does not take, such as a pipeline in place of a
    kernel of the language, is left out."""

    problem: OptimizationProblem
    device: Device | None
    kernels: Proposer | None
    pipelines: Proposer
    count: int
    _derived: list[ProposedProgram] | None = field(default=None, init=False)
    _lock: Lock = field(default_factory=Lock)

    def prepare(self) -> None:
        self._programs()
        if isinstance(self.kernels, Preparing):
            self.kernels.prepare()

    def propose(self, ask: Ask, state: SessionState, on_spend: OnSpend) -> Answer:
        judged = {node.text for node in state.tree.nodes}
        programs = [p for p in self._programs() if p.text not in judged][: self.count]
        if programs:
            return Answer(programs)
        return self._varying(state.tree[ask.pick.parent].text).propose(ask, state, on_spend)

    def _programs(self) -> list[ProposedProgram]:
        with self._lock:
            if self._derived is None:
                derived = _candidates(self.problem, self.device)
                self._derived = [
                    program
                    for program in (
                        *_casts(self.problem),
                        *(ProposedProgram(c.text, algebra_words(c)) for c in derived),
                    )
                    if isinstance(candidate_of(self.problem, program.text), ProgramCandidate)
                ]
            return self._derived

    def _varying(self, text: str) -> Proposer:
        read = candidate_text(text)
        if self.kernels is None or read.program is None:
            return self.kernels or self.pipelines
        named = {p.name: p for p in read.program.module.programs}
        pipeline = isinstance(named.get(self.problem.program), ir.Pipeline)
        return self.pipelines if pipeline else self.kernels


def _casts(problem: OptimizationProblem) -> list[ProposedProgram]:
    if not problem.compute_type:
        return []
    texts = in_half(problem.text, problem.program, problem.compute_type)
    return [ProposedProgram(text, f"products of {elem.name}") for elem, text in texts.items()]


def _candidates(problem: OptimizationProblem, device: Device | None) -> tuple[AlgebraCandidate, ...]:
    try:
        return derive(problem.start, problem.typed, problem.sizes, problem.arch, device, BOUNDS).candidates
    except (Full, ProgramError, ShapeError):
        return ()


def algebra_words(candidate: AlgebraCandidate) -> str:
    """Returns in one line by which rules a candidate is equal to the problem's program, for all inputs."""
    names = ", ".join(rule.name for rule in candidate.rules) or "the same values, stored elsewhere"
    constant = "; no input changes its result" if candidate.constants else ""
    return f"algebra: {names}; predicted {candidate.seconds * 1e6:.2f} us{constant}"
