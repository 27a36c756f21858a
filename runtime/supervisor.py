"""Supervises a command and ends everything that the command started when it ends.

`ucutlass.runtime.supervised_process` starts it by path between the command and the caller.

    python -I -S supervisor.py SOCKET COMMAND...

SOCKET is the file descriptor of a socket to the caller. The supervisor writes `started` or `refused ERRNO` to it,
and `ended STATUS` once no process of the command is left. When the caller closes its side, as its own death
does, the command is ended. Needs Linux and the standard library.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
"""linux/prctl.h."""

_REAP_SECONDS = 5.0
"""How long killed processes are waited for: what sleeps in the kernel ends when the kernel lets it."""

_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main() -> None:
    caller, command = int(sys.argv[1]), sys.argv[2:]
    os.set_inheritable(caller, False)
    supervise(caller, lambda: _start(command))


def supervise(caller: int, start: Callable[[], int]) -> None:
    """Does what this module says, for what `start` starts, of which it returns the number."""
    signals, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)
    # What a descendant leaves behind when it ends becomes this process's child, not init's.
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        child = start()
    except OSError as error:
        _send(caller, f"refused {error.errno}")
        return
    _send(caller, "started")
    _close_others({caller, signals, wakeup})
    status = _watch(child, caller, signals)
    _end_all(child)
    _send(caller, f"ended {status}")


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option} was refused")


def _send(caller: int, message: str) -> None:
    with suppress(OSError):  # the caller has ended
        os.write(caller, message.encode() + b"\n")


def _enter_session(supervisor: int) -> bool:
    """Gives a fork a session of its own that ends with its supervisor; returns whether that still lives."""
    os.setsid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == supervisor


def _start(command: list[str]) -> int:
    """Returns the command in a session of its own. Raises OSError where it cannot be executed."""
    refusal, refuse = os.pipe()
    supervisor = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            if _enter_session(supervisor):
                signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # which Python ignores
                os.execvp(command[0], command)
        except OSError as error:
            os.write(refuse, str(error.errno).encode())
        finally:
            os._exit(127)
    os.close(refuse)
    with os.fdopen(refusal, "rb") as pipe:
        number = pipe.read()
    if number:
        os.waitpid(child, 0)
        raise OSError(int(number), os.strerror(int(number)))
    return child


def forked(serve: Callable[[], None]) -> int:
    """Returns a fork of this process in a session of its own, which calls `serve` and ends."""
    supervisor = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            signal.set_wakeup_fd(-1)
            if _enter_session(supervisor):
                serve()
        finally:
            os._exit(127)
    return child


def _close_others(own: set[int]) -> None:
    """Closes all file descriptors but `own`: the other ends of the command's pipes notice when it closes them."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    close_but({0, 1, 2, *own})


def close_but(own: set[int]) -> None:
    """Closes all file descriptors but `own`, which has the standard ones."""
    last = 2
    for number in sorted(own - {0, 1, 2}):
        os.closerange(last + 1, number)
        last = number
    os.closerange(last + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _watch(child: int, caller: int, signals: int) -> int:
    """Waits for the command, the caller's end or a signal. Returns an exit status, negative for a signal."""
    poll = select.poll()
    poll.register(caller, select.POLLIN)
    poll.register(signals, select.POLLIN)
    while True:
        ready = dict(poll.poll())
        if signals in ready:
            numbers = os.read(signals, 512)
            if set(numbers) - {signal.SIGCHLD}:
                return -signal.SIGKILL
            if (status := _reaped(child)) is not None:
                return status
        if caller in ready:
            return -signal.SIGKILL


def _reaped(child: int) -> int | None:
    """Reaps all children that have ended. Returns the command's status, None where it runs."""
    status = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                status = os.waitstatus_to_exitcode(ended[1])
    return status


def _end_all(group: int) -> None:
    """Kills children until there are none. The children of a killed child become children of this process, so
    all are reached in the end; and no other process has a child's number until it was waited for."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    deadline = time.monotonic() + _REAP_SECONDS
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for pid in _children():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)


def _children() -> list[int]:
    pids = []
    # pathlib would take as long to import as all else here.
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
            # proc(5): the name, in parentheses, may hold blanks; then state and parent.
            if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                pids.append(int(name))
    return pids


if __name__ == "__main__":
    main()
