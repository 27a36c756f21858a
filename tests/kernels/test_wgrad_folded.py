"""Gradients of weights of few channels, whose copy has the taps of a line beside the channels: on the host behind the
emulator, and where the planner takes them."""

from __future__ import annotations

import shutil

import pytest

from tests.kernels.convolution_emulated import judge, plan
from ucutlass.kernels.convolution.plan import ConvolutionPlan, WgradSchedule

emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

LAST = """kernel k(x: bf16[N, H, W, C], y: bf16[N, P, Q, K]) -> bf16[K, R=RR, S=SS, C] {
  return dot[N, P, Q](x[H = ST*P + R - PA, W = ST*Q + S - PA], y)
}"""
FIRST = (
    LAST.replace("N, H, W, C", "N, C, H, W")
    .replace("N, P, Q, K", "N, K, P, Q")
    .replace("R=RR, S=SS, C", "C, R=RR, S=SS")
)


def _written(text: str, taps: tuple[int, int], step: int, pad: int) -> str:
    written = text.replace("RR", str(taps[0])).replace("SS", str(taps[1])).replace("PA", str(pad))
    return written.replace("ST*", f"{step}*" if step > 1 else "")


def _folded(text: str, sizes: dict[str, int]) -> bool:
    chosen = plan(text, sizes, "sm90a").plan
    assert isinstance(chosen, ConvolutionPlan) and isinstance(chosen.schedule, WgradSchedule)
    return chosen.problem.a.fold is not None


@emulated
@pytest.mark.parametrize(
    ("text", "taps", "step", "pad", "sizes"),
    [
        pytest.param(LAST, (7, 7), 2, 3, {"N": 2, "H": 22, "W": 18, "C": 3, "K": 24}, id="stem"),
        pytest.param(LAST, (3, 3), 2, 1, {"N": 3, "H": 15, "W": 17, "C": 3, "K": 64}, id="odd"),
        pytest.param(FIRST, (3, 5), 1, 1, {"N": 2, "H": 12, "W": 16, "C": 2, "K": 8}, id="channels first"),
        pytest.param(FIRST, (4, 4), 4, 0, {"N": 2, "H": 32, "W": 32, "C": 3, "K": 16}, id="patches"),
        pytest.param(LAST, (3, 3), 1, 1, {"N": 2, "H": 9, "W": 10, "C": 12, "K": 8}, id="twelve"),
    ],
)
def test_gradients_compute_their_program(
    text: str, taps: tuple[int, int], step: int, pad: int, sizes: dict[str, int]
) -> None:
    written = _written(text, taps, step, pad)
    places = {n: (sizes[a] + 2 * pad - r) // step + 1 for n, a, r in zip("PQ", "HW", taps, strict=True)}
    assert _folded(written, sizes | places)
    assert judge(written, sizes | places, arch="sm90a") == []


def test_many_channels_are_not_folded() -> None:
    text = _written(LAST, (3, 3), 1, 1)
    assert not _folded(text, {"N": 8, "H": 28, "W": 28, "P": 28, "Q": 28, "C": 32, "K": 32})
