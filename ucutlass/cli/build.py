"""`ucc build`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import click

from ucutlass import frontend, ir
from ucutlass.backend import Built, build_kernel
from ucutlass.cli import show
from ucutlass.cli.errors import reported
from ucutlass.cli.options import arch_option, file_argument, json_option, kernel_option, sizes_option
from ucutlass.interface import c_header
from ucutlass.shapes import complete, parse_sizes


@click.command("build")
@file_argument
@sizes_option
@kernel_option
@arch_option()
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for library, header and source.",
)
@json_option
def command(
    file: Path, sizes: tuple[str, ...], name: str | None, arch: str, output: Path | None, as_json: bool
) -> None:
    """Build FILE's kernel for a shape; with -o write what C++ needs to call it.

    The library holds one function with C linkage; it serves every shape with the same alignments.
    Files in the folder are named after the kernel's digest, never after the program.
    """
    with reported(as_json):
        checked = frontend.read(file)
        program = frontend.kernel(checked, name)
        extents = complete(program, parse_sizes(sizes))
        with show.building(program.name) as progress:
            built = build_kernel(checked, program, extents, arch, on_progress=progress)
        files = _export(output, program, built) if output is not None else {"library": built.artifact.library}
    row: dict[str, Any] = {
        "kernel": program.name, "entry": built.source.entry, "seconds": built.artifact.seconds,
        **{kind: str(path) for kind, path in files.items()},
        "findings": [f"{f.code}: {f.message}; {f.hint}" for f in built.artifact.report.findings],
    }
    if as_json:
        click.echo(json.dumps(row, indent=2))
    else:
        lines = [(key, value) for key, value in row.items() if isinstance(value, str)]
        show.table(("", ""), lines + [("ptxas", f) for f in row["findings"]])


def _export(folder: Path, program: ir.Kernel, built: Built) -> dict[str, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    entry = built.source.entry
    files = {
        "library": folder / f"lib{entry}.so",
        "header": folder / f"{entry}.h",
        "source": folder / f"{entry}.cu",
    }
    shutil.copyfile(built.artifact.library, files["library"])
    files["header"].write_text(c_header(program, built.planned, built.source))
    files["source"].write_text(built.source.text)
    return files
