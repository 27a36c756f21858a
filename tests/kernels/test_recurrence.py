"""Recurrent layers in one launch, on the host with all blocks side by side, against torch's in float64."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import isolated
from tests.emit import emulator
from tests.emulated import LIMIT_SECONDS
from ucutlass.emit import emit
from ucutlass.ir.elements import BF16, F16, F32
from ucutlass.ir.hardware import ARCHES, DEVICES
from ucutlass.kernels.recurrence import smem
from ucutlass.kernels.recurrence.plan import MOST_POLLS, RecurrentPlan, RecurrentSchedule
from ucutlass.kernels.recurrence.planner import legal_plans, plan_recurrence
from ucutlass.kernels.recurrence.problem import RecurrentProblem
from ucutlass.runtime.isolation import Crashed
from ucutlass.runtime.launch_spec import dtype_of

SM90, H100 = ARCHES["sm90a"], DEVICES["H100-SXM"]

CASES = [
    (RecurrentProblem("lstm", 3, 3, 5, 7, 2, 1, True, True, (0,)), RecurrentSchedule(6, 8, 1, 2, 1)),
    (RecurrentProblem("lstm", 3, 2, 40, 6, 2, 2, False, True, (2,)), RecurrentSchedule(3, 16, 1, 1, 1)),
    (RecurrentProblem("lstm", 2, 1, 130, 5, 1, 1, False, False, (1,)), RecurrentSchedule(6, 32, 2, 1, 1)),
    (RecurrentProblem("gru", 4, 6, 9, 40, 3, 1, False, True, (0,)), RecurrentSchedule(42, 8, 1, 1, 2)),
    (RecurrentProblem("gru", 3, 3, 4, 8, 2, 2, True, True, (1,)), RecurrentSchedule(3, 8, 1, 1, 1)),
    (RecurrentProblem("rnn_tanh", 3, 5, 6, 10, 3, 1, True, False, (1,)), RecurrentSchedule(6, 8, 1, 2, 1)),
    (RecurrentProblem("rnn_relu", 3, 4, 6, 9, 1, 2, False, True, (0,)), RecurrentSchedule(9, 8, 2, 1, 1)),
    (RecurrentProblem("lstm", 3, 3, 5, 7, 2, 1, True, True, (0, 1, 2)), RecurrentSchedule(6, 8, 1, 2, 1)),
    (RecurrentProblem("gru", 3, 3, 4, 8, 2, 2, True, True, (1, 0), BF16), RecurrentSchedule(3, 8, 1, 1, 1)),
    (RecurrentProblem("lstm", 3, 2, 6, 7, 1, 1, False, True, (2, 0), F16), RecurrentSchedule(3, 16, 1, 1, 1)),
]


def tensors(problem: RecurrentProblem) -> list[torch.Tensor]:
    """x, the initial states and the weights."""
    generator = torch.Generator().manual_seed(7)
    runs = problem.layers * problem.directions
    shape = (problem.batch, problem.steps) if problem.batch_first else (problem.steps, problem.batch)
    shapes: list[tuple[int, ...]] = [(*shape, problem.input)]
    shapes += [(runs, problem.batch, problem.hidden)] * problem.states
    for layer in range(problem.layers):
        depth = problem.input if layer == 0 else problem.directions * problem.hidden
        rows = problem.gates * problem.hidden
        own = [(rows, depth), (rows, problem.hidden), *([(rows,)] * 2 if problem.biased else [])]
        shapes += own * problem.directions
    scale = problem.hidden**-0.5  # as torch.nn initialises weights
    drawn = [torch.randn(s, generator=generator) * (scale if len(s) < 3 else 1.0) for s in shapes]
    return [tensor.to(dtype_of(problem.element)) for tensor in drawn]


def expected(problem: RecurrentProblem, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    x, rest = inputs[0].double(), [t.double() for t in inputs[1:]]
    states, weights = rest[: problem.states], rest[problem.states :]
    results = getattr(torch, problem.cell)(
        x,
        tuple(states) if problem.states > 1 else states[0],
        weights,
        problem.biased,
        problem.layers,
        0.0,
        False,
        problem.directions == 2,
        problem.batch_first,
    )
    return [results[number] for number in problem.gives]


def parameters() -> Iterator[Any]:
    for number, (problem, schedule) in enumerate(CASES):
        marks = [pytest.mark.slow] if problem.element is F16 else []
        yield pytest.param(problem, schedule, id=f"{problem.cell}-{number}", marks=marks)


@pytest.mark.parametrize(("problem", "schedule"), parameters())
def test_a_launch_gives_what_torch_gives(
    problem: RecurrentProblem, schedule: RecurrentSchedule, tmp_path: Path
) -> None:
    plan = RecurrentPlan("sm90a", problem, schedule)
    entry = emulator.build(emit(plan, ""), tmp_path, threads=plan.grid)
    inputs = tensors(problem)
    wanted = expected(problem, inputs)
    results = [torch.full(want.shape, torch.nan, dtype=dtype_of(problem.element)) for want in wanted]
    workspace = torch.full((plan.workspace,), 255, dtype=torch.uint8)
    pointers = (ctypes.c_void_p * problem.pointers)(*(t.data_ptr() for t in (*inputs, *results)))
    sizes = (ctypes.c_int64 * 4)(*problem.sizes)
    assert entry(pointers, sizes, None, None, ctypes.c_void_p(workspace.data_ptr()), None, None) == 0
    stored = 2.0**-problem.element.mantissa if problem.element is not F32 else 0.0
    for result, want in zip(results, wanted, strict=True):
        torch.testing.assert_close(result.double(), want, rtol=stored, atol=2e-6)


def test_an_entry_asks_for_its_packets_and_refuses_other_extents(tmp_path: Path) -> None:
    problem, schedule = CASES[0]
    plan = RecurrentPlan("sm90a", problem, schedule)
    entry = emulator.build(emit(plan, ""), tmp_path)
    size = ctypes.c_uint64(0)
    assert entry(None, (ctypes.c_int64 * 4)(*problem.sizes), None, None, None, ctypes.byref(size), None) == 0
    assert size.value == plan.workspace
    assert (
        entry(None, (ctypes.c_int64 * 4)(9, *problem.sizes[1:]), None, None, None, ctypes.byref(size), None)
        == 1
    )


def launched(library: str, entry: str, workspace: int) -> None:
    """Launches the first case in a process of its own."""
    problem, _ = CASES[0]
    inputs = tensors(problem)
    results = [torch.empty(want.shape) for want in expected(problem, inputs)]
    packets = torch.empty(workspace, dtype=torch.uint8)
    pointers = (ctypes.c_void_p * problem.pointers)(*(t.data_ptr() for t in (*inputs, *results)))
    sizes = (ctypes.c_int64 * 4)(*problem.sizes)
    function = emulator.entry(Path(library), entry)
    function(pointers, sizes, None, None, ctypes.c_void_p(packets.data_ptr()), None, None)


def test_a_launch_ends_though_a_block_never_runs(tmp_path: Path) -> None:
    problem, schedule = CASES[0]
    plan = RecurrentPlan("sm90a", problem, schedule)
    source = emit(plan, "")
    text = emulator.translated(source.text)
    for whole, part in (
        (f"kMostPolls = {MOST_POLLS}", "kMostPolls = 100"),
        ("kGroups * kConcurrent);", "kGroups * kConcurrent - 1);"),
    ):
        assert text.count(whole) == 1
        text = text.replace(whole, part)
    library = emulator.build_unit("", [replace(source, text=text)], tmp_path, threads=plan.grid)
    arguments = {"library": str(library), "entry": source.entry, "workspace": plan.workspace}
    outcome = isolated.run("tests.kernels.test_recurrence:launched", arguments, limit_seconds=LIMIT_SECONDS)
    assert isinstance(outcome, Crashed) and outcome.signal == "SIGABRT"


@pytest.mark.parametrize("batch", [1, 2, 10, 16])
@pytest.mark.parametrize("directions", [1, 2])
def test_all_blocks_of_a_plan_run_at_once(batch: int, directions: int) -> None:
    problem = RecurrentProblem("lstm", 512, batch, 128, 256, 6, directions, True, True, (0,))
    plans = list(legal_plans(problem, SM90, H100))
    assert plans
    for plan in plans:
        assert plan.grid <= H100.sms and sum(smem.parts(plan).values()) <= SM90.shared_memory
        assert (
            plan.blocks * plan.schedule.units >= problem.hidden and plan.batch * plan.schedule.groups == batch
        )


def test_weights_that_fit_no_shared_memory_are_left_to_torch() -> None:
    problem = RecurrentProblem("lstm", 16, 8, 4096, 4096, 2, 1, True, True, (0,))
    assert plan_recurrence(problem, SM90, H100) is None
    assert plan_recurrence(replace(problem, input=256, hidden=256), SM90, H100) is not None
