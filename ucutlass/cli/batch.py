"""`ucc optimize FOLDER`, and what `ucc kernelbench` has in common with it: one run over many problems."""

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
    Place,
    look_at,
    opened_run,
    resumed_run,
    work,
)
from ucutlass.agent.budget import Budget
from ucutlass.agent.journal import Journal, NoSuchSession
from ucutlass.agent.kernelbench import ProblemResult, rows
from ucutlass.agent.outcome import words
from ucutlass.agent.problem import OptimizationProblem
from ucutlass.agent.problem_loader import LoaderSettings, names_of, problem_at
from ucutlass.agent.proposer import ProposerFailed
from ucutlass.agent.run import OptimizationSession, resumed
from ucutlass.agent.session import (
    NotASession,
    SessionSettings,
    SessionState,
    settings_of_json,
    settings_to_json,
)
from ucutlass.cli import show
from ucutlass.cli.engines import at_hand, opened
from ucutlass.cli.errors import Status, fail
from ucutlass.cli.proposer_options import maker
from ucutlass.cli.search_options import ATTEMPTS, SearchOptions
from ucutlass.engine.work import Engine


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """How a run works, which it keeps: what is left of it goes on so. `settings.budget` bounds a problem,
    `whole` the run."""

    folder: Path
    reading: LoaderSettings
    settings: SessionSettings
    whole: Budget
    baseline: str


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A run as a command asks for it. `how` has what no journal keeps, and which budgets were given."""

    begun: BatchSettings
    how: SearchOptions
    as_json: bool


def wanted(
    folder: Path | None,
    how: SearchOptions,
    as_json: bool,
    sizes: Sequence[str] = (),
    program: str | None = None,
) -> BatchRequest:
    """Raises ShapeError."""
    given = how.limits.attempts
    settings = how.settings(Budget(ATTEMPTS if given is None else given))
    # The GPU at hand says what `arch` is where none was asked for.
    reading = how.reading("", sizes, program)
    folder = (folder or Path()).absolute()
    return BatchRequest(
        BatchSettings(folder, reading, settings, how.limits.run, how.timing.baseline), how, as_json
    )


def ran(names: Sequence[str], asked: BatchRequest, id: str | None) -> tuple[BatchRun, str]:
    """A run over these problems of the folder, or the one of an id; and why it ended. Ends the command where
    the machine has no GPU."""
    with closing(opened(asked.how.working.spec, asked.as_json)) as engine:
        return _ran(engine, names, asked, id)


def _ran(engine: Engine, names: Sequence[str], asked: BatchRequest, id: str | None) -> tuple[BatchRun, str]:
    from ucutlass.agent.optimize import Machinery, begin, building_ahead, placed
    from ucutlass.agent.prebuild import builders

    kept = Journal.open(asked.how.journal)
    found = at_hand(engine)
    if found is None:
        fail(
            Status.MACHINE,
            "nothing was run: there is no NVIDIA GPU here that a compile target serves",
            asked.as_json,
        )
    run = _begun(kept, names, asked, found.arch.name) if id is None else _resumed(kept, id, asked)
    show.note(f"ucc: run {run.id[:16]} over {len(run.names)} problems")
    begun = begun_of_json(run.about)

    def problem_of(name: str) -> OptimizationProblem:
        return problem_at(begun.folder / name, begun.reading, begun.folder)

    def open_(problem: OptimizationProblem, session: str) -> OptimizationSession:
        return begin(kept, problem, begun.settings, found.device, session)

    look_at(run, problem_of, open_, _on_member(asked.as_json))
    timing = replace(asked.how.timing, baseline=begun.baseline)
    with builders(engine.cpus) as pool:
        where = Machinery(
            engine,
            found.device,
            timing.held,
            timing.limit,
            timing.wait,
            asked.how.working.measures,
            builders=pool,
        )

        def place_of(session: OptimizationSession) -> Place:
            asks = maker(asked.how.asking, kept, session, asked.as_json)
            return building_ahead(session, where, *placed(session, where, asks))

        try:
            why = work(run, place_of, begun.whole, _on_event(asked.as_json))
        except ProposerFailed as failure:
            fail(Status.MACHINE, f"{failure}; then go on with --resume {run.id[:16]}", asked.as_json)
    return run, why


def _begun(kept: Journal, names: Sequence[str], asked: BatchRequest, arch: str) -> BatchRun:
    reading = replace(asked.begun.reading, arch=asked.begun.reading.arch or arch)
    return opened_run(kept, names, begun_to_json(replace(asked.begun, reading=reading)))


def _resumed(kept: Journal, id: str, asked: BatchRequest) -> BatchRun:
    """A run as it was begun, but for the budgets that are given anew."""
    run = known(kept, id, asked.as_json, to_go_on=True)
    before = begun_of_json(run.about)
    if asked.how.asking.proposer not in (None, before.settings.proposer):
        words_ = f"run {run.id[:16]} was begun with --proposer {before.settings.proposer}"
        fail(Status.CALL, words_, asked.as_json)
    given = {name: most for name, most in asdict(asked.begun.whole).items() if most is not None}
    settings = before.settings
    if asked.how.limits.attempts is not None:
        settings = replace(settings, budget=Budget(asked.how.limits.attempts))
    after = replace(before, settings=settings, whole=replace(before.whole, **given))
    if after != before:
        run.write("changed", about=begun_to_json(after))
    for member in run.members.values():
        session = member.session
        if session is not None and session.state.number and session.state.settings.budget != settings.budget:
            member.session = resumed(kept, session.id, settings.budget)
    return run


def begun_to_json(begun: BatchSettings) -> dict[str, Any]:
    start = None if begun.reading.start is None else str(begun.reading.start.absolute())
    reading = {**asdict(begun.reading), "start": start}
    return {
        "folder": str(begun.folder),
        "reading": reading,
        "settings": settings_to_json(begun.settings),
        "whole": asdict(begun.whole),
        "baseline": begun.baseline,
    }


def begun_of_json(value: Mapping[str, Any]) -> BatchSettings:
    """Raises KeyError, TypeError for another's fields."""
    told = value["reading"]
    start = None if told["start"] is None else Path(told["start"])
    return BatchSettings(
        Path(value["folder"]),
        LoaderSettings(**{**told, "start": start}),
        settings_of_json(value["settings"]),
        Budget(**value["whole"]),
        value["baseline"],
    )


