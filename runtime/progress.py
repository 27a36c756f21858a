"""Defines the events that a build reports while it runs. A front end shows them; nothing here prints.
Nothing here prints: a front end draws it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

ProgressKind: TypeAlias = Literal["cached", "waiting", "compiling", "alone", "built", "failed", "quarantined"]


@dataclass(frozen=True, slots=True)
class Progress:
    """One event of one kernel's build.

    `cached`, `built` and `failed` end a kernel; `waiting` says in `detail` who builds it already;
    `alone` why it is built by itself after all, where several were tried as one; `quarantined` why an
    entry of the cache was put aside, and where. `seconds` is the compiler's time, for `built`. `done`
    of `total` distinct kernels have ended, this one included.
    """

    kind: ProgressKind
    entry: str
    detail: str = ""
    seconds: float | None = None
    done: int = 0
    total: int = 1


OnProgress: TypeAlias = Callable[[Progress], None]


def ignore(_: Progress) -> None:
    """The listener of a caller who does not care."""
