"""A winner's schedule of a pipeline's stage in the pipeline's text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ucutlass import frontend, ir
from ucutlass.grammar.format import format_file
from ucutlass.grammar.parse import parse
from ucutlass.kernels.planned import Planned
from ucutlass.pipeline.planning import PipelinePlan, plan_pipeline
from ucutlass.shapes import complete
from ucutlass.tune.source import ScheduleNotWritten, with_stage_schedule
from ucutlass.tune.space import explore

SIZES = {"T": 256, "D": 512, "F": 1024}
TEXT = """\
kernel linear(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] {
  return dot[K](x, w)
}

pipeline p(x: bf16[T, D], up: bf16[F, D], down: bf16[D, F]) -> (y: bf16[T, D], c: bf16[T, F]) {
  a = linear(x, w=up)
  r: bf16[T, F] = torch.relu(a)
  h: bf16 = silu(r)
  kept: bf16[T, F] = r * 2
  return y = dot[F](h, down), c = kept

  schedule sm90a for h when T == 256 { vector 4 }
  schedule sm90a for return y { tile 64x64x64 }
}
"""


def planned(text: str, **sizes: int) -> tuple[frontend.Checked, ir.Pipeline, PipelinePlan]:
    checked = frontend.read_text(text, "p.ucu")
    pipeline = frontend.program(checked)
    assert isinstance(pipeline, ir.Pipeline)
    extents = complete(pipeline, {**SIZES, **sizes})
    return checked, pipeline, plan_pipeline(checked, pipeline, extents, "sm90a")


def number(plan: PipelinePlan, name: str) -> int:
    return [s.step.name for s in plan.stages].index(name)


def another(checked: frontend.Checked, plan: PipelinePlan, at: int) -> Planned:
    """A kernel of the stage's space that is not the one that it has."""
    step = plan.stages[at].step
    assert step.kernel is not None and plan.stages[at].chosen is not None
    space = explore(checked, step.kernel, step.sizes, "sm90a", free=True)
    return space.groups[space.start[0] - 1].members[0]


def written(text: str, name: str) -> tuple[str, Planned]:
    checked, pipeline, plan = planned(text)
    winner = another(checked, plan, number(plan, name))
    return with_stage_schedule(checked, pipeline, plan, number(plan, name), winner, None), winner


def requests(text: str, **sizes: int) -> dict[str, object]:
    _, _, plan = planned(text, **sizes)
    return {s.step.name: s.chosen.planned.request for s in plan.stages if s.chosen is not None}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("h", "schedule sm90a for h when T == 256 and F == 1024 {"),
        pytest.param(
            "return y",
            "schedule sm90a for return y when T == 256 and D == 512 and F == 1024 {",
            marks=pytest.mark.slow,
        ),
        ("return c", "schedule sm90a for kept when T == 256 and F == 1024 {"),
        ("a = linear", "schedule sm90a when M == 256 and K == 512 and N == 1024 {"),
    ],
)
def test_the_stage_gets_it_at_these_extents_and_the_others_stay(name: str, said: str) -> None:
    text, winner = written(TEXT, name)
    assert said in text and format_file(parse(text)) == text
    before, after = requests(TEXT), requests(text)
    assert after == {**before, name: winner.request} != before
    elsewhere = {"T": 512, "F": 2048}
    assert requests(text, **elsewhere) == requests(TEXT, **elsewhere)


def test_a_second_winner_replaces_the_first_and_leaves_other_stages_blocks() -> None:
    once, _ = written(TEXT, "h")
    twice, winner = written(once, "h")
    assert twice.count(" for h ") == once.count(" for h ") == 2
    assert twice.count(" for return y ") == 1
    assert requests(twice)["h"] == winner.request


def test_a_stage_without_free_extents_keeps_one_block() -> None:
    text = (
        "pipeline p(x: f32[M=4096], y: f32[N=512]) -> f32[N] {\n  h: f32[M] = x * 2\n"
        "  m: f32[] = max[M](h)\n  return y + m\n"
        "  schedule sm90a for h { vector 2 }\n  schedule sm90a for return { vector 2 }\n}\n"
    )
    checked = frontend.read_text(text)
    pipeline = frontend.program(checked)
    assert isinstance(pipeline, ir.Pipeline)
    plan = plan_pipeline(checked, pipeline, complete(pipeline, {}), "sm90a")
    made = with_stage_schedule(checked, pipeline, plan, 0, another(checked, plan, 0), None)
    assert made.count("schedule sm90a for h {") == 1 and " when " not in made
    assert "schedule sm90a for return { vector 2 }" in made


def test_what_would_become_another_kernel_is_not_written() -> None:
    checked, pipeline, plan = planned(TEXT)
    at = number(plan, "return y")
    winner = another(checked, plan, at)
    forged = replace(winner, plan=replace(winner.plan, routes=()))
    with pytest.raises(ScheduleNotWritten):
        with_stage_schedule(checked, pipeline, plan, at, forged, None)
    with pytest.raises(ScheduleNotWritten, match="torch function"):
        with_stage_schedule(checked, pipeline, plan, number(plan, "r = torch.relu"), winner, None)
