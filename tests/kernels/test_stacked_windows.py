"""Transposed convolutions whose results between neighbours of the input are columns: on the host behind the emulator, and
what has no such columns."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import conv_transpose2d

from tests.emit import emulator
from tests.emit.harness import HOST_SHIM
from tests.kernels.convolution_emulated import call, judge, plan
from ucutlass.agent.compute_type_casts import in_compute_type
from ucutlass.diagnostics import ProgramError
from ucutlass.emit import emit
from ucutlass.ir.elements import TF32
from ucutlass.kernels.convolution.plan import ConvolutionPlan, ConvolutionProblem
from ucutlass.reference.rounding import cast

emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

IMAGES = """kernel k(x: f32[B, C, H, W], w: f32[C, F, R, S], b: f32[F], y: f32[B, F, P, Q]) -> f32[B, F, P=EXTENT, Q=2*W] {
  return relu(dot[C, R, S](x[2*H = P + 1 - R, 2*W = Q + 1 - S], w) + b) + y
  schedule sm90a { warps cooperative  math f16x3  fold yes  SCHEDULE }
}"""
VOLUMES = """kernel k(x: f32[B, C, D, H, W], w: f32[C, F, T=3, R=3, S=3], b: f32[F]) -> f32[B, F, O=2*D-1, P=2*H-1, Q=2*W-1] {
  return dot[C, T, R, S](x[2*D = O + 1 - T, 2*H = P + 1 - R, 2*W = Q + 1 - S], w) + b
  schedule sm90a { warps cooperative  math f16x3  fold yes  SCHEDULE }
}"""
MIRRORED = """kernel k(x: f32[B, C, L, H], w: f32[F, C, R=3, S=2]) -> f32[B, F, P=2*L+1, Q=4*H] {
  return where(index(P) < 3 + index(F), 1.0, 2.0) * dot[C, R, S](x[2*L = P + R - 2, 4*H = Q + S - 3], w)
  schedule sm90a { warps cooperative  math f16x3  fold yes  SCHEDULE }
}"""
LAST = """kernel k(x: f32[B, H, W, C], w: f32[F, R=3, S=3, C]) -> f32[B, P=2*H, Q=2*W, F] {
  return dot[C, R, S](x[2*H = P + 1 - R, 2*W = Q + 1 - S], w)
  schedule sm90a { warps cooperative  math f16x3  fold yes  SCHEDULE }
}"""


def _problem(text: str, sizes: Mapping[str, int]) -> ConvolutionProblem:
    chosen = plan(text, sizes, "sm90a").plan
    assert isinstance(chosen, ConvolutionPlan)
    return chosen.problem


@emulated
@pytest.mark.parametrize(
    ("text", "schedule", "sizes"),
    [
        pytest.param(
            IMAGES.replace("EXTENT", "2*H+1"),
            "",
            {"B": 2, "C": 20, "H": 4, "W": 5, "F": 20, "R": 4, "S": 3},
            id="pairs of results",
        ),
        pytest.param(
            IMAGES.replace("EXTENT", "2*H").replace("1 - R", "1 - 3*R"),
            "tile 64x128x64",
            {"B": 1, "C": 33, "H": 9, "W": 13, "F": 70, "R": 3, "S": 3},
            marks=pytest.mark.slow,
            id="phases beside columns",
        ),
        pytest.param(VOLUMES, "", {"B": 1, "C": 3, "D": 3, "H": 4, "W": 5, "F": 16}, id="odd extents"),
        pytest.param(
            VOLUMES,
            "tile 192x64x64",
            {"B": 1, "C": 18, "D": 4, "H": 5, "W": 6, "F": 6},
            marks=pytest.mark.slow,
            id="three warp groups",
        ),
        pytest.param(
            IMAGES.replace("EXTENT", "2*H+1").replace("Q=2*W", "Q=2*W+1"),
            "",
            {"B": 2, "C": 20, "H": 4, "W": 5, "F": 20, "R": 4, "S": 4},
            id="rows that begin before the first result",
        ),
        pytest.param(MIRRORED, "", {"B": 2, "C": 20, "L": 5, "H": 4, "F": 9}, id="mirrored, coordinates"),
    ],
)
def test_results_between_neighbours_are_columns(text: str, schedule: str, sizes: Mapping[str, int]) -> None:
    written = text.replace("SCHEDULE", schedule)
    assert _problem(written, sizes).stacked > 1
    assert judge(written, sizes, arch="sm90a") == []


@emulated
@pytest.mark.parametrize("math", ["f16x3", "f16"])
def test_what_is_not_finite_reaches_the_results_that_read_it_alone(math: str, tmp_path: Path) -> None:
    text = IMAGES.replace("EXTENT", "2*H").replace("SCHEDULE", "")
    if math == "f16":
        text = in_compute_type(text, "k", "tf32").replace("math f16x3", "math f16")
    planned = plan(text, {"B": 1, "C": 17, "H": 5, "W": 6, "F": 4, "R": 3, "S": 3}, "sm90a")
    source = emit(planned.plan, "")
    shimmed = replace(source, text=f"#include <cmath>\n{HOST_SHIM}{source.text}")
    entry = emulator.build(shimmed, Path(tempfile.mkdtemp(dir=tmp_path)))
    torch.manual_seed(1)
    x, w, b, y = torch.randn(1, 17, 5, 6), torch.randn(17, 4, 3, 3), torch.randn(4), torch.randn(1, 4, 10, 12)
    x[0, 3, 1, 1], x[0, 5, 4, 5], x[0, 4, 3, 1] = torch.inf, -torch.inf, torch.nan
    result = torch.empty(1, 4, 10, 12)
    assert call(entry, [x, w, b, y, result], planned.sizes, [], planned.launch) == 0
    if math == "f16":
        x, w = (cast(t.double(), TF32) for t in (x, w))
    exact = conv_transpose2d(x.double(), w.double(), b.double(), 2, 1, 1).relu() + y
    assert torch.equal(result.isnan(), exact.isnan()) and torch.equal(result.isinf(), exact.isinf())
    torch.testing.assert_close(result.double(), exact, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_neighbouring_results_are_stored_together_where_the_innermost_window_has_remainders() -> None:
    sizes = {"B": 2, "C": 20, "H": 4, "W": 5, "F": 20, "R": 3, "S": 3}
    text = IMAGES.replace("EXTENT", "2*H").replace("SCHEDULE", "")
    assert "plan.pairs && inside" in emit(plan(text, sizes, "sm90a").plan, "").text
    rows = text.replace("2*W = Q", "W = Q").replace("Q=2*W", "Q=W")
    assert "together = false" in emit(plan(rows, sizes, "sm90a").plan, "").text


def test_windows_are_as_short_as_any_place_of_the_rows_makes_them() -> None:
    sizes = {"B": 2, "C": 64, "H": 40, "W": 50, "F": 64}
    text = IMAGES.replace("EXTENT", "2*H").replace("SCHEDULE", "")
    four = _problem(text, sizes | {"R": 4, "S": 4}).b.stack
    assert [s.shift for s in four] == [1] * len(four)
    assert "odd ? given" in emit(plan(text, sizes | {"R": 4, "S": 4}, "sm90a").plan, "").text
    three = _problem(text, sizes | {"R": 3, "S": 3}).b.stack
    assert [s.shift for s in three] == [0] * len(three)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (LAST, "neighbouring positions adjacent"),
        (LAST.replace("2*W = Q + 1 - S", "2*W = Q + 1 - 3*S"), "no neighbours"),
        (LAST.replace("2*W = Q + 1 - S", "3*W = Q + 1 - S").replace("Q=2*W", "Q=3*W"), "adjacent"),
        (LAST.replace("math f16x3", "math tf32x3"), "f16 passes"),
    ],
)
def test_what_is_not_stacked_says_why(text: str, reason: str) -> None:
    with pytest.raises(ProgramError, match=reason):
        plan(text.replace("SCHEDULE", ""), {"B": 2, "H": 6, "W": 7, "C": 32, "F": 20}, "sm90a")
