"""This module has `ucc optimize FOLDER`, and what `ucc kernelbench` has in common with it: one run over many
problems."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

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
from ucutlass.runtime.process_template import ProcessTemplate
from ucutlass.sol.bounds import TimeBounds

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
    spec = request.how.session.spec
    gpus = equal_gpus() if spec is None else ()
    # Problems that are worked on at once wait for each other all the time.
    with (
        session_template() as template,
        closing(opened(spec, request.as_json, announces=False, template=template, gpus=gpus)) as engine,
    ):
        return _run_batch(engine, names, request, id, template, gpus)


def _run_batch(
    engine: Engine,
    names: Sequence[str],
    request: BatchRequest,
    id: str | None,
    template: ProcessTemplate,
    gpus: Sequence[str],
) -> tuple[BatchRun, str]:
    from ucutlass.agent.background_baselines import background_baselines
    from ucutlass.agent.module_processes import forked_call, module_processes
    from ucutlass.agent.optimize import (
        Machinery,
        bounds_of_problem,
        open_session,
        proposer_and_evaluator,
        with_prebuilds,
    )
    from ucutlass.agent.prebuild import Prebuilder, builder_pool, read_ahead, start_builder

    threads_take_turns_quickly()
    journal = Journal.open(request.how.journal)
    local_gpu = at_hand(engine)
    if local_gpu is None:
        fail(
            Status.MACHINE,
            "nothing was run: there is no NVIDIA GPU here that a compile target serves",
            request.as_json,
        )
    run = (
        _open_batch(journal, names, request, local_gpu.arch.name)
        if id is None
        else _resume_batch(journal, id, request)
    )
    show.note(f"ucc: run {run.id[:16]} over {len(run.names)} problems")
    settings = batch_settings_of_json(run.about)

    device = local_gpu.device

    def open_(
        problem: OptimizationProblem, session: str, time: StepTime, bounds: TimeBounds | None
    ) -> OptimizationSession:
        return open_session(journal, problem, settings.settings, device, session, time, bounds)

    def bounds_of(problem: OptimizationProblem) -> TimeBounds | None:
        return None if device is None or problem.checked is None else bounds_of_problem(problem, device)

    timing = replace(request.how.timing, baseline=settings.baseline)
    at_once = request.how.session.problems_at_once(engine.cpus, engine.gpus)
    further = max(READ_AHEAD, at_once)
    with (
        module_processes(2, at_once, template, gpus) as modules,
        builder_pool(engine.cpus) as pool,
        read_ahead(further) as ahead,
        background_baselines(
            timing.beside, local_gpu.gpu.name, engine.cpus, timing.limit, timing.wait, gpus
        ) as background,
    ):
        for number in range(max(1, len(gpus))):
            engine.submit("prepare_judge", {}, near=f"gpu {number}" if gpus else "")
        where = Machinery(
            engine,
            local_gpu.device,
            timing.held,
            timing.limit,
            timing.wait,
            request.how.session.measures,
            builders=pool,
            prepares=True,
            races=request.how.session.race,
            samples=request.how.session.samples,
            modules=modules,
            references=forked_call(template),
            compiled=timing.beside,
            background=background,
        )

        begin_start = start_builder(settings.reading.arch, local_gpu.device, pool, where.counted)

        def place_of(session: OptimizationSession) -> Place:
            asks = proposer_factory(request.how.proposer, journal, session, request.as_json)
            return with_prebuilds(session, where, *proposer_and_evaluator(session, where, asks))

        def problem_of(name: str) -> OptimizationProblem:
            path, reading = settings.folder / name, settings.reading
            problem = problem_at(path, reading, settings.folder, modules, begin_start)
            Prebuilder(problem, local_gpu.device, pool, where.counted).begin([problem.text])
            return problem

        unopened = [name for name in run.names if name not in run.members]
        reader = ahead(unopened, problem_of)
        opening = Opening(reader.problem_of, open_, _on_member(request.as_json), bounds_of)
        show_event = _on_event(run, request.as_json)

        def on_event(name: str, state: SessionState) -> None:
            if len(state.tree):
                reader.go_on(name)
            show_event(name, state)

        try:
            with journaled():
                why = work(run, opening, place_of, settings.run_budget, on_event, at_once=at_once)
        except ProposerFailed as failure:
            fail(Status.MACHINE, f"{failure}; then go on with --resume {run.id[:16]}", request.as_json)
    return run, why


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
