"""This module has the options of type `OutputPath`, and writes files that appear whole. No output is an
input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import click

from ucutlass import files
from ucutlass.cli import show
from ucutlass.cli.inputs import class_of
from ucutlass.runtime import switches


class OutputPath(click.Path):
    """Takes a file that a command writes; `-` is standard output where `dash` says so."""

    def __init__(self, dash: bool = False) -> None:
        super().__init__(dir_okay=False, allow_dash=dash, path_type=Path)


class OutputIsInput(Exception):
    """Raised where what a command would write is what it reads."""


def refuse_inputs(targets: Iterable[Path] = ()) -> None:
    """Raises OutputIsInput where one of these, or a value of an `OutputPath` option of the command that runs, is
    a file that it was given to read, or a database of this user's; by whatever name or link."""
    context = click.get_current_context(silent=True)
    if context is None:
        return
    written = [*targets, *_paths(context, of_output=True)]
    if not written:
        return
    read = [*_paths(context, of_output=False), *_databases()]
    for target in written:
        for source in read:
            if _same(target, source):
                words = f"{target} would be overwritten, and it is {source}, which is read: name another file"
                raise OutputIsInput(words)


def write(target: Path, text: str) -> None:
    """Gives a file this text, whole or not at all; `-` is standard output. Raises OutputIsInput, OSError."""
    if str(target) == "-":
        show.program(text)
    else:
        write_all({target: text})


def write_all(contents: Mapping[Path, files.Content]) -> None:
    """Writes all of these files or none. Raises OutputIsInput, OSError."""
    refuse_inputs(contents)
    files.write_all(contents)


def _paths(context: click.Context, of_output: bool) -> Iterator[Path]:
    """Yields the values of the options and arguments that are paths, of one kind."""
    for parameter in context.command.params:
        kind = parameter.type
        if isinstance(kind, click.Path) and isinstance(kind, OutputPath) == of_output:
            value = context.params.get(parameter.name or "")
            values = value if isinstance(value, tuple) else () if value is None else (value,)
            yield from (class_of(path)[0] for path in values)


def _databases() -> Iterator[Path]:
    folder = switches.read().data_dir
    with suppress(OSError):
        yield from folder.glob("*.sqlite*")


def _same(target: Path, source: Path) -> bool:
    """Returns whether both names lead to one file. A device or pipe may be both."""
    if "-" in (str(target), str(source)):
        return False
    try:
        return target.samefile(source) and (target.is_file() or target.is_dir())
    except OSError:
        return False  # one of them is not there
