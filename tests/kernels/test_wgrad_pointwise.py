"""Gradients of 1x1 layers' weights whose positions are innermost, one image at a time: on the host behind the emulator."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from tests.kernels.convolution_emulated import judge, plan
from ucutlass import frontend
from ucutlass.ir.hardware import ARCHES
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels import families
from ucutlass.kernels.convolution import schedule_wgrad
from ucutlass.kernels.convolution.plan import ConvolutionPlan, WgradSchedule
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
    ("text", "sizes", "splits", "copied"),
    [
        pytest.param(HALF, {"N": 3, "H": 7, "W": 7, "C": 72, "K": 80}, 3, True, id="odd lines"),
        pytest.param(ADDED, {"N": 2, "H": 8, "W": 16, "C": 137, "K": 70}, 1, False, id="epilogue"),
        pytest.param(TF32, {"N": 2, "H": 10, "W": 10, "C": 68, "K": 130}, 2, False, id="tf32"),
        pytest.param(GROUPS, {"N": 3, "G": 3, "H": 4, "W": 16, "C": 48, "K": 40}, 2, False, id="groups"),
    ],
)
def test_gradients_compute_their_program(text: str, sizes: dict[str, int], splits: int, copied: bool) -> None:
    assert _kernel(text, sizes)[1] == copied
    assert judge(text, sizes, 0, "sm90a", lambda p: replace(p, launch=(*p.launch[:2], splits))) == []


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
        pytest.param({"N": 1, "H": 7, "W": 7, "C": 512, "K": 512}, GemmPlan, id="copies cost more"),
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
