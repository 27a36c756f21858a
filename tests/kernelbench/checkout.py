"""A small checkout of our own in KernelBench's form, and a bench that a table answers for."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kernelbench_files import LINEAR, linear, module

from ucutlass.agent.budget import Spend
from ucutlass.agent.outcome import FailedOutcome, Outcome, RefusedOutcome, TimedOutcome
from ucutlass.agent.problem import OptimizationProblem, problem_of_json
from ucutlass.agent.proposer import Answer
from ucutlass.agent.run import CandidateJudgement
from ucutlass.agent.session import Ask, Confirm, ProposedProgram, SessionState

SCALED = "kernel scaled(x: f32[M, N]) -> f32[M, N] { return x * 3 }\n"

FILES: Mapping[str, str] = {
    "level1/1_Scaled.py": module("x * 3", x="16, 16"),
    "level1/1_Scaled.ucu": SCALED,
    "level1/2_Hangs_up.py": "import os\nos._exit(7)\n",
    "level1/2_Hangs_up.ucu": SCALED,
    "level1/10_Scaled_wide.py": module("x * 3", x="8, 64"),
    "level1/10_Scaled_wide.ucu": SCALED,
    "level2/1_Linear.py": linear(),
    "level2/1_Linear.ucu": LINEAR,
    "level2/2_No_start.py": module("torch.fft.fft(x).real", x="8, 8"),
    "level2/3_Imported.py": module("torch.relu(x)", x="8, 8"),
}


def checkout(folder: Path) -> Path:
    for name, text in FILES.items():
        path = folder / "KernelBench" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@dataclass
class Bench:
    """Times by the text; a start program takes 20 us, and what is proposed mostly less."""

    problem: OptimizationProblem
    judged: Counter[str]
    log: list[tuple[str, str]]

    def key(self, text: str, source: str = "") -> str | RefusedOutcome:
        return text

    def judge(self, text: str, source: str = "") -> CandidateJudgement:
        self.judged[f"{self.name}:{text}"] += 1
        self.log.append(("first" if text == self.problem.text else "improve", self.name))
        outcome = self.outcome(text)
        if not isinstance(outcome, TimedOutcome):
            return CandidateJudgement(outcome, Spend(gpu_seconds=0.5))
        spend = Spend(gpu_seconds=0.5, seconds=5.0)
        return CandidateJudgement(TimedOutcome(outcome.seconds), spend, provisional=True)

    def confirm(self, due: Confirm) -> CandidateJudgement:
        self.log.append(("complete" if due.complete else "confirm", self.name))
        outcome = self.outcome(due.text)
        assert isinstance(outcome, TimedOutcome)
        if not due.complete:
            outcome = replace(outcome, versus=outcome.versus[:1])
        return CandidateJudgement(outcome, Spend(gpu_seconds=1.0, seconds=20.0), incomplete=not due.complete)

    @property
    def name(self) -> str:
        return f"{self.problem.program} {sorted(self.problem.sizes.items())}"

    def outcome(self, text: str) -> Outcome:
        if text == self.problem.text:
            return timed(2e-5)
        chance = random.Random(f"{self.name}:{text}")
        return FailedOutcome("build", "no") if chance.random() < 0.3 else timed(chance.uniform(8e-6, 3e-5))


def timed(seconds: float) -> TimedOutcome:
    """Against an eager module of 20 us, which torch.compile runs in 15."""
    versus = (("eager", 2e-5 / seconds), ("compile-max-autotune", 1.5e-5 / seconds))
    return TimedOutcome(seconds, 2e-5 / seconds, 0.9, 1.1, records=("a",), versus=versus)


class Proposer:
    """One program a call, by chance that the call seeds."""

    def propose(self, ask: Ask, state: SessionState, on_spend: Any) -> Answer:
        return Answer([ProposedProgram(f"program {random.Random(ask.call).randrange(1000)}", "")])


@dataclass
class Machine:
    """What stands in for compilers and GPU."""

    judged: Counter[str] = field(default_factory=Counter)
    order: list[str] = field(default_factory=list)
    log: list[tuple[str, str]] = field(default_factory=list)
    built: set[tuple[str, tuple[int, ...]]] = field(default_factory=set)

    def build(self, checked: Any, program: Any, sizes: tuple[int, ...], *more: Any, **named: Any) -> None:
        self.built.add((program.name, tuple(sizes)))

    def place(self, session: Any) -> tuple[Proposer, Bench]:
        problem = problem_of_json(session.state.problem)
        self.order.append(problem.name)
        return Proposer(), Bench(problem, self.judged, self.log)
