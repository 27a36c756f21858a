"""Runs one function in a process of its own, whose crash, hang or noise the caller survives.

Arguments and results cross as JSON: nothing that the other process sends is executed here, so
code that is not trusted with this process may run there. Bulk data goes through files.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import IO, Any, Literal, TypeAlias

from ucutlass.runtime.process import kill_group

_CHILD = Path(__file__).with_name("isolate_child.py")
_POLL_SECONDS = 0.05
_OUTPUT_BYTES = 1 << 16
_RESULT_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class Returned:
    """The function returned; `value` is what JSON made of it."""

    value: Any
    output: str


@dataclass(frozen=True, slots=True)
class Raised:
    """The function raised an exception, or the target could not be imported."""

    type: str
    message: str
    traceback: str
    output: str


@dataclass(frozen=True, slots=True)
class Crashed:
    """A signal that was not ours ended the process, such as SIGSEGV. SIGKILL mostly means that the
    machine ran out of memory."""

    signal: str
    output: str


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The time limit passed; the process and its group were killed."""

    limit_seconds: float
    output: str


@dataclass(frozen=True, slots=True)
class TooMuchMemory:
    """The group's resident memory passed the limit; it was killed."""

    limit_bytes: int
    output: str


@dataclass(frozen=True, slots=True)
class Exited:
    """The process ended by itself without a result."""

    status: int
    output: str


Outcome: TypeAlias = Returned | Raised | Crashed | TimedOut | TooMuchMemory | Exited
"""`output` is the last 64 KiB of what the process printed, both streams together."""


def lost(outcome: Outcome, what: str) -> str:
    """Why there is no answer, in words; `what` names whose process it was, as in "the kernel"."""
    match outcome:
        case Raised(kind, message):
            return f"{kind}: {message}"
        case Crashed(name):
            return f"{what}'s process was ended by {name}"
        case TimedOut(seconds):
            return f"{what}'s process did not end within {seconds:.0f} s and was killed"
        case TooMuchMemory(limit):
            return f"{what}'s process passed {limit} bytes of memory and was killed"
        case Exited(status):
            return f"{what}'s process ended by itself with status {status}"
        case Returned():
            return f"{what}'s process answered what was not asked"


def run(
    target: str,
    arguments: Mapping[str, Any],
    *,
    limit_seconds: float,
    memory_bytes: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> Outcome:
    """Calls `target`, written `package.module:function`, with JSON keyword arguments.

    `memory_bytes` bounds host memory, looked at twenty times a second (an address-space limit would
    stop CUDA from starting). The process sees this one's sys.path, and dies with the thread that
    called this. Raises ValueError for a malformed target, TypeError for arguments that are no JSON.
    """
    module, _, function = target.partition(":")
    if not module or not function:
        raise ValueError(f"a target is written package.module:function, not {target!r}")
    request = json.dumps(
        {
            "module": module,
            "function": function,
            "arguments": dict(arguments),
            "path": [str(Path(p).absolute()) for p in sys.path],
            "parent": os.getpid(),
        }
    )
    read_end, write_end = os.pipe()
    result = _Tail(os.fdopen(read_end, "rb"), _RESULT_BYTES)
    try:
        # -I: the folder of the script, this package's, must not become a place to import from.
        process = subprocess.Popen(
            [sys.executable, "-I", str(_CHILD), str(write_end)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            pass_fds=(write_end,), start_new_session=True, env=None if environ is None else dict(environ),
        )
    finally:
        os.close(write_end)
    assert process.stdin is not None and process.stdout is not None
    output = _Tail(process.stdout, _OUTPUT_BYTES)
    try:
        with suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(request.encode())
        ended = _watch(process, time.monotonic() + limit_seconds, memory_bytes)
    finally:
        kill_group(process)
    said = output.finish().decode(errors="replace")
    match ended:
        case "time":
            return TimedOut(limit_seconds, said)
        case "memory":
            return TooMuchMemory(memory_bytes or 0, said)
        case status:
            return _outcome(status, result.finish(), said)


def _outcome(status: int, result: bytes, said: str) -> Outcome:
    if status < 0:
        return Crashed(_signal_name(-status), said)
    try:
        message = json.loads(result)
    except ValueError:
        return Exited(status, said)
    match message:
        case {"returned": value}:
            return Returned(value, said)
        case {"raised": {"type": str(kind), "message": str(words), "traceback": str(trace)}}:
            return Raised(kind, words, trace, said)
        case _:
            return Exited(status, said)


def _signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def _watch(
    process: subprocess.Popen[bytes], deadline: float, memory_bytes: int | None
) -> int | Literal["time", "memory"]:
    while True:
        try:
            return process.wait(min(_POLL_SECONDS, max(0.0, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            if time.monotonic() >= deadline:
                return "time"
            if memory_bytes is not None and _resident(process.pid) > memory_bytes:
                return "memory"


def _resident(group: int) -> int:
    """Bytes of resident memory of a process group; pages that its members share count for each."""
    pages = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # proc(5): the name, in parentheses, may hold blanks; pgrp is field 5, rss field 24.
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[2]) == group:
                pages += int(fields[21])
    return pages * os.sysconf("SC_PAGE_SIZE")


class _Tail:
    """Drains a pipe in the background and keeps its last bytes."""

    def __init__(self, pipe: IO[bytes], limit: int) -> None:
        self._pipe = pipe
        self._limit = limit
        self._kept = b""
        self._thread = Thread(target=self._drain, daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        with self._pipe:
            while block := os.read(self._pipe.fileno(), 1 << 16):
                self._kept = (self._kept + block)[-self._limit :]

    def finish(self) -> bytes:
        """What was kept, once every writer has ended; a process that left the group may hold the
        pipe open, which is waited for no longer than a second."""
        self._thread.join(1.0)
        return self._kept
