"""This module has `ucc optimize FOLDER`, and what `ucc kernelbench` has in common with it: one run over many
problems."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ucutlass.agent.batch import (
    BatchMember,
    BatchRun,
    NotABatchRun,
    Opening,
    Place,
    batch_progress,
    open_batch,
    resume_batch,
    work,
)
from ucutlass.agent.budget import Budget
from ucutlass.agent.journal import Journal, NoSuchSession
from ucutlass.agent.kernelbench import ProblemResult, rows
from ucutlass.agent.outcome import Outcome, words
from ucutlass.agent.problem import OptimizationProblem
from ucutlass.agent.problem_loader import LoaderSettings, names_of, problem_at
from ucutlass.agent.proposer import ProposerFailed
from ucutlass.agent.run import OptimizationSession, resume_session
from ucutlass.agent.session import (
    NotASession,
    SessionSettings,
    SessionState,
    settings_of_json,
    settings_to_json,
)
from ucutlass.agent.step_time import StepTime
from ucutlass.cli import show
from ucutlass.cli.engines import at_hand, equal_gpus, journaled, opened, threads_take_turns_quickly
from ucutlass.cli.errors import Status, fail
from ucutlass.cli.proposer_options import proposer_factory
from ucutlass.cli.search_options import ATTEMPTS, SearchOptions
from ucutlass.cli.templates import session_template
from ucutlass.engine.work import Engine
from ucutlass.runtime.gpu import CurrentGpu
from ucutlass.runtime.process_template import ProcessTemplate
from ucutlass.sol.bounds import TimeBounds

if TYPE_CHECKING:
    from ucutlass.agent.optimize import Machinery

READ_AHEAD = 2
"""Problems that are read while another is judged."""


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """Describes how a run works, which it keeps: what is left of it goes on so. `settings.budget` bounds a
    problem, `run_budget` the run."""

    folder: Path
    reading: LoaderSettings
    settings: SessionSettings
    run_budget: Budget
    baseline: str


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """Describes a run as a command asks for it. `how` has what no journal keeps, and which budgets were
    given."""

    settings: BatchSettings
    how: SearchOptions
    as_json: bool


def batch_request(
    folder: Path | None,
    how: SearchOptions,
    as_json: bool,
    sizes: Sequence[str] = (),
    program: str | None = None,
) -> BatchRequest:
    """Raises ShapeError."""
    limits = how.limits.problem
    settings = how.settings(limits if limits.attempts is not None else replace(limits, attempts=ATTEMPTS))
    # The GPU at hand says what `arch` is where none was asked for.
    reading = how.reading("", sizes, program)
    folder = (folder or Path()).absolute()
    return BatchRequest(
        BatchSettings(folder, reading, settings, how.limits.run, how.timing.baseline), how, as_json
    )


def run_batch(names: Sequence[str], request: BatchRequest, id: str | None) -> tuple[BatchRun, str]:
    """Runs these problems of the folder, or goes on with the run of an id, and returns it with why it ended.
    Ends the command where the machine has no GPU."""
    from ucutlass.agent.prebuild import builder_pool

    spec = request.how.session.spec
    gpus = equal_gpus() if spec is None else ()
    with (
        session_template() as template,
        closing(opened(spec, request.as_json, announces=False, template=template, gpus=gpus)) as engine,
    ):
        threads_take_turns_quickly()  # problems that are worked on at once wait for each other all the time
        journal = Journal.open(request.how.journal)
        local_gpu = _gpu_of(engine, request.as_json)
        run = _begun_batch(journal, names, request, id, local_gpu.arch.name)
        show.note(f"ucc: run {run.id[:16]} over {len(run.names)} problems")
        settings = batch_settings_of_json(run.about)
        with (
            builder_pool(engine.cpus) as builders,
            _machinery(engine, request, settings.baseline, local_gpu, builders, template, gpus) as where,
        ):
            problems = _BatchProblems(journal, settings, request, where, builders)
            return run, _worked(run, problems, _at_once(request, engine))


def _gpu_of(engine: Engine, as_json: bool) -> CurrentGpu:
    local_gpu = at_hand(engine)
    if local_gpu is None:
        why = "nothing was run: there is no NVIDIA GPU here that a compile target serves"
        fail(Status.MACHINE, why, as_json)
    return local_gpu


def _at_once(request: BatchRequest, engine: Engine) -> int:
    return request.how.session.problems_at_once(engine.cpus, engine.gpus)


@contextmanager
def _machinery(
    engine: Engine,
    request: BatchRequest,
    baseline: str,
    local_gpu: CurrentGpu,
    builders: Executor,
    template: ProcessTemplate,
    gpus: Sequence[str],
) -> Iterator[Machinery]:
    """Gives what all problems of a run are judged with; processes of judges begin to get ready, one for each GPU."""
    from ucutlass.agent.background_baselines import background_baselines
    from ucutlass.agent.module_processes import forked_call, module_processes
    from ucutlass.agent.optimize import Machinery

    timing, session = replace(request.how.timing, baseline=baseline), request.how.session
    with (
        module_processes(2, _at_once(request, engine), template, gpus) as modules,
        background_baselines(
            timing.beside, local_gpu.gpu.name, engine.cpus, timing.limit, timing.wait, gpus
        ) as background,
    ):
        for number in range(max(1, len(gpus))):
            engine.submit("prepare_judge", {}, near=f"gpu {number}" if gpus else "")
        yield Machinery(
            engine,
            local_gpu.device,
            timing.held,
            timing.limit,
            timing.wait,
            session.measures,
            builders=builders,
            prepares=True,
            races=session.race,
            samples=session.samples,
            modules=modules,
            references=forked_call(template),
            compiled=timing.beside,
            background=background,
        )


@dataclass(frozen=True, slots=True)
class _BatchProblems:
    """Reads the problems of a run, opens their sessions and gives each its place, where `builders` compile."""

    journal: Journal
    settings: BatchSettings
    request: BatchRequest
    where: Machinery
    builders: Executor

    def read(self, name: str) -> OptimizationProblem:
        """Returns the problem of a file, whose first program begins to be built. Raises as `problem_at`."""
        from ucutlass.agent.prebuild import Prebuilder, start_builder

        reading, device, counted = self.settings.reading, self.where.device, self.where.counted
        begin_start = start_builder(reading.arch, device, self.builders, counted)
        folder = self.settings.folder
        problem = problem_at(folder / name, reading, folder, self.where.modules, begin_start)
        Prebuilder(problem, device, self.builders, counted).begin([problem.text])
        return problem

    def open(
        self, problem: OptimizationProblem, session: str, time: StepTime, bounds: TimeBounds | None
    ) -> OptimizationSession:
        from ucutlass.agent.optimize import open_session

        settings = self.settings.settings
        return open_session(self.journal, problem, settings, self.where.device, session, time, bounds)

    def bounds(self, problem: OptimizationProblem) -> TimeBounds | None:
        from ucutlass.agent.optimize import bounds_of_problem

        device = self.where.device
        return None if device is None or problem.checked is None else bounds_of_problem(problem, device)

    def place(self, session: OptimizationSession) -> Place:
        from ucutlass.agent.optimize import proposer_and_evaluator, with_prebuilds

        asks = proposer_factory(self.request.how.proposer, self.journal, session, self.request.as_json)
        return with_prebuilds(session, self.where, *proposer_and_evaluator(session, self.where, asks))


def _worked(run: BatchRun, problems: _BatchProblems, at_once: int) -> str:
    """Works on a run until it ends, and returns why it did. Ends the command where the proposer failed."""
    from ucutlass.agent.prebuild import read_ahead

    as_json = problems.request.as_json
    show_event = _on_event(run, as_json)
    with read_ahead(max(READ_AHEAD, at_once)) as ahead:
        reader = ahead([name for name in run.names if name not in run.members], problems.read)
        opening = Opening(reader.problem_of, problems.open, _on_member(as_json), problems.bounds)

        def on_event(name: str, state: SessionState) -> None:
            if len(state.tree):
                reader.go_on(name)
            show_event(name, state)

        try:
            with journaled():
                budget = problems.settings.run_budget
                return work(run, opening, problems.place, budget, on_event, at_once=at_once)
        except ProposerFailed as failure:
            fail(Status.MACHINE, f"{failure}; then go on with --resume {run.id[:16]}", as_json)


def _begun_batch(
    journal: Journal, names: Sequence[str], request: BatchRequest, id: str | None, arch: str
) -> BatchRun:
    if id is None:
        return _open_batch(journal, names, request, arch)
    return _resume_batch(journal, id, request)


def _open_batch(journal: Journal, names: Sequence[str], request: BatchRequest, arch: str) -> BatchRun:
    reading = replace(request.settings.reading, arch=request.settings.reading.arch or arch)
    return open_batch(journal, names, batch_settings_to_json(replace(request.settings, reading=reading)))


def _resume_batch(journal: Journal, id: str, request: BatchRequest) -> BatchRun:
    """Returns a run as it was begun, but for the budgets that are given anew."""
    run = batch_of_id(journal, id, request.as_json, to_go_on=True)
    before = batch_settings_of_json(run.about)
    if request.how.proposer.proposer not in (None, before.settings.proposer):
        words_ = f"run {run.id[:16]} was begun with --proposer {before.settings.proposer}"
        fail(Status.CALL, words_, request.as_json)
    changed_limits = {
        name: most for name, most in asdict(request.settings.run_budget).items() if most is not None
    }
    own_limits = {name: most for name, most in asdict(request.how.limits.problem).items() if most is not None}
    settings = replace(before.settings, budget=replace(before.settings.budget, **own_limits))
    after = replace(before, settings=settings, run_budget=replace(before.run_budget, **changed_limits))
    if after != before:
        run.write("changed", about=batch_settings_to_json(after))
    for member in run.members.values():
        session = member.session
        if session is not None and session.state.number and session.state.settings.budget != settings.budget:
            member.session = resume_session(journal, session.id, settings.budget)
    return run


def batch_settings_to_json(settings: BatchSettings) -> dict[str, Any]:
    start = None if settings.reading.start is None else str(settings.reading.start.absolute())
    reading = {**asdict(settings.reading), "start": start}
    reading["lane"] = reading.pop("compute_type")
    return {
        "folder": str(settings.folder),
        "reading": reading,
        "settings": settings_to_json(settings.settings),
        "whole": asdict(settings.run_budget),
        "baseline": settings.baseline,
    }


def batch_settings_of_json(value: Mapping[str, Any]) -> BatchSettings:
    """Raises KeyError, TypeError for another's fields."""
    reading = dict(value["reading"])
    start = reading.pop("start")
    compute_type = reading.pop("lane")
    return BatchSettings(
        Path(value["folder"]),
        LoaderSettings(**reading, compute_type=compute_type, start=None if start is None else Path(start)),
        settings_of_json(value["settings"]),
        Budget(**value["whole"]),
        value["baseline"],
    )


