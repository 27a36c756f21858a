"""Convolutions of few channels whose taps of a row lie beside the channels, gathered by TMA: on the host behind the
emulator, and what is not folded."""

from __future__ import annotations

import shutil

import pytest

from tests.kernels.convolution_emulated import judge, plan
from ucutlass.diagnostics import ProgramError
from ucutlass.kernels.convolution.plan import ConvolutionPlan, Im2colSchedule

emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

FIRST = """kernel k(x: E[N, C, H, W], w: E[K, C, R=3, S=3], b: f32[K]) -> E[N, K, P=H, Q=W] {
  return relu(dot[C, R, S](x[H = P + R - 1, W = Q + S - 1], w) + b)
  schedule sm90a { fold yes  SCHEDULE }
}"""
STRIDED = """kernel k(x: E[N, C, H, W], w: E[K, C, R=7, S=7], b: f32[K]) -> E[N, P=(H+1)//2, Q=(W+1)//2, K] {
  return dot[C, R, S](x[H = 2*P + R - 3, W = 2*Q + S - 3], w) + b
  schedule sm90a { fold yes  SCHEDULE }
}"""
LAST = """kernel k(x: E[N, H, W, C], w: E[K, R=4, S=4, C]) -> E[N, P=H//4, Q=W//4, K] {
  return dot[C, R, S](x[H = 4*P + R, W = 4*Q + S], w)
  schedule sm90a { fold yes  SCHEDULE }
}"""
CUBES = """kernel k(x: E[N, C, D, H, W], w: E[K, C, T=2, R=3, S=3], b: f32[K]) -> E[N, K, O=D-1, P=H-2, Q=W-2] {
  return tanh(dot[C, T, R, S](x[D = O + T, H = P + R, W = Q + S], w) + b)
  schedule sm90a { fold yes  SCHEDULE }
}"""
DILATED = FIRST.replace("W = Q + S - 1", "W = Q + 2*S - 2")


def _planned(text: str, element: str, schedule: str, sizes: dict[str, int]) -> tuple[str, Im2colSchedule]:
    written = text.replace("E[", f"{element}[").replace("SCHEDULE", schedule)
    chosen = plan(written, sizes, "sm90a").plan
    assert isinstance(chosen, ConvolutionPlan) and isinstance(chosen.schedule, Im2colSchedule)
    return written, chosen.schedule


@emulated
@pytest.mark.parametrize(
    ("text", "element", "sizes", "part"),
    [
        pytest.param(FIRST, "f32", {"N": 2, "C": 3, "H": 9, "W": 13, "K": 20}, 16, id="f32"),
        pytest.param(STRIDED, "bf16", {"N": 2, "C": 3, "H": 17, "W": 15, "K": 24}, 32, id="strided bf16"),
        pytest.param(LAST, "f16", {"N": 3, "H": 16, "W": 12, "C": 3, "K": 16}, 16, id="patches"),
        pytest.param(CUBES, "f32", {"N": 2, "C": 3, "D": 4, "H": 6, "W": 7, "K": 16}, 16, id="cubes"),
    ],
)
def test_folded_windows_compute_their_program(
    text: str, element: str, sizes: dict[str, int], part: int
) -> None:
    written, chosen = _planned(text, element, "", sizes)
    assert chosen.fold and chosen.part == part
    assert judge(written, sizes, arch="sm90a") == []


@emulated
def test_products_of_tf32_are_rounded() -> None:
    text = FIRST.replace("E[", "f32[").replace("(x[", "(tf32(x[").replace("], w)", "]), tf32(w))")
    sizes = {"N": 1, "C": 4, "H": 5, "W": 6, "K": 16}
    assert judge(text.replace("SCHEDULE", ""), sizes, arch="sm90a") == []


@pytest.mark.parametrize(
    ("text", "element", "sizes", "reason"),
    [
        (DILATED, "f32", {"N": 1, "C": 3, "H": 9, "W": 13, "K": 16}, "no taps side by side"),
        (FIRST, "f32", {"N": 1, "C": 30, "H": 9, "W": 13, "K": 16}, "30 channels"),
    ],
)
def test_what_is_not_folded_says_why(text: str, element: str, sizes: dict[str, int], reason: str) -> None:
    with pytest.raises(ProgramError, match=reason):
        _planned(text, element, "", sizes)
