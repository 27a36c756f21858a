"""Exit statuses, and how each kind of failure reaches the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import NoReturn

import click

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


@contextmanager
def reported(as_json: bool) -> Iterator[None]:
    """Turns every expected failure inside into its words and its exit status."""
    try:
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
    except ShapeError as problem:
        fail(Status.CALL, str(problem), as_json)
    except (BuildError, BuildTimedOut, BuildCancelled) as problem:
        fail(Status.PROGRAM, str(problem), as_json)
    except (ArchUnknown, SwitchError) as problem:
        fail(Status.CALL, str(problem), as_json)
    except MachineError as problem:
        fail(Status.MACHINE, str(problem), as_json)
    except OSError as problem:
        fail(Status.MACHINE, f"{problem.strerror}: {problem.filename}", as_json)


def fail(status: Status, message: str, as_json: bool) -> NoReturn:
    """One line to the terminal, or one JSON object, and the exit status."""
    if as_json:
        click.echo(json.dumps({"error": message, "status": int(status)}))
    else:
        click.echo(f"ucc: {message}", err=True)
    sys.exit(status)
