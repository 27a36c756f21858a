"""Files that commands read; `-` is standard input."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ucutlass import files, frontend, printable
from ucutlass.cli import show
from ucutlass.diagnostics import render
from ucutlass.spans import span

STDIN = Path("-")


def existing() -> click.Path:
    """A file that is there, or `-`."""
    return click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)


def content(file: Path, most: int = files.MOST_BYTES) -> bytes:
    """All of a file. Raises OSError, EFBIG where it has more than `most` bytes: what does not end, such as
    /dev/zero, is not read for ever."""
    if file == STDIN:
        return files.read_stream(sys.stdin.buffer, shown(file), most)
    return files.read_bytes(file, most)


def text(file: Path) -> str:
    """A program's text. Raises OSError, ProgramError for what is not UTF-8."""
    return frontend.decoded(content(file, frontend.MOST_BYTES), shown(file))


@span("front end")
def checked(file: Path) -> frontend.Checked:
    """A checked program. Raises as `text`, ProgramError with all its diagnostics."""
    return frontend.read_text(text(file), shown(file))


def read(file: Path) -> frontend.Checked:
    """As `checked`, with the warnings shown on stderr."""
    found = checked(file)
    if found.warnings:
        show.note(render(found.warnings, found.source, found.file))
    return found


def shown(file: Path) -> str:
    """What messages and JSON call it."""
    return "<stdin>" if file == STDIN else str(file)


def name(file: Path) -> str:
    """The same for a terminal."""
    return printable.name(shown(file))
