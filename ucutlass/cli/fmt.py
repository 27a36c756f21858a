"""`ucc fmt`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from ucutlass.check import program_error
from ucutlass.cli.errors import Status, reported
from ucutlass.cli.options import json_option
from ucutlass.files import read_stream, write
from ucutlass.frontend import MOST_BYTES, decoded, source_of
from ucutlass.grammar.format import format_file
from ucutlass.grammar.parse import SyntaxProblem, parse


@click.command("fmt")
@click.argument(
    "files",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
)
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
            piped = str(path) == "-"
            source = _standard_input() if piped else source_of(path)
            text = _format(source, str(path))
            rows.append({"file": str(path), "changed": text != source, "text": text})
            if piped:
                if not check and not as_json:
                    click.echo(text, nl=False)
            elif text != source and not check:
                write(path, text)
    differing = [row["file"] for row in rows if row["changed"]]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        for name in differing:
            if check or name != "-":
                click.echo(f"{'would format' if check else 'formatted'} {name}", err=True)
    if check and differing:
        sys.exit(Status.PROGRAM)


def _standard_input() -> str:
    return decoded(read_stream(sys.stdin.buffer, "-", MOST_BYTES), "-")


def _format(source: str, file: str) -> str:
    try:
        return format_file(parse(source))
    except SyntaxProblem as problem:
        raise program_error(problem, source, file) from None
