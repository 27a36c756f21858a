"""`ucc optimize`."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from ucutlass.agent.batch import PREFIX, NoStart
from ucutlass.agent.budget import Budget
from ucutlass.agent.integrity.precision import UnknownComputeType
from ucutlass.agent.journal import Journal, NoSuchSession
from ucutlass.agent.outcome import TimedOutcome, words
from ucutlass.agent.problem import OptimizationProblem, StartProgramMismatch
from ucutlass.agent.problem_loader import LoaderSettings, problem_at, problem_in
from ucutlass.agent.proposer import ProposerFailed
from ucutlass.agent.run import OptimizationSession, resumed
from ucutlass.agent.session import NotASession, SessionState
from ucutlass.cli import inputs, show
from ucutlass.cli.engines import at_hand, opened
from ucutlass.cli.errors import Status, fail, reported
from ucutlass.cli.options import json_option, kernel_option, sizes_option
from ucutlass.cli.outputs import OutputPath, write
from ucutlass.cli.proposer_options import maker
from ucutlass.cli.search_options import ATTEMPTS, SearchOptions, search_options
from ucutlass.engine.work import Engine
from ucutlass.runtime.gpu import CurrentGpu
from ucutlass.runtime.module.signature import Unusable
from ucutlass.units import duration

_NO_GPU = "nothing was optimised: there is no NVIDIA GPU here that a compile target serves"


@click.command("optimize")
@click.argument("file", required=False, type=click.Path(exists=True, allow_dash=True, path_type=Path))
@sizes_option
@kernel_option
@click.option("--resume", "id", metavar="ID", help="Go on with a session instead of FILE.")
@search_options
@click.option("-o", "output", type=OutputPath(), metavar="FILE", help="Write the best program.")
@json_option
def command(
    file: Path | None,
    sizes: tuple[str, ...],
    name: str | None,
    id: str | None,
    output: Path | None,
    as_json: bool,
    how: SearchOptions,
) -> None:
    """Search for a faster program that computes what FILE's does, for these extents, on this GPU.

    FILE is a program, a PyTorch module in KernelBench's format (its first program beside it, or by --start),
    or a folder of either.

    What is computed stays; schedules, and where a pipeline is cut, are free. Every candidate is checked
    against the problem, built, held against its float64 reference and timed; one that would lead is also
    verified on the whole suite, timed in turns with the baseline and audited. All of it is written down
    as it happens: --resume goes on where a session stopped, however it did.
    """
    with reported(as_json):
        if (file is None) == (id is None):
            fail(Status.CALL, "give FILE to begin a session, or --resume ID to go on with one", as_json)
        if (file is not None and file.is_dir()) or (id or "").startswith(PREFIX):
            from ucutlass.cli.batch import optimized

            if output is not None:
                fail(Status.CALL, "-o is for one problem, not for a run over many", as_json)
            optimized(file, id, how, sizes, name, as_json)
            return
    with reported(as_json), closing(opened(how.working.spec, as_json)) as engine:
        kept = Journal.open(how.journal)
        found = at_hand(engine)
        if file is not None:
            session = _begun(kept, file, found, how, sizes, name, as_json)
        else:
            session = _resumed(kept, id or "", how.limits.session, as_json)
        if found is None:
            fail(Status.MACHINE, _NO_GPU, as_json)
        state = _searched(kept, session, engine, found, how, as_json)
        best = state.tree.best()
        if output is not None and best is not None:
            write(output, best.text)
    _report(session, state, as_json)
    if best is None:
        sys.exit(Status.PROGRAM)


def _begun(
    kept: Journal,
    file: Path,
    found: CurrentGpu | None,
    how: SearchOptions,
    sizes: tuple[str, ...],
    name: str | None,
    as_json: bool,
) -> OptimizationSession:
    from ucutlass.agent.optimize import begin

    reading = how.reading(found.arch.name if found is not None else "sm90a", sizes, name)
    problem = _problem(file, reading, as_json)
    if problem.module is not None and how.timing.baseline == "cublas":
        fail(Status.CALL, "cublas is the bare product of a program: a module has none", as_json)
    if found is None:
        fail(Status.MACHINE, _NO_GPU, as_json)
    given = how.limits.session
    budget = given if given.attempts is not None else replace(given, attempts=ATTEMPTS)
    return begin(kept, problem, how.settings(budget), found.device)


def _problem(file: Path, reading: LoaderSettings, as_json: bool) -> OptimizationProblem:
    try:
        if file == inputs.STDIN:
            return problem_in(inputs.text(file), inputs.shown(file), reading)
        return problem_at(file, reading)
    except UnknownComputeType as unknown:
        fail(Status.CALL, str(unknown), as_json)
    except NoStart as none:
        fail(Status.CALL, str(none), as_json)
    except (Unusable, StartProgramMismatch) as wrong:
        fail(Status.PROGRAM, str(wrong), as_json)


def _resumed(kept: Journal, id: str, asked: Budget, as_json: bool) -> OptimizationSession:
    try:
        session = resumed(kept, id)
    except NoSuchSession as problem:
        fail(Status.CALL, str(problem), as_json)
    except NotASession as problem:
        fail(Status.MACHINE, f"the session cannot be read: {problem}", as_json)
    given = {name: value for name, value in asdict(asked).items() if value is not None}
    if given:
        budget = replace(session.state.settings.budget, **given)
        return resumed(kept, session.id, budget)
    return session


def _searched(
    kept: Journal,
    session: OptimizationSession,
    engine: Engine,
    found: CurrentGpu,
    how: SearchOptions,
    as_json: bool,
) -> SessionState:
    """Works until the session ends, or ends the command where its proposer fails."""
    from ucutlass.agent.optimize import Machinery, go_on
    from ucutlass.agent.prebuild import builders

    settings, timing = session.state.settings, how.timing
    if how.asking.proposer not in (None, settings.proposer):
        words_ = f"session {session.id[:12]} was begun with --proposer {settings.proposer}"
        fail(Status.CALL, words_, as_json)
    show.note(f"ucc: session {session.id}")
    if settings.judge:
        show.note(f"ucc: {settings.judge} is asked about leaders; its tokens cost money")
    with builders(engine.cpus) as pool:
        where = Machinery(
            engine, found.device, timing.held, timing.limit, timing.wait, how.working.measures, builders=pool
        )
        try:
            return go_on(session, where, maker(how.asking, kept, session, as_json), _progress(as_json))
        except ProposerFailed as failure:
            again = f"ucc optimize --resume {session.id[:12]}"
            fail(Status.MACHINE, f"{failure}; then go on with {again}", as_json)


def _progress(as_json: bool) -> Any:
    shown = said = heard = 0

    def on_event(state: SessionState) -> None:
        nonlocal shown, said, heard
        for node in state.tree.nodes[shown:]:
            start = "the problem's own" if node.parent is None else f"from {node.parent}"
            show.note(f"ucc: {node.id:3} {start}: {show.one_line(words(node.outcome))}")
        for words_ in state.said[said:]:
            show.note(f"ucc: {show.one_line(words_)}")
        for one in list(state.opinions.values())[heard:]:
            what = f"{one.label}: {one.words}" if one.label else f"no opinion: {one.fault}"
            show.note(f"ucc: {one.model} of {one.node}, deciding nothing: {show.one_line(what)}")
        shown, said, heard = len(state.tree), len(state.said), len(state.opinions)

    return on_event if not as_json else lambda _: None


def _report(session: OptimizationSession, state: SessionState, as_json: bool) -> None:
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
            "gain": confirmed.gain if confirmed else None,
            "low": confirmed.low if confirmed else None,
            "high": confirmed.high if confirmed else None,
            "records": list(confirmed.records) if confirmed else [],
            "joules": confirmed.joules if confirmed else None,
        },
        "said": state.said,
        "opinions": [asdict(one) for one in state.opinions.values()],
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
    show.table(("", ""), lines)
    if best is not None and best.id:
        show.program(best.text)
