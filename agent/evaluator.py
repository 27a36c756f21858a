"""This module judges the programs of a live session with this machine's compilers and its GPU.

In steps of their own, since a full judgement takes ten times as long as an attempt. Every candidate is checked,
compared with the problem, built, held against the problem's reference at its extents and timed. One that would
lead is then confirmed: the whole suite, the timing protocol in turns with the baseline, the audit. Until then it
is an ancestor, but no result. Baselines that torch compiles take minutes: the best is timed in turns with them
once, at the end.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Lock, Thread
from typing import Any

from ucutlass import ir
from ucutlass.agent.advisor import Advisor
from ucutlass.agent.background_baselines import BackgroundBaselines
from ucutlass.agent.budget import Spend
from ucutlass.agent.energy import EnergyMeter
from ucutlass.agent.equivalence import UNSAID, differs, unlike
from ucutlass.agent.evidence import (
    VERIFYING_PROCESSES,
    BuiltCandidate,
    ConfirmationSettings,
    artifacts_of,
    complete_comparison,
    confirm_candidate,
    leaves_out,
)
from ucutlass.agent.gpu_calls import GpuCalls, shared_bytes, value
from ucutlass.agent.integrity.gather import AuditSubject, ProbeTask
from ucutlass.agent.module import TorchModule
from ucutlass.agent.module_processes import ModuleCall, in_own_process
from ucutlass.agent.outcome import FailedOutcome, Outcome, RefusedOutcome, TimedOutcome, WrongOutcome
from ucutlass.agent.problem import OptimizationProblem, ProgramCandidate, candidate_of, checked_candidate
from ucutlass.agent.run import CandidateJudgement
from ucutlass.agent.session import Confirm
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
from ucutlass.runtime.verify.suite import memory_of
from ucutlass.shapes import ShapeError, complete
from ucutlass.spans import span
from ucutlass.tasks.built import built_payload

CONFIRMING_PROCESSES = VERIFYING_PROCESSES + 1
"""Fresh processes of a confirmation: some verify, one compares."""

CPUS_TO_SPARE = 12
"""From which on all processes of a confirmation get ready before the first verdict: each takes a core some seconds."""

SAME_SECONDS = 120.0
"""What the float64 reference may take to compare two programs."""

Confirmation = Callable[[BuiltCandidate, ConfirmationSettings, GpuCalls], Outcome]
Completion = Callable[[BuiltCandidate, ConfirmationSettings, GpuCalls, TimedOutcome], Outcome]


@dataclass(slots=True)
class GpuEvaluator:
    """Judges candidates of one problem. `how` says how a leader is confirmed; `confirmation` does it, and
    `completion` compares it with the baselines that take minutes. Without `confirms` nobody leads. With
    `prepares` what a judgement needs is begun while a candidate is built: processes of a confirmation, the
    reference that it is held against, the audit's probe; `awaits` waits until a program's build has ended that was
    begun elsewhere. After the first verdict `meanwhile` is asked at each step for work, which runs in a thread
    beside it, unless that of an earlier step still does. With `races` one that would lead is timed in turns with the fastest first, and confirmed if it
    is decided to be faster; with `samples` a reading holds a candidate against sampled rows of a reference that is
    too large to be kept. `modules` runs the code of problem files, `references` those of programs on the CPU. `limit` bounds a process that launches, `wait` the wait for the GPU lock, in seconds. All launches are on one GPU of
    the engine, whose token is `near`: times of two GPUs do not compare. `background` has torch compile a module
    once a candidate was confirmed; without, that is done at the end. `meter` measures the energy of those
    that are as fast as the best, where that is asked for."""

    problem: OptimizationProblem
    engine: Engine
    how: ConfirmationSettings
    limit: float = 300.0
    wait: float = 600.0
    confirmation: Confirmation = confirm_candidate
    completion: Completion = complete_comparison
    confirms: bool = True
    prepares: bool = False
    awaits: Callable[[str], None] = lambda _: None
    meanwhile: Callable[[], Callable[[], None]] | None = None
    races: bool = False
    samples: bool = False
    modules: ModuleCall = in_own_process
    references: isolation.IsolatedCall = isolation.run
    background: BackgroundBaselines | None = None
    advisor: Advisor = field(default_factory=Advisor)
    meter: EnergyMeter | None = None
    near: str = field(default_factory=lambda: uuid.uuid4().hex)
    _known: dict[str, ProgramCandidate] = field(default_factory=dict)
    _agreed: dict[str, str] = field(default_factory=dict)
    _builds: dict[str, AnyBuilt] = field(default_factory=dict)
    _ready: int = 0
    _first_is_judged: bool = False
    _beside: Lock = field(default_factory=Lock)
    _probes: dict[str, ProbeTask] = field(default_factory=dict)
    _expected_keys: set[str] = field(default_factory=set)

    def key(self, text: str, source: str = "") -> str | RefusedOutcome:
        candidate = candidate_of(self.problem, text)
        if isinstance(candidate, RefusedOutcome):
            return candidate
        try:
            schedules = _planned(candidate, self.problem, self.how.device)
        except (ProgramError, ShapeError) as error:
            return refused(error)
        self._known[text] = candidate
        return f"{candidate.key}|{schedules}"

    def judge(self, text: str, source: str = "") -> CandidateJudgement:
        start, gpu_calls = time.monotonic(), GpuCalls(self.engine, self.near, self.wait)
        # Those of a confirmation get ready beside the first verdict where that leaves it cores.
        self._prepare(CONFIRMING_PROCESSES if self.engine.cpus >= CPUS_TO_SPARE else 1)
        if self._first_is_judged:
            self._work_beside()
        self._first_is_judged = True
        outcome = self._judged(self._known[text], gpu_calls)
        if isinstance(outcome, TimedOutcome):
            self._prepare(CONFIRMING_PROCESSES)
        spend = spend_of(start, gpu_calls)
        return CandidateJudgement(
            outcome, spend, provisional=self.confirms and isinstance(outcome, TimedOutcome)
        )

    def _work_beside(self) -> None:
        if self.meanwhile is None or not self._beside.acquire(blocking=False):
            return
        work = self.meanwhile()

        def run() -> None:
            try:
                work()
            finally:
                self._beside.release()

        Thread(target=run, daemon=True).start()

    def _prepare(self, count: int) -> None:
        """Has so many processes for a confirmation got ready, those included that wait since before."""
        for _ in range(count - self._ready if self.prepares and self.confirms else 0):
            self.engine.submit("prepare_judge", {}, near=self.near)
        self._ready = max(self._ready, count)

    def confirm(self, due: Confirm) -> CandidateJudgement:
        start, gpu_calls = time.monotonic(), GpuCalls(self.engine, self.near, self.wait)
        messages: list[str] = []
        self._work_beside()
        if self.races and due.incumbent and not due.complete and self._is_behind(due, gpu_calls):
            return CandidateJudgement(due.first, spend_of(start, gpu_calls), behind=True)
        self._prepare(CONFIRMING_PROCESSES)
        self._ready -= 1 if due.complete else CONFIRMING_PROCESSES
        if due.complete and self.background is not None and self.problem.module is not None:
            outcome: Outcome = due.first
        else:
            outcome = self._confirmed(due, gpu_calls, messages)
        incomplete = not due.complete and isinstance(outcome, TimedOutcome) and leaves_out(self.how)
        if isinstance(outcome, TimedOutcome) and self.background is not None and leaves_out(self.how):
            outcome, incomplete = self._beside_compiled(self.background, due, outcome, messages)
        return CandidateJudgement(outcome, spend_of(start, gpu_calls), tuple(messages), incomplete=incomplete)

    @span("baselines")
    def _beside_compiled(
        self, background: BackgroundBaselines, due: Confirm, outcome: TimedOutcome, messages: list[str]
    ) -> tuple[TimedOutcome, bool]:
        """Returns what is confirmed with what it gains over the compiled module, and whether that is to be asked
        later, since torch is still compiling."""
        module, candidate = self.problem.module, self.candidate(due.text)
        assert module is not None and isinstance(candidate, ProgramCandidate)
        background.begin(candidate.checked, candidate.program, module, searching=not due.complete)
        ratio = background.ratio(module, waits=due.complete)
        versus = dict(outcome.versus)
        if ratio is None:
            return outcome, True
        if isinstance(ratio, str) or "eager" not in versus:
            why = ratio if isinstance(ratio, str) else "it was not timed in turns with eager PyTorch"
            messages.append(f"not compared with {background.way}: {why}")
            return outcome, False
        gain = versus["eager"] / ratio.median
        return replace(outcome, versus=(*outcome.versus, (background.way, gain))), False

    def _is_behind(self, due: Confirm, gpu_calls: GpuCalls) -> bool:
        """Returns whether a race finds the candidate no faster than the fastest that was confirmed: slower, or
        after all its rounds not decided to be faster. One that does not end leaves that to the confirmation."""
        sides: list[dict[str, Any]] = []
        artifacts: list[str] = []
        for text in (due.text, due.incumbent):
            candidate = self.candidate(text)
            built = None if isinstance(candidate, RefusedOutcome) else self._built(candidate)
            if isinstance(candidate, RefusedOutcome) or built is None or isinstance(built, FailedOutcome):
                return False
            program = program_payload(candidate.checked)
            sides.append({"program": program, "built": built_payload(built), "sizes": dict(candidate.sizes)})
            artifacts += artifacts_of(built)
        outcome = gpu_calls.call(
            "race",
            {
                "candidate": sides[0],
                "incumbent": sides[1],
                "name": self.problem.program,
                "arch": self.problem.arch,
                "seed": self.how.seed,
            },
            limit=self.limit,
            artifacts=sorted(set(artifacts)),
        )
        raced = value(outcome, "the race")
        return not isinstance(raced, str) and raced["verdict"] != "faster"

    def _confirmed(self, due: Confirm, gpu_calls: GpuCalls, messages: list[str]) -> Outcome:
        candidate = self.candidate(due.text)
        if isinstance(candidate, RefusedOutcome):
            return candidate  # another version of this package judged it
        built = self._built(candidate)
        if isinstance(built, FailedOutcome):
            return built
        extents = complete(candidate.program, candidate.sizes)
        sizes = dict(zip(candidate.program.dims, extents, strict=True))
        probe = self._probe(candidate)
        subject = BuiltCandidate(candidate.checked, candidate.program, built, sizes, probe.result)
        if due.complete:
            completed = self.completion(subject, self.how, gpu_calls, due.first)
            if isinstance(completed, FailedOutcome):
                # What failed is the comparison: the candidate was confirmed, and stays so.
                messages.append(f"not compared with compiled baselines: {completed.words}")
                return due.first
            return completed
        with ThreadPoolExecutor(1, thread_name_prefix="ucutlass-advice") as beside:
            late_advice = beside.submit(
                lambda: due.first.advice or self._static_advice(candidate, due.first.seconds)
            )
            confirmation = self.confirmation(subject, self.how, gpu_calls)
        if not isinstance(confirmation, TimedOutcome):
            return confirmation
        if self.meter is not None and (due.best is None or confirmation.seconds <= TIED * due.best):
            joules, missing = self.meter.joules(subject, gpu_calls)
            confirmation = replace(confirmation, joules=joules)
            messages += [missing] if missing else []
        advice = late_advice.result()
        leads = due.best is None or confirmation.seconds < due.best
        if leads and self.advisor.depth == "profiled":
            with span("advice"):
                advice = self.advisor.profiled(
                    subject, self.problem.arch, gpu_calls, self.how.seed, confirmation.seconds
                )
        return replace(confirmation, first=due.first.seconds, advice=advice)

    def candidate(self, text: str) -> ProgramCandidate | RefusedOutcome:
        """Returns the candidate of a text, which was read if its key is known here."""
        return self._known.get(text) or candidate_of(self.problem, text)

    def built(self, text: str) -> AnyBuilt | None:
        """Returns what was built of a text here, None where nothing was."""
        return self._builds.get(text)

    def _judged(self, candidate: ProgramCandidate, gpu_calls: GpuCalls) -> Outcome:
        other = self.other(candidate, gpu_calls)
        if other:
            return RefusedOutcome(other)
        expected = self._expected(candidate, gpu_calls)
        built = self._built(candidate)
        expected()
        if isinstance(built, FailedOutcome):
            return built
        first = self.tried(candidate, built, gpu_calls)
        if not isinstance(first, TimedOutcome):
            return first
        if self.prepares and self.confirms:
            self._probe(candidate)
        if self.advisor.leaders_only:
            return first
        with span("advice"):
            return replace(first, advice=self._static_advice(candidate, first.seconds))

    def _static_advice(self, candidate: ProgramCandidate, seconds: float) -> str:
        return self.advisor.static(
            candidate.checked, candidate.program, candidate.sizes, self.problem.arch, self.how.device, seconds
        )

    def other(self, candidate: ProgramCandidate, gpu_calls: GpuCalls) -> str:
        """Returns why it does not compute what the problem does; "" where it does. A kernel's algorithm is
        all of its typed program, so equal digests need no experiment."""
        if self.problem.module is not None:
            return self._unlike(candidate, self.problem.module, gpu_calls)
        original = checked_candidate(self.problem, self.problem.start)
        if isinstance(original, ProgramCandidate) and original.key == candidate.key:
            return ""
        outcome = self.references(
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
                candidate.checked,
                candidate.program,
                module,
                gpu_calls,
                seed=self.how.seed,
                limit=self.limit,
                call=self.modules,
            )
        return self._agreed[candidate.key]

    def _expected(self, candidate: ProgramCandidate, gpu_calls: GpuCalls) -> Callable[[], None]:
        """Begins the reference that a candidate's process needs besides its build. Returns what counts it, once
        the build has ended."""
        if not self.prepares or candidate.key in self._expected_keys:
            return lambda: None
        self._expected_keys.add(candidate.key)
        reference = self.problem.start if self.problem.module is None else candidate.checked
        arguments = {
            "program": program_payload(reference),
            "name": self.problem.program,
            "sizes": dict(candidate.sizes),
            "seed": self.how.seed,
        }
        small = memory_of(candidate.program, candidate.sizes) <= shared_bytes(self.how.device)
        return gpu_calls.begin("expected", arguments, limit=self.limit, shared=small)

    def _probe(self, candidate: ProgramCandidate) -> ProbeTask:
        """Returns what the audit asks the float64 reference: once for an algorithm, whatever its schedules."""
        if candidate.key not in self._probes:
            extents = complete(candidate.program, candidate.sizes)
            sizes = dict(zip(candidate.program.dims, extents, strict=True))
            subject = AuditSubject(candidate.checked, candidate.program, sizes)
            self._probes[candidate.key] = ProbeTask(
                subject, self.how.seed, begins=self.prepares, call=self.references
            )
        return self._probes[candidate.key]

    @span("build")
    def _built(self, candidate: ProgramCandidate) -> AnyBuilt | FailedOutcome:
        """Raises MachineError: a compiler that is missing is no candidate's fault."""
        text = candidate.checked.source
        if text in self._builds:
            return self._builds[text]
        sizes = complete(candidate.program, candidate.sizes)
        self.awaits(text)
        try:
            built = build_program(
                candidate.checked, candidate.program, sizes, self.problem.arch, device=self.how.device
            )
        except (BuildError, ProgramError) as error:
            return FailedOutcome("build", str(error)[:600])
        self._builds[text] = built
        return built

    def tried(
        self, candidate: ProgramCandidate, built: AnyBuilt, gpu_calls: GpuCalls
    ) -> TimedOutcome | WrongOutcome | FailedOutcome:
        """Returns the reading of a built candidate: it is launched, held against the reference and timed."""
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
            "sampled": self.samples,
        }
        outcome = gpu_calls.call("attempt", arguments, limit=self.limit, artifacts=artifacts_of(built))
        reading = value(outcome, "the attempt")
        if isinstance(reading, str):
            return FailedOutcome("run", reading[:600])
        if reading["seconds"] is None:
            return WrongOutcome(str(reading["words"])[:600])
        return TimedOutcome(float(reading["seconds"]))


def spend_of(start: float, gpu_calls: GpuCalls) -> Spend:
    return Spend(gpu_seconds=gpu_calls.held, seconds=time.monotonic() - start - gpu_calls.waited)


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
