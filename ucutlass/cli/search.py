"""This module is `ucc search`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from ucutlass.agent import memory
from ucutlass.agent.journal import Journal
from ucutlass.agent.lookup import MOST_EXCERPT, search
from ucutlass.cli import show
from ucutlass.cli.errors import reported
from ucutlass.cli.options import journal_option, json_option


@click.command("search")
@click.argument("query")
@journal_option
@json_option
def command(query: str, journal: Path | None, as_json: bool) -> None:
    """Look QUERY up: a diagnostic's code (UC0404), a schedule field (cluster), or words.

    Searches the guide, the codes and rules, and what optimisation sessions taught; the best comes first.
    """
    with reported(as_json):
        hits = search(query, memory.conclusions(Journal.open(journal)))
    if as_json:
        show.data({"hits": [asdict(hit) for hit in hits]})
    elif not hits:
        show.say(f"nothing is known of {show.one_line(query)[:80]}")
    else:
        rows = [(hit.uri, hit.title, show.one_line(hit.excerpt)[:MOST_EXCERPT]) for hit in hits]
        show.table(("where", "title", "excerpt"), rows)
