"""Gradients of depthwise convolutions' weights, whose threads share the sum over positions: on the host behind the
emulator, and which kernel the planner takes."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from tests.kernels.convolution_emulated import judge, plan
from ucutlass.diagnostics import ProgramError
from ucutlass.kernels.convolution.plan import ConvolutionPlan, DepthwiseWgradSchedule, DirectSchedule
from ucutlass.kernels.convolution.plan_depthwise_wgrad import TILE_BYTES, tile_bytes
from ucutlass.kernels.planned import Planned

emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

FIRST = """kernel k(x: E[N, C, H, W], y: E[N, C, P, Q]) -> E[C, R=3, S=3] {
  return dot[N, P, Q](x[H = P + R - 1, W = Q + S - 1], y) SCHEDULE
}"""
LAST = FIRST.replace("N, C, H, W", "N, H, W, C").replace("N, C, P, Q", "N, P, Q, C")
STRIDED = LAST.replace("P + R - 1, W = Q + S", "2*P + R - 1, W = 2*Q + S")
DILATED = FIRST.replace("R=3, S=3", "R=5, S=3").replace(
    "P + R - 1, W = Q + S - 1", "P + 2*R - 4, W = Q + S - 1"
)
ALONE = FIRST.replace("[N, C, H", "[C, H").replace("[N, C, P", "[C, P").replace("dot[N, P", "dot[P")
LONG = LAST.replace("R=3, S=3", "S=11").replace("P + R - 1, W = Q + S - 1", "P, W = Q + S - 5")
TALL = FIRST.replace("R=3, S=3", "R=11").replace("P + R - 1, W = Q + S - 1", "P + R - 5, W = Q")
LINES = """kernel k(x: E[N, W, C], y: E[N, Q, C]) -> E[C, S=4] {
  return dot[N, Q](x[W = Q + S - 3], y) SCHEDULE
}"""
WIDE = FIRST.replace("R=3, S=3", "R=9, S=9").replace("P + R - 1, W = Q + S - 1", "P + R - 4, W = Q + S - 4")
FUSED = LAST.replace("y: E[N", "d: f32[C, R=3, S=3], y: E[N").replace("y) S", "y) * 0.5 + d S")


def _planned(text: str, element: str, schedule: str, sizes: dict[str, int]) -> tuple[str, object]:
    fields = f"schedule sm90a {{ {schedule} }}" if schedule else ""
    written = text.replace("E[", f"{element}[").replace("SCHEDULE", fields)
    chosen = plan(written, sizes, "sm90a").plan
    assert isinstance(chosen, ConvolutionPlan)
    return written, chosen.schedule


@emulated
@pytest.mark.parametrize(
    ("text", "element", "schedule", "sizes", "width"),
    [
        pytest.param(FIRST, "f32", "", {"N": 2, "C": 3, "H": 13, "W": 16}, 1, id="channels first"),
        pytest.param(FIRST, "bf16", "rows 2 threads 64", {"N": 3, "C": 2, "H": 11, "W": 9}, 1, id="odd"),
        pytest.param(LAST, "bf16", "", {"N": 2, "C": 12, "H": 13, "W": 12}, 4, id="channels last"),
        pytest.param(LAST, "f32", "vector 2 rows 3", {"N": 2, "C": 8, "H": 14, "W": 11}, 2, id="pairs"),
        pytest.param(LAST, "f16", "vector 8 threads 32", {"N": 2, "C": 16, "H": 13, "W": 11}, 8, id="eight"),
        pytest.param(STRIDED, "bf16", "", {"N": 5, "C": 8, "H": 16, "W": 15}, 4, id="strided"),
        pytest.param(DILATED, "f32", "", {"N": 2, "C": 2, "H": 14, "W": 13}, 1, id="dilated"),
        pytest.param(ALONE, "f32", "", {"C": 5, "H": 17, "W": 19}, 1, id="one image"),
        pytest.param(LONG, "bf16", "", {"N": 3, "C": 12, "H": 5, "W": 13}, 4, id="along lines alone"),
        pytest.param(TALL, "f32", "", {"N": 2, "C": 3, "H": 14, "W": 9}, 1, id="across lines alone"),
        pytest.param(LINES, "f16", "", {"N": 3, "C": 8, "W": 35}, 4, id="lines of signals"),
        pytest.param(WIDE, "f32", "", {"N": 2, "C": 2, "H": 10, "W": 9}, 1, id="81 taps"),
        pytest.param(FUSED, "bf16", "", {"N": 2, "C": 8, "H": 13, "W": 12}, 4, id="fused"),
    ],
)
def test_gradients_compute_their_program(
    text: str, element: str, schedule: str, sizes: dict[str, int], width: int
) -> None:
    step = 2 if text is STRIDED else 1
    sizes = {**sizes, "Q": sizes["W"] // step}
    if "H" in sizes:
        sizes["P"] = sizes["H"] // step
    written, chosen = _planned(text, element, schedule, sizes)
    assert isinstance(chosen, DepthwiseWgradSchedule) and chosen.width == width
    assert judge(written, sizes, arch="sm90a") == []


LARGE = LAST.replace("R=3, S=3", "R=5, S=5").replace("P + R - 1, W = Q + S - 1", "P + R - 2, W = Q + S - 2")
LARGE_STEPS = LARGE.replace("P + R - 2, W = Q + S", "2*P + R - 2, W = 2*Q + S")
LARGE_DILATED = LARGE.replace("P + R - 2, W = Q + S - 2", "P + 2*R - 4, W = Q + 3*S - 6")
LARGE_FUSED = LARGE.replace("y: E[N", "d: f32[C, R=5, S=5], y: E[N").replace("y) S", "y) * 0.5 + d S")


@emulated
@pytest.mark.parametrize(
    ("text", "element", "sizes", "tile"),
    [
        pytest.param(LARGE, "f16", {"N": 2, "C": 40, "H": 9, "W": 11}, (4, 5), id="beyond all axes"),
        pytest.param(LARGE_STEPS, "bf16", {"N": 2, "C": 8, "H": 15, "W": 17}, (2, 3), id="strided"),
        pytest.param(LARGE_DILATED, "f16", {"N": 2, "C": 6, "H": 11, "W": 10}, (3, 4), id="dilated"),
        pytest.param(LARGE_FUSED, "bf16", {"N": 2, "C": 12, "H": 7, "W": 6}, (7, 6), id="an image"),
    ],
)
def test_tiles_in_shared_memory_compute_their_program(
    text: str, element: str, sizes: dict[str, int], tile: tuple[int, int]
) -> None:
    step = 2 if text is LARGE_STEPS else 1
    sizes = {**sizes, "P": -(-sizes["H"] // step), "Q": -(-sizes["W"] // step)}
    written, chosen = _planned(text, element, "", sizes)
    assert isinstance(chosen, DepthwiseWgradSchedule)
    schedule = replace(chosen, rows=tile[0], columns=tile[1])

    def tiled(planned: Planned) -> Planned:
        assert isinstance(planned.plan, ConvolutionPlan)
        return replace(planned, plan=replace(planned.plan, schedule=schedule))

    assert judge(written, sizes, 0, "sm90a", tiled) == []


@pytest.mark.parametrize(
    ("text", "element", "tiled"),
    [
        pytest.param(LARGE, "bf16", True, id="many taps"),
        pytest.param(LARGE, "f32", False, id="many taps of f32"),
        pytest.param(LAST, "bf16", False, id="few taps"),
        pytest.param(WIDE, "bf16", False, id="channels first"),
    ],
)
def test_many_taps_of_16_bits_share_tiles_that_fit(text: str, element: str, tiled: bool) -> None:
    sizes = {"N": 16, "C": 64, "H": 28, "W": 28, "P": 28, "Q": 28}
    written, chosen = _planned(text, element, "", sizes)
    assert isinstance(chosen, DepthwiseWgradSchedule) and (chosen.columns > 0) is tiled
    made = plan(written, sizes, "sm90a").plan
    assert isinstance(made, ConvolutionPlan)
    assert tile_bytes(made.problem, chosen) <= TILE_BYTES


def test_fixed_rows_have_a_tile_of_their_own() -> None:
    sizes = {"N": 16, "C": 64, "H": 28, "W": 28, "P": 28, "Q": 28}
    for rows in (1, 8):
        _, chosen = _planned(LARGE, "bf16", f"rows {rows}", sizes)
        assert isinstance(chosen, DepthwiseWgradSchedule) and chosen.rows == rows and chosen.columns > 0


def test_few_products_of_a_result_have_one_thread() -> None:
    _, chosen = _planned(FIRST, "f32", "", {"N": 1, "C": 64, "H": 5, "W": 5, "P": 5, "Q": 5})
    assert isinstance(chosen, DirectSchedule)


def test_windows_of_fewer_taps_than_results_are_no_gradient() -> None:
    forward = """kernel k(x: f32[H, W, C], w: f32[R, S, C]) -> f32[P=7, Q=7, C] {
  return dot[R, S](x[H = P + R - 3, W = Q + S - 3], w)
}"""
    chosen = plan(forward, {"H": 7, "W": 7, "C": 64, "R": 6, "S": 6}, "sm90a").plan
    assert isinstance(chosen, ConvolutionPlan) and isinstance(chosen.schedule, DirectSchedule)


def test_more_channels_than_registers_hold_are_refused() -> None:
    wide = LAST.replace("R=3, S=3", "R=7, S=7").replace(
        "P + R - 1, W = Q + S - 1", "P + R - 3, W = Q + S - 3"
    )
    sizes = {"N": 2, "C": 64, "H": 14, "W": 14, "P": 14, "Q": 14}
    _, chosen = _planned(wide, "bf16", "", sizes)
    assert isinstance(chosen, DepthwiseWgradSchedule) and chosen.width == 2
    with pytest.raises(ProgramError, match="4 channels of 49 taps"):
        _planned(wide, "bf16", "vector 4", sizes)
