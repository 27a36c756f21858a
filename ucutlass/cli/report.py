"""This module is `ucc report`."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

import click

from ucutlass.agent.journal import Journal
from ucutlass.agent.report.facts import SessionFacts, facts
from ucutlass.agent.report.page import page
from ucutlass.agent.session import NotASession
from ucutlass.cli import show
from ucutlass.cli.errors import Status, fail, reported
from ucutlass.cli.journals import session_of
from ucutlass.cli.options import journal_option, json_option
from ucutlass.cli.outputs import OutputPath, write


@click.command("report")
@click.argument("id")
@click.option(
    "-o",
    "--output",
    type=OutputPath(dash=True),
    metavar="FILE",
    help="Where to write it, - for standard output; by default ucc-report-ID.html here.",
)
@journal_option
@json_option
def command(id: str, output: Path | None, journal: Path | None, as_json: bool) -> None:
    """Write what an optimisation session brought as one HTML page.

    ID is a session's, or its first digits. The page holds what was gained and how sure that is, the best
    so far, a roofline, the search tree with the programs' differences, the audit's evidence and the
    spend. It needs no network and runs no scripts. --json prints the same facts; a page is then written
    only with -o.
    """
    with reported(as_json):
        session_facts = _facts(id, journal, as_json)
        if as_json:
            show.data(asdict(session_facts))
        if output is None and as_json:
            return
        target = output or Path(
            f"ucc-report-{re.sub(r'[^0-9A-Za-z_-]', '_', session_facts.session[:12])}.html"
        )
        if as_json and str(target) == "-":
            fail(Status.CALL, "--json and -o - would share standard output", as_json)
        write(target, page(session_facts))
        if not as_json and str(target) != "-":
            show.say(str(target))


def _facts(id: str, journal: Path | None, as_json: bool) -> SessionFacts:
    journal_ = Journal.open(journal)
    full = session_of(journal_, id, as_json)
    try:
        return facts(full, journal_.events(full))
    except NotASession as problem:
        fail(Status.MACHINE, f"session {id} of {journal_.path} cannot be read: {problem}", as_json)
