"""This module is `ucc build`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

import click

from ucutlass import frontend, ir
from ucutlass.backend import BUILD_PATH_OF, Built, build_kernel, build_kernels
from ucutlass.cli import gpu, inputs, pipelines, show
from ucutlass.cli.build_files import Export
from ucutlass.cli.errors import reported, status_of
from ucutlass.cli.options import (
    arch_option,
    build_path_option,
    file_argument,
    json_option,
    kernel_option,
    sizes_option,
)
from ucutlass.emit.parts import NotServed
from ucutlass.header import signature_of
from ucutlass.ir.schedule import show as show_schedule
from ucutlass.runtime import build_timings
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.parallel import BuildFailure
from ucutlass.runtime.switches import BuildPath
from ucutlass.shapes import ShapeError, complete, free_dims, parse_sizes
from ucutlass.spans import recording
from ucutlass.tune.lookup import recall, recorded
from ucutlass.tune.origin import Origin, written

KernelShape: TypeAlias = tuple[ir.Kernel, tuple[int, ...]]
"""A kernel and every extent of it."""

KernelOrigin: TypeAlias = tuple[ir.Kernel, Origin]
"""A kernel, with a recorded schedule in place of its own where one is taken, and where that is from."""


@click.command("build")
@file_argument
@sizes_option
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="M=4096,N=..",
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
@build_path_option
@click.option(
    "--tuned/--no-tuned",
    default=None,
    help="Take the schedule that ucc tune recorded for this GPU and shape: whatever the program says, or "
    "never; by default where the program denotes it.",
)
@click.option("--timings", "timed", is_flag=True, help="Also say where the seconds went, phase by phase.")
@json_option
def command(
    file: Path,
    sizes: tuple[str, ...],
    shapes: tuple[str, ...],
    name: str | None,
    every: bool,
    arch: str,
    output: Path | None,
    build_path: BuildPath | None,
    tuned: bool | None,
    timed: bool,
    as_json: bool,
) -> None:
    """Build FILE's kernel or pipeline for a shape; with -o write what C++ needs to call it.

    The library holds one function with C linkage; it serves every shape with the same alignments.
    Files in the folder are named after the kernel's digest, never after the program.

    With --shape (repeated) or --all several are built at once, as many as cores and memory allow, and
    what is printed has a line, or a JSON object of a list, for each. Shapes that one kernel serves
    share its files. A pipeline's kernels are built together; series.json says how they are launched, and
    where its buffers lie in the workspace. What is printed says where each schedule comes from.
    """
    if every and name is not None:
        raise click.UsageError("--all builds every kernel: leave out --kernel")
    if timed and (every or shapes):
        raise click.UsageError("--timings looks at one kernel for one shape: leave out --all and --shape")
    start = perf_counter()
    with reported(as_json), recording() as heard:
        checked = inputs.read(file)
        if not every and isinstance(program := frontend.program(checked, name), ir.Pipeline):
            if timed:
                raise click.UsageError("--timings looks at one kernel: name one with --kernel")
            every_shape = [parse_sizes([*sizes, shape]) for shape in shapes] or [parse_sizes(sizes)]
            pipeline_shapes = [complete(program, shape_sizes) for shape_sizes in every_shape]
            pipelines.build(checked, program, pipeline_shapes, arch, build_path, output, as_json)
            return
        kernels = _kernels(checked, name, every)
        if not every and not shapes:
            (kernel,) = kernels
            watch, row, artifact = _built(
                checked, (kernel, complete(kernel, parse_sizes(sizes))), arch, tuned, build_path, output
            )
            where = None
            if timed:
                made_here = artifact.entry in watch.built
                where = build_timings.timings(perf_counter() - start, heard.seconds, artifact, made_here)
                row["timings"] = where.to_json()
            _print_one(row, where, as_json)
            return
        kernel_shapes = _kernel_shapes(kernels, sizes, shapes)
        kernel_origins = _recorded_schedules(checked, kernel_shapes, arch, tuned)
        recorded_kernels = [
            (k, extents) for (k, _), (_, extents) in zip(kernel_origins, kernel_shapes, strict=True)
        ]
        with _served(build_path), show.building(f"{len(kernel_shapes)} kernels") as progress:
            results = build_kernels(
                checked, recorded_kernels, arch, build_path=build_path, on_progress=progress
            )
        _print_all(_rows(kernel_shapes, [origin for _, origin in kernel_origins], results, output), as_json)
        if failed := [status_of(m) for m in results if not isinstance(m, Built)]:
            sys.exit(max(failed))


def _built(
    checked: frontend.Checked,
    kernel_shape: KernelShape,
    arch: str,
    tuned: bool | None,
    build_path: BuildPath | None,
    output: Path | None,
) -> tuple[build_timings.Watch, dict[str, Any], Artifact]:
    """Builds one kernel; also returns what was seen while it was built."""
    ((recorded_kernel, origin),) = _recorded_schedules(checked, [kernel_shape], arch, tuned)
    with _served(build_path), show.building(recorded_kernel.name) as progress:
        watch = build_timings.Watch(progress)
        kernel = build_kernel(
            checked, recorded_kernel, kernel_shape[1], arch, on_progress=watch, build_path=build_path
        )
    (row,) = _rows([kernel_shape], [origin], [kernel], output)
    return watch, row, kernel.artifact


@contextmanager
def _served(build_path: BuildPath | None) -> Iterator[None]:
    """Turns a build path that serves no such kernel into a usage error."""
    try:
        yield
    except NotServed as why:
        raise click.UsageError(f"--build-path {build_path}: {why}") from why


def _kernels(checked: frontend.Checked, name: str | None, every: bool) -> tuple[ir.Kernel, ...]:
    if not every:
        return (frontend.kernel(checked, name),)
    return tuple(p for p in checked.module.programs if isinstance(p, ir.Kernel))


def _kernel_shapes(
    kernels: Sequence[ir.Kernel], common: Sequence[str], shapes: Sequence[str]
) -> tuple[KernelShape, ...]:
    """Returns every kernel with every shape; of several kernels each takes the names that it has.

    Raises ShapeError, also for a name that no kernel has.
    """
    dims = {d for kernel in kernels for d in kernel.dims}
    result: list[KernelShape] = []
    for shape_sizes in [parse_sizes([*common, shape]) for shape in shapes] or [parse_sizes(common)]:
        if len(kernels) > 1 and (unknown := [d for d in shape_sizes if d not in dims]):
            raise ShapeError("UC0601", f"no kernel of the file has a dimension {unknown[0]}")
        for kernel in kernels:
            mine = {d: n for d, n in shape_sizes.items() if d in kernel.dims or len(kernels) == 1}
            result.append((kernel, complete(kernel, mine)))
    return tuple(result)


def _recorded_schedules(
    checked: frontend.Checked, kernel_shapes: Sequence[KernelShape], arch: str, tuned: bool | None
) -> list[KernelOrigin]:
    own = [(program, written(program, extents, arch)) for program, extents in kernel_shapes]
    # Before the driver is asked, which takes tenths of a second.
    if tuned is False or not any(recorded(program, extents, arch) for program, extents in kernel_shapes):
        return own
    here = gpu.at_hand()
    if here is None:
        note = "what is recorded is of a GPU, and none is here"
        return [(program, replace(origin, note=note)) for program, origin in own]
    return [
        recall(checked, program, extents, arch, here.gpu.name, beyond=tuned is True)
        for program, extents in kernel_shapes
    ]


_BUILT = {"nvcc": "by nvcc, from one file", "nvrtc": "by NVRTC, with lean collectives"}
"""By build path."""


def _rows(
    kernel_shapes: Sequence[KernelShape],
    origins: Sequence[Origin],
    results: Sequence[Built | BuildFailure],
    output: Path | None,
) -> list[dict[str, Any]]:
    """Returns what is printed of each; with `output` their files are written."""
    serving: dict[str, list[Built]] = {}
    for result in results:
        if isinstance(result, Built):
            serving.setdefault(result.source.entry, []).append(result)
    exported = None if output is None else Export(output)
    rows = []
    for (program, extents), origin, result in zip(kernel_shapes, origins, results, strict=True):
        own_sizes = {d: n for d, n in zip(program.dims, extents, strict=True) if d in free_dims(program)}
        row: dict[str, Any] = {"kernel": program.name, "sizes": own_sizes}
        if isinstance(result, Built):
            files = {"library": result.artifact.library}
            if exported is not None:
                files = exported.add(signature_of(program), serving[result.source.entry])
            row |= {
                "entry": result.source.entry,
                "seconds": result.artifact.seconds,
                **{kind: str(path) for kind, path in files.items()},
                "built": _BUILT[BUILD_PATH_OF[result.artifact.builder]],
                "schedule": show_schedule(result.planned.request),
                "from": str(origin),
                "findings": [f"{f.code}: {f.message}; {f.hint}" for f in result.artifact.report.findings],
            }
        else:
            row |= {"error": str(result), "status": int(status_of(result))}
        rows.append(row)
    if exported is not None:
        exported.write()
    return rows


def _print_one(row: dict[str, Any], where: build_timings.Timings | None, as_json: bool) -> None:
    if as_json:
        show.data(row)
        return
    lines = [(key, value) for key, value in row.items() if isinstance(value, str)]
    show.table(("", ""), lines + [("ptxas", f) for f in row["findings"]])
    if where is not None:
        show.table(("phase", "seconds", "share"), where.rows())


def _print_all(rows: Sequence[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        show.data(rows)
        return
    lines = []
    for row in rows:
        sizes = ",".join(f"{d}={n}" for d, n in row["sizes"].items())
        what = row["error"] if "error" in row else "; ".join([row["library"], *row["findings"]])
        lines.append((row["kernel"], sizes, row.get("entry", "failed"), what, row.get("from", "")))
    show.table(("kernel", "sizes", "entry", "library", "schedule from"), lines)
