"""This module loads problems from files: a program of the language, a PyTorch module, or a folder of
either."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from ucutlass import frontend
from ucutlass.agent.batch import NoStart
from ucutlass.agent.compute_type_casts import in_compute_type
from ucutlass.agent.folded_problem import NothingFolded, folded_problem
from ucutlass.agent.imported_start import ImportedStart, imported_start
from ucutlass.agent.module import LIMIT_SECONDS, TorchModule, module_of_file, read_file
from ucutlass.agent.module_processes import ModuleCall, in_own_process
from ucutlass.agent.problem import (
    OptimizationProblem,
    StartProgramMismatch,
    problem_of,
    problem_of_module,
    program_name,
)
from ucutlass.runtime.module.signature import Mode, Precision, Unusable
from ucutlass.shapes import parse_sizes
from ucutlass.spans import span

_SIZES = re.compile(r"^#\s*sizes\s+([A-Za-z_]\w*=.*?)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class LoaderSettings:
    """Describes how files are read. `start` is a first program for a module: a file, or a folder with one for
    each module; the importer writes those of other modules. `writes`: the proposer writes first programs, so
    none is needed. `program` is which program of a file, `limit_seconds` what a module's process may take.
    `cls` names a class of the file in place of `Model`, and `types` are those of its inputs. What depends on the
    parameters `fold_weights` of a program alone is computed once."""

    arch: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    program: str | None = None
    compute_type: str | None = None
    mode: Mode = "constructed"
    precision: Precision = "own"
    start: Path | None = None
    writes: bool = False
    limit_seconds: float = LIMIT_SECONDS
    cls: str = ""
    types: Sequence[str] = ()
    fold_weights: Sequence[str] = ()


def names_of(folder: Path) -> list[str]:
    """Returns the problems of a folder, in order of their paths within it: `.py` files, and `.ucu` files that
    are no first program of a `.py` beside them. What begins with `_` or `.` is none."""
    files = [p for p in folder.rglob("*") if p.suffix in (".py", ".ucu") and p.is_file()]
    paths = [
        p.relative_to(folder) for p in files if not (p.suffix == ".ucu" and p.with_suffix(".py").is_file())
    ]
    return sorted(str(p) for p in paths if not any(part[0] in "._" for part in p.parts))


@span("problem")
def problem_at(
    path: Path,
    how: LoaderSettings,
    within: Path | None = None,
    call: ModuleCall = in_own_process,
    on_start: Callable[[ImportedStart], None] = lambda _: None,
) -> OptimizationProblem:
    """Returns the problem of a file, whose code `call` runs. `within` is the folder whose tree `how.start` follows,
    where that is a folder; `on_start` is told the importer's program, in another thread, as soon as it is there.
    Raises Unusable, NoStart, StartProgramMismatch, ProgramError, ShapeError, UnknownComputeType."""
    if path.suffix != ".py":
        return problem_in(_text(path), str(path), how)
    if how.fold_weights:
        raise NothingFolded(
            f"{path} is a PyTorch module, whose weights are its own: give --fold-weights with a program, as "
            f"`ucc import {path} -o FILE.ucu` writes it"
        )
    start = _start(path, how, within)
    text = "" if start is None else _text(start)
    read = read_file(path, how.mode, how.precision, how.cls, how.types)
    if start is not None:
        module = module_of_file(read, limit_seconds=how.limit_seconds, call=call)
        return problem_of_module(module, text, str(start), how.program, how.arch, how.compute_type)
    name = how.program or how.cls.lower() or program_name(read.file)

    def announced_start() -> ImportedStart:
        imported = imported_start(read, name, how.limit_seconds, call)
        text = in_compute_type(imported.text, imported.program, how.compute_type)
        imported = replace(imported, text=text)
        on_start(imported)
        return imported

    # What a module computes and how it is written are asked of two processes at once.
    with ThreadPoolExecutor(1, thread_name_prefix="ucutlass-import") as pool:
        imported = pool.submit(announced_start)
        module = module_of_file(read, limit_seconds=how.limit_seconds, call=call)
    return _without_start(path, module, name, imported.result(), how)


def _without_start(
    path: Path, module: TorchModule, name: str, start: ImportedStart, how: LoaderSettings
) -> OptimizationProblem:
    """Returns the problem with the importer's program, or without one where the proposer writes it. Raises
    NoStart."""
    why = start.why
    if start.text:
        try:
            return problem_of_module(
                module, start.text, module.file, start.program, how.arch, how.compute_type
            )
        except StartProgramMismatch as mismatch:
            why = str(mismatch)
    if not how.writes:
        raise NoStart(
            f"{path} has no first program: the importer writes none ({why}), and neither does this proposer; "
            f"give one with --start FILE.ucu, or put {path.with_suffix('.ucu').name} beside it"
        )
    problem = problem_of_module(module, "", module.file, name, how.arch, how.compute_type)
    return replace(problem, no_start=why)


def problem_in(text: str, file: str, how: LoaderSettings) -> OptimizationProblem:
    """Returns the problem of a program's text. Raises NothingFolded, ProgramError, ShapeError, UnknownComputeType."""
    sizes = how.sizes or written_sizes(text)
    problem = problem_of(text, file, how.program, sizes, how.arch, how.compute_type)
    return folded_problem(problem, how.fold_weights) if how.fold_weights else problem


def _text(path: Path) -> str:
    try:
        return frontend.source_of(path)
    except OSError as error:
        raise Unusable(str(path), "unreadable", error.strerror or str(error)) from error


def written_sizes(text: str) -> dict[str, int]:
    """Returns the extents that a program's text gives in a line `# sizes M=4096,N=4096`; empty without one.
    Raises ShapeError."""
    match = _SIZES.search(text)
    return parse_sizes([match[1]]) if match else {}


def _start(path: Path, how: LoaderSettings, within: Path | None) -> Path | None:
    if how.start is not None and not how.start.is_dir():
        return how.start
    candidates = [path.with_suffix(".ucu")]
    if how.start is not None:
        place = path.relative_to(within) if within is not None else Path(path.name)
        candidates.insert(0, (how.start / place).with_suffix(".ucu"))
    return next((p for p in candidates if p.is_file()), None)
