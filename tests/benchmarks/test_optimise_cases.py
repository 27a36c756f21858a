"""The agent's problems are programs in canonical form that plan, and compute what their twins do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.optimise_cases import ARCH, TASKS, Task
from ucutlass import ir
from ucutlass.frontend import plan_kernel
from ucutlass.grammar.format import format_file
from ucutlass.grammar.parse import parse
from ucutlass.ir.hardware import DEVICES
from ucutlass.pipeline.planning import plan_pipeline
from ucutlass.reference import evaluate
from ucutlass.runtime.inputs import generate
from ucutlass.shapes import complete

H200 = next(d for d in DEVICES.values() if "H200" in d.name)
EVERY = pytest.mark.parametrize("task", TASKS, ids=[task.name for task in TASKS])
NEAR = {"bf16": 2e-2, "f16": 2e-3, "tf32": 4e-3, "f32": 2e-6}
"""In the norm, against torch in float64: what rounding operands and what is stored brings."""


def test_there_are_thirty_problems_of_every_class_level_and_compute_type() -> None:
    assert len({task.name for task in TASKS}) == len(TASKS)
    assert len({task.name.split()[0] for task in TASKS}) >= 30
    assert {task.letter for task in TASKS} == set("ERWMSAP")
    assert {task.level for task in TASKS} == {1, 2, 3}
    assert {task.compute_type for task in TASKS} == set(NEAR)


def test_the_first_ten_are_of_every_class_and_level() -> None:
    assert {task.letter for task in TASKS[:10]} == set("ERWMSAP")
    assert {task.level for task in TASKS[:10]} == {1, 2, 3}


@EVERY
def test_problems_are_in_canonical_form(task: Task) -> None:
    assert format_file(parse(task.text)) == task.text


@EVERY
def test_problems_plan_on_an_h200_in_their_compute_type(task: Task) -> None:
    checked, program = task.checked
    sizes = complete(program, task.sizes)
    match program:
        case ir.Kernel():
            assert plan_kernel(checked, program, sizes, ARCH, H200).planned.seconds > 0
        case ir.Pipeline():
            pipeline_plan = plan_pipeline(checked, program, sizes, ARCH, H200)
            assert all(stage.chosen is not None for stage in pipeline_plan.stages)  # nothing is left to torch
    assert task.problem.compute_type == task.compute_type


@EVERY
def test_problems_compute_what_their_twins_do(task: Task) -> None:
    _, program = task.checked
    arguments = generate(program, task.small, "normal", seed=7)
    (result,) = evaluate(program, arguments)
    expected = task.twin(*map(_double, arguments))
    assert result.shape == expected.shape
    if not expected.is_floating_point():
        assert torch.equal(result, expected)
        return
    error = float((result.double() - expected).norm() / expected.norm())
    assert error <= NEAR[task.compute_type], error


def _double(given: Any) -> Any:
    return given.double() if isinstance(given, torch.Tensor) and given.is_floating_point() else given
