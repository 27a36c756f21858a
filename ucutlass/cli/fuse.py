"""This module is `ucc fuse`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ucutlass import frontend, ir
from ucutlass.cli import inputs, show
from ucutlass.cli.cpu_limit import cpu_limited
from ucutlass.cli.errors import Status, fail, reported
from ucutlass.cli.options import arch_option, file_argument, json_option, kernel_option, sizes_option
from ucutlass.cli.outputs import OutputPath, write
from ucutlass.ir.hardware import DEVICES
from ucutlass.pipeline.joins import Join, JoinedText, joined
from ucutlass.pipeline.pricing import NotOneKernel
from ucutlass.shapes import complete, parse_sizes
from ucutlass.units import duration


@click.command("fuse")
@file_argument
@sizes_option
@kernel_option
@arch_option()
@click.option(
    "--device", type=click.Choice(tuple(DEVICES)), help="GPU to plan for; by default the target's usual one."
)
@click.option("-o", "--output", type=OutputPath(), metavar="FILE", help="Write the program to another file.")
@json_option
def command(
    file: Path,
    sizes: tuple[str, ...],
    name: str | None,
    arch: str,
    device: str | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Join FILE's stages where one launch for them is estimated to take less time, and print the program.

    A stored binding that its readers are to compute loses its element type and keeps its rounding as a cast;
    the rest of the text stays. Says on stderr which stages were joined, and why others were not.
    """
    with reported(as_json), cpu_limited(file):
        checked = inputs.read(file)
        program = frontend.program(checked, name)
        extents = complete(program, parse_sizes(sizes))
        by_name = dict(zip(program.dims, extents, strict=True))
        with checked.limits(program):
            if isinstance(program, ir.Pipeline):
                try:
                    result = joined(checked.tree, program, by_name, arch, DEVICES[device] if device else None)
                except NotOneKernel as problem:
                    fail(Status.PROGRAM, f"{program.name}: {problem}", as_json)
            else:
                result = JoinedText(checked.tree, ())
        if output is not None:
            write(output, result.text)
    if as_json:
        row: dict[str, Any] = {"program": program.name, "sizes": by_name, "text": result.text}
        row["joins"] = [asdict(join) for join in result.joins]
        show.data(row | ({"output": str(output)} if output is not None else {}))
        return
    for join in result.joins:
        show.note(f"ucc: {_join_text(join)}")
    if output is None:
        show.program(result.text)


def _join_text(join: Join) -> str:
    buffers, several = " and ".join(join.buffers), len(join.buffers) > 1
    readers = ", ".join(s for s in join.stages if s not in join.buffers)
    if join.together is None:
        return f"{buffers} {'stay' if several else 'stays'} stored for {readers}: {join.why}"
    prices = f"{duration(join.apart)} apart, {duration(join.together)} together"
    verb = "are" if several else "is"
    return f"{buffers} {verb} {'joined to' if join.joined else 'left apart from'} {readers}: {prices}"
