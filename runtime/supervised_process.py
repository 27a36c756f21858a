"""Runs a command of which no process survives the command's end or the end of whoever started it.

Between the two stands a process, `supervisor.py`, to which orphans of the command fall (a child subreaper of
Linux) and which kills them: a daemon that left its parent, its session and its pipes is still reached. Code
of the same user that sets out to kill the supervisor is not held by it.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_PYTHON = sys.executable
_START_SECONDS = 60.0
"""What the supervisor may take until it has started the command, on a machine under load."""
_MOST_MILLISECONDS = 2**31 - 1
"""That poll(2) waits; a caller's limit may be longer."""
_GRACE_SECONDS = 10.0
"""What the supervisor may take to end everything; it gives itself less."""


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A living process; `resident` is its resident memory in bytes, shared pages included."""

    pid: int
    resident: int


class Supervisor(Protocol):
    """What is asked of a supervisor's process, as of `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...

    @property
    def args(self) -> Any: ...

    @property
    def stdin(self) -> IO[bytes] | None: ...

    @property
    def stdout(self) -> IO[bytes] | None: ...

    @property
    def stderr(self) -> IO[bytes] | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


class SupervisedProcess:
    """Works as subprocess.Popen, whose `stdin`, `stdout`, `stderr` and `pass_fds` these are.

    `env` is the whole environment of the command, `folder` is where it runs, where this process does by
    default. The command is ended where the thread that made this ends, as where the whole process does.
    Raises OSError where the command cannot be executed, ValueError for an empty one and for one with a null
    character.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        stdin: int,
        stdout: int,
        stderr: int,
        pass_fds: Sequence[int] = (),
        folder: Path | None = None,
        fork: Callable[[int], Supervisor] | None = None,
    ) -> None:
        if not command:
            raise ValueError("an empty command")
        self._socket, theirs = socket.socketpair()
        self._received = b""
        self._status: int | None = None
        try:
            # -I: the folder of the script, this package's, must not become a place to import from.
            self._supervisor: Supervisor = (
                fork(theirs.fileno())
                if fork is not None
                else subprocess.Popen(
                    [_PYTHON, "-I", "-S", str(_SUPERVISOR), str(theirs.fileno()), *command],
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    pass_fds=(*pass_fds, theirs.fileno()),
                    start_new_session=True,
                    env=dict(env),
                    cwd=folder,
                )
            )
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()
        self.stdin: IO[bytes] | None = self._supervisor.stdin
        self.stdout: IO[bytes] | None = self._supervisor.stdout
        self.stderr: IO[bytes] | None = self._supervisor.stderr
        try:
            self._started(command)
        except BaseException:
            self.end()
            for pipe in filter(None, (self.stdin, self.stdout, self.stderr)):
                pipe.close()
            raise

    def _started(self, command: Sequence[str]) -> None:
        try:
            message = self._message(_START_SECONDS)
        except subprocess.TimeoutExpired:
            raise OSError(errno.ETIMEDOUT, f"nothing began within {_START_SECONDS:g} s", command[0]) from None
        match message:
            case ["started"]:
                return
            case ["refused", number]:
                raise OSError(int(number), os.strerror(int(number)), command[0])
            case _:
                raise OSError(f"the supervisor of {command[0]} ended with {self._supervisor.wait()}")

    def wait(self, seconds: float) -> int:
        """Returns the command's exit status, negative for a signal, once nothing of it is left; -9 where it
        was ended from here. Raises subprocess.TimeoutExpired."""
        if self._status is None:
            match self._message(seconds):
                case ["ended", status]:
                    self._status = int(status)
                case _:  # the supervisor was killed, and the command by the kernel with it
                    self._status = -9
            self._supervisor.wait()
        return self._status

    def poll(self) -> int | None:
        """As `wait`; None where it has not ended."""
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> None:
        """Has everything killed, which `wait` then waits for. May be called by any thread."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def end(self) -> None:
        """Kills everything and waits until it is gone."""
        self.stop()
        try:
            self._supervisor.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            self._supervisor.wait()
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        self._socket.close()

    def processes(self) -> list[ProcessInfo]:
        """Returns the command, if it runs, and everything that came of it and lives."""
        return _descendants(self._supervisor.pid)

    def _message(self, seconds: float) -> list[str]:
        """Returns the words of the supervisor's next message; none where it closed its side."""
        deadline = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while b"\n" not in self._received:
            left = max(0.0, deadline - time.monotonic())
            if not poll.poll(min(1000 * left, _MOST_MILLISECONDS)):
                raise subprocess.TimeoutExpired(self._supervisor.args, seconds)
            block = self._socket.recv(256)
            if not block:
                return []
            self._received += block
        line, _, self._received = self._received.partition(b"\n")
        return line.decode().split()


class NoChildLists(Exception):
    """Raised where the kernel does not list the children of a thread."""


def _descendants(ancestor: int) -> list[ProcessInfo]:
    """Returns what came of a process and lives, by the kernel's lists of children where it has them: reading the
    state of every process there is takes seconds beside threads that compute, since each read waits for Python's
    lock."""
    try:
        return [info for pid in _listed(ancestor) if (info := _living(pid)) is not None]
    except NoChildLists:
        return _scanned(ancestor)


def _listed(ancestor: int) -> list[int]:
    """Returns the numbers of what came of a process. Raises NoChildLists."""
    numbers: list[int] = []
    unseen = [ancestor]
    while unseen:
        pid = unseen.pop()
        children = [int(n) for n in _children_of(pid).split()]
        numbers += children
        unseen += children
    return numbers


def _children_of(pid: int) -> str:
    """Returns the children of a process's threads, by number; "" where it has ended. Raises NoChildLists where
    the kernel has none (proc(5), task/TID/children, of CONFIG_PROC_CHILDREN)."""
    lists: list[str] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            try:
                lists.append((thread / "children").read_text(encoding="ascii"))
            except ProcessLookupError:
                continue
            except FileNotFoundError:
                if thread.exists():
                    raise NoChildLists from None
    return " ".join(lists)


def _living(pid: int) -> ProcessInfo | None:
    """Returns a process that runs; None for one that has ended."""
    with suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return _info(pid, _fields(stat))
    return None


def _fields(stat: str) -> list[str]:
    # proc(5): the name, in parentheses, may hold blanks; state is field 3, ppid 4, rss 24.
    return stat.rpartition(")")[2].split()


def _info(pid: int, fields: Sequence[str]) -> ProcessInfo | None:
    if fields[0] in "ZX":
        return None
    return ProcessInfo(pid, int(fields[21]) * os.sysconf("SC_PAGE_SIZE"))


def _scanned(ancestor: int) -> list[ProcessInfo]:
    """Returns what `_descendants` does, by the parents of all processes."""
    children: dict[int, list[ProcessInfo]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = _fields(stat.read_text(encoding="utf-8", errors="replace"))
            info = _info(int(stat.parent.name), fields)
            if info is not None:
                children.setdefault(int(fields[1]), []).append(info)
    living = list(children.get(ancestor, ()))
    for process in living:
        living += children.get(process.pid, ())
    return living