def batch_of_id(journal: Journal, id: str, as_json: bool, *, to_go_on: bool) -> BatchRun:
    """Returns the run of an id, as it was left. Ends the command where there is none."""
    try:
        return resume_batch(journal, id, to_go_on=to_go_on)
    except NoSuchSession as problem:
        fail(Status.CALL, str(problem), as_json)
    except (NotABatchRun, NotASession) as problem:
        fail(Status.MACHINE, f"the run cannot be read: {problem}", as_json)


def _on_member(as_json: bool) -> Callable[[BatchMember], None]:
    def say(member: BatchMember) -> None:
        if as_json:
            return
        what = f"[{member.code}] {member.words}"
        if member.session is not None:
            without = str(member.session.state.problem.get("no_start", ""))
            what = member.session.id[:12] + (f", without a first program: {without}" if without else "")
        show.note(f"ucc: {member.name}: {show.one_line(what)}")

    return say


def _on_event(run: BatchRun, as_json: bool) -> Callable[[str, SessionState], None]:
    shown: dict[str, list[Outcome]] = {}

    def say(name: str, state: SessionState) -> None:
        before = shown.get(name, [])
        for node in state.tree.changed(before):
            confirmed = " confirmed" if node.id < len(before) else ""
            show.note(f"ucc: {name} {node.id:3}{confirmed}: {show.one_line(words(node.outcome))}")
        shown[name] = [node.outcome for node in state.tree.nodes]
        show.note(f"ucc: {batch_progress(run)}")

    return say if not as_json else lambda name, state: None


