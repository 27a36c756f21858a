"""Gradients of weights of f32 that TMA gathers and wgmma multiplies in three passes of f16: on the host behind the emulator,
and where the planner takes them."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.grad import conv1d_weight

from tests.emit import emulator
from tests.emit.harness import HOST_SHIM
from tests.kernels.convolution_emulated import call, judge, plan
from ucutlass.emit import emit
from ucutlass.kernels.convolution import schedule_wgrad
from ucutlass.kernels.convolution.plan import ConvolutionPlan, ConvolutionSchedule, WgradSchedule
from ucutlass.kernels.planned import Planned

emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

LAST = """kernel k(x: f32[N, H, W, C], y: f32[N, P=(H+1)//2, Q=(W+1)//2, K]) -> f32[K, R=3, S=3, C] {
  return dot[N, P, Q](x[H = 2*P + R - 1, W = 2*Q + S - 1], y)
}"""
FIRST = (
    LAST.replace("N, H, W, C", "N, C, H, W")
    .replace("N, P=(H+1)//2, Q=(W+1)//2, K", "N, K, P=(H+1)//2, Q=(W+1)//2")
    .replace("K, R=3, S=3, C", "K, C, R=3, S=3")
)
GROUPS = """kernel k(x: f32[N, (G=2 C), H, W], y: f32[N, (G K), P=H, Q=W]) -> f32[(G K), C, R=3, S=3] {
  return dot[N, P, Q](x[H = P + R - 1, W = Q + S - 1], y)
}"""
VOLUMES = """kernel k(x: f32[N, D, H, W, C], y: f32[N, O=D-2, P=H, Q=W-1, K]) -> f32[K, T=3, S=2, C] {
  return dot[N, O, P, Q](x[D = O + T, H = P, W = Q + S], y)
}"""
LINE = """kernel k(x: f32[N, L, C], y: f32[N, P=L-2, K]) -> f32[K, R=3, C] {
  return dot[N, P](x[L = P + R], y)
  schedule sm90a { warps cooperative  math f16x3 }
}"""
SIZES = {"N": 3, "L": 70, "C": 8, "K": 8}


def _chosen(text: str, sizes: dict[str, int]) -> ConvolutionSchedule:
    chosen = plan(text, sizes, "sm90a").plan
    assert isinstance(chosen, ConvolutionPlan)
    return chosen.schedule


@emulated
@pytest.mark.parametrize(
    ("text", "sizes", "tile", "splits"),
    [
        pytest.param(LAST, {"N": 2, "H": 17, "W": 15, "C": 40, "K": 72}, (64, 64, 1), 2, id="parts"),
        pytest.param(LAST, {"N": 1, "H": 19, "W": 21, "C": 100, "K": 70}, (128, 128, 2), 1, id="two groups"),
        pytest.param(FIRST, {"N": 2, "H": 9, "W": 12, "C": 70, "K": 33}, (192, 64, 3), 1, id="copies turn"),
        pytest.param(FIRST, {"N": 2, "H": 12, "W": 9, "C": 3, "K": 24}, (64, 64, 1), 1, id="folded taps"),
        pytest.param(GROUPS, {"N": 2, "H": 9, "W": 10, "C": 20, "K": 20}, (64, 64, 1), 1, id="groups"),
        pytest.param(
            VOLUMES, {"N": 2, "D": 5, "H": 6, "W": 7, "C": 24, "K": 16}, (64, 64, 1), 1, id="volumes"
        ),
    ],
)
def test_gradients_compute_their_program(
    text: str, sizes: dict[str, int], tile: tuple[int, int, int], splits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_wgrad, "F16X3_TILES", (tile,))
    written = text.replace("\n}", "\n  schedule sm90a { warps cooperative  math f16x3 }\n}")
    schedule = _chosen(written, sizes)
    assert isinstance(schedule, WgradSchedule) and schedule.tile == (*tile[:2], 64)
    assert judge(written, sizes, 0, "sm90a", lambda p: replace(p, launch=(*p.launch[:2], splits))) == []


@pytest.fixture(scope="module")
def line() -> tuple[Any, Planned]:
    """The entry of a gradient of lines, and its plan."""
    planned = plan(LINE, SIZES, "sm90a")
    assert isinstance(planned.plan, ConvolutionPlan) and isinstance(planned.plan.schedule, WgradSchedule)
    source = emit(planned.plan, "")
    with tempfile.TemporaryDirectory(prefix="convolution-") as folder:
        shimmed = replace(source, text=f"#include <cmath>\n{HOST_SHIM}{source.text}")
        return emulator.build(shimmed, Path(folder)), planned


def _drawn() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 70, 8, generator=generator), torch.randn(3, 68, 8, generator=generator)


def _exact(x: Tensor, y: Tensor) -> Tensor:
    lines, gradients = (t.double().permute(0, 2, 1) for t in (x, y))
    return conv1d_weight(lines, [8, 8, 3], gradients).permute(0, 2, 1)


@emulated
@pytest.mark.parametrize("wide", ["neither", "one element", "an image", "both"])
def test_elements_of_any_range_keep_their_bits(line: tuple[Any, Planned], wide: str) -> None:
    """Operands whose elements span more than f16 parts do are multiplied as bf16."""
    entry, planned = line
    x, y = _drawn()
    match wide:
        case "one element":
            x[0, 0, 0] = 1e30
        case "an image":
            x[2] *= 1e-30
        case "both":
            x[2], y[:, :, 5] = x[2] * 1e-12, y[:, :, 5] * 1e25
    w = torch.full((8, 3, 8), torch.nan)
    assert call(entry, [x, y, w], planned.sizes, [], planned.launch) == 0
    error = (w.double() - _exact(x, y)).abs()
    assert (error <= 2.0**-20 * _exact(x.abs(), y.abs())).all()


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        pytest.param(LAST, {"N": 16, "H": 56, "W": 56, "C": 128, "K": 128}, id="channels last"),
        pytest.param(FIRST, {"N": 16, "H": 56, "W": 56, "C": 128, "K": 128}, id="channels first"),
        pytest.param(FIRST, {"N": 8, "H": 224, "W": 224, "C": 3, "K": 32}, id="few channels"),
    ],
)
def test_small_batches_sum_over_positions(text: str, sizes: dict[str, int]) -> None:
    schedule = _chosen(text, sizes)
    assert isinstance(schedule, WgradSchedule) and schedule.math == "f16x3"


def test_the_schedule_is_read_again() -> None:
    sizes = {"N": 16, "H": 56, "W": 56, "C": 128, "K": 128}
    chosen = plan(LAST, sizes, "sm90a")
    assert chosen.request.math == "f16x3" and chosen.request.tile is None
    written = LAST.replace("\n}", "\n  schedule sm90a { warps cooperative  math f16x3 }\n}")
    assert plan(written, sizes, "sm90a").plan == chosen.plan
