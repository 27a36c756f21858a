"""Runs compilers and tools, which end with their caller and write their output to files.

Whatever ends this process, also `kill -9`, ends the programs that it started with all of their children
(`ucutlass.runtime.supervised_process`): a compiler's passes are not told when the compiler dies.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import IO, Literal, TypeAlias

from ucutlass.runtime.errors import BuildCancelled, BuildTimedOut, CompilerUnusable
from ucutlass.runtime.supervised_process import SupervisedProcess

_POLL_SECONDS = 0.05

ProcessStatus: TypeAlias = int | Literal["timed out", "cancelled"]
"""How a compiler ended: its exit status, or why it was ended."""


def run(
    command: Sequence[str],
    *,
    folder: Path,
    env: Mapping[str, str],
    log: Path,
    limit_seconds: float,
    cancel: Event | None,
) -> ProcessStatus:
    """Returns the exit status of `command` run in `folder`, its output (both streams) in `log`.

    On cancellation, time-out or any exception, Ctrl-C too, every process of the group is killed
    before this returns. Raises CompilerUnusable where the command cannot be started, OSError
    where the log cannot be written.
    """
    with log.open("wb") as out:
        try:
            process = SupervisedProcess(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out.fileno(),
                stderr=subprocess.STDOUT,
                folder=folder,
            )
        except OSError as error:
            raise CompilerUnusable(f"{command[0]} cannot be started: {error}", "ucc doctor") from error
        try:
            return _wait(process, time.monotonic() + limit_seconds, cancel)
        finally:
            process.end()


@dataclass(frozen=True, slots=True)
class ProcessOutput:
    """What a program printed, and its exit status."""

    status: int
    out: str
    err: str


def output(command: Sequence[str], limit_seconds: float) -> ProcessOutput:
    """Runs a program that only prints, in an empty folder, for some put files where they are run.

    Raises OSError where it cannot be started, TimeoutError where it takes longer; its group is killed.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        process = SupervisedProcess(
            command,
            env=os.environ,
            stdin=subprocess.DEVNULL,
            stdout=out.fileno(),
            stderr=err.fileno(),
            folder=Path(folder),
        )
        try:
            status = _wait(process, time.monotonic() + limit_seconds, None)
        finally:
            process.end()
        if not isinstance(status, int):
            raise TimeoutError(f"it took longer than {limit_seconds:g} s")
        return ProcessOutput(status, _text(out), _text(err))


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", errors="replace")


def exit_status(entry: str, ended: ProcessStatus, limit_seconds: float) -> int:
    """Returns the exit status of a compiler that ended by itself. Raises BuildCancelled, BuildTimedOut."""
    match ended:
        case "cancelled":
            raise BuildCancelled(entry)
        case "timed out":
            raise BuildTimedOut(entry, limit_seconds)
        case status:
            return status


def _wait(process: SupervisedProcess, deadline: float, cancel: Event | None) -> ProcessStatus:
    while True:
        if cancel is not None and cancel.is_set():
            return "cancelled"
        if time.monotonic() >= deadline:
            return "timed out"
        try:
            return process.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            continue
