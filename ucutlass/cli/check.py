"""This module is `ucc check`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ucutlass import frontend, ir
from ucutlass.cli import inputs, show
from ucutlass.cli.cpu_limit import cpu_limited
from ucutlass.cli.errors import Status, reported
from ucutlass.cli.options import json_option, sizes_option
from ucutlass.diagnostics import Diagnostic, ProgramError, listed, render, to_json
from ucutlass.kernels.families import family_of, match
from ucutlass.kernels.refused import Refused
from ucutlass.limits import Effort
from ucutlass.pipeline.planning import in_order, plan_pipeline
from ucutlass.pipeline.sized import kernels
from ucutlass.shapes import complete, free_dims, parse_sizes
from ucutlass.typical_sizes import typical_sizes


@click.command("check")
@click.argument("files", nargs=-1, required=True, type=inputs.existing())
@sizes_option
@click.option(
    "--types-only", is_flag=True, help="Stop after the type check: families and schedules are not asked."
)
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
@json_option
def command(
    files: tuple[Path, ...], sizes: tuple[str, ...], types_only: bool, strict: bool, as_json: bool
) -> None:
    """Check FILES: syntax, names, types, kernel families and schedules; nothing is built.

    Every error of a file is shown at once, with its place, the numbers and a fix; a file without errors
    shows its warnings, which change the exit status with --strict alone. Schedules are checked for
    ordinary extents that their guards admit, or for the ones given with -s.
    """
    with reported(as_json):
        checked_files = []
        for path in files:
            with cpu_limited(path):
                checked_files.append((path, _check(path, sizes, types_only)))
    if as_json:
        show.data(
            {
                "diagnostics": [
                    row
                    for path, file in checked_files
                    for row in to_json(file.diagnostics, file.source, inputs.shown(path))
                ],
                "programs": [
                    {"file": inputs.shown(path)} | _program_row(program)
                    for path, file in checked_files
                    for program in file.programs
                ],
            }
        )
    else:
        for path, file in checked_files:
            if file.diagnostics:
                show.note(render(file.diagnostics, file.source, inputs.shown(path)))
        for path in (path for path, file in checked_files if not _errors(file.diagnostics)):
            show.say(f"{inputs.name(path)}: fine")
    every = [d for _, file in checked_files for d in file.diagnostics]
    if every if strict else _errors(every):
        sys.exit(Status.PROGRAM)


@dataclass(frozen=True, slots=True)
class _CheckedFile:
    """Holds no programs where the types are wrong."""

    source: str
    diagnostics: tuple[Diagnostic, ...]
    programs: tuple[ir.Program, ...] = ()


def _program_row(program: ir.Program) -> dict[str, Any]:
    """Returns what a caller must know to ask for it: its name, and the extents that a call brings."""
    kind, family = "pipeline", ""
    if isinstance(program, ir.Kernel):
        kind = "kernel"
        try:
            family = family_of(match(program)).name
        except Refused:
            family = "none"
    return {"name": program.name, "kind": kind, "family": family, "sizes": list(free_dims(program))}


def _errors(diagnostics: Sequence[Diagnostic]) -> list[Diagnostic]:
    return [d for d in diagnostics if d.severity == "error"]


def _check(path: Path, sizes: tuple[str, ...], types_only: bool) -> _CheckedFile:
    try:
        checked = inputs.checked(path)
    except ProgramError as problem:
        return _CheckedFile(problem.source, problem.diagnostics)
    programs = tuple(checked.module.programs)
    if types_only:
        return _CheckedFile(checked.source, checked.warnings, programs)
    wrong = [*checked.warnings]
    work = Effort()
    for program in _planned_alone(checked, sizes):
        try:
            with checked.limits(program):
                wrong += _schedules(checked, program, sizes, work)
        except ProgramError as problem:
            wrong += problem.diagnostics
    return _CheckedFile(checked.source, listed(wrong), programs)


def _planned_alone(checked: frontend.Checked, sizes: tuple[str, ...]) -> list[ir.Program]:
    """Returns the programs to check; with sizes, which are a pipeline's where the file has one, all but the
    kernels that a pipeline calls: it gives these their extents."""
    every = list(checked.module.programs)
    if not sizes:
        return every
    called = {k.name for p in every if isinstance(p, ir.Pipeline) for k in kernels(p)}
    return [p for p in every if p.name not in called]


def _schedules(
    checked: frontend.Checked, program: ir.Program, sizes: tuple[str, ...], work: Effort
) -> tuple[Diagnostic, ...]:
    if not sizes:
        if isinstance(program, ir.Kernel):
            return frontend.check_schedules(checked, program, work)
        ordinary = typical_sizes(program, None, work)
        laid = program if ordinary is None else in_order(checked, program, ordinary, "sm90a")
        return tuple(d for kernel in kernels(laid) for d in _stage(checked, kernel, work))
    extents = complete(program, parse_sizes(sizes))
    own = [program] if isinstance(program, ir.Kernel) else list(kernels(program))
    for arch in dict.fromkeys(block.arch for k in own for block in k.schedules) or ("sm90a",):
        if isinstance(program, ir.Pipeline):
            plan_pipeline(checked, program, extents, arch)
        else:
            frontend.plan_kernel(checked, program, extents, arch)
    return ()


def _stage(checked: frontend.Checked, kernel: ir.Kernel, work: Effort) -> tuple[Diagnostic, ...]:
    try:
        return frontend.check_schedules(checked, kernel, work)
    except ProgramError as problem:
        return problem.diagnostics
