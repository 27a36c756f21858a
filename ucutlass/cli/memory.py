"""This module is `ucc memory`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from ucutlass.agent import memory
from ucutlass.agent.journal import Journal
from ucutlass.cli import show
from ucutlass.cli.errors import Status, fail, reported
from ucutlass.cli.options import RenamedOption, journal_option, json_option


@click.group("memory")
def command() -> None:
    """List, show and purge what optimisation sessions taught.

    A conclusion is a confirmed gain with what made it. It is drawn from the journal whenever it is wanted,
    and told to models that work on other problems of its compute type.
    """


@command.command("list")
@click.option(
    "--compute-type",
    "--lane",
    "compute_type",
    cls=RenamedOption,
    metavar="TYPE",
    help="Only conclusions of this compute type, such as bf16.",
)
@journal_option
@json_option
def list_(compute_type: str | None, journal: Path | None, as_json: bool) -> None:
    """Every conclusion, the largest gain first."""
    with reported(as_json):
        journal_ = Journal.open(journal)
        listed = [c for c in memory.conclusions(journal_) if compute_type in (None, c.lane)]
    if as_json:
        show.data([asdict(c) for c in listed])
    elif not listed:
        show.say(f"no conclusions in {journal_.path}")
    else:
        rows = [(c.id, c.lane, f"{c.ratio:.2f}", c.session[:12], c.words) for c in listed]
        show.table(("id", "compute type", "ratio", "session", "conclusion"), rows)


@command.command("show")
@click.argument("id")
@journal_option
@json_option
def show_(id: str, journal: Path | None, as_json: bool) -> None:
    """One conclusion with where it comes from; the first digits of its id suffice."""
    with reported(as_json):
        conclusion = _conclusion(Journal.open(journal), id, as_json)
    if as_json:
        show.data(asdict(conclusion))
        return
    rows = [
        ("id", conclusion.id),
        ("problem", conclusion.problem),
        ("compute type", conclusion.lane),
        ("conclusion", conclusion.words),
        ("ratio", f"{conclusion.ratio:.4f}"),
        ("session", conclusion.session),
        *(("record", record) for record in conclusion.records),
    ]
    show.table(("", ""), rows)


@command.command("purge")
@click.argument("ids", nargs=-1, required=True)
@journal_option
@json_option
def purge(ids: tuple[str, ...], journal: Path | None, as_json: bool) -> None:
    """Forget conclusions for good. Their sessions and records stay."""
    with reported(as_json):
        journal_ = Journal.open(journal)
        # All are looked up first: a wrong id purges nothing.
        purged = list(dict.fromkeys(_conclusion(journal_, id, as_json).id for id in ids))
        for id in purged:
            memory.purge(journal_, id)
    if as_json:
        show.data({"purged": purged})
    else:
        show.say(f"purged: {', '.join(purged)}")


def _conclusion(journal: Journal, id: str, as_json: bool) -> memory.Conclusion:
    try:
        return memory.conclusion(journal, id)
    except LookupError as problem:
        fail(Status.CALL, str(problem), as_json)
