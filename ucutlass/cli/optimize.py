"""This module is `ucc optimize`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import click

from ucutlass.adopt.database import AdoptedRow
from ucutlass.agent.batch import NoStart
from ucutlass.agent.budget import Budget
from ucutlass.agent.integrity.precision import UnknownComputeType
from ucutlass.agent.journal import RUN_PREFIX, Journal, NoSuchSession
from ucutlass.agent.module_processes import ModuleCall
from ucutlass.agent.outcome import Outcome, TimedOutcome, words
from ucutlass.agent.problem import OptimizationProblem, StartProgramMismatch
from ucutlass.agent.problem_loader import LoaderSettings, problem_at, problem_in
from ucutlass.agent.proposer import ProposerFailed
from ucutlass.agent.run import OptimizationSession, resume_session
from ucutlass.agent.session import Level, NotASession, SessionState
from ucutlass.agent.step_time import timed_step
from ucutlass.cli import inputs, show
from ucutlass.cli.engines import at_hand, journaled, opened, say_wait, threads_take_turns_quickly
from ucutlass.cli.errors import Status, fail, reported
from ucutlass.cli.options import json_option, kernel_option, names_in, sizes_option
from ucutlass.cli.outputs import OutputPath, write
from ucutlass.cli.proposer_options import proposer_factory
from ucutlass.cli.search_options import ATTEMPTS, SearchOptions, search_options
from ucutlass.cli.templates import session_template
from ucutlass.engine.work import Engine
from ucutlass.runtime.gpu import CurrentGpu
from ucutlass.runtime.isolation import IsolatedCall
from ucutlass.runtime.module.signature import Unusable
from ucutlass.runtime.system import process_age
from ucutlass.units import duration

_NO_GPU = "nothing was optimised: there is no NVIDIA GPU here that a compile target serves"


@click.command("optimize")
@click.argument("source", metavar="FILE", required=False, type=inputs.ProblemPath())
@sizes_option
@kernel_option
@click.option("--resume", "id", metavar="ID", help="Go on with a session instead of FILE.")
@click.option(
    "--input",
    "types",
    multiple=True,
    metavar="TYPE",
    help="Type of an input of a module, such as 'f32[16, 1024]'; in order.",
)
@search_options
@click.option(
    "--level",
    type=click.Choice(get_args(Level)),
    help="What answers may hold: programs (text, the default), or CUDA source in their place too.",
)
@click.option(
    "--allow-source",
    is_flag=True,
    help="Adopt the session's best for this GPU and these extents where it is a source, as ucc adopt does.",
)
@click.option(
    "-o",
    "output",
    type=OutputPath(),
    metavar="FILE",
    help="Write the best program; a source that stands for it is written beside it as FILE.cu.",
)
@click.option(
    "--fold-weights",
    metavar="NAMES",
    default="",
    help="Parameters of a program that stay from call to call: what depends on them alone is computed once.",
)
@json_option
def command(
    source: Path | None,
    sizes: tuple[str, ...],
    name: str | None,
    id: str | None,
    types: tuple[str, ...],
    level: Level | None,
    allow_source: bool,
    output: Path | None,
    fold_weights: str,
    as_json: bool,
    how: SearchOptions,
) -> None:
    """Search for a faster program that computes what FILE's does, for these extents, on this GPU.

    FILE is a program, a PyTorch module in KernelBench's format, another class of such a file (FILE.py:CLASS,
    with --input where the file has no get_inputs()), or a folder of programs and modules. A module's first
    program is that of --start, or the one beside it, or the importer's.

    What is computed stays; schedules, and where a pipeline is cut, are free. Every candidate is checked
    against the problem, built, held against its float64 reference and timed; one that would lead is also
    verified on the whole suite, timed in turns with the baseline and audited. All of it is written down
    as it happens: --resume goes on where a session stopped, however it did.

    With --fold-weights a program is divided: FILE's program then takes what NAME_folded, in the same text, gives
    when it is called once.

    With --level source what the proposer writes is compiled and run, with your rights.
    """
    file, cls = (None, "") if source is None else inputs.class_of(source)
    with reported(as_json):
        if (file is None) == (id is None):
            fail(Status.CALL, "give FILE to begin a session, or --resume ID to go on with one", as_json)
        if (file is not None and file.is_dir()) or (id or "").startswith(RUN_PREFIX):
            from ucutlass.cli.batch import optimize_folder

            source_level = level == "source" or allow_source
            _refuse_for_many(
                {
                    "-o": output,
                    "--level source": source_level,
                    "--input": types,
                    "--fold-weights": fold_weights,
                },
                as_json,
            )
            optimize_folder(file, id, how, sizes, name, as_json)
            return
    from ucutlass.agent.module_processes import forked_call, module_processes

    with (
        reported(as_json),
        session_template() as template,
        closing(opened(how.session.spec, as_json, template=template)) as engine,
        module_processes(2 * int(file is not None and file.suffix == ".py"), 1, template) as modules,
    ):
        journal = Journal.open(how.journal)
        local_gpu = at_hand(engine)
        if fold_weights and file is None:
            fail(Status.CALL, "--fold-weights begins a session: a session goes on as it was begun", as_json)
        if file is None:
            session = _resume_session(journal, id or "", how.limits.session, as_json)
        else:
            arch = local_gpu.arch.name if local_gpu is not None else "sm90a"
            reading = replace(
                how.reading(arch, sizes, name), cls=cls, types=types, fold_weights=names_in(fold_weights)
            )
            # What reads the module may take minutes, and ends with this process.
            with journaled():
                session = _open_session(
                    journal, file, local_gpu, how, reading, level or "text", modules, as_json
                )
        _hold_to_level(session, level, allow_source, as_json)
        if local_gpu is None:
            fail(Status.MACHINE, _NO_GPU, as_json)
        state = _run_session(
            journal, session, engine, local_gpu, how, modules, forked_call(template), as_json
        )
        best = state.tree.best()
        if output is not None and best is not None:
            write(output, best.text)
            if best.source:
                write(output.with_name(output.name + ".cu"), best.source)
        adopted = _adopted(state, local_gpu, allow_source)
    _report(session, state, adopted, as_json)
    if best is None:
        sys.exit(Status.PROGRAM)


_OF_ONE = {"-o": "problem", "--level source": "problem", "--input": "module", "--fold-weights": "program"}
"""What options are for that a run over many problems does not take."""


def _refuse_for_many(values: Mapping[str, object], as_json: bool) -> None:
    """Ends the command where an option of `_OF_ONE` has a value."""
    for option, what in _OF_ONE.items():
        if values[option]:
            fail(Status.CALL, f"{option} is for one {what}, not for a run over many", as_json)


def _hold_to_level(
    session: OptimizationSession, level: Level | None, allow_source: bool, as_json: bool
) -> None:
    """Ends the command where its options are of another level than the session's."""
    own_level = session.state.settings.level
    if level not in (None, own_level):
        fail(Status.CALL, f"session {session.id[:12]} was begun with --level {own_level}", as_json)
    if allow_source and own_level != "source":
        fail(Status.CALL, "--allow-source is for sessions with --level source", as_json)


