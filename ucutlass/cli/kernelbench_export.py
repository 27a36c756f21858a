"""This module writes what `ucc kernelbench --export` writes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ucutlass import files, frontend
from ucutlass.agent.batch import BatchRun, NoStart
from ucutlass.agent.candidate_text import candidate_text
from ucutlass.agent.kernelbench_export import ExportedModel, NotExportable, standalone, through_ucutlass
from ucutlass.agent.model_new import NotRewritable
from ucutlass.agent.problem import OptimizationProblem, StartProgramMismatch, problem_of_json
from ucutlass.agent.problem_loader import LoaderSettings, problem_at
from ucutlass.agent.solution_files import flashinfer_bench, sol_execbench
from ucutlass.cli import show
from ucutlass.cli.outputs import write_all
from ucutlass.diagnostics import ProgramError
from ucutlass.frontend import Checked
from ucutlass.runtime.module.signature import Unusable
from ucutlass.shapes import ShapeError

FORMS = MappingProxyType({"through_ucutlass": through_ucutlass, "standalone": standalone})
"""Folder to form."""

SOLUTIONS = MappingProxyType({"flashinfer_bench": flashinfer_bench, "sol_execbench": sol_execbench})
"""Folder to what writes a benchmark's definition, workload and solution there."""

REFUSED = (NoStart, Unusable, StartProgramMismatch, NotExportable, NotRewritable, ProgramError, ShapeError)


def first_programs(
    base: Path, names: Sequence[str], reading: LoaderSettings
) -> Iterator[tuple[str, OptimizationProblem | str, Checked | None]]:
    """Yields each problem with its first program, or why it has none."""
    for name in names:
        try:
            problem = problem_at(base / name, reading, base)
        except REFUSED as why:
            yield name, str(why), None
        else:
            yield name, problem, problem.start


def best_programs(run: BatchRun) -> Iterator[tuple[str, OptimizationProblem | str, Checked | None]]:
    """Yields each problem of a run with its best confirmed program."""
    for name in run.names:
        member = run.members.get(name)
        best = None if member is None or member.session is None else member.session.state.tree.best()
        if member is None or member.session is None or best is None:
            yield name, "the run has no confirmed program for it", None
        else:
            yield name, problem_of_json(member.session.state.problem), candidate_text(best.text).checked


def export(
    folder: Path, programs: Iterator[tuple[str, OptimizationProblem | str, Checked | None]]
) -> list[dict[str, Any]]:
    """Writes every form of every program, and `export.json`, whose rows it returns. A problem of the name of an
    earlier one is refused. Raises OSError, before a problem is read where a folder cannot be written to."""
    for form in (*FORMS, *SOLUTIONS):
        files.make_writable(folder / form)
    contents: dict[Path, files.Content] = {}
    named: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    for name, problem, checked in programs:
        row: dict[str, Any] = {"problem": name, "refused": {}}
        first = named.setdefault(_solution_name(name), name)
        if first != name:
            words = f"its files would have the names of those of {first}: give it another number or name"
            row["refused"] = dict.fromkeys((*FORMS, *SOLUTIONS), words)
        elif isinstance(problem, str) or checked is None or problem.module is None:
            row["refused"] = dict.fromkeys((*FORMS, *SOLUTIONS), str(problem))
        else:
            row |= {"program": problem.program, "compute_type": problem.compute_type}
            for form, write_form in FORMS.items():
                try:
                    program = frontend.program(checked, problem.program)
                    model = write_form(checked, program, problem.module)
                except REFUSED as why:
                    row["refused"][form] = show.one_line(str(why))[:500]
                    continue
                path = folder / form / _file_name(name)
                contents[path] = model.text
                row[form] = _row(path, model)
            for form, write_solution in SOLUTIONS.items():
                try:
                    program = frontend.program(checked, problem.program)
                    texts = write_solution(checked, program, problem.module, _solution_name(name))
                except REFUSED as why:
                    row["refused"][form] = show.one_line(str(why))[:500]
                    continue
                contents |= {folder / form / path: text for path, text in texts.items()}
                row[form] = {"files": [str(folder / form / path) for path in texts]}
        show.note(f"ucc: {name}: {', '.join(f for f in (*FORMS, *SOLUTIONS) if f in row) or 'nothing'}")
        rows.append(row)
    contents[folder / "export.json"] = json.dumps(rows, indent=1) + "\n"
    for path in contents:
        path.parent.mkdir(parents=True, exist_ok=True)
    write_all(contents)
    return rows


def _file_name(name: str) -> str:
    """Returns the name of a sample as KernelBench's runs have it."""
    match = re.search(r"level(\d+)/(\d+)_", name)
    return f"level_{match[1]}_problem_{match[2]}_sample_0_kernel.py" if match else f"{Path(name).stem}.py"


def _solution_name(name: str) -> str:
    """Returns the name of a problem's definition."""
    match = re.search(r"level(\d+)/(\d+)_", name)
    return f"kernelbench_level{match[1]}_{match[2]}" if match else re.sub(r"\W", "_", Path(name).stem)


def _row(path: Path, model: ExportedModel) -> Mapping[str, Any]:
    return {
        "file": str(path),
        "backend": model.backend,
        "precision": "fp32",
        "arch": model.arch,
        "entries": list(model.entries),
    }
