"""Runs a function in a process of its own, whose crash, hang or noise the caller survives.

`run` starts a process for the one call; `WarmProcess` keeps its process for the calls that follow.
Arguments and results cross as JSON: nothing that the other process sends is executed here, so
code that is not trusted with this process may run there. Bulk data goes through files.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread
from typing import IO, Any, Literal, Protocol, TypeAlias

from ucutlass import spans
from ucutlass.runtime.environment_allowlist import allowed_environment
from ucutlass.runtime.process_template import ProcessTemplate, TemplateLost
from ucutlass.runtime.supervised_process import SupervisedProcess

_CHILD = Path(__file__).with_name("isolation_child.py")
_POLL_SECONDS = 0.05
_OUTPUT_BYTES = 1 << 16
_RESULT_BYTES = 1 << 26
_MOST_SPANS = 100
_ROUNDOFF = 1e-6

STARTS = "process starts"
"""The span of what a process takes besides the function that it was started for: its start, its imports, its
end."""


@dataclass(frozen=True, slots=True)
class Returned:
    """The function returned; `value` is what JSON made of it."""

    value: Any
    output: str
    gpu_seconds: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Raised:
    """The function raised an exception, or the target could not be imported."""

    type: str
    message: str
    traceback: str
    output: str
    gpu_seconds: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Crashed:
    """A signal that was not ours ended the process, such as SIGSEGV. SIGKILL mostly means that the
    machine ran out of memory."""

    signal: str
    output: str
    gpu_seconds: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The time limit passed; the process and all that came of it were killed."""

    limit_seconds: float
    output: str
    gpu_seconds: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class TooMuchMemory:
    """The resident memory of the process and all that came of it passed the limit; they were killed."""

    limit_bytes: int
    output: str
    gpu_seconds: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Exited:
    """The process ended by itself without a result."""

    status: int
    output: str
    gpu_seconds: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict, compare=False)


CallOutcome: TypeAlias = Returned | Raised | Crashed | TimedOut | TooMuchMemory | Exited
"""`output` is the last 64 KiB of what the process printed, both streams together; `gpu_seconds` how long the
call held a GPU's timing lock, where whoever started it held one for it, waiting for it not counted. `parts`
are the call's seconds by span, as the process measured them (`ucutlass.spans`) and with STARTS beside them;
empty where the process gave no answer."""


class IsolatedCall(Protocol):
    """Calls a function, named `package.module:function`, in a process that may be lost, as `run` does."""

    def __call__(
        self,
        target: str,
        arguments: Mapping[str, Any],
        *,
        limit_seconds: float,
        memory_bytes: int | None = None,
    ) -> CallOutcome: ...


def failure_text(outcome: CallOutcome, what: str) -> str:
    """Returns why there is no answer, in words; `what` names whose process it was, as in "the kernel"."""
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
    stop: Event | None = None,
) -> CallOutcome:
    """Calls `target`, written `package.module:function`, with JSON keyword arguments.

    `memory_bytes` bounds host memory, looked at twenty times a second (an address-space limit would stop
    CUDA from starting). The process sees this one's sys.path, and of `environ`, by default this process's,
    what `allowed_environment` lets through. Once `stop` is set it ends as if its time were over. It dies with the
    thread that called this, and whatever it started dies with it, daemons too. Raises ValueError for a malformed
    target, TypeError for arguments that are no JSON."""
    request = _call_request(target, arguments)
    start = time.monotonic()
    read_end, write_end = os.pipe()
    result = _Tail(os.fdopen(read_end, "rb"), _RESULT_BYTES)
    try:
        process = _start([write_end], subprocess.PIPE, environ)
    finally:
        os.close(write_end)
    assert process.stdin is not None and process.stdout is not None
    output = _Tail(process.stdout, _OUTPUT_BYTES)
    try:
        with suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(json.dumps(request | _settings()).encode())
        ended = _watch(process, time.monotonic() + limit_seconds, memory_bytes, stop)
    finally:
        process.end()
    printed = output.finish().decode(errors="replace")
    match ended:
        case "time":
            return TimedOut(limit_seconds, printed)
        case "memory":
            return TooMuchMemory(memory_bytes or 0, printed)
        case status:
            outcome = _outcome(status, result.finish(), printed, time.monotonic() - start)
            spans.add(outcome.parts)
            return outcome


