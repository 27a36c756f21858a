"""How long a script may take. It stops in good order, and the next run goes on where it stopped."""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Timer
from typing import Any

OUT_OF_TIME = 75
"""Exit status of a script that stopped with work left: EX_TEMPFAIL of sysexits.h."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """`at` in seconds of time.monotonic."""

    at: float = math.inf

    def left(self) -> float:
        return self.at - time.monotonic()

    @property
    def passed(self) -> bool:
        return self.left() <= 0

    def before(self, seconds: float) -> Deadline:
        """So much earlier."""
        return Deadline(self.at - seconds)

    def event(self) -> Event:
        """An event that a thread sets then."""
        made = Event()
        if not math.isinf(self.at):
            timer = Timer(max(0.0, self.left()), made.set)
            timer.daemon = True
            timer.start()
        return made


NEVER = Deadline()


def after(seconds: float | None) -> Deadline:
    return NEVER if seconds is None else Deadline(time.monotonic() + seconds)


def add_option(parser: argparse.ArgumentParser) -> None:
    """`--seconds`, for `after`."""
    parser.add_argument(
        "--seconds", type=float, metavar="S",
        help="stop after about S seconds, with exit status 75 where work is left; the same command goes on",
    )  # fmt: skip


def write(path: Path, value: Any) -> None:
    """JSON, so that a reader at any time sees the whole of the old or of the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(json.dumps(value, indent=1))
    beside.replace(path)


def append(path: Path, row: Any) -> None:
    """A line of JSON by one write, so that lines of several processes do not mix."""
    made = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(made, f"{json.dumps(row)}\n".encode())
    finally:
        os.close(made)


def lines(path: Path) -> list[dict[str, Any]]:
    """The rows of such a file; a line that was cut short counts for nothing."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found
