"""This module is `ucc fmt`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from ucutlass.check import program_error
from ucutlass.cli import inputs, show
from ucutlass.cli.cpu_limit import cpu_limited
from ucutlass.cli.errors import Status, reported
from ucutlass.cli.options import json_option
from ucutlass.files import write
from ucutlass.grammar.format import formatted
from ucutlass.grammar.parse import SyntaxProblem


@click.command("fmt")
@click.argument("files", nargs=-1, required=True, type=inputs.existing())
@click.option(
    "--check", is_flag=True, help="Change nothing; exit with 1 where a file is not in canonical form."
)
@json_option
def command(files: tuple[Path, ...], check: bool, as_json: bool) -> None:
    """Rewrite FILES in canonical form; `-` reads standard input and prints.

    Comments are kept. Formatting twice changes nothing more.
    """
    rows: list[dict[str, Any]] = []
    with reported(as_json):
        for path in files:
            source = inputs.text(path)
            with cpu_limited(path):
                text = _format(source, inputs.shown(path))
            rows.append({"file": inputs.shown(path), "changed": text != source, "text": text})
            if path == inputs.STDIN:
                if not check and not as_json:
                    show.program(text)
            elif text != source and not check:
                write(path, text)
    differing = [path for path, row in zip(files, rows, strict=True) if row["changed"]]
    if as_json:
        show.data(rows)
    else:
        for path in differing:
            if check or path != inputs.STDIN:
                show.note(f"{'would format' if check else 'formatted'} {inputs.name(path)}")
    if check and differing:
        sys.exit(Status.PROGRAM)


def _format(source: str, file: str) -> str:
    try:
        return formatted(source)
    except SyntaxProblem as problem:
        raise program_error(problem, source, file) from None
