"""This module has the exit statuses, and how each kind of failure reaches the terminal."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import NoReturn, TextIO

import click

from ucutlass.cli import show
from ucutlass.cli.outputs import OutputIsInput, refuse_inputs
from ucutlass.diagnostics import ProgramError, to_json
from ucutlass.limits import LimitPassed
from ucutlass.printable import cut, name, words
from ucutlass.runtime.errors import (
    ArchUnknown,
    BuildCancelled,
    BuildError,
    BuildTimedOut,
    MachineError,
    SwitchError,
)
from ucutlass.shapes import ShapeError


class Status(IntEnum):
    """Describes what `ucc` returns: 0 fine, 1 the program is at fault, 2 the call is, 3 the machine is."""

    FINE = 0
    PROGRAM = 1
    CALL = 2
    MACHINE = 3


INTERRUPTED = 130
"""What shells give for SIGINT, 128 + 2: nothing is at fault."""

UNREAD = 141
"""What shells give for SIGPIPE, 128 + 13: whoever read the output has enough, as `head` does."""

MOST_CHARACTERS = 1 << 16
"""Of one message in JSON; on a terminal `ucutlass.printable` has fewer."""

FAILURES = (BuildError, BuildTimedOut, BuildCancelled, ArchUnknown, MachineError)
"""How a build ends that makes no kernel."""


def status_of(problem: Exception) -> Status:
    """Returns who is at fault for a failure of FAILURES, ShapeError, SwitchError or OutputIsInput."""
    match problem:
        case BuildError() | BuildTimedOut() | BuildCancelled():
            return Status.PROGRAM
        case MachineError():
            return Status.MACHINE
        case _:
            return Status.CALL


@contextmanager
def reported(as_json: bool) -> Iterator[None]:
    """Turns every expected failure inside into its words and its exit status, and this package's
    warnings into lines on stderr."""
    try:
        with _warnings_shown():
            refuse_inputs()
            yield
    except ProgramError as problem:
        if as_json:
            show.data({"diagnostics": to_json(problem.diagnostics, problem.source, problem.file)})
        else:
            show.note(str(problem))
        sys.exit(Status.PROGRAM)
    except LimitPassed as problem:
        fail(Status.PROGRAM, str(problem), as_json)
    except (ShapeError, SwitchError, OutputIsInput, *FAILURES) as problem:
        fail(status_of(problem), str(problem), as_json)
    except OSError as problem:
        fail(Status.MACHINE, os_words(problem), as_json)


@contextmanager
def ended(as_json: bool) -> Iterator[None]:
    """Turns however a command ends into its words and exit status: what `reported` does not know."""
    try:
        with _click_messages(as_json):
            yield
    except (click.Abort, KeyboardInterrupt, EOFError):
        show.note("ucc: interrupted")
        sys.exit(INTERRUPTED)
    except show.CannotWrite as problem:
        _unwritten(problem)
    except OSError as problem:  # click's own: help and the version
        _unwritten(show.CannotWrite(problem))


@contextmanager
def _click_messages(as_json: bool) -> Iterator[None]:
    """Returns what click itself ends a command with. Raises show.CannotWrite."""
    try:
        yield
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.exceptions.NoArgsIsHelpError as empty:
        empty.show()
        sys.exit(Status.CALL)
    except click.ClickException as wrong:
        if not as_json and isinstance(wrong, click.UsageError) and wrong.ctx is not None:
            show.note(f"{wrong.ctx.get_usage()}\nTry '{wrong.ctx.command_path} --help' for help.\n")
        fail(Status.CALL, wrong.format_message(), as_json)


def _unwritten(problem: show.CannotWrite) -> NoReturn:
    if problem.closed:
        sys.exit(UNREAD)
    show.note(f"ucc: {problem}")
    sys.exit(Status.MACHINE)


def os_words(problem: OSError) -> str:
    """Returns what the operating system refused, and of which file."""
    if problem.filename is None or problem.strerror is None:
        return str(problem)
    return f"{problem.strerror}: {name(os.fsdecode(problem.filename))}"


@contextmanager
def _warnings_shown() -> Iterator[None]:
    """Shows warnings, such as of a damaged store, in their words, without the line of code that noticed
    it."""
    with warnings.catch_warnings():
        others = warnings.showwarning

        def say(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if category.__module__.startswith("ucutlass."):
                show.note(f"ucc: {words(str(message))}")
            else:
                others(message, category, filename, lineno, file, line)

        warnings.showwarning = say
        yield


def fail(status: Status, message: str, as_json: bool) -> NoReturn:
    """Writes one line to the terminal, or one JSON object, and ends with the exit status."""
    if as_json:
        show.data({"error": cut(message, MOST_CHARACTERS, MOST_CHARACTERS), "status": int(status)})
    else:
        show.note(f"ucc: {words(message)}")
    sys.exit(status)
