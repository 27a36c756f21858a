"""`ucc sessions`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from ucutlass.agent.journal import Journal
from ucutlass.agent.session_list import SessionSummary, sessions
from ucutlass.cli import show
from ucutlass.cli.errors import reported
from ucutlass.cli.options import journal_option, json_option
from ucutlass.units import duration

_HEAD = ("session", "problem", "candidates", "own", "best", "gain", "spent", "last", "state")


@click.command("sessions")
@click.option("--open", "unended", is_flag=True, help="Only those that have not ended.")
@click.option("--time", "id", metavar="ID", help="Say instead where the seconds of a session or run went.")
@journal_option
@json_option
def command(unended: bool, id: str | None, journal: Path | None, as_json: bool) -> None:
    """List the optimisation sessions of a journal, the latest last.

    An id's first digits serve `ucc optimize --resume`, `ucc report`, `ucc replay` and --time.
    """
    with reported(as_json):
        opened = Journal.open(journal)
        if id is not None:
            from ucutlass.cli.session_times import show_times  # runs need torch

            show_times(opened, id, as_json)
            return
        listed = [session for session in sessions(opened) if not unended or session.state == "open"]
        if as_json:
            show.data([asdict(session) for session in listed])
        elif not listed:
            show.say(f"no {'open ' if unended else ''}sessions in {opened.path}")
        else:
            show.table(_HEAD, [_row(session) for session in listed])


def _row(session: SessionSummary) -> tuple[str, ...]:
    return (
        session.id[:12],
        session.problem,
        str(session.candidates),
        _time(session.own),
        _time(session.best),
        "-" if session.gain is None else f"{session.gain:.3f}",
        _spent(session),
        session.last[:16].replace("T", " "),
        session.state,
    )


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)


def _spent(session: SessionSummary) -> str:
    s = session.spend
    parts = [f"{s.attempts} attempts", f"{duration(s.gpu_seconds)} of GPU"]
    parts += [f"{s.tokens} tokens"] if s.tokens else []
    parts += [f"${s.dollars:.2f}"] if s.dollars else []
    return ", ".join(parts)
