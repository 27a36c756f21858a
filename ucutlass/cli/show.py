"""Everything that a command prints: words, programs, JSON, tables and progress.

Nothing that comes from elsewhere reaches a terminal as a command of it (`ucutlass.printable`).
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ucutlass.printable import escaped, one_line
from ucutlass.runtime.progress import OnProgress, Progress, ignore

__all__ = [
    "CannotWrite",
    "building",
    "data",
    "line",
    "note",
    "on_terminal",
    "one_line",
    "program",
    "say",
    "table",
    "utf8",
]


class CannotWrite(Exception):
    """Standard output takes no more: its disk is full, or (`closed`) nobody reads it any longer."""

    def __init__(self, problem: OSError) -> None:
        super().__init__(f"cannot write output: {problem.strerror or problem}")
        self.closed = isinstance(problem, BrokenPipeError)


def say(text: str) -> None:
    """Words on standard output. Raises CannotWrite."""
    _write(escaped(text, keep="\n\t") + "\n")


def note(text: str) -> None:
    """Words on standard error. Where it takes none, the exit status must do."""
    if sys.stderr is not None:
        with suppress(OSError):
            sys.stderr.write(escaped(text, keep="\n\t") + "\n")
            sys.stderr.flush()


def program(text: str) -> None:
    """A program or a page as it stands, for a file or a pipe; on a terminal as `say`. Raises CannotWrite."""
    _write(escaped(text, keep="\n\t") if on_terminal() else text)


def data(value: Any, default: Callable[[Any], Any] | None = None) -> None:
    """One JSON document, in ASCII; `default` as of json.dumps. Raises CannotWrite."""
    # JSON lets DEL stand in a string as it is.
    _write(json.dumps(value, indent=2, default=default).replace("\x7f", "\\u007f") + "\n")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on a terminal, tab-separated lines elsewhere. A row of headings comes first where a column has
    one. Raises CannotWrite."""
    if not on_terminal():
        headed = [columns, *rows] if any(columns) else rows
        _write("".join("\t".join(map(one_line, row)) + "\n" for row in headed))
        return
    grid = Table(*columns, box=None, pad_edge=False, show_header=any(columns))
    for row in rows:
        grid.add_row(*(Text(one_line(cell)) for cell in row))
    with _written():
        Console(highlight=False).print(grid)


def line(*cells: str) -> None:
    """A line of tab-separated cells. Raises CannotWrite."""
    _write("\t".join(map(one_line, cells)) + "\n")


def on_terminal() -> bool:
    """Whether somebody looks at standard output."""
    return Console().is_terminal


def _write(text: str) -> None:
    # click.echo would take colours out of a program on its way to a file.
    if sys.stdout is not None:
        with _written():
            sys.stdout.write(text)
            sys.stdout.flush()


@contextmanager
def _written() -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise CannotWrite(problem) from problem


def utf8() -> None:
    """Makes the standard streams write UTF-8 whatever the locale is, as programs are written."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def flushed() -> bool:
    """Whether standard output took everything; where not, what is left is dropped."""
    try:
        sys.stdout.flush()
    except OSError:
        return False
    return True


@contextmanager
def building(what: str) -> Iterator[OnProgress]:
    """A spinner with the build's latest event, on a terminal only."""
    err = Console(stderr=True, highlight=False)
    if not err.is_terminal:
        yield ignore
        return
    with err.status(Text(one_line(f"building {what}"))) as status:
        yield lambda event: status.update(Text(_event(what, event)))


def _event(what: str, event: Progress) -> str:
    count = f" {event.done}/{event.total}" if event.total > 1 else ""
    return one_line(f"building {what}{count}: {event.kind} {event.detail}".rstrip())
