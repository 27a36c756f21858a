"""f32 convolutions by wgmma in three TF32 passes, on the host behind the emulator."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import conv1d

from tests.emit import emulator
from tests.emit.harness import HOST_SHIM
from tests.kernels.convolution_emulated import call, judge, plan
from ucutlass.emit import emit
from ucutlass.kernels.convolution.plan import ConvolutionPlan, Im2colSchedule, RegisterTileSchedule
from ucutlass.kernels.gemm.plan import Sm80Schedule

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

FORWARD = """kernel k(x: f32[B, C, H, W], w: f32[F, C, R=3, S=3], b: f32[F]) -> f32[B, F, P=H, Q=W] {
  return relu(dot[C, R, S](x[H = P + R - 1, W = Q + S - 1], w) + b)
  schedule sm90a { warps cooperative SCHEDULE }
}"""
TRANSPOSED = """kernel k(x: f32[B, C, H, W], w: f32[C, F, R=4, S=4], b: f32[F]) -> f32[B, F, P=2*H, Q=2*W] {
  return dot[C, R, S](x[2*H = P + 1 - R, 2*W = Q + 1 - S], w) + b
  schedule sm90a { warps cooperative }
}"""
STRIDED = """kernel k(x: f32[N, H, W, C], w: f32[K, R=3, S=3, C]) -> f32[N, P=(H+1)//2, Q=(W+1)//2, K] {
  return dot[R, S, C](x[H = 2*P + R - 1, W = 2*Q + S - 1], w)
  schedule sm90a { warps cooperative }
}"""
LINE = """kernel k(x: f32[B, L, C], w: f32[F, R=3, C]) -> f32[B, P=L-2, F] {
  return dot[R, C](x[L = P + R], w)
  schedule sm90a { warps cooperative }
}"""


DILATED = """kernel k(x: f32[B, C, D, H], w: f32[C, F, R=3, S=3]) -> f32[B, F, P=2*D+1, Q=2*H+1] {
  return dot[C, R, S](x[2*D = P + 1 - 2*R, 2*H = Q + 1 - 2*S], w)
  schedule sm90a { warps cooperative }
}"""
MIRRORED = DILATED.replace("2*D = P + 1 - 2*R", "4*D = P - 5 + 6*R")
VOLUME = """kernel k(x: f32[B, C, D, H, W], w: f32[F, C, T=3, R=3]) -> f32[B, F, O=D-2, P=H-2, W] {
  return dot[C, T, R](x[D = O + T, H = P + R], w)
  schedule sm90a { warps cooperative }
}"""
SMALLEST = """kernel k(x: f32[B, C, H, W], w: f32[K, C, R=3, S=3]) -> f32[B, P=H, Q=W] {
  return min[K](dot[C, R, S](x[H = P + R - 1, W = Q + S - 1], w))
  schedule sm90a { warps cooperative }
}"""
PLAIN = FORWARD.replace("  schedule sm90a { warps cooperative SCHEDULE }\n", "")


def _scheduled(word: str) -> str:
    return FORWARD.replace("cooperative SCHEDULE", word)


def _forward(schedule: str) -> str:
    return FORWARD.replace("SCHEDULE", schedule)


@pytest.mark.parametrize(
    ("text", "sizes", "tile", "part"),
    [
        pytest.param(
            _forward(""), {"B": 3, "C": 70, "H": 9, "W": 8, "F": 20}, (64, 64, 32), 16, marks=pytest.mark.slow
        ),
        (_forward("tile 128x128x32"), {"B": 1, "C": 33, "H": 16, "W": 13, "F": 130}, (128, 128, 32), 8),
        pytest.param(
            _forward("tile 192x64x32"),
            {"B": 1, "C": 64, "H": 16, "W": 13, "F": 60},
            (192, 64, 32),
            32,
            marks=pytest.mark.slow,
        ),
        (STRIDED, {"N": 2, "H": 9, "W": 7, "C": 16, "K": 24}, (64, 64, 32), 16),
        (
            STRIDED.replace("cooperative", "cooperative  fold no"),
            {"N": 2, "H": 9, "W": 7, "C": 4, "K": 24},
            (64, 64, 32),
            8,
        ),
        (TRANSPOSED, {"B": 2, "C": 24, "H": 6, "W": 7, "F": 20}, (64, 64, 32), 8),
        pytest.param(
            DILATED, {"B": 2, "C": 24, "D": 6, "H": 7, "F": 20}, (64, 64, 32), 8, marks=pytest.mark.slow
        ),
        (MIRRORED, {"B": 2, "C": 24, "D": 6, "H": 7, "F": 20}, (64, 64, 32), 8),
        pytest.param(
            VOLUME,
            {"B": 2, "C": 16, "D": 5, "H": 6, "W": 7, "F": 20},
            (64, 64, 32),
            16,
            marks=pytest.mark.slow,
        ),
        pytest.param(
            _forward(""),
            {"B": 40, "C": 16, "H": 6, "W": 5, "F": 20},
            (64, 64, 32),
            16,
            marks=pytest.mark.slow,
        ),
    ],
    ids=[
        "tiles of a copy that end within channels and rows",
        "producer of its own",
        "three warp groups",
        "strided",
        "few channels",
        "transposed",
        "transposed, taps two apart",
        "transposed, taps six apart of a scale of four",
        "an axis without taps",
        "more images than positions",
    ],
)
def test_three_passes_are_right(
    text: str, sizes: Mapping[str, int], tile: tuple[int, int, int], part: int
) -> None:
    kernel = plan(text, sizes, "sm90a").plan
    assert isinstance(kernel, ConvolutionPlan) and isinstance(kernel.schedule, Im2colSchedule)
    assert (kernel.schedule.tile, kernel.schedule.part) == (tile, part)
    assert judge(text, sizes, arch="sm90a") == []


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, 600], ids=["one thread an element", "a warp an element"])
def test_parts_of_a_reduction_are_combined(columns: int) -> None:
    """Tiles of 64 columns leave one part, or ten."""
    assert judge(SMALLEST, {"B": 2, "C": 16, "H": 6, "W": 7, "K": columns}, arch="sm90a") == []


def test_what_is_not_finite_stays_where_it_is() -> None:
    """Infinities, NaN of any payload and what TF32 would round to infinity, in each operand beside the other's
    numbers without small parts, zeros, and infinities."""
    planned = plan(LINE, {"B": 8, "L": 12, "C": 8, "F": 16}, "sm90a")
    source = emit(planned.plan, "")
    folder = Path(tempfile.mkdtemp(prefix="convolution-"))
    try:
        entry = emulator.build(replace(source, text=f"#include <cmath>\n{HOST_SHIM}{source.text}"), folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 12, 8, generator=generator)
    w = torch.randn(16, 3, 8, generator=generator) * 2.0**-30
    payload = torch.tensor([0x7F800001, -1], dtype=torch.int32).view(torch.float32)
    large = torch.finfo(torch.float32).max
    x[0, 4, 1], x[1, 4, 1], x[2, 4, 1], x[3, 4, 1] = torch.inf, -torch.inf, payload[0], payload[1]
    x[4, :, 2], x[5, 4, 1], x[6, :, :] = 1.0, large, 0.0
    w[0, 1, 1], w[1, 1, 1], w[2, 1, 1], w[3, 1, 1] = torch.inf, -torch.inf, payload[0], payload[1]
    w[4, :, 2], w[5, 1, 1], w[6, :, :], w[7, 0, 1] = 1.0, large * 2.0**-40, 0.0, torch.inf
    y = torch.full((8, 10, 16), torch.nan)
    assert call(entry, [x, w, y], planned.sizes, [], planned.launch) == 0
    exact = conv1d(x.double().permute(0, 2, 1), w.double().permute(0, 2, 1)).permute(0, 2, 1)
    expected = exact.float()
    torch.testing.assert_close(y.isnan(), expected.isnan())
    infinite = expected.isinf()
    assert infinite.any() and torch.equal(y[infinite], expected[infinite])
    finite = expected.isfinite()
    sums = conv1d(x.double().abs().permute(0, 2, 1), w.double().abs().permute(0, 2, 1)).permute(0, 2, 1)
    assert ((y.double() - exact).abs()[finite] <= 2.0**-19 * sums[finite]).all()


@pytest.mark.parametrize(
    ("sizes", "schedule"),
    [
        ({"B": 8, "C": 64, "H": 56, "W": 56, "F": 64}, Im2colSchedule),
        ({"B": 1024, "C": 96, "H": 27, "W": 27, "F": 256}, Im2colSchedule),
        ({"B": 10, "C": 3, "H": 112, "W": 112, "F": 32}, RegisterTileSchedule),
        ({"B": 1, "C": 3, "H": 32, "W": 32, "F": 16}, Sm80Schedule),
    ],
    ids=["many channels", "more images than positions", "a stem, whose copy takes longest", "few tiles"],
)
def test_the_planner_takes_wgmma_where_its_copies_pay(sizes: Mapping[str, int], schedule: type) -> None:
    kernel = plan(PLAIN, sizes, "sm90a").plan
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
            planned = plan(_scheduled(word), sizes, "sm90a")
            assert 0.75 * time < 1e6 * planned.seconds < 1.25 * time, (sizes, word)
