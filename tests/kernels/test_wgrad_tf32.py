"""Gradients of weights that TMA gathers and mma.sync multiplies in TF32: on the host behind the emulator."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from tests.kernels.convolution_emulated import judge, plan
from ucutlass.kernels.convolution import schedule_wgrad
from ucutlass.kernels.convolution.plan import ConvolutionPlan, Im2colSchedule, WgradSchedule

emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

TEXT = """kernel k(x: f32[N, H, W, C], y: f32[N, P=(H+1)//2, Q=(W+1)//2, K]) -> f32[RESULT] {
  return dot[N, P, Q](tf32(x[H = 2*P + R - 1, W = 2*Q + S - 1]), tf32(y))
  schedule sm90a { warps cooperative }
}"""
CHOSEN = TEXT.replace("  schedule sm90a { warps cooperative }\n", "").replace("RESULT", "K, R=3, S=3, C")
TAPS_LAST, TAPS_FIRST = "K, C, R=3, S=3", "R=3, S=3, C, K"


@emulated
@pytest.mark.parametrize(
    ("result", "sizes", "tile", "splits"),
    [
        pytest.param(
            "K, R=3, S=3, C", {"N": 2, "H": 17, "W": 15, "C": 40, "K": 72}, (64, 64, 1), 3, id="parts"
        ),
        pytest.param(
            "K, R=3, S=3, C", {"N": 2, "H": 9, "W": 9, "C": 3, "K": 24}, (64, 64, 1), 1, id="folded"
        ),
        pytest.param(
            TAPS_FIRST, {"N": 1, "H": 9, "W": 9, "C": 36, "K": 132}, (128, 128, 2), 1, id="columns adjacent"
        ),
        pytest.param(TAPS_LAST, {"N": 1, "H": 9, "W": 7, "C": 64, "K": 64}, (128, 64, 1), 1, id="rows apart"),
    ],
)
def test_gradients_compute_their_program(
    result: str,
    sizes: dict[str, int],
    tile: tuple[int, int, int],
    splits: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schedule_wgrad, "TF32_TILES", (tile,))
    text = TEXT.replace("RESULT", result)
    planned = plan(text, sizes, "sm90a")
    assert isinstance(planned.plan, ConvolutionPlan) and isinstance(planned.plan.schedule, WgradSchedule)
    assert planned.plan.schedule.tile == (*tile[:2], 32)
    wrong = judge(text, sizes, 0, "sm90a", lambda p: replace(p, launch=(*p.launch[:2], splits)))
    assert wrong == []


@pytest.mark.parametrize(
    ("sizes", "schedule"),
    [
        pytest.param({"N": 32, "H": 56, "W": 56, "C": 64, "K": 64}, WgradSchedule, id="many positions"),
        pytest.param({"N": 32, "H": 224, "W": 224, "C": 3, "K": 24}, WgradSchedule, id="few channels"),
        pytest.param({"N": 32, "H": 14, "W": 14, "C": 512, "K": 512}, Im2colSchedule, id="few positions"),
    ],
)
def test_whichever_is_estimated_faster_is_chosen(sizes: dict[str, int], schedule: type) -> None:
    chosen = plan(CHOSEN, sizes, "sm90a").plan
    assert isinstance(chosen, ConvolutionPlan) and isinstance(chosen.schedule, schedule)
