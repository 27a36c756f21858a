"""This package is the `ucc` command. Each subcommand is a module of its own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NoReturn

import click

from ucutlass.cli.templates import TEMPLATED, begin_template

COMMANDS = {
    "check": "type-check files and their schedules",
    "fmt": "print files in canonical form",
    "explain": "say what the compiler chose for a shape, and why",
    "fuse": "join the stages of a pipeline where it pays, and print it",
    "sol": "say what no kernel can beat on a device: the speed of light",
    "import": "write a PyTorch module as a program",
    "emit": "print the CUTLASS C++ of a kernel",
    "build": "build a library, a C header and the source",
    "adopt": "take CUDA that was edited by hand, once it is verified",
    "diff": "say what an edited source changes of what is emitted",
    "run": "build, run, verify and time a kernel",
    "verify": "hold a kernel against its reference, on many inputs and extents",
    "bench": "time a kernel against baselines, in turns",
    "profile": "say what decides a kernel's time, and which edits to try",
    "tune": "find the fastest kernel that a program denotes for a shape",
    "optimize": "search for a faster program, under a budget",
    "kernelbench": "search over the problems of a KernelBench checkout, and report by level",
    "audit": "say whether a kernel's evidence may be believed",
    "mcp": "serve these commands to a coding agent",
    "skill": "write a skill for coding agents",
    "edit": "edit a program at addresses of its syntax tree",
    "search": "look up codes, schedule fields and words",
    "guide": "print the language guide",
    "doctor": "report what this machine has and lacks",
    "calibrate": "measure the ceilings that this very GPU reaches",
    "cache": "list, verify and clear built kernels",
    "results": "list, compare and carry the evidence of past runs",
    "sessions": "list the optimisation sessions there are",
    "memory": "list, show and purge what sessions taught",
    "report": "write what an optimisation session brought as one HTML page",
    "replay": "compare searches and stop rules on what was recorded, without a GPU",
}
"""Subcommand to its line of help; the module of the same name is imported when it is needed."""

_MODULES = {"import": "import_module"}
"""Subcommands whose names are words of Python, with their modules."""


class _Ucc(click.Group):
    """Imports a subcommand when it is called: `ucc check` need not load torch."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> NoReturn:
        """Runs a command and exits with its status, whatever went wrong in its words or as JSON. `obj` is
        an `ucutlass.entry.Signals`, where this is a process of its own."""
        from ucutlass import entry
        from ucutlass.cli.errors import ended

        if args is None and "obj" not in extra:
            entry.main()
        arguments = list(sys.argv[1:] if args is None else args)
        self._main_shell_completion(extra, "ucc", complete_var)
        with ended(
            "--json" in arguments[: arguments.index("--")] if "--" in arguments else "--json" in arguments
        ):
            with self.make_context(prog_name or "ucc", arguments, **extra) as ctx:
                self.invoke(ctx)
            ctx.exit()
        raise AssertionError("a command that has ended exits")

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        with nullcontext() if ctx.obj is None else ctx.obj.importing():
            command = importlib.import_module(f"ucutlass.cli.{_MODULES.get(cmd_name, cmd_name)}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        asks_for_help = not {*args}.isdisjoint(ctx.help_option_names)
        if args[0] in TEMPLATED and not (asks_for_help or ctx.resilient_parsing):
            begin_template(ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _show_version(ctx: click.Context, _: click.Parameter, requested: bool) -> None:
    from importlib import metadata

    from ucutlass.cli import show

    if not requested or ctx.resilient_parsing:
        return
    try:
        show.say(f"ucc, version {metadata.version('ucutlass')}")
    except metadata.PackageNotFoundError:
        show.say("ucc, from a checkout that is not installed")
    ctx.exit()


@click.group(cls=_Ucc, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_show_version,
    help="Show the version.",
)
def main() -> None:
    """Compile .ucu kernels to CUTLASS C++.

    Exit status: 0 fine, 1 the program is at fault, 2 the call, 3 the machine.
    FILE may be - for standard input.

    \b
    Start with:
      ucc guide
      ucc run examples/linear_gelu.ucu -s M=4096,N=4096,K=4096
    """
