"""Gradients of 1x1 layers' weights whose positions are innermost, one image at a time: on the host behind the emulator."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from tests.kernels.convolution_emulated import judge, plan
from ucutlass import frontend
from ucutlass.ir.hardware import ARCHES
from ucutlass.ir.schedule import PartialSchedule, show
from ucutlass.kernels import families
from ucutlass.kernels.convolution import planner_tma, schedule_wgrad
from ucutlass.kernels.convolution.plan import ConvolutionPlan, Im2colSchedule, WgradSchedule
from ucutlass.kernels.convolution.plan_wgrad import WgradAccess, wgrad_access
from ucutlass.kernels.gemm.plan import GemmPlan

emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

HALF = """kernel k(x: bf16[N, C, H, W], y: bf16[N, K, H, W]) -> bf16[K, C] {
  return dot[N, H, W](x, y)
  schedule sm90a { warps cooperative }
}"""
TF32 = HALF.replace("bf16", "f32").replace("(x, y)", "(tf32(x), tf32(y))")
GROUPS = HALF.replace("N, C,", "N, G, C,").replace("N, K,", "N, G, K,").replace("[K, C]", "[G, C, K]")
ADDED = HALF.replace(") ->", ", w: f32[K]) ->").replace("(x, y)", "(x, y) * 2.0 + w")


def _kernel(text: str, sizes: dict[str, int]) -> tuple[WgradSchedule, bool]:
    """The schedule, and whether operands are copied."""
    chosen = plan(text, sizes, "sm90a").plan
    assert isinstance(chosen, ConvolutionPlan) and isinstance(chosen.schedule, WgradSchedule)
    return chosen.schedule, chosen.problem.a.pack is not None


@emulated
@pytest.mark.parametrize(
    ("text", "sizes", "splits", "word"),
    [
        pytest.param(HALF, {"N": 3, "H": 7, "W": 7, "C": 72, "K": 80}, 3, 2, id="odd lines"),
        pytest.param(HALF, {"N": 2, "H": 3, "W": 22, "C": 70, "K": 65}, 1, 4, id="lines of words"),
        pytest.param(HALF, {"N": 2, "H": 14, "W": 14, "C": 66, "K": 134}, 2, 8, id="half lines"),
        pytest.param(TF32, {"N": 2, "H": 5, "W": 7, "C": 68, "K": 130}, 2, 4, id="tf32, odd lines"),
        pytest.param(TF32, {"N": 2, "H": 6, "W": 7, "C": 30, "K": 70}, 1, 8, id="tf32, half lines"),
        pytest.param(
            GROUPS, {"N": 3, "G": 3, "H": 5, "W": 5, "C": 48, "K": 40}, 2, 2, id="groups, odd lines"
        ),
        pytest.param(ADDED, {"N": 2, "H": 8, "W": 16, "C": 137, "K": 70}, 1, 0, id="epilogue"),
        pytest.param(TF32, {"N": 2, "H": 10, "W": 10, "C": 68, "K": 130}, 2, 0, id="tf32"),
        pytest.param(GROUPS, {"N": 3, "G": 3, "H": 4, "W": 16, "C": 48, "K": 40}, 2, 0, id="groups"),
    ],
)
def test_gradients_compute_their_program(text: str, sizes: dict[str, int], splits: int, word: int) -> None:
    schedule, copied = _kernel(text, sizes)
    assert schedule.word == word and not copied
    assert judge(text, sizes, 0, "sm90a", lambda p: replace(p, launch=(*p.launch[:2], splits))) == []


@emulated
@pytest.mark.parametrize("text", [pytest.param(HALF, id="bf16"), pytest.param(GROUPS, id="groups")])
def test_copies_with_channels_innermost_compute_their_program(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner_tma, "_by_images", lambda *_: "left out")
    sizes = {"N": 3, "H": 5, "W": 5, "C": 72, "K": 80} | ({"G": 2} if text is GROUPS else {})
    assert not _reads_lines(text, sizes)
    assert judge(text, sizes, 0, "sm90a") == []


def _reads_lines(text: str, sizes: dict[str, int]) -> bool:
    """Whether positions are innermost in what the kernel reads."""
    chosen = plan(text, sizes, "sm90a").plan
    assert isinstance(chosen, ConvolutionPlan)
    how = wgrad_access(chosen.problem)
    assert isinstance(how, WgradAccess)
    return how.k_major


def test_channels_are_innermost_in_copies_where_lines_would_be_padding_for_the_most() -> None:
    assert not _reads_lines(HALF, {"N": 64, "H": 5, "W": 5, "C": 448, "K": 2080})
    assert _reads_lines(HALF, {"N": 64, "H": 7, "W": 7, "C": 144, "K": 72})
    assert _reads_lines(HALF, {"N": 64, "H": 8, "W": 8, "C": 448, "K": 2080})


LINES = """kernel k(x: bf16[N, C, H=7, W=5], w: bf16[K, C]) -> bf16[N, K, H=7, W=5] {
  return relu(dot[C](x, w))
  schedule sm90a { warps cooperative }
}"""


@emulated
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(LINES, id="layer"),
        pytest.param(LINES.replace("(x, w)", "(w, x)"), id="weights first"),
        pytest.param(LINES.replace("bf16", "f32").replace("(x, w)", "(tf32(x), tf32(w))"), id="tf32"),
        pytest.param(LINES.replace("w: bf16[K, C]", "w: bf16[C, K]"), id="gradient of the input"),
    ],
)
def test_layers_of_ragged_lines_compute_their_program(text: str) -> None:
    chosen = plan(text, sizes := {"N": 3, "C": 72, "K": 80}, "sm90a").plan
    assert isinstance(chosen, ConvolutionPlan) and isinstance(chosen.schedule, Im2colSchedule)
    assert judge(text, sizes, 0, "sm90a") == []


def test_a_layer_of_ragged_lines_is_planned_again_by_its_own_schedule() -> None:
    first = plan(LINES, sizes := {"N": 3, "C": 72, "K": 80}, "sm90a")
    again = plan(LINES.replace("warps cooperative", show(first.request)), sizes, "sm90a")
    assert (again.plan, again.launch) == (first.plan, first.launch)


@pytest.mark.parametrize(
    ("lines", "images", "family"),
    [
        pytest.param("H=7, W=7", 32, ConvolutionPlan, id="many odd lines"),
        pytest.param("H=7, W=7", 1, ConvolutionPlan, id="few odd lines"),
        pytest.param("H=7, W=6", 1, GemmPlan, id="few even lines"),
        pytest.param("H=8, W=8", 32, GemmPlan, id="whole lines"),
        pytest.param("H, W", 32, GemmPlan, id="lines that a call brings"),
    ],
)
def test_layers_of_ragged_lines_are_copied_where_that_is_cheaper(
    lines: str, images: int, family: type[ConvolutionPlan] | type[GemmPlan]
) -> None:
    text = LINES.replace("H=7, W=5", lines).replace("  schedule sm90a { warps cooperative }\n", "")
    free = {"H": 7, "W": 7} if lines == "H, W" else {}
    sizes = {"N": images, "C": 512, "K": 2048 if images > 1 else 160, **free}
    assert isinstance(plan(text, sizes, "sm90a").plan, family)


def test_a_launch_with_lines_that_tma_does_not_read_is_refused() -> None:
    free = plan(HALF, {"N": 2, "H": 8, "W": 16, "C": 64, "K": 64}, "sm90a")
    with pytest.raises(RuntimeError, match="the entry returned 1"):
        judge(
            HALF,
            {"N": 2, "H": 3, "W": 3, "C": 64, "K": 64},
            0,
            "sm90a",
            lambda _: replace(free, sizes=(2, 64, 3, 3, 64)),
        )


@pytest.mark.parametrize(
    "schedule", ["warps multistage", "warps multistage  tile 128x64x32  split_k 4", "stages 3"]
)
def test_what_a_schedule_fixes_of_the_multistage_kernel_it_has(schedule: str) -> None:
    text = HALF.replace("warps cooperative", schedule)
    assert isinstance(plan(text, {"N": 8, "H": 14, "W": 14, "C": 64, "K": 64}, "sm90a").plan, GemmPlan)


def test_sums_of_one_side_are_gemms() -> None:
    last = HALF.replace("N, C, H, W", "N, H, W, C").replace("N, K, H, W", "N, H, W, K")
    assert isinstance(plan(last, {"N": 8, "H": 14, "W": 14, "C": 64, "K": 64}, "sm90a").plan, GemmPlan)
    assert schedule_wgrad.ROW == 128


@pytest.mark.parametrize(
    ("sizes", "kernel"),
    [
        pytest.param({"N": 64, "H": 7, "W": 7, "C": 512, "K": 512}, ConvolutionPlan, id="many images"),
        pytest.param({"N": 16, "H": 56, "W": 56, "C": 96, "K": 384}, ConvolutionPlan, id="many positions"),
        pytest.param({"N": 1, "H": 8, "W": 8, "C": 64, "K": 64}, GemmPlan, id="few positions"),
    ],
)
def test_the_lower_price_decides(sizes: dict[str, int], kernel: type) -> None:
    text = HALF.replace("  schedule sm90a { warps cooperative }\n", "")
    planned = plan(text, sizes, "sm90a")
    assert isinstance(planned.plan, kernel)
    checked = frontend.read_text(text)
    pattern = frontend.pattern(checked, frontend.kernel(checked, "k"))
    for listed in (families.schedules, families.candidates):
        kernels = [
            k.plan for k in listed(pattern, planned.sizes, ARCHES["sm90a"], planned.device, PartialSchedule())
        ]
        assert isinstance(kernels[0], kernel)
        assert {type(k) for k in kernels} == {ConvolutionPlan, GemmPlan}
