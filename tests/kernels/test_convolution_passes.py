"""Convolutions of f32 by wgmma in three passes of TF32 or of f16, and of TF32 in one of f16, on the host behind the
emulator."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv1d

from tests.emit import emulator
from tests.emit.harness import HOST_SHIM
from tests.kernels.convolution_emulated import call, judge, plan
from ucutlass.agent.compute_type_casts import in_compute_type
from ucutlass.diagnostics import ProgramError
from ucutlass.emit import emit
from ucutlass.emit.convolution import im2col as im2col_text
from ucutlass.ir.elements import TF32
from ucutlass.kernels.convolution.cost_f32 import RUN_PRICES
from ucutlass.kernels.convolution.plan import ConvolutionPlan, Im2colSchedule, RegisterTileSchedule
from ucutlass.kernels.convolution.plan_im2col import Im2col, im2col
from ucutlass.kernels.planned import Planned
from ucutlass.reference.rounding import round_float

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

Passes = Literal["tf32x3", "f16x3", "f16"]

FORWARD = """kernel k(x: f32[B, C, H, W], w: f32[F, C, R=3, S=3], b: f32[F]) -> f32[B, F, P=H, Q=W] {
  return relu(dot[C, R, S](x[H = P + R - 1, W = Q + S - 1], w) + b)
}"""
TWO = FORWARD.replace("b: f32[F])", "b: f32[F], c: f32[F])").replace("w) + b)", "w) + b) * c")
MASKED = FORWARD.replace("relu(", "where(index(P) > index(Q), ").replace("+ b)", "+ b, -0.5)")
TRANSPOSED = """kernel k(x: f32[B, C, H, W], w: f32[C, F, R=4, S=4], b: f32[F]) -> f32[B, F, P=2*H, Q=2*W] {
  return dot[C, R, S](x[2*H = P + 1 - R, 2*W = Q + 1 - S], w) + b
}"""
STRIDED = """kernel k(x: f32[N, H, W, C], w: f32[K, R=3, S=3, C]) -> f32[N, P=(H+1)//2, Q=(W+1)//2, K] {
  return dot[R, S, C](x[H = 2*P + R - 1, W = 2*Q + S - 1], w)
}"""
LINE = """kernel k(x: f32[B, L, C], w: f32[F, R=3, C]) -> f32[B, P=L-2, F] {
  return dot[R, C](x[L = P + R], w)
}"""
ACROSS = LINE.replace("f32[B, P=L-2, F]", "f32[B, F, P=L-2]")
FARTHER = """kernel k(x: f32[B, C, L], w: f32[F, C, R=5]) -> f32[B, F, P=L-12] {
  return dot[C, R](x[L = P + 3*R], w)
}"""
BACKWARD = """kernel k(x: f32[B, C, H, W], w: f32[C, F, R=3, S=5]) -> f32[B, F, P=H+2, Q=W+4] {
  return dot[C, R, S](x[H = P - R, W = Q - S], w)
}"""
DILATED = """kernel k(x: f32[B, C, D, H], w: f32[C, F, R=3, S=3]) -> f32[B, F, P=2*D+1, Q=2*H+1] {
  return dot[C, R, S](x[2*D = P + 1 - 2*R, 2*H = Q + 1 - 2*S], w)
}"""
MIRRORED = DILATED.replace("2*D = P + 1 - 2*R", "4*D = P - 5 + 6*R")
VOLUME = """kernel k(x: f32[B, C, D, H, W], w: f32[F, C, T=3, R=3]) -> f32[B, F, O=D-2, P=H-2, W] {
  return dot[C, T, R](x[D = O + T, H = P + R], w)
}"""
SMALLEST = """kernel k(x: f32[B, C, H, W], w: f32[K, C, R=3, S=3]) -> f32[B, P=H, Q=W] {
  return min[K](dot[C, R, S](x[H = P + R - 1, W = Q + S - 1], w))
}"""
SMALLEST_APART = """kernel k(x: f32[B, C, H, W], w: f32[C, K, R=3, S=3], b: f32[K]) -> f32[B, P=2*H, Q=2*W] {
  return min[K](dot[C, R, S](x[2*H = P + 1 - R, 2*W = Q + 1 - S], w) + b)
}"""
DOWN = """kernel k(x: f32[B, C, H, W], w: f32[F, C, R=7]) -> f32[B, F, P=H, Q=W] {
  return dot[C, R](x[H = P + R - 3, W = Q], w)
}"""
GROUPED = """kernel k(x: f32[B, G, C, H, W], w: f32[G, F, C, R=3, S=3]) -> f32[B, G, F, P=H-2, Q=W-2] {
  return dot[C, R, S](x[H = P + R, W = Q + S], w)
}"""

WEIGHTS = """kernel k(x: f32[N, H, W, C], y: f32[N, P=H, Q=W, K]) -> f32[K, R=3, S=3, C] {
  return dot[N, P, Q](x[H = P + R - 1, W = Q + S - 1], y)
}"""


def scheduled(text: str, schedule: str) -> str:
    """The program with a schedule of so many words."""
    return f"{text[:-1]}  schedule sm90a {{ {schedule} }}\n}}"


def passed(text: str, passes: Passes, schedule: str = "") -> str:
    """The program in these passes, in TF32 where it is one of f16."""
    text = in_compute_type(text, "k", "tf32").rstrip() if passes == "f16" else text
    return scheduled(text, f"warps cooperative  math {passes}  {schedule}")


@dataclass(frozen=True)
class Case:
    """A convolution, the rest of its schedule, extents, and the tile and part that the planner takes."""

    passes: Passes
    text: str
    sizes: Mapping[str, int]
    tile: tuple[int, int, int]
    part: int
    schedule: str = ""


CASES = {
    "tf32x3, tiles of a copy that end within channels and rows": Case(
        "tf32x3", FORWARD, {"B": 3, "C": 70, "H": 9, "W": 8, "F": 20}, (64, 64, 32), 16
    ),
    "tf32x3, producer of its own": Case(
        "tf32x3", FORWARD, {"B": 1, "C": 33, "H": 16, "W": 13, "F": 130}, (128, 128, 32), 8, "tile 128x128x32"
    ),
    "tf32x3, three warp groups": Case(
        "tf32x3", FORWARD, {"B": 1, "C": 64, "H": 16, "W": 13, "F": 60}, (192, 64, 32), 32, "tile 192x64x32"
    ),
    "tf32x3, strided": Case("tf32x3", STRIDED, {"N": 2, "H": 9, "W": 7, "C": 16, "K": 24}, (64, 64, 32), 16),
    "tf32x3, few channels": Case(
        "tf32x3", STRIDED, {"N": 2, "H": 9, "W": 7, "C": 4, "K": 24}, (64, 64, 32), 8, "fold no"
    ),
    "tf32x3, transposed": Case(
        "tf32x3", TRANSPOSED, {"B": 2, "C": 24, "H": 6, "W": 7, "F": 20}, (64, 64, 32), 8
    ),
    "tf32x3, transposed, taps two apart": Case(
        "tf32x3", DILATED, {"B": 2, "C": 24, "D": 6, "H": 7, "F": 20}, (64, 64, 32), 8
    ),
    "tf32x3, transposed, taps six apart of a scale of four": Case(
        "tf32x3", MIRRORED, {"B": 2, "C": 24, "D": 6, "H": 7, "F": 20}, (64, 64, 32), 8
    ),
    "tf32x3, an axis without taps": Case(
        "tf32x3", VOLUME, {"B": 2, "C": 16, "D": 5, "H": 6, "W": 7, "F": 20}, (64, 64, 32), 16
    ),
    "tf32x3, more images than positions": Case(
        "tf32x3", FORWARD, {"B": 40, "C": 16, "H": 6, "W": 5, "F": 20}, (64, 64, 32), 16
    ),
    "f16x3, a transposed copy": Case(
        "f16x3", FORWARD, {"B": 1, "C": 40, "H": 8, "W": 7, "F": 20}, (64, 64, 64), 64, "fold no"
    ),
    "f16x3, two warp groups": Case(
        "f16x3", FORWARD, {"B": 1, "C": 70, "H": 16, "W": 13, "F": 130}, (128, 128, 64), 32, "tile 128x128x64"
    ),
    "f16x3, one warp group beside the producer": Case(
        "f16x3", FORWARD, {"B": 1, "C": 64, "H": 9, "W": 13, "F": 72}, (64, 128, 64), 64, "tile 64x128x64"
    ),
    "f16x3, three warp groups": Case(
        "f16x3", FORWARD, {"B": 1, "C": 64, "H": 16, "W": 13, "F": 60}, (192, 64, 64), 64, "tile 192x64x64"
    ),
    "f16x3, a window across lines": Case(
        "f16x3", DOWN, {"B": 2, "C": 32, "H": 6, "W": 7, "F": 20}, (64, 64, 64), 32
    ),
    "f16x3, two tensors of columns": Case(
        "f16x3", TWO, {"B": 1, "C": 64, "H": 9, "W": 13, "F": 60}, (192, 64, 64), 64, "tile 192x64x64"
    ),
    "f16x3, taps share rows, two tensors of columns": Case(
        "f16x3", TWO, {"B": 2, "C": 32, "H": 6, "W": 9, "F": 20}, (192, 32, 32), 32, "fold rows"
    ),
    "f16x3, as it lies": Case("f16x3", STRIDED, {"N": 2, "H": 9, "W": 7, "C": 24, "K": 24}, (64, 64, 64), 32),
    "f16x3, folded taps": Case(
        "f16x3", STRIDED, {"N": 2, "H": 9, "W": 7, "C": 4, "K": 24}, (64, 64, 64), 16, "fold yes"
    ),
    "f16x3, few channels": Case(
        "f16x3", STRIDED, {"N": 2, "H": 9, "W": 7, "C": 3, "K": 24}, (64, 64, 64), 16, "fold no"
    ),
    "f16x3, transposed": Case(
        "f16x3", TRANSPOSED, {"B": 2, "C": 24, "H": 6, "W": 7, "F": 20}, (64, 64, 64), 32, "fold no"
    ),
    "f16x3, grouped": Case(
        "f16x3", GROUPED, {"B": 2, "G": 3, "C": 16, "H": 7, "W": 8, "F": 20}, (64, 64, 64), 16, "fold no"
    ),
    "f16x3, a sum shared by a cluster": Case(
        "f16x3", FORWARD, {"B": 1, "C": 70, "H": 8, "W": 6, "F": 20}, (64, 64, 64), 32, "split_k 2"
    ),
    "f16x3, taps share rows": Case(
        "f16x3", FORWARD, {"B": 2, "C": 32, "H": 6, "W": 9, "F": 20}, (192, 32, 32), 32, "fold rows"
    ),
    "f16x3, taps share rows of parts of the channels": Case(
        "f16x3", FORWARD, {"B": 1, "C": 100, "H": 9, "W": 21, "F": 128}, (128, 128, 64), 64, "fold rows"
    ),
    "f16x3, mirrored taps share rows": Case(
        "f16x3", BACKWARD, {"B": 2, "C": 64, "H": 5, "W": 34, "F": 40}, (192, 64, 64), 64, "fold rows"
    ),
    "f16x3, taps three apart share rows": Case(
        "f16x3", FARTHER, {"B": 2, "C": 16, "L": 70, "F": 40}, (192, 64, 16), 16, "fold rows"
    ),
    "f16x3, taps of groups share rows": Case(
        "f16x3", GROUPED, {"B": 2, "G": 3, "C": 16, "H": 7, "W": 8, "F": 20}, (192, 32, 16), 16, "fold rows"
    ),
    "f16x3, work by the coordinates of shared rows": Case(
        "f16x3", MASKED, {"B": 2, "C": 16, "H": 9, "W": 7, "F": 24}, (192, 32, 16), 16, "fold rows"
    ),
    "f16x3, weights' gradient, channels innermost": Case(
        "f16x3", WEIGHTS, {"N": 20, "H": 3, "W": 20, "C": 12, "K": 24}, (64, 64, 64), 32, "tile 64x64x64"
    ),
    "f16x3, weights' gradient, a sum shared by a cluster": Case(
        "f16x3", WEIGHTS, {"N": 33, "H": 2, "W": 20, "C": 20, "K": 24}, (64, 64, 64), 64, "split_k 2"
    ),
    "tf32x3, weights' gradient, channels innermost": Case(
        "tf32x3", WEIGHTS, {"N": 20, "H": 3, "W": 20, "C": 12, "K": 24}, (64, 64, 32), 8
    ),
    "f16x3, rows reduced": Case(
        "f16x3", SMALLEST, {"B": 2, "C": 16, "H": 6, "W": 7, "K": 40}, (64, 64, 64), 16
    ),
}
CASES |= {
    "f16, a transposed copy": Case(
        "f16", FORWARD, {"B": 1, "C": 40, "H": 8, "W": 7, "F": 20}, (64, 32, 64), 64, "fold no"
    ),
    "f16, two warp groups": Case(
        "f16", FORWARD, {"B": 1, "C": 70, "H": 16, "W": 13, "F": 130}, (128, 128, 64), 32, "tile 128x128x64"
    ),
    "f16, three warp groups, two tensors of columns": Case(
        "f16", TWO, {"B": 1, "C": 64, "H": 9, "W": 13, "F": 60}, (192, 64, 64), 64, "tile 192x64x64"
    ),
    "f16, columns of no whole instruction": Case(
        "f16", FORWARD, {"B": 1, "C": 64, "H": 9, "W": 13, "F": 44}, (64, 48, 64), 64, "tile 64x48x64"
    ),
    "f16, as it lies": Case("f16", STRIDED, {"N": 2, "H": 9, "W": 7, "C": 24, "K": 24}, (64, 32, 64), 32),
    "f16, folded taps": Case(
        "f16", STRIDED, {"N": 2, "H": 9, "W": 7, "C": 4, "K": 24}, (64, 32, 64), 16, "fold yes"
    ),
    "f16, few channels": Case(
        "f16", STRIDED, {"N": 2, "H": 9, "W": 7, "C": 3, "K": 24}, (64, 32, 64), 16, "fold no"
    ),
    "f16, transposed": Case(
        "f16", TRANSPOSED, {"B": 2, "C": 24, "H": 6, "W": 7, "F": 20}, (64, 32, 64), 32, "fold no"
    ),
    "f16, results between neighbours": Case(
        "f16", TRANSPOSED, {"B": 2, "C": 24, "H": 6, "W": 7, "F": 20}, (64, 64, 64), 32, "fold yes"
    ),
    "f16, grouped": Case(
        "f16", GROUPED, {"B": 2, "G": 3, "C": 16, "H": 7, "W": 8, "F": 20}, (64, 64, 64), 16, "fold no"
    ),
    "f16, a sum shared by a cluster": Case(
        "f16", FORWARD, {"B": 1, "C": 70, "H": 8, "W": 6, "F": 20}, (64, 32, 64), 32, "split_k 2"
    ),
    "f16, mirrored taps share rows": Case(
        "f16", BACKWARD, {"B": 2, "C": 64, "H": 5, "W": 34, "F": 40}, (192, 64, 64), 64, "fold rows"
    ),
    "f16, taps of groups share rows": Case(
        "f16", GROUPED, {"B": 2, "G": 3, "C": 16, "H": 7, "W": 8, "F": 20}, (192, 32, 16), 16, "fold rows"
    ),
    "f16, rows reduced": Case("f16", SMALLEST, {"B": 2, "C": 16, "H": 6, "W": 7, "K": 40}, (64, 48, 64), 16),
}
QUICK = (
    "tf32x3, producer of its own",
    "tf32x3, strided",
    "tf32x3, few channels",
    "tf32x3, transposed",
    "tf32x3, transposed, taps six apart of a scale of four",
    "f16x3, a transposed copy",
    "f16x3, as it lies",
    "f16x3, folded taps",
    "f16x3, transposed",
    "f16x3, taps share rows",
    "f16x3, weights' gradient, channels innermost",
    "f16, a transposed copy",
    "f16, results between neighbours",
    "f16, mirrored taps share rows",
)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_passes_are_right(name: str) -> None:
    case = CASES[name]
    text = passed(case.text, case.passes, case.schedule)
    planned = plan(text, case.sizes, "sm90a")
    kernel = planned.plan
    assert isinstance(kernel, ConvolutionPlan) and isinstance(kernel.schedule, Im2colSchedule)
    assert planned.request.math == kernel.problem.passes == case.passes
    assert (kernel.schedule.tile, kernel.schedule.part) == (case.tile, case.part)
    assert judge(text, case.sizes, arch="sm90a") == []


def test_images_lie_inside_of_windows_where_these_are_out_of_reach() -> None:
    """TMA reaches less far with channels as a third axis of space."""
    for width, scattered in ((12, False), (20, True)):
        planned = plan(
            passed(WEIGHTS, "f16x3", "tile 64x64x64"),
            {"N": 20, "H": 3, "W": width, "C": 12, "K": 24},
            "sm90a",
        )
        assert isinstance(planned.plan, ConvolutionPlan)
        how = im2col(planned.plan.problem)
        assert isinstance(how, Im2col) and how.scattered is scattered


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, 600], ids=["one thread an element", "a warp an element"])
def test_parts_of_a_reduction_are_combined(columns: int) -> None:
    """Tiles of 64 columns leave one part, or ten."""
    sizes = {"B": 2, "C": 16, "H": 6, "W": 7, "K": columns}
    assert judge(passed(SMALLEST, "tf32x3"), sizes, arch="sm90a") == []


def built(passes: Passes, shared: bool = False) -> tuple[Any, Planned]:
    """The entry of a convolution of lines, and its plan; `shared`: taps share rows, and positions are innermost."""
    text = passed(ACROSS, passes, "fold rows") if shared else passed(LINE, passes)
    planned = plan(text, {"B": 8, "L": 12, "C": 16, "F": 16}, "sm90a")
    source = emit(planned.plan, "")
    folder = Path(tempfile.mkdtemp(prefix="convolution-"))
    try:
        shimmed = replace(source, text=f"#include <cmath>\n{HOST_SHIM}{source.text}")
        return emulator.build(shimmed, folder), planned
    finally:
        shutil.rmtree(folder, ignore_errors=True)


LINES: tuple[tuple[Passes, bool], ...] = (("f16x3", False), ("f16x3", True), ("f16", False), ("f16", True))


@pytest.fixture(
    scope="module",
    params=LINES,
    ids=[f"{passes}, taps share rows" if shared else passes for passes, shared in LINES],
)
def line(request: pytest.FixtureRequest) -> tuple[Any, Planned]:
    return built(*request.param)


def _convolved(line: tuple[Any, Planned], x: Tensor, w: Tensor) -> Tensor:
    """The results, [image, position, column]."""
    entry, planned = line
    shared = planned.request.fold == "rows"
    y = torch.full((8, 16, 10) if shared else (8, 10, 16), torch.nan)
    assert call(entry, [x, w, y], planned.sizes, [], planned.launch) == 0
    return y.transpose(1, 2) if shared else y


def _exact(x: Tensor, w: Tensor) -> Tensor:
    return conv1d(x.double().permute(0, 2, 1), w.double().permute(0, 2, 1)).permute(0, 2, 1)


def _expected(line: tuple[Any, Planned], x: Tensor, w: Tensor) -> Tensor:
    """The results of the operands as the kernel's compute type has them."""
    if line[1].request.math == "f16":
        x, w = (round_float(operand.double(), TF32) for operand in (x, w))
    return _exact(x, w)


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
    exact, sums = _expected(line, x, w), _exact(x.abs(), w.abs())
    error = (_convolved(line, x, w).double() - exact).abs()
    assert (error <= 2.0**-20 * sums + 2.0**-148).all()


