"""How long a script may take. It stops in good order, and the next run goes on where it stopped."""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Timer
from typing import Any

from ucutlass import files

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
        "--seconds",
        type=float,
        metavar="S",
        help="stop after about S seconds, with exit status 75 where work is left; the same command goes on",
    )


def write(path: Path, value: Any) -> None:
    """JSON, so that a reader at any time sees the whole of the old or of the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, json.dumps(value, indent=1))


def append(path: Path, row: Any) -> None:
    """A line of JSON by one write, so that lines of several processes do not mix."""
    files.append(path, f"{json.dumps(row)}\n")


def lines(path: Path) -> list[dict[str, Any]]:
    """The rows of such a file; a line that was cut short counts for nothing."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found
