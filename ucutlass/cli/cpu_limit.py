"""This module limits the processor time of commands that build nothing."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ucutlass.cli import inputs
from ucutlass.diagnostics import Diagnostic, ProgramError
from ucutlass.grammar.syntax import Span
from ucutlass.limits import PROCESSOR_SECONDS, LimitPassed


@contextmanager
def cpu_limited(path: Path, seconds: float = PROCESSOR_SECONDS.most) -> Iterator[None]:
    """Raises ProgramError UC0719 in the body once it has used so much processor time on a file, and turns
    every other limit that passes through into the ProgramError that names it."""
    try:
        with _processor_time(seconds):
            yield
    except LimitPassed as problem:
        diagnostic = Diagnostic(problem.limit.code, problem.message, Span(0, 0), problem.limit.hint)
        raise ProgramError((diagnostic,), "", inputs.shown(path)) from None


@contextmanager
def _processor_time(seconds: float) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread alone; the command line runs there
        return

    def stop(signum: int, frame: object) -> None:
        raise LimitPassed(PROCESSOR_SECONDS, int(seconds))

    previous = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)
