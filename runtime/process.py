"""Runs a compiler as a process group of its own, so that all of it can be ended at once."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Literal, TypeAlias

from ucutlass.runtime.errors import BuildCancelled, BuildTimedOut, CompilerUnusable

_POLL_SECONDS = 0.05

Status: TypeAlias = int | Literal["timed out", "cancelled"]
"""How a compiler ended: its exit status, or why it was ended."""


def run(
    command: Sequence[str],
    *,
    folder: Path,
    env: Mapping[str, str],
    log: Path,
    limit_seconds: float,
    cancel: Event | None,
) -> Status:
    """The exit status of `command` run in `folder`, its output (both streams) in `log`.

    On cancellation, time-out or any exception, Ctrl-C too, every process of the group is killed
    before this returns. Raises CompilerUnusable where the command cannot be started, OSError
    where the log cannot be written.
    """
    with log.open("wb") as out:
        try:
            process = subprocess.Popen(
                command, cwd=folder, env=dict(env), stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.STDOUT, start_new_session=True,
            )
        except OSError as error:
            raise CompilerUnusable(f"{command[0]} cannot be started: {error}", "ucc doctor") from error
        try:
            return _wait(process, time.monotonic() + limit_seconds, cancel)
        finally:
            kill_group(process)


def exit_status(entry: str, ended: Status, limit_seconds: float) -> int:
    """Of a compiler that ended by itself. Raises BuildCancelled, BuildTimedOut."""
    match ended:
        case "cancelled":
            raise BuildCancelled(entry)
        case "timed out":
            raise BuildTimedOut(entry, limit_seconds)
        case status:
            return status


def _wait(process: subprocess.Popen[bytes], deadline: float, cancel: Event | None) -> Status:
    while True:
        if cancel is not None and cancel.is_set():
            return "cancelled"
        if time.monotonic() >= deadline:
            return "timed out"
        try:
            return process.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            continue


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kills what is left of the group that `process`, started as a session leader, leads."""
    with suppress(ProcessLookupError):  # the whole group has ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
