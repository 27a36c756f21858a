"""`ucc fmt`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ucutlass.check import program_error
from ucutlass.cli.errors import Status, reported
from ucutlass.frontend import decoded
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
def command(files: tuple[Path, ...], check: bool) -> None:
    """Rewrite FILES in canonical form; `-` reads standard input and prints.

    Comments are kept. Formatting twice changes nothing more.
    """
    differing = []
    with reported(False):
        for path in files:
            piped = str(path) == "-"
            source = decoded(sys.stdin.buffer.read() if piped else path.read_bytes(), str(path))
            text = _format(source, str(path))
            if piped and not check:
                click.echo(text, nl=False)
            elif text != source:
                differing.append(path)
                if not check:
                    path.write_text(text)
    for path in differing:
        click.echo(f"{'would format' if check else 'formatted'} {path}", err=True)
    if check and differing:
        sys.exit(Status.PROGRAM)


def _format(source: str, file: str) -> str:
    try:
        return format_file(parse(source))
    except SyntaxProblem as problem:
        raise program_error(problem, source, file) from None
