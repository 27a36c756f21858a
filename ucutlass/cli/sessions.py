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
@journal_option
@json_option
def command(unended: bool, journal: Path | None, as_json: bool) -> None:
    """List the optimisation sessions of a journal, the latest last.

    An id's first digits serve `ucc optimize --resume`, `ucc report` and `ucc replay`.
    """
    with reported(as_json):
        kept = Journal.open(journal)
        found = [one for one in sessions(kept) if not unended or one.state == "open"]
        if as_json:
            show.data([asdict(one) for one in found])
        elif not found:
            show.say(f"no {'open ' if unended else ''}sessions in {kept.path}")
        else:
            show.table(_HEAD, [_row(one) for one in found])


def _row(one: SessionSummary) -> tuple[str, ...]:
    return (
        one.id[:12],
        one.problem,
        str(one.candidates),
        _time(one.own),
        _time(one.best),
        "-" if one.gain is None else f"{one.gain:.3f}",
        _spent(one),
        one.last[:16].replace("T", " "),
        one.state,
    )


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)


def _spent(one: SessionSummary) -> str:
    s = one.spend
    parts = [f"{s.attempts} attempts", f"{duration(s.gpu_seconds)} of GPU"]
    parts += [f"{s.tokens} tokens"] if s.tokens else []
    parts += [f"${s.dollars:.2f}"] if s.dollars else []
    return ", ".join(parts)