def known(kept: Journal, id: str, as_json: bool, *, to_go_on: bool) -> BatchRun:
    """The run of an id, as it was left. Ends the command where there is none."""
    try:
        return resumed_run(kept, id, to_go_on=to_go_on)
    except NoSuchSession as problem:
        fail(Status.CALL, str(problem), as_json)
    except (NotABatchRun, NotASession) as problem:
        fail(Status.MACHINE, f"the run cannot be read: {problem}", as_json)


def _on_member(as_json: bool) -> Callable[[BatchMember], None]:
    def say(member: BatchMember) -> None:
        if as_json:
            return
        what = f"[{member.code}] {member.words}" if member.session is None else member.session.id[:12]
        show.note(f"ucc: {member.name}: {show.one_line(what)}")

    return say


def _on_event(as_json: bool) -> Callable[[str, SessionState], None]:
    shown: dict[str, int] = {}

    def say(name: str, state: SessionState) -> None:
        for node in state.tree.nodes[shown.get(name, 0) :]:
            show.note(f"ucc: {name} {node.id:3}: {show.one_line(words(node.outcome))}")
        shown[name] = len(state.tree)

    return say if not as_json else lambda name, state: None


# --- ucc optimize FOLDER ---------------------------------------------------------


def optimized(
    folder: Path | None,
    id: str | None,
    how: SearchOptions,
    sizes: Sequence[str],
    program: str | None,
    as_json: bool,
) -> None:
    """A run over a folder, or on with one, and its report; as `ucc optimize`."""
    if how.asking.record is not None or how.asking.replay is not None:
        fail(Status.CALL, "--record and --replay are for one problem, not for a run over many", as_json)
    asked = wanted(folder, how, as_json, sizes, program)
    names = [] if folder is None else names_of(folder)
    if folder is not None and not names:
        fail(Status.CALL, f"{folder} holds no .ucu and no .py file", as_json)
    run, why = ran(names, asked, id)
    found = rows(run)
    report = {"run": run.id, "stopped": why, "spend": asdict(run.spend), "problems": list(map(asdict, found))}
    if as_json:
        show.data(report)
    else:
        show.table(("run", "stopped"), [(run.id[:16], why)])
        show.table(("problem", "session", "result"), listed(found))
    if not any(row.right for row in found):
        sys.exit(Status.PROGRAM)


def listed(found: Sequence[ProblemResult]) -> list[tuple[str, ...]]:
    return [(r.name, r.session[:12], f"[{r.code}] {r.said}" if r.code else r.said) for r in found]
