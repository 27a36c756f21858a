"""`ucc build`."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import click

from ucutlass import frontend, ir
from ucutlass.backend import Built, build_kernel, build_kernels
from ucutlass.cli import show
from ucutlass.cli.errors import reported, status_of
from ucutlass.cli.options import arch_option, file_argument, json_option, kernel_option, sizes_option
from ucutlass.emit.staged import NotServed
from ucutlass.interface import c_header
from ucutlass.runtime.parallel import Failure
from ucutlass.shapes import ShapeError, complete, free_dims, parse_sizes

Wanted: TypeAlias = tuple[ir.Kernel, tuple[int, ...]]
"""A kernel and every extent of it."""


@click.command("build")
@file_argument
@sizes_option
@click.option(
    "--shape", "shapes", multiple=True, metavar="M=4096,N=..",
    help="A shape to build for, with what -s says for all; may be repeated.",
)
@kernel_option
@click.option("--all", "every", is_flag=True, help="Build every kernel of the file.")
@arch_option()
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for library, header and source.",
)
@click.option(
    "--stage",
    type=click.Choice(["a"]),
    help="Build in stages: a skeleton once, then a new epilogue in seconds. Not yet run on a GPU.",
)
@json_option
def command(
    file: Path,
    sizes: tuple[str, ...],
    shapes: tuple[str, ...],
    name: str | None,
    every: bool,
    arch: str,
    output: Path | None,
    stage: Literal["a"] | None,
    as_json: bool,
) -> None:
    """Build FILE's kernel for a shape; with -o write what C++ needs to call it.

    The library holds one function with C linkage; it serves every shape with the same alignments.
    Files in the folder are named after the kernel's digest, never after the program.

    With --shape (repeated) or --all several are built at once, as many as cores and memory allow, and
    what is printed has a line, or a JSON object of a list, for each. Shapes that one kernel serves
    share its files.
    """
    if every and name is not None:
        raise click.UsageError("--all builds every kernel: leave out --kernel")
    if stage is not None and (every or shapes):
        raise click.UsageError("--stage builds one kernel for one shape: leave out --all and --shape")
    with reported(as_json):
        checked = frontend.read(file)
        kernels = _kernels(checked, name, every)
        if not every and not shapes:
            (program,) = kernels
            extents = complete(program, parse_sizes(sizes))
            try:
                with show.building(program.name) as progress:
                    one = build_kernel(checked, program, extents, arch, on_progress=progress, stage=stage)
            except NotServed as why:
                raise click.UsageError(f"--stage {stage}: {why}") from why
            (row,) = _rows([(program, extents)], [one], output)
            _print_one(row, as_json)
            return
        wanted = _wanted(kernels, sizes, shapes)
        with show.building(f"{len(wanted)} kernels") as progress:
            made = build_kernels(checked, wanted, arch, on_progress=progress)
        _print_all(_rows(wanted, made, output), as_json)
        if failed := [status_of(m) for m in made if not isinstance(m, Built)]:
            sys.exit(max(failed))


def _kernels(checked: frontend.Checked, name: str | None, every: bool) -> tuple[ir.Kernel, ...]:
    if not every:
        return (frontend.kernel(checked, name),)
    return tuple(p for p in checked.module.programs if isinstance(p, ir.Kernel))


def _wanted(kernels: Sequence[ir.Kernel], common: Sequence[str], shapes: Sequence[str]) -> tuple[Wanted, ...]:
    """Every kernel with every shape; of several kernels each takes the names that it has.

    Raises ShapeError, also for a name that no kernel has.
    """
    known = {d for kernel in kernels for d in kernel.dims}
    wanted: list[Wanted] = []
    for given in [parse_sizes([*common, shape]) for shape in shapes] or [parse_sizes(common)]:
        if len(kernels) > 1 and (unknown := [d for d in given if d not in known]):
            raise ShapeError("UC0601", f"no kernel of the file has a dimension {unknown[0]}")
        for kernel in kernels:
            mine = {d: n for d, n in given.items() if d in kernel.dims or len(kernels) == 1}
            wanted.append((kernel, complete(kernel, mine)))
    return tuple(wanted)


def _rows(
    wanted: Sequence[Wanted], made: Sequence[Built | Failure], output: Path | None
) -> list[dict[str, Any]]:
    serving: dict[str, list[Built]] = {}
    for one in made:
        if isinstance(one, Built):
            serving.setdefault(one.source.entry, []).append(one)
    rows = []
    for (program, extents), one in zip(wanted, made, strict=True):
        given = {d: n for d, n in zip(program.dims, extents, strict=True) if d in free_dims(program)}
        row: dict[str, Any] = {"kernel": program.name, "sizes": given}
        if isinstance(one, Built):
            files = {"library": one.artifact.library}
            if output is not None:
                files = _export(output, program, serving[one.source.entry])
            row |= {
                "entry": one.source.entry, "seconds": one.artifact.seconds,
                **{kind: str(path) for kind, path in files.items()},
                "findings": [f"{f.code}: {f.message}; {f.hint}" for f in one.artifact.report.findings],
            }
        else:
            row |= {"error": str(one), "status": int(status_of(one))}
        rows.append(row)
    return rows


def _export(folder: Path, program: ir.Kernel, serving: Sequence[Built]) -> dict[str, Path]:
    """The files of one entry, which serves the shapes of all of these."""
    folder.mkdir(parents=True, exist_ok=True)
    first, *others = serving
    entry = first.source.entry
    files = {
        "library": folder / f"lib{entry}.so",
        "header": folder / f"{entry}.h",
        "source": folder / f"{entry}.cu",
    }
    shutil.copyfile(first.artifact.library, files["library"])
    also = [other.planned for other in others]
    files["header"].write_text(c_header(program, first.planned, first.source, also))
    files["source"].write_text(first.source.text)
    return files


def _print_one(row: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(row, indent=2))
        return
    lines = [(key, value) for key, value in row.items() if isinstance(value, str)]
    show.table(("", ""), lines + [("ptxas", f) for f in row["findings"]])


def _print_all(rows: Sequence[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    lines = []
    for row in rows:
        sizes = ",".join(f"{d}={n}" for d, n in row["sizes"].items())
        what = row["error"] if "error" in row else "; ".join([row["library"], *row["findings"]])
        lines.append((row["kernel"], sizes, row.get("entry", "failed"), what))
    show.table(("kernel", "sizes", "entry", "library"), lines)
