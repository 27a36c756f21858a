"""Tables and progress on the terminal; plain text where there is none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ucutlass.runtime.progress import OnProgress, Progress, ignore


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on a terminal, tab-separated lines elsewhere."""
    out = Console(highlight=False)
    if not out.is_terminal:
        for row in rows:
            click.echo("\t".join(one_line(cell) for cell in row))
        return
    made = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        made.add_row(*(Text(one_line(cell)) for cell in row))
    out.print(made)


def one_line(text: str) -> str:
    """As `plain`, lines joined: no cell begins a row of its own."""
    return plain("; ".join(text.splitlines()))


def plain(text: str) -> str:
    """Records and tools' words come from elsewhere: nothing in them reaches the terminal as a command."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


@contextmanager
def building(what: str) -> Iterator[OnProgress]:
    """A spinner with the build's latest event, on a terminal only."""
    err = Console(stderr=True, highlight=False)
    if not err.is_terminal:
        yield ignore
        return
    with err.status(f"building {what}") as status:

        def update(event: Progress) -> None:
            count = f" {event.done}/{event.total}" if event.total > 1 else ""
            status.update(f"building {what}{count}: {event.kind} {event.detail}".rstrip())

        yield update
