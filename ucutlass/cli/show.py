"""Tables and progress on the terminal; plain text where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Sequence

from rich.console import Console
from rich.table import Table

from ucutlass.runtime.progress import OnProgress, Progress, ignore


def console(stderr: bool = False) -> Console:
    return Console(stderr=stderr, highlight=False, soft_wrap=not _is_terminal(stderr))


def _is_terminal(stderr: bool) -> bool:
    return Console(stderr=stderr).is_terminal


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on a terminal, tab-separated lines elsewhere."""
    out = console()
    if not out.is_terminal:
        for row in rows:
            out.print("\t".join(row), markup=False)
        return
    made = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        made.add_row(*row)
    out.print(made)


@contextmanager
def building(what: str) -> Iterator[OnProgress]:
    """A spinner with the build's latest event, on a terminal only."""
    err = console(stderr=True)
    if not err.is_terminal:
        yield ignore
        return
    with err.status(f"building {what}") as status:

        def update(event: Progress) -> None:
            status.update(f"building {what}: {event.kind} {event.detail}".rstrip())

        yield update
