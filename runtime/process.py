"""Runs other programs, each as a process group of its own that ends with its caller.

Whatever ends this process, also `kill -9`, ends the programs that it started, with their children: a
compiler's children are not told when its parent dies (PR_SET_PDEATHSIG reaches one generation), so a guard
beside each program waits for the end of a pipe that only this process holds, and kills the group then. A
program begins only once its guard is there. Both are `/bin/sh`, milliseconds to start.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import IO, Literal, TypeAlias

from ucutlass.runtime.errors import BuildCancelled, BuildTimedOut, CompilerUnusable

_POLL_SECONDS = 0.05

Status: TypeAlias = int | Literal["timed out", "cancelled"]
"""How a compiler ended: its exit status, or why it was ended."""

_WAITING = 'read -r _ || exit 1; exec "$@"'
"""Becomes the program once it is told to; never, where the caller died before."""

_GUARD = 'read -r _; kill -s KILL -- "-$1"'

_ELF = b"\x7fELF"

_NOT_RUN = (126, 127)
"""What a shell ends with where it cannot execute a program."""


# --- starting ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Guarded:
    """A program, which leads a session of its own; its standard input is a pipe, to be closed."""

    process: subprocess.Popen[bytes]
    guard: subprocess.Popen[bytes]

    def end(self) -> None:
        """Kills what is left of the group, and the guard."""
        kill_group(self.process)
        self.guard.kill()
        self.guard.communicate()


def start(
    command: Sequence[str],
    *,
    stdout: int | IO[bytes],
    stderr: int | IO[bytes],
    folder: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Guarded:
    """Starts a program that dies with this process; the caller `end`s it. Raises OSError where it cannot be
    started, ValueError for a NUL in an argument."""
    line = ["/bin/sh", "-c", _WAITING, "sh", _program(command, env), *command[1:]]
    process = subprocess.Popen(
        line, cwd=folder, env=None if env is None else dict(env), stdin=subprocess.PIPE, stdout=stdout,
        stderr=stderr, start_new_session=True,
    )  # fmt: skip
    try:
        guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "sh", str(process.pid)], stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", start_new_session=True,
        )  # fmt: skip
    except BaseException:
        kill_group(process)
        raise
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write(b"\n")
        process.stdin.flush()
    return Guarded(process, guard)


def _program(command: Sequence[str], env: Mapping[str, str] | None) -> str:
    if not command or not command[0]:
        raise FileNotFoundError(errno.ENOENT, "there is no program in it", "")
    found = shutil.which(command[0], path=(os.environ if env is None else env).get("PATH"))
    if found is None:
        code = errno.EACCES if Path(command[0]).exists() else errno.ENOENT
        raise OSError(code, os.strerror(code), command[0])
    with suppress(PermissionError), Path(found).open("rb") as file:  # it may be there to be run alone
        if not file.read(len(_ELF)).startswith((_ELF, b"#!")):
            # The system would refuse it; a shell takes it for a script of its own.
            raise OSError(errno.ENOEXEC, os.strerror(errno.ENOEXEC), command[0])
    return str(Path(found).absolute())


# --- running ----------------------------------------------------------------------


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
            started = start(command, stdout=out, stderr=subprocess.STDOUT, folder=folder, env=env)
        except OSError as error:
            raise CompilerUnusable(f"{command[0]} cannot be started: {error}", "ucc doctor") from error
        try:
            _no_input(started.process)
            status = _wait(started.process, time.monotonic() + limit_seconds, cancel)
        finally:
            started.end()
    if status in _NOT_RUN:
        words = log.read_text(encoding="utf-8", errors="replace").strip()[-200:]
        raise CompilerUnusable(f"{command[0]} cannot be started: {words or status}", "ucc doctor")
    return status


@dataclass(frozen=True, slots=True)
class Output:
    """What a program printed, and its exit status."""

    status: int
    out: str
    err: str


def output(command: Sequence[str], limit_seconds: float) -> Output:
    """Runs a program that only prints, in an empty folder, for some put files where they are run.

    Raises OSError where it cannot be started, TimeoutError where it takes longer; its group is killed.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
    ):
        started = start(command, stdout=out, stderr=err, folder=Path(folder))
        try:
            _no_input(started.process)
            status = _wait(started.process, time.monotonic() + limit_seconds, None)
        finally:
            started.end()
        if not isinstance(status, int):
            raise TimeoutError(f"it took longer than {limit_seconds:g} s")
        return Output(status, _text(out), _text(err))


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", errors="replace")


def _no_input(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()


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
