"""Exit statuses, and how each kind of failure reaches the terminal."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import NoReturn, TextIO

import click

from ucutlass.cli.outputs import OutputIsInput, refuse_inputs
from ucutlass.diagnostics import ProgramError, to_json
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
    """What `ucc` returns: 0 fine, 1 the program is at fault, 2 the call is, 3 the machine is."""

    FINE = 0
    PROGRAM = 1
    CALL = 2
    MACHINE = 3


INTERRUPTED = 130
"""What shells give for SIGINT, 128 + 2: nothing is at fault."""

FAILURES = (BuildError, BuildTimedOut, BuildCancelled, ArchUnknown, MachineError)
"""How a build ends that makes no kernel."""


def status_of(problem: Exception) -> Status:
    """Who is at fault for a failure of FAILURES, ShapeError, SwitchError or OutputIsInput."""
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
        with _warnings_said():
            refuse_inputs()
            yield
    except ProgramError as problem:
        if as_json:
            click.echo(
                json.dumps(
                    {"diagnostics": to_json(problem.diagnostics, problem.source, problem.file)}, indent=2
                )
            )
        else:
            click.echo(str(problem), err=True)
        sys.exit(Status.PROGRAM)
    except (ShapeError, SwitchError, OutputIsInput, *FAILURES) as problem:
        fail(status_of(problem), str(problem), as_json)
    except BrokenPipeError:
        raise  # whoever read the output has enough, as `head` does: click ends quietly
    except OSError as problem:
        words = str(problem) if problem.filename is None else f"{problem.strerror}: {problem.filename}"
        fail(Status.MACHINE, words, as_json)
    except KeyboardInterrupt:
        click.echo("ucc: interrupted", err=True)
        sys.exit(INTERRUPTED)


@contextmanager
def _warnings_said() -> Iterator[None]:
    """Such as of a damaged store: in its words, without the line of code that noticed it."""
    with warnings.catch_warnings():
        others = warnings.showwarning

        def say(
            message: Warning | str, category: type[Warning], filename: str, lineno: int,
            file: TextIO | None = None, line: str | None = None,
        ) -> None:  # fmt: skip
            if category.__module__.startswith("ucutlass."):
                click.echo(f"ucc: {message}", err=True)
            else:
                others(message, category, filename, lineno, file, line)

        warnings.showwarning = say
        yield


def fail(status: Status, message: str, as_json: bool) -> NoReturn:
    """One line to the terminal, or one JSON object, and the exit status."""
    if as_json:
        click.echo(json.dumps({"error": message, "status": int(status)}))
    else:
        click.echo(f"ucc: {message}", err=True)
    sys.exit(status)