# --- ucc optimize FOLDER ---------------------------------------------------------


def optimize_folder(
    folder: Path | None,
    id: str | None,
    how: SearchOptions,
    sizes: Sequence[str],
    program: str | None,
    as_json: bool,
) -> None:
    """Runs the problems of a folder, or goes on with a run, and reports it, as `ucc optimize` does."""
    if how.proposer.record is not None or how.proposer.replay is not None:
        fail(Status.CALL, "--record and --replay are for one problem, not for a run over many", as_json)
    request = batch_request(folder, how, as_json, sizes, program)
    names = [] if folder is None else names_of(folder)
    if folder is not None and not names:
        fail(Status.CALL, f"{folder} holds no .ucu and no .py file", as_json)
    run, why = run_batch(names, request, id)
    results = rows(run)
    report = {
        "run": run.id,
        "stopped": why,
        "spend": asdict(run.spend),
        "problems": list(map(asdict, results)),
    }
    if as_json:
        show.data(report)
    else:
        show.table(("run", "stopped"), [(run.id[:16], why)])
        show.table(("problem", "session", "result"), result_lines(results))
    if not any(row.right for row in results):
        sys.exit(Status.PROGRAM)


def result_lines(results: Sequence[ProblemResult]) -> list[tuple[str, ...]]:
    return [(r.name, r.session[:12], f"[{r.code}] {r.words}" if r.code else r.words) for r in results]