def _open_session(
    journal: Journal,
    file: Path,
    local_gpu: CurrentGpu | None,
    how: SearchOptions,
    reading: LoaderSettings,
    level: Level,
    modules: ModuleCall,
    as_json: bool,
) -> OptimizationSession:
    from ucutlass.agent.optimize import open_session

    if level == "source" and how.proposer.chosen == "rules":
        words_ = "--level source needs a proposer that writes CUDA: --model or --command"
        fail(Status.CALL, words_, as_json)
    with timed_step(before=process_age()) as clock:
        problem = _problem(file, reading, modules, as_json)
    if problem.no_start:
        show.note(f"ucc: the importer writes no first program: {show.one_line(problem.no_start)}")
    if problem.module is not None and how.timing.baseline == "cublas":
        fail(Status.CALL, "cublas is the bare product of a program: a module has none", as_json)
    if local_gpu is None:
        fail(Status.MACHINE, _NO_GPU, as_json)
    limits = how.limits.session
    budget = limits if limits.attempts is not None else replace(limits, attempts=ATTEMPTS)
    settings = replace(how.settings(budget), level=level)
    return open_session(journal, problem, settings, local_gpu.device, time=clock.time())


def _problem(file: Path, reading: LoaderSettings, modules: ModuleCall, as_json: bool) -> OptimizationProblem:
    try:
        if file == inputs.STDIN:
            return problem_in(inputs.text(file), inputs.shown(file), reading)
        return problem_at(file, reading, call=modules)
    except UnknownComputeType as unknown:
        fail(Status.CALL, str(unknown), as_json)
    except NoStart as none:
        fail(Status.CALL, str(none), as_json)
    except (Unusable, StartProgramMismatch) as wrong:
        fail(Status.PROGRAM, str(wrong), as_json)


def _resume_session(journal: Journal, id: str, budget_options: Budget, as_json: bool) -> OptimizationSession:
    try:
        session = resume_session(journal, id)
    except NoSuchSession as problem:
        fail(Status.CALL, str(problem), as_json)
    except NotASession as problem:
        fail(Status.MACHINE, f"the session cannot be read: {problem}", as_json)
    changed_limits = {name: value for name, value in asdict(budget_options).items() if value is not None}
    if changed_limits:
        budget = replace(session.state.settings.budget, **changed_limits)
        return resume_session(journal, session.id, budget)
    return session


