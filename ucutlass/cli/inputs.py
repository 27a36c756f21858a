"""This module reads the files of commands; `-` is standard input."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ucutlass import files, printable
from ucutlass.cli import show
from ucutlass.diagnostics import render
from ucutlass.spans import span

if TYPE_CHECKING:
    from ucutlass import frontend

STDIN = Path("-")


def existing() -> click.Path:
    """Returns a file that is there, or `-`."""
    return click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)


class ProblemPath(click.Path):
    """A file or folder that is there, or `FILE.py:CLASS`, which `class_of` splits."""

    def __init__(self) -> None:
        super().__init__(exists=True, allow_dash=True, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        super().convert(str(class_of(value)[0]), param, ctx)  # of a path, click takes `-` for a file's name
        return Path(value)


def class_of(source: str | Path) -> tuple[Path, str]:
    """Returns the path and the class of `FILE.py:CLASS`; the class is "" where none is named."""
    matched = re.fullmatch(r"(.*\.py):(\w+)", str(source), flags=re.DOTALL)
    return (Path(matched[1]), matched[2]) if matched else (Path(source), "")


def content(file: Path, most: int = files.MOST_BYTES) -> bytes:
    """Returns all of a file. Raises OSError, EFBIG where it has more than `most` bytes: what does not end,
    such as /dev/zero, is not read for ever."""
    if file == STDIN:
        return files.read_stream(sys.stdin.buffer, shown(file), most)
    return files.read_bytes(file, most)


def text(file: Path) -> str:
    """Returns a program's text. Raises OSError, ProgramError for what is not UTF-8."""
    from ucutlass import frontend  # here: what reads no program, such as `ucc --help`, loads no compiler

    return frontend.decoded(content(file, frontend.MOST_BYTES), shown(file))


@span("front end")
def checked(file: Path) -> frontend.Checked:
    """Returns a checked program. Raises as `text`, ProgramError with all its diagnostics."""
    from ucutlass import frontend

    return frontend.read_text(text(file), shown(file))


def read(file: Path) -> frontend.Checked:
    """Does as `checked`, and shows the warnings on stderr."""
    checked_file = checked(file)
    if checked_file.warnings:
        show.note(render(checked_file.warnings, checked_file.source, checked_file.file))
    return checked_file


def shown(file: Path) -> str:
    """Returns what messages and JSON call it."""
    return "<stdin>" if file == STDIN else str(file)


def name(file: Path) -> str:
    """Returns the same for a terminal."""
    return printable.name(shown(file))
