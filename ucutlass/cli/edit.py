"""This module is `ucc edit`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from ucutlass.agent.candidate_text import candidate_text
from ucutlass.agent.edits import BadEdit, ProgramEdit, addresses, apply_edits
from ucutlass.cli import inputs, show
from ucutlass.cli.cpu_limit import cpu_limited
from ucutlass.cli.errors import Status, fail, reported
from ucutlass.cli.options import file_argument, json_option
from ucutlass.cli.outputs import OutputPath, write
from ucutlass.diagnostics import Diagnostic, ProgramError, render, to_json


@click.command("edit")
@file_argument
@click.option(
    "-e",
    "--edit",
    "pairs",
    nargs=2,
    multiple=True,
    metavar="ADDRESS TEXT",
    help="Put TEXT in the place of what stands at ADDRESS; may be repeated.",
)
@click.option("-o", "--output", type=OutputPath(), metavar="FILE", help="Write the program to a file.")
@json_option
def command(file: Path, pairs: tuple[tuple[str, str], ...], output: Path | None, as_json: bool) -> None:
    """Edit FILE's syntax tree at addresses, and check what comes of it.

    An address is a program's name with a part of it, such as linear.schedule[1].tile, linear.h.type or
    linear.schedule[+]; without --edit all addresses are listed with what stands there. Either all edits are
    carried out or none. The program is printed in canonical form.
    """
    with reported(as_json), cpu_limited(file):
        text = inputs.text(file)
        read = candidate_text(text)
        if read.tree is None:
            raise ProgramError(read.diagnostics, text, inputs.shown(file))
        try:
            if not pairs:
                _list(addresses(text), as_json)
                return
            edited = apply_edits(text, [ProgramEdit(at, put) for at, put in pairs])
        except BadEdit as problem:
            fail(Status.CALL, str(problem), as_json)
        diagnostics = _diagnostics(edited)
        if output is not None:
            write(output, edited)
    shown = "edited"
    if as_json:
        row: dict[str, Any] = {"text": edited, "changed": [at for at, _ in pairs]}
        show.data(row | {"diagnostics": to_json(diagnostics, edited, shown)})
    else:
        if diagnostics:
            show.note(render(diagnostics, edited, shown))
        if output is None:
            show.program(edited)
    if any(d.severity == "error" for d in diagnostics):
        sys.exit(Status.PROGRAM)


def _list(places: list[tuple[str, str]], as_json: bool) -> None:
    if as_json:
        show.data({"addresses": [{"address": at, "text": text} for at, text in places]})
    else:
        show.table(("address", "text"), [(at, show.one_line(text)) for at, text in places])


def _diagnostics(text: str) -> tuple[Diagnostic, ...]:
    edited = candidate_text(text)
    return edited.diagnostics if edited.program is None else edited.program.warnings