def _run_session(
    journal: Journal,
    session: OptimizationSession,
    engine: Engine,
    local_gpu: CurrentGpu,
    how: SearchOptions,
    modules: ModuleCall,
    references: IsolatedCall,
    as_json: bool,
) -> SessionState:
    """Works until the session ends, or ends the command where its proposer fails."""
    from ucutlass.agent.background_baselines import background_baselines
    from ucutlass.agent.optimize import Machinery, run_session
    from ucutlass.agent.prebuild import builder_pool

    threads_take_turns_quickly()
    settings, timing = session.state.settings, how.timing
    if how.proposer.proposer not in (None, settings.proposer):
        words_ = f"session {session.id[:12]} was begun with --proposer {settings.proposer}"
        fail(Status.CALL, words_, as_json)
    show.note(f"ucc: session {session.id}")
    if settings.level == "source":
        show.note("ucc: what the proposer writes is compiled and run with your rights")
    if settings.judge:
        show.note(f"ucc: {settings.judge} is asked about leaders; its tokens cost money")
    with (
        builder_pool(engine.cpus) as pool,
        background_baselines(
            timing.beside, local_gpu.gpu.name, engine.cpus, timing.limit, timing.wait, on_wait=say_wait
        ) as background,
    ):
        where = Machinery(
            engine,
            local_gpu.device,
            timing.held,
            timing.limit,
            timing.wait,
            how.session.measures,
            builders=pool,
            prepares=True,
            races=how.session.race,
            samples=how.session.samples,
            modules=modules,
            references=references,
            gpu=local_gpu.gpu.name,
            compiled=timing.beside,
            background=background,
        )
        try:
            proposer_of = proposer_factory(how.proposer, journal, session, as_json)
            with journaled():
                return run_session(session, where, proposer_of, _progress(as_json))
        except ProposerFailed as failure:
            again = f"ucc optimize --resume {session.id[:12]}"
            fail(Status.MACHINE, f"{failure}; then go on with {again}", as_json)


def _progress(as_json: bool) -> Any:
    reported = heard = 0
    shown: list[Outcome] = []

    def on_event(state: SessionState) -> None:
        nonlocal shown, reported, heard
        for node in state.tree.changed(shown):
            start = "the problem's own" if node.parent is None else f"from {node.parent}"
            start += " by a source" if node.source else ""
            start = "confirmed" if node.id < len(shown) else start
            show.note(f"ucc: {node.id:3} {start}: {show.one_line(words(node.outcome))}")
        for words_ in state.messages[reported:]:
            show.note(f"ucc: {show.one_line(words_)}")
        for opinion in list(state.opinions.values())[heard:]:
            what = f"{opinion.label}: {opinion.words}" if opinion.label else f"no opinion: {opinion.fault}"
            show.note(f"ucc: {opinion.model} of {opinion.node}, deciding nothing: {show.one_line(what)}")
        shown = [node.outcome for node in state.tree.nodes]
        reported, heard = len(state.messages), len(state.opinions)

    return on_event if not as_json else lambda _: None


def _adopted(state: SessionState, local_gpu: CurrentGpu, allowed: bool) -> AdoptedRow | None:
    """Keeps the session's best where it is a source that was confirmed, and that is allowed; says why not."""
    from ucutlass.agent.source_winner import NotAdoptable, adopt_winner

    best = state.tree.best()
    if best is None or not best.source:
        return None
    if not allowed:
        show.note("ucc: the best is a source, and was not adopted: that takes --allow-source")
        return None
    try:
        return adopt_winner(state, local_gpu.gpu.name, local_gpu.device)
    except NotAdoptable as reason:
        show.note(f"ucc: the best is a source, and was not adopted: {show.one_line(str(reason))}")
        return None


def _report(
    session: OptimizationSession, state: SessionState, adopted: AdoptedRow | None, as_json: bool
) -> None:
    best, root = state.tree.best(), state.tree[0]
    confirmed = best.outcome if best is not None and isinstance(best.outcome, TimedOutcome) else None
    row: dict[str, Any] = {
        "session": session.id,
        "program": state.problem["program"],
        "sizes": state.problem["sizes"],
        "bound": state.scale.bound * 1e6,
        "attempts": state.spend.attempts,
        "spend": asdict(state.spend),
        "stopped": state.ended,
        "own": None if root.seconds is None else root.seconds * 1e6,
        "best": None
        if best is None
        else {
            "candidate": best.id,
            "microseconds": (best.seconds or 0.0) * 1e6,
            "text": best.text,
            "source": best.source,
            "stands_for": state.tree.stands_for(best.id),
            "gain": confirmed.gain if confirmed else None,
            "low": confirmed.low if confirmed else None,
            "high": confirmed.high if confirmed else None,
            "records": list(confirmed.records) if confirmed else [],
            "joules": confirmed.joules if confirmed else None,
        },
        "adopted": None if adopted is None else adopted.source,
        "said": state.messages,
        "opinions": [asdict(opinion) for opinion in state.opinions.values()],
    }
    if as_json:
        show.data(row)
        return
    lines = [
        ("session", session.id[:12]),
        ("stopped", str(state.ended)),
        ("attempts", str(state.spend.attempts)),
        ("its own program", words(root.outcome)),
    ]
    if best is not None:
        lines += [("best", f"candidate {best.id}: {words(best.outcome)}")]
        lines += [("bound", duration(state.scale.bound))] if state.scale.bound else []
    if adopted is not None:
        lines += [("adopted", adopted.source[:16])]
    show.table(("", ""), lines)
    if best is not None and best.id:
        show.program(best.text)
    if best is not None and best.source:
        own = state.tree.stands_for(best.id)
        show.note(f"ucc: a source stands for this program, of candidate {own}: -o FILE writes both")
