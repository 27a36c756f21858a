"""examples/imported: modules with their programs, as the importer writes them today."""

from __future__ import annotations

from pathlib import Path

import pytest

from ucutlass import frontend, ir
from ucutlass.importer.problem_file import import_problem
from ucutlass.pipeline.planning import plan_pipeline
from ucutlass.shapes import complete

FOLDER = Path(__file__).parent.parent.parent / "examples" / "imported"
MODULES = sorted(FOLDER.glob("*.py"))


def test_every_module_has_a_program() -> None:
    assert len(MODULES) >= 10
    assert [m.with_suffix(".ucu") for m in MODULES] == sorted(FOLDER.glob("*.ucu"))


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.stem)
def test_the_importer_writes_it_and_it_plans(module: Path) -> None:
    program = import_problem(str(module), module.stem, "constructed")
    assert program.text == module.with_suffix(".ucu").read_text(), f"ucc import {module}"
    assert not program.torch_stages
    checked = frontend.read_text(program.text)
    typed = frontend.program(checked, program.name)
    assert isinstance(typed, ir.Pipeline)
    plan = plan_pipeline(checked, typed, complete(typed, {}), "sm90a")
    assert all(stage.chosen is not None for stage in plan.stages)
