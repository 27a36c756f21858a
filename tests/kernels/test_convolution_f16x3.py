"""f32 convolutions by wgmma in three f16 passes, on the host behind the emulator."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv1d

from tests.emit import emulator
from tests.emit.harness import HOST_SHIM
from tests.kernels.convolution_emulated import call, judge, plan
from ucutlass.diagnostics import ProgramError
from ucutlass.emit import emit
from ucutlass.kernels.convolution.plan import ConvolutionPlan, Im2colSchedule
from ucutlass.kernels.planned import Planned

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

FORWARD = """kernel k(x: f32[B, C, H, W], w: f32[F, C, R=3, S=3], b: f32[F]) -> f32[B, F, P=H, Q=W] {
  return relu(dot[C, R, S](x[H = P + R - 1, W = Q + S - 1], w) + b)
  schedule sm90a { warps cooperative  math f16x3  SCHEDULE }
}"""
TRANSPOSED = """kernel k(x: f32[B, C, H, W], w: f32[C, F, R=4, S=4], b: f32[F]) -> f32[B, F, P=2*H, Q=2*W] {
  return dot[C, R, S](x[2*H = P + 1 - R, 2*W = Q + 1 - S], w) + b
  schedule sm90a { math f16x3 }
}"""
STRIDED = """kernel k(x: f32[N, H, W, C], w: f32[K, R=3, S=3, C]) -> f32[N, P=(H+1)//2, Q=(W+1)//2, K] {
  return dot[R, S, C](x[H = 2*P + R - 1, W = 2*Q + S - 1], w)
  schedule sm90a { math f16x3  SCHEDULE }
}"""
LINE = """kernel k(x: f32[B, L, C], w: f32[F, R=3, C]) -> f32[B, P=L-2, F] {
  return dot[R, C](x[L = P + R], w)
  schedule sm90a { math f16x3 }
}"""
SMALLEST = """kernel k(x: f32[B, C, H, W], w: f32[K, C, R=3, S=3]) -> f32[B, P=H, Q=W] {
  return min[K](dot[C, R, S](x[H = P + R - 1, W = Q + S - 1], w))
  schedule sm90a { math f16x3 }
}"""
GROUPED = """kernel k(x: f32[B, G, C, H, W], w: f32[G, F, C, R=3, S=3]) -> f32[B, G, F, P=H-2, Q=W-2] {
  return dot[C, R, S](x[H = P + R, W = Q + S], w)
  schedule sm90a { math f16x3 }
}"""


def _forward(schedule: str) -> str:
    return FORWARD.replace("SCHEDULE", schedule)


def _strided(schedule: str) -> str:
    return STRIDED.replace("SCHEDULE", schedule)


@pytest.mark.parametrize(
    ("text", "sizes", "tile", "part"),
    [
        (_forward(""), {"B": 1, "C": 40, "H": 8, "W": 7, "F": 20}, (64, 64, 64), 64),
        pytest.param(
            _forward("tile 128x128x64"),
            {"B": 1, "C": 70, "H": 16, "W": 13, "F": 130},
            (128, 128, 64),
            32,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            _forward("tile 64x128x64"),
            {"B": 1, "C": 64, "H": 9, "W": 13, "F": 72},
            (64, 128, 64),
            64,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            _forward("tile 192x64x64"),
            {"B": 1, "C": 64, "H": 16, "W": 13, "F": 60},
            (192, 64, 64),
            64,
            marks=pytest.mark.slow,
        ),
        (_strided(""), {"N": 2, "H": 9, "W": 7, "C": 24, "K": 24}, (64, 64, 64), 32),
        (_strided("fold yes"), {"N": 2, "H": 9, "W": 7, "C": 4, "K": 24}, (64, 64, 64), 16),
        pytest.param(
            _strided("fold no"),
            {"N": 2, "H": 9, "W": 7, "C": 3, "K": 24},
            (64, 64, 64),
            16,
            marks=pytest.mark.slow,
        ),
        (TRANSPOSED, {"B": 2, "C": 24, "H": 6, "W": 7, "F": 20}, (64, 64, 64), 32),
        pytest.param(
            GROUPED,
            {"B": 2, "G": 3, "C": 16, "H": 7, "W": 8, "F": 20},
            (64, 64, 64),
            16,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            _forward("split_k 2"),
            {"B": 1, "C": 70, "H": 8, "W": 6, "F": 20},
            (64, 64, 64),
            32,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            SMALLEST, {"B": 2, "C": 16, "H": 6, "W": 7, "K": 40}, (64, 64, 64), 16, marks=pytest.mark.slow
        ),
    ],
    ids=[
        "a transposed copy",
        "two warp groups",
        "one warp group and its producer's",
        "three warp groups",
        "as it lies",
        "folded taps",
        "few channels",
        "transposed",
        "grouped",
        "a sum shared by a cluster",
        "rows reduced",
    ],
)
def test_three_passes_are_right(
    text: str, sizes: Mapping[str, int], tile: tuple[int, int, int], part: int
) -> None:
    planned = plan(text, sizes, "sm90a")
    kernel = planned.plan
    assert isinstance(kernel, ConvolutionPlan) and isinstance(kernel.schedule, Im2colSchedule)
    assert planned.request.math == kernel.problem.passes == "f16x3"
    assert (kernel.schedule.tile, kernel.schedule.part) == (tile, part)
    assert judge(text, sizes, arch="sm90a") == []


@pytest.fixture(scope="module")
def line() -> tuple[Any, Planned]:
    """The entry of a convolution of lines, and its plan."""
    planned = plan(LINE, {"B": 8, "L": 12, "C": 16, "F": 16}, "sm90a")
    source = emit(planned.plan, "")
    folder = Path(tempfile.mkdtemp(prefix="convolution-"))
    try:
        return emulator.build(
            replace(source, text=f"#include <cmath>\n{HOST_SHIM}{source.text}"), folder
        ), planned
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _convolved(line: tuple[Any, Planned], x: Tensor, w: Tensor) -> Tensor:
    entry, planned = line
    y = torch.full((8, 10, 16), torch.nan)
    assert call(entry, [x, w, y], planned.sizes, [], planned.launch) == 0
    return y


def _exact(x: Tensor, w: Tensor) -> Tensor:
    return conv1d(x.double().permute(0, 2, 1), w.double().permute(0, 2, 1)).permute(0, 2, 1)


def _drawn(x_scale: float, w_scale: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(8, 12, 16, generator=generator) * x_scale,
        torch.randn(16, 3, 16, generator=generator) * w_scale,
    )


@pytest.mark.parametrize(
    ("x_scale", "w_scale"),
    [(1.0, 1.0), (1e30, 1e-30), (1e-30, 1e30), (1e18, 1e18), (1e-19, 1e-18), (1e-40, 1.0), (0.0, 1.0)],
)
def test_any_magnitude_keeps_its_bits(line: tuple[Any, Planned], x_scale: float, w_scale: float) -> None:
    x, w = _drawn(x_scale, w_scale)
    exact, sums = _exact(x, w), _exact(x.abs(), w.abs())
    error = (_convolved(line, x, w).double() - exact).abs()
    assert (error <= 2.0**-20 * sums + 2.0**-148).all()


@pytest.mark.parametrize("wide", ["neither", "x, by one element", "x, by an image", "w", "both"])
def test_elements_of_any_range_keep_their_bits(line: tuple[Any, Planned], wide: str) -> None:
    """Operands whose chunks span more than f16 parts do are multiplied by FFMA."""
    x, w = _drawn(1e-3, 1e-3)
    if wide == "neither":
        x *= 2.0 ** torch.linspace(-21, 0, x.numel()).view(x.shape)
    elif wide == "x, by one element":
        x[0, 0, 0] = 1e30
    elif wide == "x, by an image":
        x[3] *= 1e-30
    if wide in ("w", "both"):
        w[5] *= 1e25
    if wide == "both":
        x[3] *= 1e-12
    x[2, 5], x[6, 3, 2], w[2, 1, 3] = 0.0, torch.inf, torch.nan
    exact, y = _exact(x, w), _convolved(line, x, w)
    finite = exact.isfinite()
    torch.testing.assert_close(y.isnan(), exact.isnan())
    assert torch.equal(y[exact.isinf()].double(), exact[exact.isinf()])
    error, sums = (y.double() - exact).abs(), _exact(x.abs(), w.abs())
    assert (error <= 2.0**-20 * sums)[finite].all()


def test_what_is_not_finite_stays_where_it_is(line: tuple[Any, Planned]) -> None:
    """Infinities and NaN of any payload in each operand beside the other's zeros, infinities, and numbers that have
    no high part."""
    x, w = _drawn(1.0, 1.0)
    payload = torch.tensor([0x7F800001, -1], dtype=torch.int32).view(torch.float32)
    x[0, 4, 1], x[1, 4, 1], x[2, 4, 1], x[3, 4, 1] = torch.inf, -torch.inf, payload[0], payload[1]
    x[4, :, 2], x[5, :, :], x[6, :, :] = 1.0, x[5] * 2.0**-60, 0.0
    w[0, 1, 1], w[1, 1, 1], w[2, 1, 1], w[3, 1, 1] = torch.inf, -torch.inf, payload[0], payload[1]
    w[4, :, 2], w[5, :, :], w[6, :, :], w[7, 0, 1] = 1.0, w[5] * 2.0**-60, 0.0, torch.inf
    y, expected = _convolved(line, x, w), _exact(x, w).float()
    torch.testing.assert_close(y.isnan(), expected.isnan())
    infinite = expected.isinf()
    assert infinite.any() and torch.equal(y[infinite], expected[infinite])


@pytest.mark.parametrize("schedule", ["warps cooperative  math simt", "warps multistage  math f16x3"])
def test_math_of_another_kernel_is_refused(schedule: str) -> None:
    text = _forward("").replace("warps cooperative  math f16x3", schedule)
    with pytest.raises(ProgramError):
        plan(text, {"B": 2, "C": 64, "H": 16, "W": 16, "F": 64}, "sm90a")


def test_f16_passes_are_of_f32() -> None:
    with pytest.raises(ProgramError, match="of f32"):
        plan(LINE.replace("f32", "bf16"), {"B": 8, "L": 12, "C": 16, "F": 16}, "sm90a")


@pytest.mark.parametrize(
    ("schedule", "sizes", "math"),
    [
        ("", {"B": 8, "C": 64, "H": 112, "W": 112, "F": 64}, "f16x3"),
        ("tile 128x64x32", {"B": 8, "C": 64, "H": 112, "W": 112, "F": 64}, "tf32x3"),
        ("math tf32x3", {"B": 8, "C": 64, "H": 112, "W": 112, "F": 64}, "tf32x3"),
        ("", {"B": 8, "C": 8, "H": 112, "W": 112, "F": 64}, "tf32x3"),
        ("", {"B": 1, "C": 32, "H": 14, "W": 14, "F": 32}, "tf32x3"),
    ],
    ids=["many channels", "a tile of the other passes", "by its word", "few channels", "launches cost more"],
)
def test_the_planner_takes_the_passes_of_the_lower_price(
    schedule: str, sizes: Mapping[str, int], math: str
) -> None:
    text = _forward(schedule).replace("math f16x3", "")
    assert plan(text, sizes, "sm90a").request.math == math
