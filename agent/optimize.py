"""This module optimises one problem live: it is what `ucc optimize` and `ucutlass.agent` do."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from ucutlass.agent.advisor import advisor_of
from ucutlass.agent.background_baselines import BackgroundBaselines
from ucutlass.agent.energy import energy_meter_of
from ucutlass.agent.evaluator import GpuEvaluator
from ucutlass.agent.evidence import ConfirmationSettings
from ucutlass.agent.journal import Journal
from ucutlass.agent.module_processes import ModuleCall, in_own_process
from ucutlass.agent.prebuild import BuildCounter, Prebuilder, guess_answer
from ucutlass.agent.problem import OptimizationProblem, problem_of_json, problem_to_json
from ucutlass.agent.proposer import Measuring, Preparing, Proposer, ProposerFailed, SourceWriting
from ucutlass.agent.proposers.factory import judge as judge_of
from ucutlass.agent.proposers.rules import rules
from ucutlass.agent.run import (
    CandidateEvaluator,
    OnEvent,
    OptimizationSession,
    measurer,
    open_journal_session,
    run,
)
from ucutlass.agent.session import SessionSettings, SessionState
from ucutlass.agent.source_evaluator import SourceEvaluator
from ucutlass.agent.source_files import CandidateFiles
from ucutlass.agent.step_time import StepTime
from ucutlass.backend import toolchain
from ucutlass.diagnostics import ProgramError
from ucutlass.engine.work import Engine
from ucutlass.ir.hardware import Device
from ucutlass.runtime import isolation
from ucutlass.shapes import ShapeError, complete
from ucutlass.sol.bounds import TimeBounds, bounds
from ucutlass.sol.report import row

GUESSING_CPUS = 8
"""Compilers at once from which on the next answer is built before it is due: half of its programs are other ones
then."""

ProposerOf = Callable[[OptimizationProblem, Device | None, int], Proposer]
"""Makes the proposer of a problem, by the session's seed: `rules`, or one of
`ucutlass.agent.proposers.factory`."""

__all__ = [
    "Machinery",
    "ProposerOf",
    "open_session",
    "proposer_and_evaluator",
    "rules",
    "run_session",
    "with_prebuilds",
]


@dataclass(frozen=True, slots=True)
class Machinery:
    """Holds the machine's part: compilers and GPU behind `engine`, the GPU's facts, what to hold candidates
    against (`baseline`, a name of `ucc bench`), and limits in seconds. `measures`: a proposer that can may
    have programs measured while it answers. `builders` compile what an answer proposes before its turn comes;
    without, each program is built when it is judged. `counted` is told of those builds. `confirms`: who would
    lead is confirmed at once; without, whoever ran the session confirms what it found. `prepares`: processes of
    confirmations are started ahead; `races`: who would lead is timed in turns with the
    fastest before it is confirmed; `samples`: readings hold candidates against sampled rows. `modules` runs the
    code of problem files, `references` those of programs on the CPU. `gpu` is the driver's name of the GPU, for sessions at source level. `compiled` is the
    way in which torch compiles a module that the best is compared with, "" for none; `background` does so beside
    the search."""

    engine: Engine
    device: Device | None
    baseline: str = "eager"
    limit: float = 300.0
    wait: float = 600.0
    measures: bool = True
    builders: Executor | None = None
    counted: BuildCounter = field(default_factory=BuildCounter)
    confirms: bool = True
    prepares: bool = False
    races: bool = False
    samples: bool = False
    modules: ModuleCall = in_own_process
    references: isolation.IsolatedCall = isolation.run
    gpu: str = ""
    compiled: str = "compile-max-autotune"
    background: BackgroundBaselines | None = None


def bounds_of_problem(problem: OptimizationProblem, device: Device) -> TimeBounds:
    """Returns what no program can beat; `realistic` has the launch floor."""
    program = problem.typed
    sizes = dict(zip(program.dims, complete(program, problem.sizes), strict=True))
    return bounds(program, sizes, device)


def open_session(
    journal: Journal,
    problem: OptimizationProblem,
    settings: SessionSettings,
    device: Device | None,
    id: str | None = None,
    time: StepTime | None = None,
    known_bounds: TimeBounds | None = None,
) -> OptimizationSession:
    """Opens a new session in the journal, under `id` if one is given; nothing is measured yet. `time` is what
    reading the problem took, and `known_bounds` are those of its program where they were computed before. No bound is
    known without the device's facts, nor for a module without a first program: what it must move and multiply
    depends on how it is written."""
    problem_json = problem_to_json(problem)
    if device is None or problem.checked is None:
        return open_journal_session(
            journal, problem_json, settings, bound=0.0, baseline=None, id=id, time=time
        )
    sol_bounds = known_bounds or bounds_of_problem(problem, device)
    return open_journal_session(
        journal,
        problem_json,
        settings,
        bound=sol_bounds.realistic.seconds,
        baseline=None,
        sol=row(sol_bounds),
        id=id,
        time=time,
    )


def run_session(
    session: OptimizationSession,
    where: Machinery,
    proposer_of: ProposerOf,
    on_event: OnEvent = lambda _: None,
) -> SessionState:
    """Works on a session until it ends. Raises ProposerFailed, StoreError, MachineError; it can be resumed
    then, as after a kill."""
    proposer, evaluator = proposer_and_evaluator(session, where, proposer_of)
    try:
        return run(session, *with_prebuilds(session, where, proposer, evaluator), on_event)
    finally:
        where.engine.leave(evaluator.near)


def with_prebuilds(
    session: OptimizationSession, where: Machinery, proposer: Proposer, evaluator: GpuEvaluator
) -> tuple[Proposer, CandidateEvaluator]:
    """Returns the proposer and the evaluator of a session, with the builds of what is to be judged begun at
    once where `where` has builders."""
    judge: CandidateEvaluator = evaluator
    if session.state.settings.level == "source":
        judge = SourceEvaluator(evaluator, where.gpu)
    if where.builders is None:
        return proposer, judge
    prebuilder = Prebuilder(evaluator.problem, where.device, where.builders, where.counted)
    prebuilder.begin([program.text for program in session.state.pending if not program.source])
    evaluator.awaits = prebuilder.wait
    building = prebuilder.proposer(proposer)
    if where.prepares and where.engine.cpus >= GUESSING_CPUS and isinstance(proposer, Preparing):
        evaluator.meanwhile = lambda: partial(_ahead, proposer, guess_answer(session.state, building))
    return building, judge


def proposer_and_evaluator(
    session: OptimizationSession, where: Machinery, proposer_of: ProposerOf
) -> tuple[Proposer, GpuEvaluator]:
    """Returns a session's proposer, and where it is judged, which holds a token of the engine until that
    closes or is told to leave it. Raises ProgramError, ShapeError, ProposerFailed."""
    problem = problem_of_json(session.state.problem)
    settings = session.state.settings
    how = ConfirmationSettings(
        problem.arch,
        where.device,
        problem.policy,
        where.baseline,
        settings.seed,
        limit=where.limit,
        module=problem.module,
        compiled=where.compiled,
    )
    bench = GpuEvaluator(problem, where.engine, how, where.limit, where.wait)
    bench.confirms, bench.prepares = where.confirms, where.prepares
    bench.samples, bench.modules, bench.references = where.samples, where.modules, where.references
    bench.background = where.background
    bench.races = where.races and settings.objective == "time"  # who is slower may take less energy
    bench.advisor = advisor_of(session.state, where.limit)
    bench.meter = energy_meter_of(session.state, problem.arch, where.limit)
    if settings.judge and session.voice is None:
        session.voice = judge_of(settings.judge)
    proposer = proposer_of(problem, where.device, settings.seed)
    if settings.level == "source":
        proposer = _writing_source(proposer, problem, where.device)
    if where.measures and isinstance(proposer, Measuring):
        proposer = proposer.measuring(measurer(session, bench))
    return proposer, bench


def _ahead(proposer: Preparing, ask: Callable[[], None]) -> None:
    """Prepares the proposer and has the programs of its next answer built, while something else is judged."""
    with suppress(ProgramError, ShapeError):  # the answer that is due raises them again
        proposer.prepare()
        ask()


def _writing_source(proposer: Proposer, problem: OptimizationProblem, device: Device | None) -> Proposer:
    """Raises ProposerFailed for a proposer that writes programs alone, and ToolchainError."""
    if not isinstance(proposer, SourceWriting):
        raise ProposerFailed(
            "the rules write no CUDA source", "name a model with --model, or a program with --command"
        )
    cutlass = toolchain().cutlass
    return proposer.writing_source(CandidateFiles(problem, device, cutlass.include, cutlass.version))