@pytest.mark.parametrize("wide", ["neither", "x, by one element", "x, by an image", "w", "both"])
def test_elements_of_any_range_keep_their_bits(line: tuple[Any, Planned], wide: str) -> None:
    """Operands whose chunks span more than f16 parts do are multiplied as bf16."""
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
    exact, y = _expected(line, x, w), _convolved(line, x, w)
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
    y, expected = _convolved(line, x, w), _expected(line, x, w).float()
    torch.testing.assert_close(y.isnan(), expected.isnan())
    infinite = expected.isinf()
    assert infinite.any() and torch.equal(y[infinite], expected[infinite])


def test_what_is_not_finite_stays_where_it_is_in_tf32_parts() -> None:
    """Infinities, NaN of any payload and what TF32 would round to infinity, in each operand beside the other's
    numbers without small parts, zeros, and infinities."""
    x, w = _drawn(1.0, 2.0**-30)
    payload = torch.tensor([0x7F800001, -1], dtype=torch.int32).view(torch.float32)
    large = torch.finfo(torch.float32).max
    x[0, 4, 1], x[1, 4, 1], x[2, 4, 1], x[3, 4, 1] = torch.inf, -torch.inf, payload[0], payload[1]
    x[4, :, 2], x[5, 4, 1], x[6, :, :] = 1.0, large, 0.0
    w[0, 1, 1], w[1, 1, 1], w[2, 1, 1], w[3, 1, 1] = torch.inf, -torch.inf, payload[0], payload[1]
    w[4, :, 2], w[5, 1, 1], w[6, :, :], w[7, 0, 1] = 1.0, large * 2.0**-40, 0.0, torch.inf
    y, exact = _convolved(built("tf32x3"), x, w), _exact(x, w)
    expected = exact.float()
    torch.testing.assert_close(y.isnan(), expected.isnan())
    infinite = expected.isinf()
    assert infinite.any() and torch.equal(y[infinite], expected[infinite])
    finite = expected.isfinite()
    sums = _exact(x.abs(), w.abs())
    assert ((y.double() - exact).abs()[finite] <= 2.0**-19 * sums[finite]).all()


