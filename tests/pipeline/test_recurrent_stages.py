"""Calls of torch's recurrent layers that a kernel computes, and those that are left to torch."""

from __future__ import annotations

import json

import pytest
import torch

from ucutlass import frontend, ir
from ucutlass.assembly import ProgramAtSizes, planned_sources, step_signature
from ucutlass.handoff import plan_payload, planned_of
from ucutlass.interface import c_header
from ucutlass.kernels.recurrence.plan import RecurrentPlan
from ucutlass.pipeline.planning import PipelinePlan, plan_pipeline
from ucutlass.pipeline.workspace import held_by_torch, pointers
from ucutlass.reference import evaluate
from ucutlass.runtime.fan_in import fan_in
from ucutlass.shapes import complete

GRU = """
pipeline layers(
  x: f32[L{steps}, B=3, D=24], h: f32[N=2, B, E=48],
  w0: f32[G=144, D], u0: f32[G, E], a0: f32[G], b0: f32[G],
  w1: f32[G, E], u1: f32[G, E], a1: f32[G], b1: f32[G]
) -> f32[B, E] {{
  y: f32[L, B, E] = torch.gru(x, h, w0, u0, a0, b0, w1, u1, a1, b1, layers=2)
  return max[L](y)
}}
"""


def planned(text: str, **sizes: int) -> PipelinePlan:
    checked = frontend.read_text(text)
    (pipeline,) = checked.module.programs
    assert isinstance(pipeline, ir.Pipeline)
    return plan_pipeline(checked, pipeline, complete(pipeline, sizes), "sm90a")


def test_layers_of_fixed_extents_are_one_kernel() -> None:
    plan = planned(GRU.format(steps="=17"))
    layers = plan.stages[0]
    assert layers.chosen is not None and isinstance(layers.chosen.planned.plan, RecurrentPlan)
    assert plan.torch_stages == () and not held_by_torch(plan.sized)
    assert plan.sized.steps[0].sizes == (17, 3, 24, 48)
    assert pointers(plan.sized.steps[0]) == (*"xh", "w0", "u0", "a0", "b0", "w1", "u1", "a1", "b1", "y")


def test_layers_whose_extents_a_call_decides_are_torchs() -> None:
    plan = planned(GRU.format(steps=""), L=17)
    assert plan.torch_stages == ("y = torch.gru",) and held_by_torch(plan.sized) == {"y"}


@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_layers_of_16_bits_are_one_kernel(element: str) -> None:
    assert planned(GRU.format(steps="=17").replace("f32", element)).torch_stages == ()


BOTH = """
pipeline layers(x: f32[L{steps}, B=3, D=24], h: f32[N=1, B, E=48], w: f32[G=144, D], u: f32[G, E]) -> (
  all: f32[L, B, E], end: f32[N, B, E], further: f32[N, B, E]
) {{
  last: f32[N, B, E] = torch.gru(x, h, w, u, layers=1, gives=1)
  y: f32[L, B, E] = torch.gru(x, h, w, u, layers=1)
  other: f32[N, B, E] = torch.gru(y, h, u, u, layers=1, gives=1)
  return all = y, end = last, further = other
}}
"""


NAMES = ("return end, return all = torch.gru", "return further = torch.gru")


@pytest.mark.parametrize("steps", ["=17", ""])
def test_two_results_of_one_call_are_one_stage(steps: str) -> None:
    plan = planned(BOTH.format(steps=steps), **({} if steps else {"L": 17}))
    assert tuple(stage.step.name for stage in plan.stages) == NAMES
    assert pointers(plan.sized.steps[0]) == (*"xhwu", "return end", "return all")
    assert plan.sized.steps[1].after == {0}
    if steps:
        chosen = plan.stages[0].chosen
        assert chosen is not None and isinstance(chosen.planned.plan, RecurrentPlan)
        assert chosen.planned.plan.problem.gives == (1, 0)


def test_layers_whose_results_are_converted_are_torchs() -> None:
    plan = planned(GRU.format(steps="=17").replace("y: f32", "y: f16"))
    assert plan.torch_stages == ("y = torch.gru",)


def test_layers_of_64_bits_are_torchs() -> None:
    plan = planned(BOTH.format(steps="=17").replace("f32", "f64"))
    assert plan.torch_stages == NAMES


def test_two_results_of_one_call_are_those_of_two() -> None:
    (pipeline,) = frontend.read_text(BOTH.format(steps="")).module.programs
    generator = torch.Generator().manual_seed(7)
    shapes = [(5, 3, 24), (1, 3, 48), (144, 24), (144, 48)]
    x, h, w, u = (torch.randn(shape, generator=generator) / 7 for shape in shapes)
    y, last = torch.gru(x, h, [w, u], False, 1, 0.0, False, False, False)
    _, other = torch.gru(y, h, [u, u], False, 1, 0.0, False, False, False)
    results = evaluate(pipeline, [x, h, w, u])
    for result, want in zip(results, (y, last, other), strict=True):
        torch.testing.assert_close(result.float(), want)


def test_a_tensor_that_stands_twice_is_two_pointers() -> None:
    text = GRU.format(steps="=17").replace("a0: f32[G], ", "").replace(", a0,", ", b0,")
    assert pointers(planned(text).sized.steps[0])[4:6] == ("b0", "b0")


def test_the_source_names_the_tensors_and_another_process_reads_the_plan() -> None:
    checked = frontend.read_text(GRU.format(steps="=17"))
    (pipeline,) = checked.module.programs
    job = ProgramAtSizes(checked, pipeline, complete(pipeline, {}))
    plan, pairs = planned_sources(job, "sm90a", None)
    assert isinstance(plan, PipelinePlan) and len(pairs) == 2
    assert "0: x, 1: h, 2: w0" in pairs[0][0].text and "Kernel torch.gru" in pairs[0][0].text
    chosen = plan.stages[0].chosen
    assert chosen is not None
    header = c_header(step_signature(plan.sized, plan.stages[0].step), chosen.planned, pairs[0][0])
    assert "[0] x: f32[L, B, D]" in header and "[10] y: f32[L, B, E]" in header and "_tensors = 11" in header
    assert planned_of(json.loads(json.dumps(plan_payload(chosen.planned)))) == chosen.planned


@pytest.mark.parametrize("arch", ["sm80", "sm90a"])
def test_every_architecture_has_a_plan(arch: str) -> None:
    checked = frontend.read_text(GRU.format(steps="=17"))
    (pipeline,) = checked.module.programs
    assert isinstance(pipeline, ir.Pipeline)
    assert plan_pipeline(checked, pipeline, complete(pipeline, {}), arch).torch_stages == ()


def test_weights_of_layers_are_drawn_as_small_as_their_sums_are_long() -> None:
    (pipeline,) = frontend.read_text(GRU.format(steps="=17")).module.programs
    assert fan_in(pipeline, sizes_by_name(pipeline)) == {"w0": 24, **dict.fromkeys(("u0", "w1", "u1"), 48)}


def sizes_by_name(program: ir.Program) -> dict[str, int]:
    return dict(zip(program.dims, complete(program, {}), strict=True))