def _call_request(target: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    module, _, function = target.partition(":")
    if not module or not function:
        raise ValueError(f"a target is written package.module:function, not {target!r}")
    return {"module": module, "function": function, "arguments": dict(arguments)}


def _settings() -> dict[str, Any]:
    """Returns what the process needs to know of this one."""
    return {"path": [str(Path(p).absolute()) for p in sys.path]}


def _start(pipes: Sequence[int], stdin: int, environ: Mapping[str, str] | None) -> SupervisedProcess:
    """Returns the process, with the numbers of its pipes as arguments: results, then requests."""
    # -I: the folder of the script, this package's, must not become a place to import from.
    return SupervisedProcess(
        [sys.executable, "-I", str(_CHILD), *map(str, pipes)],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=pipes,
        env=allowed_environment(environ),
    )


def _started(pipes: Sequence[int], environ: Mapping[str, str] | None) -> tuple[SupervisedProcess, IO[bytes]]:
    """Returns a process that serves calls, and what it prints."""
    process = _start(pipes, subprocess.DEVNULL, environ)
    assert process.stdout is not None
    return process, process.stdout


def _forked(
    pipes: Sequence[int], environ: Mapping[str, str] | None, template: ProcessTemplate
) -> tuple[SupervisedProcess, IO[bytes]]:
    """Does as `_started` by a fork of a template; without one where that is lost."""
    env = allowed_environment(environ)
    read_end, write_end = os.pipe()
    try:
        process = SupervisedProcess(
            [_CHILD.name],
            stdin=subprocess.DEVNULL,
            stdout=write_end,
            stderr=write_end,
            env=env,
            fork=lambda control: template.fork(pipes, write_end, control, env),
        )
    except TemplateLost:
        os.close(read_end)
        return _started(pipes, environ)
    finally:
        os.close(write_end)
    return process, os.fdopen(read_end, "rb")


def _outcome(status: int, result: bytes, printed: str, wall: float = 0.0) -> CallOutcome:
    if status < 0:
        return Crashed(_signal_name(-status), printed)
    try:
        message = json.loads(result)
    except ValueError:
        return Exited(status, printed)
    return _answer(message, printed, wall) or Exited(status, printed)


def _answer(message: Any, printed: str, wall: float) -> Returned | Raised | None:
    """Returns what a process wrote, after `wall` seconds; None for anything else than an answer."""
    match message:
        case {"returned": value}:
            return Returned(value, printed, parts=_parts(message, wall))
        case {"raised": {"type": str(kind), "message": str(words), "traceback": str(trace)}}:
            return Raised(kind, words, trace, printed, parts=_parts(message, wall))
        case _:
            return None


def _parts(message: Mapping[str, Any], wall: float) -> Mapping[str, float]:
    """Returns the seconds by span of an answer, with STARTS; none where the process claims what cannot be:
    no numbers, or more seconds than went by."""
    match message:
        case {"seconds": float(seconds), "spans": dict(parts)} if len(parts) <= _MOST_SPANS:
            values = [seconds, *parts.values()]
            if not all(isinstance(v, float) and math.isfinite(v) and v >= 0 for v in values):
                return {}
            if not sum(parts.values()) - _ROUNDOFF <= seconds <= wall:
                return {}
            return {**parts, STARTS: parts.get(STARTS, 0.0) + wall - seconds}
    return {}


def _signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def _watch(
    process: SupervisedProcess, deadline: float, memory_bytes: int | None, stop: Event | None = None
) -> int | Literal["time", "memory"]:
    while True:
        try:
            return process.wait(min(_POLL_SECONDS, max(0.0, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            if time.monotonic() >= deadline or (stop is not None and stop.is_set()):
                return "time"
            if memory_bytes is not None and _resident(process) > memory_bytes:
                return "memory"


def _resident(process: SupervisedProcess) -> int:
    """Returns bytes of resident memory of all that runs; pages that processes share count for each."""
    return sum(member.resident for member in process.processes())


class _Tail:
    """Drains a pipe in the background and keeps its last bytes."""

    def __init__(self, pipe: IO[bytes], limit: int) -> None:
        self._pipe = pipe
        self._limit = limit
        self._kept = b""
        self._lock = Lock()
        self._thread = Thread(target=self._drain, daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        with self._pipe:
            while block := os.read(self._pipe.fileno(), 1 << 16):
                with self._lock:
                    self._kept = (self._kept + block)[-self._limit :]

    def take(self) -> bytes:
        """Returns what came since it was last asked, as far as it was drained."""
        with self._lock:
            block, self._kept = self._kept, b""
        return block

    def finish(self) -> bytes:
        """Returns what was kept, once every writer has ended; one that cannot be killed is waited for no
        longer than a second."""
        self._thread.join(1.0)
        return self._kept


# --- a process that is kept ------------------------------------------------------


class WarmProcess:
    """Works as `run`, but a process that returned serves the next call too, so that imports and a CUDA
    context are paid once. One call at a time. A process that raised, crashed, hung or grew too large is
    killed
    with all that came of it and the next call gets another: a CUDA fault stays with its process. So does
    one that left processes running, which are killed with it: none survives its call.

    With a `template` its processes are forks of that, whose imports are done.

    What a call leaves behind in the process (loaded libraries, threads) is there for the next: nothing
    that must be believed runs here.
    """

    def __init__(
        self, environ: Mapping[str, str] | None = None, template: ProcessTemplate | None = None
    ) -> None:
        self._environ = environ
        self._template = template
        self._served: _Served | None = None
        self._closed = False
        # The kernel ends a process with the thread that started it, so that thread must stay.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ucutlass-warm")

    def call(
        self,
        target: str,
        arguments: Mapping[str, Any],
        *,
        limit_seconds: float,
        memory_bytes: int | None = None,
    ) -> CallOutcome:
        """As `run`; the limits are of this call. Raises RuntimeError once this is closed."""
        request = _call_request(target, arguments)
        json.dumps(request)  # the caller's mistake is the caller's to hear of
        start = time.monotonic()
        outcome = self._thread.submit(self._call, request, limit_seconds, memory_bytes, start).result()
        spans.add(outcome.parts)
        return outcome

    def prepare(self, modules: Sequence[str]) -> None:
        """Starts the process where none is there, which then imports modules. Waits for nothing."""
        self._thread.submit(self._ready, modules)

    def close(self) -> None:
        """Ends the process; a call that waits for its turn, or follows, finds none."""
        self._closed = True
        self._thread.submit(self._end).result()
        self._thread.shutdown()

    def _end(self) -> None:
        served, self._served = self._served, None
        if served is not None:
            served.end()

    def _ready(self, modules: Sequence[str] = ()) -> _Served:
        if self._closed:
            raise RuntimeError("this process was closed")
        if self._served is not None and self._served.ended():
            self._end()  # it ended while nobody asked: no fault of the next call
        if self._served is None:
            self._served = _Served(self._environ, modules, self._template)
        return self._served

    def _call(
        self, request: dict[str, Any], limit_seconds: float, memory_bytes: int | None, start: float
    ) -> CallOutcome:
        served, self._served = self._ready(), None
        outcome: CallOutcome | None = None
        try:
            outcome = served.call(request, limit_seconds, memory_bytes, start)
        finally:
            if isinstance(outcome, Returned) and served.alone():
                self._served = served
            else:
                served.end()
        return outcome


class _Served:
    """The process of a `WarmProcess`."""

    def __init__(
        self, environ: Mapping[str, str] | None, preload: Sequence[str], template: ProcessTemplate | None
    ) -> None:
        self._calls = 0
        self._results, write_end = os.pipe()
        read_end, self._requests = os.pipe()
        try:
            self.process, output = (
                _started([write_end, read_end], environ)
                if template is None
                else _forked([write_end, read_end], environ, template)
            )
        finally:
            os.close(write_end)
            os.close(read_end)
        self._output = _Tail(output, _OUTPUT_BYTES)
        # A process that does not read must not hold its caller beyond the limit.
        os.set_blocking(self._requests, False)
        self._unsent = b""
        self._send(_settings() | {"preload": list(preload)})

    def alone(self) -> bool:
        """Returns whether the process is all that runs of what was called in it."""
        return len(self.process.processes()) == 1

    def ended(self) -> bool:
        """Returns whether the process is gone, also where its supervisor has not reported that yet."""
        return self.process.poll() is not None or not self.process.processes()

    def end(self) -> None:
        self.process.end()
        for pipe in (self._requests, self._results):
            with suppress(OSError):
                os.close(pipe)

    def call(
        self, request: dict[str, Any], limit_seconds: float, memory_bytes: int | None, start: float
    ) -> CallOutcome:
        """`start` is when the caller began to want the answer, by the monotonic clock: the process may have
        been started for it."""
        deadline = time.monotonic() + limit_seconds
        self._calls += 1
        self._send(request | {"call": self._calls})
        line = self._exchange(deadline, memory_bytes)
        if isinstance(line, bytes):
            printed = self._output.take().decode(errors="replace")
            with suppress(ValueError):
                wall = time.monotonic() - start
                match json.loads(line):
                    case [self._calls, message] if (answer := _answer(message, printed, wall)) is not None:
                        return answer
            return Raised("Garbled", "the process wrote what is no answer to this call", "", printed)
        ended = _watch(self.process, deadline, memory_bytes) if line is None else line
        self.process.end()
        printed = self._output.finish().decode(errors="replace")
        match ended:
            case "time":
                return TimedOut(limit_seconds, printed)
            case "memory":
                return TooMuchMemory(memory_bytes or 0, printed)
            case status:
                return _outcome(status, b"", printed)

    def _send(self, message: dict[str, Any]) -> None:
        """Writes what fits into the pipe; the rest goes with the next call."""
        self._unsent += json.dumps(message).encode() + b"\n"
        with suppress(BrokenPipeError, BlockingIOError):
            self._unsent = self._unsent[os.write(self._requests, self._unsent) :]

    def _exchange(
        self, deadline: float, memory_bytes: int | None
    ) -> bytes | Literal["time", "memory"] | None:
        """Sends what is unsent and reads a line; None where the process closed its end."""
        poll = select.poll()
        poll.register(self._results, select.POLLIN)
        poll.register(self._requests, select.POLLOUT)
        answer = b""
        while (left := deadline - time.monotonic()) > 0:
            ready = dict(poll.poll(1000 * min(_POLL_SECONDS, left)))
            if self._requests in ready:
                with suppress(BrokenPipeError, BlockingIOError):
                    self._unsent = self._unsent[os.write(self._requests, self._unsent) :]
                if not self._unsent or ready[self._requests] & select.POLLERR:
                    poll.unregister(self._requests)
            if self._results in ready:
                block = os.read(self._results, 1 << 16)
                answer += block
                if answer.endswith(b"\n"):
                    return answer
                if not block or len(answer) > _RESULT_BYTES:
                    return None
            elif self.process.poll() is not None:
                return None
            elif memory_bytes is not None and _resident(self.process) > memory_bytes:
                return "memory"
        return "time"
