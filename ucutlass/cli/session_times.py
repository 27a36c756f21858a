"""This module has `ucc sessions --time`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from ucutlass.agent.batch import NotABatchRun, resume_batch
from ucutlass.agent.journal import RUN_PREFIX, Journal, NoSuchSession
from ucutlass.agent.outcome import NotAnOutcome
from ucutlass.agent.session import NotASession
from ucutlass.agent.step_time import OTHER, PARTS, SessionTime, StepTime, session_time
from ucutlass.cli import show
from ucutlass.cli.errors import Status, fail
from ucutlass.cli.search_options import ATTEMPTS


def show_times(journal: Journal, id: str, as_json: bool) -> None:
    """Prints where the time of a session went, by part and by step, or that of a run by problem. Ends the
    command where there is no session of this id."""
    try:
        full = journal.full_id(id)
        sessions = _sessions(journal, full)
        times = {name: session_time(journal.events(session)) for name, session in sessions.items()}
    except NoSuchSession as problem:
        fail(Status.CALL, str(problem), as_json)
    except (NotABatchRun, NotASession, NotAnOutcome) as problem:
        fail(Status.MACHINE, f"the session cannot be read: {problem}", as_json)
    total = sum((time.total for time in times.values()), StepTime(0.0))
    if as_json:
        problems = {name: _json(time) for name, time in times.items()}
        show.data(
            {
                "id": full,
                "total": _parts(total),
                "medians": {
                    what: median(seconds) if seconds else None
                    for what, seconds in reached(list(times.values())).items()
                },
                "problems": problems,
            }
        )
        return
    show.table(("part", "seconds", "share", "what"), _part_rows(total))
    if full.startswith(RUN_PREFIX):
        show.table(("until", "problems", "median", "most"), reached_rows(list(times.values())))
        show.table(("problem", "first time", "confirmed", *_heads(total)), _problem_rows(times, total))
        return
    (time,) = times.values()
    show.table(("step", *_heads(total), "outcome"), _step_rows(time, total))


def _sessions(journal: Journal, full: str) -> dict[str, str]:
    """Returns the ids of the sessions by problem, of a run or of one session alone."""
    if not full.startswith(RUN_PREFIX):
        return {"": full}
    run = resume_batch(journal, full, to_go_on=False)
    return {name: m.session.id for name, m in run.members.items() if m.session is not None}


def _part_rows(total: StepTime) -> list[tuple[str, ...]]:
    part_rows = [(name, total.parts[name], PARTS[name]) for name in PARTS if name in total.parts]
    rows = [*part_rows, (OTHER, total.other, "what no part accounts for"), ("wall", total.wall, "all of it")]
    share = max(total.wall, 1e-9)
    return [(name, f"{seconds:.3f}", f"{seconds / share:.1%}", what) for name, seconds, what in rows]


def _heads(total: StepTime) -> tuple[str, ...]:
    return ("wall", *total.parts, OTHER)


def _cells(time: StepTime | None, total: StepTime) -> Sequence[str]:
    if time is None:
        return ["-"] * len(_heads(total))
    return [_seconds(s) for s in (time.wall, *(time.parts.get(n, 0.0) for n in total.parts), time.other)]


def _step_rows(time: SessionTime, total: StepTime) -> list[tuple[str, ...]]:
    return [(step.what, *_cells(step.time, total), show.one_line(step.outcome)) for step in time.steps]


def _problem_rows(times: dict[str, SessionTime], total: StepTime) -> list[tuple[str, ...]]:
    return [
        (name, _seconds(time.first), _seconds(time.confirmed), *_cells(time.total, total))
        for name, time in times.items()
    ]


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.3f}"


def reached(times: Sequence[SessionTime]) -> dict[str, list[float]]:
    """Returns the seconds of each problem's steps until it had a first time, a confirmed one, and `ATTEMPTS` attempts;
    problems that did not come so far have none."""
    return {
        "first time": [t.first for t in times if t.first is not None],
        "confirmed": [t.confirmed for t in times if t.confirmed is not None],
        f"{ATTEMPTS} attempts": [t.attempts[ATTEMPTS - 1] for t in times if len(t.attempts) >= ATTEMPTS],
    }


def reached_rows(times: Sequence[SessionTime]) -> list[tuple[str, ...]]:
    """Returns the rows of `reached`: of how many problems, their median, and the most."""
    return [
        (what, f"{len(seconds)} of {len(times)}", *map(_seconds, (median(seconds), max(seconds))))
        if seconds
        else (what, f"0 of {len(times)}", "-", "-")
        for what, seconds in reached(times).items()
    ]


def _parts(time: StepTime) -> dict[str, Any]:
    return {"wall": time.wall, "parts": dict(time.parts), OTHER: time.other}


def _json(time: SessionTime) -> dict[str, Any]:
    steps = [
        {"step": step.what, "outcome": step.outcome, "time": None if step.time is None else _parts(step.time)}
        for step in time.steps
    ]
    return _parts(time.total) | {
        "first": time.first,
        "confirmed": time.confirmed,
        "attempts": list(time.attempts),
        "steps": steps,
    }
