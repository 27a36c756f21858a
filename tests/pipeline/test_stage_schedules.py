"""Schedules of a pipeline's stages, from the text to the plan and to what `ucc` says of them."""

from __future__ import annotations

import pytest

from ucutlass import frontend, ir
from ucutlass.diagnostics import ProgramError
from ucutlass.pipeline.planning import PipelinePlan, plan_pipeline
from ucutlass.shapes import complete

MLP = """
pipeline mlp(x: bf16[T, D], up: bf16[F, D], down: bf16[D, F]) -> bf16[T, D] {
  h: %s = relu(dot[D](x, up))
  return dot[F](h, down)
  %s
}
"""


def planned(text: str, **sizes: int) -> PipelinePlan:
    checked = frontend.read_text(text)
    pipeline = frontend.program(checked)
    assert isinstance(pipeline, ir.Pipeline)
    return plan_pipeline(checked, pipeline, complete(pipeline, sizes), "sm90a")


def tiles(plan: PipelinePlan) -> dict[str, object]:
    return {s.step.name: s.chosen.planned.request.tile for s in plan.stages if s.chosen is not None}


LARGE = {"T": 4096, "D": 1024, "F": 2048}
H = "bf16[T, F]"


def test_a_stage_is_planned_by_its_schedule_and_the_others_as_without() -> None:
    free = tiles(planned(MLP % (H, ""), **LARGE))
    values = tiles(planned(MLP % (H, "schedule sm90a for h { tile 64x64x64 }"), **LARGE))
    assert values == {**free, "h": (64, 64, 64)} != free


def test_a_condition_is_asked_at_the_calls_extents() -> None:
    text = MLP % (
        H,
        "schedule sm90a for return when T <= 64 { tile 64x64x64 }\n"
        "  schedule sm90a for return { tile 128x64x64 }",
    )
    assert tiles(planned(text, T=64, D=1024, F=2048))["return"] == (64, 64, 64)
    assert tiles(planned(text, **LARGE))["return"] == (128, 64, 64)


def test_a_stage_in_an_order_of_the_compilers_keeps_its_schedule() -> None:
    plan = planned(MLP % ("bf16", "schedule sm90a for h { tile 64x64x64 }"), **LARGE)
    assert set(plan.orders) == {"h"} and tiles(plan)["h"] == (64, 64, 64)


def test_what_is_returned_as_it_is_keeps_the_schedule_of_the_stage_that_fills_it() -> None:
    text = (
        "pipeline p(x: bf16[T, D], w: bf16[F, D]) -> bf16[T, F] {\n  h: bf16[T, F] = dot[D](x, w)\n"
        "  return h\n  schedule sm90a for h { tile 64x64x64 }\n}\n"
    )
    assert tiles(planned(text, **LARGE)) == {"return": (64, 64, 64)}


@pytest.mark.parametrize(
    ("fields", "code", "at"),
    [("tile 100x64x64", "UC0441", "tile 100x64x64"), ("stages 3  items 4", "UC0439", "items 4")],
)
def test_a_field_that_the_stages_family_does_not_take_is_told_at_its_place(
    fields: str, code: str, at: str
) -> None:
    text = MLP % (H, f"schedule sm90a for return {{ {fields} }}")
    with pytest.raises(ProgramError) as caught:
        planned(text, **LARGE)
    (found,) = caught.value.diagnostics
    assert (found.code, text[found.span.start : found.span.end]) == (code, at)
    assert "nearest legal schedule" in (found.hint or "")
