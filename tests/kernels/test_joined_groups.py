"""Convolutions of narrow groups of which several share a tile: on the host behind the emulator."""

from __future__ import annotations

import shutil

import pytest

from benchmarks.network_layers import Layer, Task
from tests.kernels.convolution_emulated import judge, plan
from ucutlass.diagnostics import ProgramError
from ucutlass.kernels.convolution.granularity import granularity
from ucutlass.kernels.convolution.plan import ConvolutionPlan, Im2colSchedule, WgradSchedule

emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")


def _text(
    channels: int,
    groups: int,
    step: int,
    extent: int,
    which: str,
    compute_type: str,
    last: bool,
    schedule: str,
) -> str:
    layer = Layer(channels, channels, 3, 3, step, step, 1, 1, 1, 1, groups, extent, extent)
    text = Task(layer, which, compute_type, 2, last).text
    return f"{text[: text.rindex('}')]}schedule sm90a {{ fold groups  {schedule} }} }}"


@emulated
@pytest.mark.parametrize(
    ("channels", "groups", "step", "extent", "which", "compute_type", "last", "schedule"),
    [
        pytest.param(104, 13, 1, 6, "forward", "bf16", True, "", id="last tile partly empty"),
        pytest.param(80, 5, 2, 7, "data", "f16", True, "", id="phases"),
        pytest.param(80, 5, 2, 7, "forward", "tf32", False, "tile 64x32x32", id="copied, two groups a tile"),
        pytest.param(40, 5, 1, 6, "weights", "bf16", True, "", id="gradient of weights"),
        pytest.param(80, 5, 2, 7, "weights", "tf32", False, "", id="gradient by mma.sync, taps last"),
        pytest.param(160, 20, 1, 5, "weights", "f16", False, "", id="gradient, many parts"),
        pytest.param(80, 20, 1, 6, "forward", "bf16", True, "", id="four channels"),
        pytest.param(80, 20, 2, 7, "data", "f16", True, "", id="four channels, phases"),
        pytest.param(80, 20, 1, 6, "weights", "bf16", True, "", id="four channels, gradient of weights"),
        pytest.param(
            80, 20, 1, 6, "weights", "bf16", False, "", id="four channels, copied beside each other"
        ),
        pytest.param(72, 36, 2, 7, "weights", "tf32", False, "", id="two channels, copied beside each other"),
    ],
)
def test_kernels_compute_their_program(
    channels: int,
    groups: int,
    step: int,
    extent: int,
    which: str,
    compute_type: str,
    last: bool,
    schedule: str,
) -> None:
    text = _text(channels, groups, step, extent, which, compute_type, last, schedule)
    chosen = plan(text, {}, "sm90a").plan
    assert isinstance(chosen, ConvolutionPlan)
    assert isinstance(chosen.schedule, Im2colSchedule | WgradSchedule) and chosen.schedule.joined
    assert judge(text, {}, 0, "sm90a") == []


def test_either_operand_may_stand_first() -> None:
    text = _text(104, 13, 1, 6, "forward", "bf16", True, "")
    before, after = text.split("](x[", 1)
    read, rest = after.split("], w)", 1)
    either = [plan(t, {}, "sm90a").plan for t in (text, f"{before}](w, x[{read}]){rest}")]
    assert either[0] == either[1]


@pytest.mark.parametrize(
    ("channels", "groups", "compute_type", "last", "schedule", "why"),
    [
        pytest.param(48, 1, "bf16", True, "", "one name has the groups", id="no groups"),
        pytest.param(36, 3, "bf16", True, "", "do not fill a tile together", id="twelve channels"),
        pytest.param(32, 8, "bf16", False, "", "no whole 16 bytes", id="four channels, copied"),
        pytest.param(36, 9, "bf16", True, "", "no whole 16 bytes", id="all channels are no whole 16 bytes"),
        pytest.param(64, 8, "f32", True, "", "in one pass", id="f32"),
        pytest.param(64, 8, "bf16", True, "tile 64x8x64", "do not fill a tile together", id="columns"),
    ],
)
def test_what_groups_do_not_share_is_refused(
    channels: int, groups: int, compute_type: str, last: bool, schedule: str, why: str
) -> None:
    with pytest.raises(ProgramError, match=why):
        plan(_text(channels, groups, 1, 8, "forward", compute_type, last, schedule), {}, "sm90a")


def test_drawn_extents_keep_what_a_tile_shares() -> None:
    text = """kernel k(x: bf16[N, H, W, (G C)], w: bf16[(G K), R=3, S=3, C]) -> bf16[N, P=H, Q=W, (G K)] {
  return dot[R, S, C](x[H = P + R - 1, W = Q + S - 1], w)
  schedule sm90a { fold groups }
}"""
    sizes = {"N": 2, "H": 8, "W": 8, "G": 5, "C": 8, "K": 16}
    chosen = plan(text, sizes, "sm90a").plan
    assert isinstance(chosen, ConvolutionPlan)
    assert granularity(chosen, list("NHWGCKRSPQ"), ()).step == {"C": 8, "K": 16}
