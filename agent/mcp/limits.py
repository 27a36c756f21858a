"""This module has the bounds of the server: those of its command line, and those that never change."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ANSWER_SECONDS = 45.0
"""Every tool answers within this time. Many clients stop waiting after a minute, whatever progress says."""

WAIT_SECONDS = 8.0
"""What a call may wait for its turn, where its command runs at once."""

COMMAND_SECONDS = 32.0
"""What such a command may take: with the wait, and the end of its processes, it stays below ANSWER_SECONDS."""

MOST_AT_ONCE = 2
"""Commands that run beside the jobs, for tools that answer at once."""

MOST_CALLS = 32
"""Calls that wait or run; further ones are refused."""

MOST_TEXT = 50_000
"""Characters of a program."""

MOST_FILE = 2_000_000
"""Bytes of a file below the root."""

MOST_PROGRAMS = 8
"""Programs of one measurement."""

MOST_LINE = 4_000_000
"""Bytes of one message of a client."""

MOST_OUTPUT = 8_000_000
"""Bytes that a command may print."""

MOST_ERRORS = 20_000
"""Bytes of standard error that are kept of a command, the last ones."""

MOST_JOBS = 64
"""Jobs that are remembered after their end."""

MOST_SOURCES = 32
"""Emitted sources that are remembered."""

MOST_WORDS = 4_000
"""Characters of a command's words in an answer."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Describes what the server's command line allows.

    Files are read below `root` alone. A job takes at most `job_seconds`, all jobs together `total_seconds`, both
    of wall time; `running` jobs run at once and `waiting` more wait. A search judges at most `attempts`
    candidates. A command's processes take at most `memory_bytes`. Without a `model` no call costs money; with
    one a search spends at most `dollars`.
    """

    root: Path
    job_seconds: float = 900.0
    total_seconds: float = 14_400.0
    attempts: int = 40
    running: int = 1
    waiting: int = 8
    memory_bytes: int = 16 << 30
    model: str | None = None
    dollars: float | None = None
