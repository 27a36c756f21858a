"""`ucc emit`."""

from __future__ import annotations

from pathlib import Path

import click

from ucutlass import frontend
from ucutlass.backend import source_of
from ucutlass.cli.errors import reported
from ucutlass.cli.options import arch_option, file_argument, kernel_option, sizes_option
from ucutlass.shapes import complete, parse_sizes


@click.command("emit")
@file_argument
@sizes_option
@kernel_option
@arch_option()
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to a file.")
def command(file: Path, sizes: tuple[str, ...], name: str | None, arch: str, output: Path | None) -> None:
    """Print the CUTLASS C++ that FILE's kernel becomes for a shape.

    The file stands alone: its header repeats the program, the plan with its reasons, and the nvcc
    command that builds it.
    """
    with reported(False):
        checked = frontend.read(file)
        program = frontend.kernel(checked, name)
        chosen = frontend.plan_kernel(checked, program, complete(program, parse_sizes(sizes)), arch)
        text = source_of(checked, program, chosen.planned).text
        if output is None:
            click.echo(text, nl=False)
        else:
            output.write_text(text)
