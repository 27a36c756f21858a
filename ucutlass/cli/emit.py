"""This module is `ucc emit`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ucutlass import frontend
from ucutlass.backend import source_of
from ucutlass.cli import inputs, show
from ucutlass.cli.cpu_limit import cpu_limited
from ucutlass.cli.errors import reported
from ucutlass.cli.options import arch_option, file_argument, json_option, kernel_option, sizes_option
from ucutlass.cli.outputs import OutputPath, write
from ucutlass.ir.schedule import show as show_schedule
from ucutlass.shapes import complete, parse_sizes


@click.command("emit")
@file_argument
@sizes_option
@kernel_option
@arch_option()
@click.option("-o", "--output", type=OutputPath(), metavar="FILE", help="Write to a file.")
@json_option
def command(
    file: Path, sizes: tuple[str, ...], name: str | None, arch: str, output: Path | None, as_json: bool
) -> None:
    """Print the CUTLASS C++ that FILE's kernel becomes for a shape.

    The file stands alone: its header repeats the program, the plan with its reasons, and the nvcc
    command that builds it.
    """
    with reported(as_json), cpu_limited(file):
        checked = inputs.read(file)
        program = frontend.kernel(checked, name)
        extents = complete(program, parse_sizes(sizes))
        with checked.limits(program):
            planned = frontend.plan_kernel(checked, program, extents, arch).planned
            source = source_of(checked, program, planned)
        if output is not None:
            write(output, source.text)
    if as_json:
        row: dict[str, Any] = {
            "kernel": program.name,
            "entry": source.entry,
            "arch": source.arch,
            "sizes": dict(zip(program.dims, planned.sizes, strict=True)),
            "schedule": show_schedule(planned.request),
            "launch": dict(zip(planned.plan.launch_parameters, planned.launch, strict=True)),
            "source": source.text,
        }
        show.data(row | ({"output": str(output)} if output is not None else {}))
    elif output is None:
        show.program(source.text)