@pytest.mark.parametrize("channels", [70, 25], ids=["64 channels at a time", "32"])
def test_blocks_that_copy_several_tiles_read_the_next_while_one_is_split(
    channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(im2col_text, "RANGE_BLOCKS", 4)
    text = FORWARD.replace("\n}", "\n  schedule sm90a { warps cooperative  math f16x3 }\n}")
    sizes = {"B": 2, "C": channels, "H": 9, "W": 19, "F": 40}
    assert "kRangeBlocks = 4;" in emit(plan(text, sizes, "sm90a").plan, "").text
    assert judge(text, sizes, arch="sm90a") == []


@pytest.mark.parametrize("schedule", ["warps cooperative  math simt", "warps multistage  math f16x3"])
def test_math_of_another_kernel_is_refused(schedule: str) -> None:
    with pytest.raises(ProgramError):
        plan(scheduled(FORWARD, schedule), {"B": 2, "C": 64, "H": 16, "W": 16, "F": 64}, "sm90a")


def test_f16_passes_are_of_f32() -> None:
    with pytest.raises(ProgramError, match="of f32"):
        plan(passed(LINE, "f16x3").replace("f32", "bf16"), {"B": 8, "L": 12, "C": 16, "F": 16}, "sm90a")


@pytest.mark.parametrize(
    ("schedule", "sizes", "math"),
    [
        ("", {"B": 8, "C": 64, "H": 112, "W": 112, "F": 64}, "f16x3"),
        ("tile 128x64x32", {"B": 8, "C": 64, "H": 112, "W": 112, "F": 64}, "tf32x3"),
        ("math tf32x3", {"B": 8, "C": 64, "H": 112, "W": 112, "F": 64}, "tf32x3"),
        ("", {"B": 8, "C": 8, "H": 112, "W": 112, "F": 64}, "tf32x3"),
    ],
    ids=["many channels", "a tile of the other passes", "by its word", "few channels"],
)
def test_the_planner_takes_the_passes_of_the_lower_price(
    schedule: str, sizes: Mapping[str, int], math: str
) -> None:
    text = scheduled(FORWARD, f"warps cooperative  {schedule}")
    assert plan(text, sizes, "sm90a").request.math == math


@pytest.mark.parametrize(
    ("sizes", "schedule", "fold"),
    [
        ({"B": 16, "C": 32, "H": 112, "W": 112, "F": 32}, "", "rows"),
        ({"B": 16, "C": 96, "H": 54, "W": 54, "F": 64}, "", "rows"),
        ({"B": 16, "C": 32, "H": 112, "W": 112, "F": 32}, "fold no", "no"),
        ({"B": 16, "C": 32, "H": 112, "W": 112, "F": 32}, "math tf32x3", None),
        ({"B": 8, "C": 16, "H": 512, "W": 512, "F": 64}, "", None),
        ({"B": 10, "C": 256, "H": 56, "W": 56, "F": 256}, "", None),
        ({"B": 1, "C": 32, "H": 14, "W": 14, "F": 32}, "", None),
    ],
    ids=["32 columns", "64 columns", "by its word", "other passes", "short rows", "128 columns", "few tiles"],
)
def test_taps_share_rows_where_that_was_faster(
    sizes: Mapping[str, int], schedule: str, fold: str | None
) -> None:
    planned = plan(scheduled(FORWARD, f"warps cooperative  {schedule}"), sizes, "sm90a")
    kernel = planned.plan
    assert isinstance(kernel, ConvolutionPlan) and isinstance(kernel.schedule, Im2colSchedule)
    assert planned.request.fold == fold and (kernel.schedule.halo > 0) == (fold == "rows")


@pytest.mark.parametrize(("channels", "runs"), [(32, True), (48, False)])
def test_short_rows_are_shared_by_few_columns(channels: int, runs: bool) -> None:
    """KernelBench's 2/7, which took 3.67 ms so on an H200 and 4.27 by a register's tile."""
    text = """kernel k(x: f32[B, C, D, H, W], w: f32[K, C, T=3, R=3, S=3]) -> f32[B, K, O=D-2, P=H-2, Q=W-2] {
      return gelu(dot[C, T, R, S](x[D = O + T, H = P + R, W = Q + S], w))
    }"""
    kernel = plan(text, {"B": 64, "C": 8, "D": 32, "H": 64, "W": 64, "K": channels}, "sm90a").plan
    assert isinstance(kernel, ConvolutionPlan)
    assert (isinstance(kernel.schedule, Im2colSchedule) and kernel.schedule.halo > 0) == runs


@pytest.mark.parametrize("taps", [3, 5])
def test_short_rows_are_shared_by_more_columns_where_more_taps_share_them(taps: int) -> None:
    text = f"""kernel k(x: f32[B, C, H, W], w: f32[K, C, R={taps}, S={taps}]) -> f32[B, K, P=H-{taps - 1}, Q=W-{taps - 1}] {{
      return dot[C, R, S](x[H = P + R, W = Q + S], w)
    }}"""
    kernel = plan(text, {"B": 64, "C": 12, "H": 64, "W": 64, "K": 40}, "sm90a").plan
    assert isinstance(kernel, ConvolutionPlan)
    assert (isinstance(kernel.schedule, Im2colSchedule) and kernel.schedule.halo > 0) == (taps == 5)


def test_small_tiles_take_longer_than_their_clocks() -> None:
    """64 x 64 took 1.30 times as long on an H200."""
    text = FORWARD.replace("relu(", "gelu(")
    kernel = plan(text, {"B": 16, "C": 48, "H": 80, "W": 80, "F": 96}, "sm90a").plan
    assert isinstance(kernel, ConvolutionPlan) and isinstance(kernel.schedule, Im2colSchedule)
    assert kernel.schedule.tile == (192, 64, 64)


@pytest.mark.parametrize(
    ("added", "channels", "tile"),
    [(" + b + c", 64, (192, 64, 64)), (" + b", 64, (128, 128, 64)), (" + b + c", 512, (128, 128, 64))],
    ids=["two tensors", "one", "a long sum"],
)
def test_threads_that_read_two_tensors_have_fewer_columns(
    added: str, channels: int, tile: tuple[int, ...]
) -> None:
    text = f"""kernel k(x: f32[B, C, H, W], w: f32[K, C, R=3, S=3], b: f32[K], c: f32[K]) -> f32[B, K, P=H-2, Q=W-2] {{
      return dot[C, R, S](x[H = P + R, W = Q + S], w){added}
    }}"""
    text = text if "c" in added else text.replace(", c: f32[K]", "")
    schedule = plan(text, {"B": 64, "C": channels, "H": 128, "W": 128, "K": 128}, "sm90a").request
    assert schedule.math == "f16x3" and schedule.tile == tile


@pytest.mark.parametrize(
    ("function", "columns"), [("mish", 64), ("tanh", 64), ("relu", 128)], ids=lambda value: str(value)
)
def test_threads_that_compute_a_long_function_have_fewer_columns(function: str, columns: int) -> None:
    text = f"""kernel k(x: f32[B, C, H, W], w: f32[K, C, R=3, S=3], b: f32[K]) -> f32[B, K, P=H-2, Q=W-2] {{
      return {function}(dot[C, R, S](x[H = P + R, W = Q + S], w) + b)
    }}"""
    planned = plan(text, {"B": 64, "C": 64, "H": 128, "W": 128, "K": 128}, "sm90a").plan
    assert isinstance(planned, ConvolutionPlan) and isinstance(planned.schedule, Im2colSchedule)
    assert planned.schedule.tile[1] == columns and planned.schedule.halo == 0


def test_shared_rows_have_a_price_for_tiles_that_were_not_measured() -> None:
    price = RUN_PRICES["f16x3"]
    assert price.clocks(64) == price.columns[64]
    clocks = [price.clocks(columns) for columns in range(8, 257, 8)]
    assert all(narrow < wide for narrow, wide in pairwise(clocks))


def test_rows_beyond_what_a_run_holds_are_refused() -> None:
    with pytest.raises(ProgramError, match="rows long"):
        far = FARTHER.replace("3*R", "9*R").replace("L-12", "L-36")
        plan(passed(far, "f16x3", "fold rows"), {"B": 2, "C": 32, "L": 90, "F": 40}, "sm90a")


def test_rows_of_images_that_lie_apart_are_not_shared() -> None:
    """Of images innermost, neighbouring rows are those of several images, which pass through shared memory."""
    apart = """kernel k(x: f32[C, B, D, W, H], w: f32[C, T=2, S=2, R=3, F]) -> f16[F, V=5, Q=3, P=3, B] {
  return dot[R, S, T, C](w, x[H = P + R, W = Q + S, D = V + T])
}"""
    sizes = {"B": 2, "C": 33, "D": 5, "W": 5, "H": 3, "F": 64}
    with pytest.raises(ProgramError, match="UC0480"):
        plan(passed(apart, "f16x3", "fold rows"), sizes, "sm90a")


@pytest.mark.parametrize(("channels", "split_k"), [(256, 4), (32, None)], ids=["a long sum", "a short one"])
def test_few_tiles_of_f16_passes_share_their_sums(channels: int, split_k: int | None) -> None:
    sizes = {"B": 2, "C": channels, "H": 14, "W": 14, "F": 256}
    request = plan(scheduled(FORWARD, "warps cooperative  math f16x3"), sizes, "sm90a").request
    assert request.split_k == split_k


@pytest.mark.parametrize(
    ("text", "sizes", "math"),
    [
        (FORWARD, {"B": 8, "C": 64, "H": 112, "W": 112, "F": 64}, "f16"),
        (TRANSPOSED, {"B": 32, "C": 64, "H": 64, "W": 64, "F": 128}, "f16"),
        (SMALLEST_APART, {"B": 16, "C": 64, "H": 64, "W": 64, "K": 128}, "f16"),
        (STRIDED, {"N": 32, "H": 56, "W": 56, "C": 64, "K": 64}, None),
    ],
    ids=["copied", "transposed", "rows that lie apart, reduced", "as it lies"],
)
def test_tf32_is_multiplied_as_f16_where_that_was_faster(
    text: str, sizes: Mapping[str, int], math: str | None
) -> None:
    planned = plan(in_compute_type(text, "k", "tf32"), sizes, "sm90a")
    assert isinstance(planned.plan, ConvolutionPlan) and isinstance(planned.plan.schedule, Im2colSchedule)
    assert planned.request.math == math


def test_prices_of_one_f16_pass_are_those_that_were_measured() -> None:
    """Layers that an H100 ran in TF32, in microseconds."""
    measured = (
        ({"B": 64, "C": 64, "H": 128, "W": 128, "F": 128}, "fold no  tile 128x128x64", 741.8),
        ({"B": 64, "C": 64, "H": 128, "W": 128, "F": 128}, "fold rows", 811.8),
        ({"B": 32, "C": 256, "H": 28, "W": 28, "F": 256}, "fold no  tile 128x128x64", 112.9),
        ({"B": 32, "C": 256, "H": 28, "W": 28, "F": 256}, "fold rows", 118.5),
        ({"B": 64, "C": 32, "H": 112, "W": 112, "F": 32}, "fold rows", 256.2),
    )
    for sizes, schedule, time in measured:
        planned = plan(passed(FORWARD, "f16", schedule), sizes, "sm90a")
        assert 0.8 * time < 1e6 * planned.seconds < 1.25 * time, (sizes, schedule)


def test_prices_of_shared_rows_are_those_that_were_measured() -> None:
    """Layers that an H100 ran, in microseconds."""
    measured = (
        ({"B": 10, "C": 64, "H": 224, "W": 224, "F": 64}, 330.5),
        ({"B": 10, "C": 256, "H": 56, "W": 56, "F": 256}, 207.0),
        ({"B": 16, "C": 32, "H": 112, "W": 112, "F": 32}, 77.6),
        ({"B": 16, "C": 24, "H": 100, "W": 100, "F": 48}, 75.0),
    )
    for sizes, time in measured:
        planned = plan(passed(FORWARD, "f16x3", "fold rows"), sizes, "sm90a")
        assert 0.8 * time < 1e6 * planned.seconds < 1.25 * time, sizes


@pytest.mark.parametrize(
    ("sizes", "schedule"),
    [
        ({"B": 8, "C": 64, "H": 56, "W": 56, "F": 64}, Im2colSchedule),
        ({"B": 1024, "C": 96, "H": 27, "W": 27, "F": 256}, Im2colSchedule),
        ({"B": 10, "C": 3, "H": 112, "W": 112, "F": 32}, RegisterTileSchedule),
        ({"B": 1, "C": 3, "H": 32, "W": 32, "F": 16}, RegisterTileSchedule),
    ],
    ids=[
        "many channels",
        "more images than positions",
        "a stem, whose copy takes longest",
        "few tiles, of one launch",
    ],
)
def test_the_planner_takes_wgmma_where_its_copies_pay(sizes: Mapping[str, int], schedule: type) -> None:
    kernel = plan(FORWARD, sizes, "sm90a").plan
    assert isinstance(kernel, ConvolutionPlan) and isinstance(kernel.schedule, schedule)


def test_prices_are_those_that_were_measured() -> None:
    """Layers that an H100 ran in f32, in microseconds by the multistage kernel and by wgmma."""
    measured = (
        ({"B": 10, "C": 64, "H": 224, "W": 224, "F": 64}, 1921.5, 585.9),
        ({"B": 10, "C": 256, "H": 56, "W": 56, "F": 256}, 1965.6, 412.0),
        ({"B": 10, "C": 512, "H": 28, "W": 28, "F": 512}, 1966.3, 542.7),
        ({"B": 10, "C": 3, "H": 224, "W": 224, "F": 64}, 161.9, 150.3),
    )
    for sizes, *times in measured:
        for word, time in zip(("multistage", "cooperative  math tf32x3  fold no"), times, strict=True):
            planned = plan(scheduled(FORWARD, f"warps {word}"), sizes, "sm90a")
            assert 0.75 * time < 1e6 * planned.seconds < 1.25 * time, (sizes, word)
