"""`ucc memory`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from ucutlass.agent import memory
from ucutlass.agent.journal import Journal
from ucutlass.cli import show
from ucutlass.cli.errors import Status, fail, reported
from ucutlass.cli.options import journal_option, json_option


@click.group("memory")
def command() -> None:
    """List, show and purge what optimisation sessions taught.

    A conclusion is a confirmed gain with what made it. It is drawn from the journal whenever it is wanted,
    and told to models that work on other problems of its lane.
    """


@command.command("list")
@click.option("--lane", metavar="LANE", help="Only of this lane, such as bf16.")
@journal_option
@json_option
def list_(lane: str | None, journal: Path | None, as_json: bool) -> None:
    """Every conclusion, the largest gain first."""
    with reported(as_json):
        kept = Journal.open(journal)
        found = [c for c in memory.conclusions(kept) if lane in (None, c.lane)]
    if as_json:
        show.data([asdict(c) for c in found])
    elif not found:
        show.say(f"no conclusions in {kept.path}")
    else:
        rows = [(c.id, c.lane, f"{c.ratio:.2f}", c.session[:12], c.words) for c in found]
        show.table(("id", "lane", "ratio", "session", "conclusion"), rows)


@command.command("show")
@click.argument("id")
@journal_option
@json_option
def show_(id: str, journal: Path | None, as_json: bool) -> None:
    """One conclusion with where it comes from; the first digits of its id suffice."""
    with reported(as_json):
        found = _found(Journal.open(journal), id, as_json)
    if as_json:
        show.data(asdict(found))
        return
    rows = [
        ("id", found.id),
        ("problem", found.problem),
        ("lane", found.lane),
        ("conclusion", found.words),
        ("ratio", f"{found.ratio:.4f}"),
        ("session", found.session),
        *(("record", record) for record in found.records),
    ]
    show.table(("", ""), rows)


@command.command("purge")
@click.argument("ids", nargs=-1, required=True)
@journal_option
@json_option
def purge(ids: tuple[str, ...], journal: Path | None, as_json: bool) -> None:
    """Forget conclusions for good. Their sessions and records stay."""
    with reported(as_json):
        kept = Journal.open(journal)
        # All are looked up first: a wrong id purges nothing.
        found = list(dict.fromkeys(_found(kept, id, as_json).id for id in ids))
        for id in found:
            memory.purge(kept, id)
    if as_json:
        show.data({"purged": found})
    else:
        show.say(f"purged: {', '.join(found)}")


def _found(kept: Journal, id: str, as_json: bool) -> memory.Conclusion:
    try:
        return memory.conclusion(kept, id)
    except LookupError as problem:
        fail(Status.CALL, str(problem), as_json)
