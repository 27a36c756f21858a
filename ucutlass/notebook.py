"""Programs in a notebook: `%load_ext ucutlass.notebook`, then a cell that begins with `%%ucu`.

The cell's kernels and pipelines are bound by their names, as `ucutlass.load` returns them:

    %%ucu
    kernel scaled(x: f32[M, N], alpha: f32) -> f32[M, N] {
      return alpha * x
    }

The line of the magic takes `--arch ARCH`, `--tuned` and `--check-offsets`, which are options of `ucutlass.load`.
A program with errors binds nothing, and its diagnostics are shown in place of a traceback.
"""

from __future__ import annotations

import argparse
import shlex
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn, Protocol

from ucutlass.api import loaded
from ucutlass.diagnostics import ProgramError, render
from ucutlass.frontend import program, programs, read_text
from ucutlass.ir.hardware import ARCHES

MAGIC = "ucu"
_CELL = "<cell>"
"""What diagnostics call the text."""


class Shell(Protocol):
    """What is needed of IPython's InteractiveShell."""

    def register_magic_function(
        self, function: Callable[[str, str], None], magic_kind: str, magic_name: str
    ) -> None: ...

    def push(self, variables: Mapping[str, Any]) -> None: ...


class CellError(Exception):
    """A cell cannot be used; the message is what its author is shown."""

    def _render_traceback_(self) -> list[str]:
        """Returns what IPython shows in place of a traceback through this package."""
        return str(self).splitlines()


class CellWarning(UserWarning):
    """A cell is legal and cannot be meant."""


class _MagicOptions(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise CellError(f"%%{MAGIC}: {message}\n{self.format_usage().rstrip()}")


def load_ipython_extension(shell: Shell) -> None:
    """Registers the magic: IPython calls it for `%load_ext ucutlass.notebook`."""
    shell.register_magic_function(partial(run_cell, shell), magic_kind="cell", magic_name=MAGIC)


def run_cell(shell: Shell, line: str, cell: str) -> None:
    """Binds the programs of a cell in the user's namespace. Raises CellError with all diagnostics of its text."""
    options = _options().parse_args(_arguments(line))
    try:
        checked = read_text(cell, _CELL)
        bound = {
            name: loaded(checked, program(checked, name), options.arch, options.tuned, options.check_offsets)
            for name in programs(checked)
        }
    except (ProgramError, ValueError) as problem:
        raise CellError(str(problem)) from None
    if checked.warnings:
        warnings.warn(render(checked.warnings, cell, _CELL), CellWarning, stacklevel=2)
    shell.push(bound)


def _arguments(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as problem:
        raise CellError(f"%%{MAGIC}: {problem}") from None


def _options() -> argparse.ArgumentParser:
    parser = _MagicOptions(f"%%{MAGIC}", add_help=False)
    parser.add_argument("--arch", choices=list(ARCHES))
    parser.add_argument("--tuned", action="store_true")
    parser.add_argument("--check-offsets", action="store_true")
    return parser
