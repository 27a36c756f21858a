"""This module judges the programs of a live session with this machine's compilers and its GPU.

In two steps, since a full judgement takes ten times as long as an attempt. Every candidate is checked,
compared with the problem, built, held against the problem's reference at its extents and timed. One that
would lead is then confirmed: the whole suite, the timing protocol in turns with the baseline, the audit.
Until then it is an ancestor, but no result.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ucutlass import ir
from ucutlass.agent.advisor import Advisor
from ucutlass.agent.budget import Spend
from ucutlass.agent.energy import EnergyMeter
from ucutlass.agent.equivalence import UNSAID, differs, unlike
from ucutlass.agent.evidence import BuiltCandidate, ConfirmationSettings, artifacts_of, confirm_candidate
from ucutlass.agent.gpu_calls import GpuCalls, value
from ucutlass.agent.module import TorchModule
from ucutlass.agent.outcome import FailedOutcome, Outcome, RefusedOutcome, TimedOutcome, WrongOutcome
from ucutlass.agent.problem import OptimizationProblem, ProgramCandidate, candidate_of, checked_candidate
from ucutlass.agent.run import CandidateJudgement
from ucutlass.agent.tree import TIED
from ucutlass.assembly import AnyBuilt, build_program
from ucutlass.diagnostics import ProgramError
from ucutlass.engine.work import Engine
from ucutlass.frontend import plan_kernel
from ucutlass.handoff import program_payload
from ucutlass.ir.hardware import Device
from ucutlass.ir.schedule import show
from ucutlass.pipeline.planning import plan_pipeline
from ucutlass.runtime import isolation
from ucutlass.runtime.errors import BuildError
from ucutlass.shapes import ShapeError, complete
from ucutlass.spans import span
from ucutlass.tasks.built import built_payload

SAME_SECONDS = 120.0
"""What the float64 reference may take to compare two programs."""

LEADS = 1.03
"""A candidate is confirmed where its first reading is at most so many times the best confirmed one: two
readings of one kernel differ by a per cent or two."""

Confirm = Callable[[BuiltCandidate, ConfirmationSettings, GpuCalls], Outcome]


@dataclass(slots=True)
class GpuEvaluator:
    """Judges candidates of one problem. `how` says how a leader is confirmed; `confirm` does it. `limit`
    bounds a process that launches, `wait` the wait for the GPU lock, in seconds. All launches are on one GPU of
    the engine, whose token is `near`: times of two GPUs do not compare. `meter` measures the energy of those
    that are as fast as the best, where that is asked for."""

    problem: OptimizationProblem
    engine: Engine
    how: ConfirmationSettings
    limit: float = 300.0
    wait: float = 600.0
    confirm: Confirm = confirm_candidate
    best: float | None = None
    advisor: Advisor = field(default_factory=Advisor)
    meter: EnergyMeter | None = None
    near: str = field(default_factory=lambda: uuid.uuid4().hex)
    _known: dict[str, ProgramCandidate] = field(default_factory=dict)
    _agreed: dict[str, str] = field(default_factory=dict)

    def key(self, text: str) -> str | RefusedOutcome:
        candidate = candidate_of(self.problem, text)
        if isinstance(candidate, RefusedOutcome):
            return candidate
        try:
            schedules = _planned(candidate, self.problem, self.how.device)
        except (ProgramError, ShapeError) as error:
            return refused(error)
        self._known[text] = candidate
        return f"{candidate.key}|{schedules}"

    def judge(self, text: str) -> CandidateJudgement:
        start, gpu_calls = time.monotonic(), GpuCalls(self.engine, self.near, self.wait)
        messages: list[str] = []
        outcome = self._judged(self._known[text], gpu_calls, messages)
        took = time.monotonic() - start - gpu_calls.waited
        return CandidateJudgement(outcome, Spend(gpu_seconds=gpu_calls.held, seconds=took), tuple(messages))

    def _judged(self, candidate: ProgramCandidate, gpu_calls: GpuCalls, messages: list[str]) -> Outcome:
        other = self._other(candidate, gpu_calls)
        if other:
            return RefusedOutcome(other)
        built = self._built(candidate)
        if isinstance(built, FailedOutcome):
            return built
        first = self._tried(candidate, built, gpu_calls)
        if not isinstance(first, TimedOutcome):
            return first
        with span("advice"):
            advice = self.advisor.static(
                candidate.checked,
                candidate.program,
                candidate.sizes,
                self.problem.arch,
                self.how.device,
                first.seconds,
            )
        first = replace(first, advice=advice)
        if self.best is not None and first.seconds > LEADS * self.best:
            return first
        extents = complete(candidate.program, candidate.sizes)
        sizes = dict(zip(candidate.program.dims, extents, strict=True))
        subject = BuiltCandidate(candidate.checked, candidate.program, built, sizes)
        confirmation = self.confirm(subject, self.how, gpu_calls)
        if not isinstance(confirmation, TimedOutcome):
            return confirmation
        if self.meter is not None and (self.best is None or confirmation.seconds <= TIED * self.best):
            joules, missing = self.meter.joules(subject, gpu_calls)
            confirmation = replace(confirmation, joules=joules)
            messages += [missing] if missing else []
        if self.best is not None and confirmation.seconds >= self.best:
            return replace(confirmation, first=first.seconds, advice=first.advice)
        self.best = confirmation.seconds
        if self.advisor.depth == "profiled":
            with span("advice"):
                advice = self.advisor.profiled(
                    subject, self.problem.arch, gpu_calls, self.how.seed, confirmation.seconds
                )
        return replace(confirmation, first=first.seconds, advice=advice)

    def _other(self, candidate: ProgramCandidate, gpu_calls: GpuCalls) -> str:
        """Returns why it does not compute what the problem does; "" where it does. A kernel's algorithm is
        all of its typed program, so equal digests need no experiment."""
        if self.problem.module is not None:
            return self._unlike(candidate, self.problem.module, gpu_calls)
        original = checked_candidate(self.problem, self.problem.start)
        if isinstance(original, ProgramCandidate) and original.key == candidate.key:
            return ""
        outcome = isolation.run(
            "ucutlass.tasks.equivalence:same",
            {
                "program": program_payload(self.problem.start),
                "other": program_payload(candidate.checked),
                "name": self.problem.program,
                "sizes": dict(self.problem.sizes),
                "seed": self.how.seed,
            },
            limit_seconds=SAME_SECONDS,
        )
        match outcome:
            case isolation.Returned(str(words)):
                return differs(words)
            case _:
                return f"{UNSAID}: {isolation.failure_text(outcome, 'the reference')}"

    def _unlike(self, candidate: ProgramCandidate, module: TorchModule, gpu_calls: GpuCalls) -> str:
        """Does as `_other`, where a PyTorch module says what is computed: it is asked once for an
        algorithm."""
        if candidate.key not in self._agreed:
            self._agreed[candidate.key] = unlike(
                candidate.checked, candidate.program, module, gpu_calls, seed=self.how.seed, limit=self.limit
            )
        return self._agreed[candidate.key]

    @span("build")
    def _built(self, candidate: ProgramCandidate) -> AnyBuilt | FailedOutcome:
        """Raises MachineError: a compiler that is missing is no candidate's fault."""
        sizes = complete(candidate.program, candidate.sizes)
        try:
            return build_program(
                candidate.checked, candidate.program, sizes, self.problem.arch, device=self.how.device
            )
        except (BuildError, ProgramError) as error:
            return FailedOutcome("build", str(error)[:600])

    def _tried(
        self, candidate: ProgramCandidate, built: AnyBuilt, gpu_calls: GpuCalls
    ) -> TimedOutcome | WrongOutcome | FailedOutcome:
        # What computes a module is held against its own reference, which was held against the module's.
        problem = self.problem.start if self.problem.module is None else None
        arguments = {
            "program": program_payload(candidate.checked),
            "built": built_payload(built),
            "problem": None if problem is None else program_payload(problem),
            "name": self.problem.program,
            "sizes": dict(candidate.sizes),
            "arch": self.problem.arch,
            "seed": self.how.seed,
        }
        outcome = gpu_calls.call("attempt", arguments, limit=self.limit, artifacts=artifacts_of(built))
        reading = value(outcome, "the attempt")
        if isinstance(reading, str):
            return FailedOutcome("run", reading[:600])
        if reading["seconds"] is None:
            return WrongOutcome(str(reading["words"])[:600])
        return TimedOutcome(float(reading["seconds"]))


def _planned(candidate: ProgramCandidate, problem: OptimizationProblem, device: Device | None) -> str:
    """Returns the schedules as planned, stage by stage: two texts that plan alike are one candidate. Raises
    ProgramError, ShapeError."""
    sizes = complete(candidate.program, candidate.sizes)
    match candidate.program:
        case ir.Kernel() as kernel:
            return _shown(plan_kernel(candidate.checked, kernel, sizes, problem.arch, device).planned)
        case ir.Pipeline() as pipeline:
            plan = plan_pipeline(candidate.checked, pipeline, sizes, problem.arch, device)
            return " | ".join(
                f"{s.step.name}: {'torch' if s.chosen is None else _shown(s.chosen.planned)}"
                for s in plan.stages
            )


def _shown(planned: Any) -> str:
    return f"{show(planned.request)} {planned.launch}"


def refused(error: ProgramError | ShapeError) -> RefusedOutcome:
    """Returns what the compiler says, as an outcome."""
    if isinstance(error, ShapeError):
        return RefusedOutcome(str(error), (error.code,))
    shown = "\n".join(f"{d.code} {d.message}" for d in error.diagnostics[:5])
    return RefusedOutcome(shown, tuple(dict.fromkeys(d.code for d in error.diagnostics)))
