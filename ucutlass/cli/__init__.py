"""The `ucc` command. Each subcommand is a module of its own."""

from __future__ import annotations

import importlib

import click

_COMMANDS = {
    "check": "type-check files and their schedules",
    "fmt": "print files in canonical form",
    "explain": "say what the compiler chose for a shape, and why",
    "sol": "say what no kernel can beat on a device: the speed of light",
    "emit": "print the CUTLASS C++ of a kernel",
    "build": "build a library, a C header and the source",
    "run": "build, run, verify and time a kernel",
    "verify": "hold a kernel against its reference, on many inputs and extents",
    "bench": "time a kernel against baselines, in turns",
    "profile": "say what decides a kernel's time, and which edits to try",
    "tune": "find the fastest kernel that a program denotes for a shape",
    "optimize": "search for a faster program, under a budget",
    "kernelbench": "search over the problems of a KernelBench checkout, and report by level",
    "audit": "say whether a kernel's evidence may be believed",
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


class _Lazy(click.Group):
    """A group that imports a subcommand when it is called: `ucc check` need not load torch."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(f"ucutlass.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    from importlib import metadata

    if not wanted or ctx.resilient_parsing:
        return
    try:
        click.echo(f"ucc, version {metadata.version('ucutlass')}")
    except metadata.PackageNotFoundError:
        click.echo("ucc, from a checkout that is not installed")
    ctx.exit()


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
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

    \b
    Start with:
      ucc guide
      ucc run examples/linear_gelu.ucu -s M=4096,N=4096,K=4096
    """
