"""Which kernel the planner takes for convolutions of few channels: what an H100 ran fastest of all of them."""

from __future__ import annotations

import pytest

from tests.kernels.convolution_emulated import plan
from ucutlass.kernels.convolution.plan import ConvolutionPlan, Im2colSchedule, RegisterTileSchedule
from ucutlass.kernels.gemm.plan import Sm80Schedule

IMAGES = """kernel k(x: E[N, C, H=224, W=224], w: E[K, C, R=KERNEL, S=KERNEL], b: E[K]) -> E[RESULT] {
  return dot[C, R, S](COMPUTE(x[H = STRIDE*P + R - PAD, W = STRIDE*Q + S - PAD]), COMPUTE(w)) + b
}"""
CUBES = """kernel k(x: f32[N, 3, D=16, H, H2], w: f32[K=16, 3, T=3, R=3, S=3]) -> f32[N, K, O=14, P=H-2, Q=H2-2] {
  return dot[C, T, R, S](x[D = O + T, H = P + R, H2 = Q + S], w)
}""".replace("3, D", "C=3, D").replace("=16, 3,", "=16, C,")
SMALLEST = """kernel k(x: f32[N, C, H=256, W=256], w: f32[K, C, R=3, S=3]) -> f32[N, 1, P=254, Q=254] {
  return min[K](dot[C, R, S](x[H = P + R, W = Q + S], w))
}"""


def _images(element: str, kernel: int, stride: int, pad: int, last: bool = False) -> str:
    side = (224 + 2 * pad - kernel) // stride + 1
    places = f"P={side}, Q={side}"
    text = IMAGES.replace("RESULT", f"N, {places}, K" if last else f"N, K, {places}")
    text = text.replace("COMPUTE", element if element == "tf32" else "")
    text = text.replace("E[", "f32[" if element == "tf32" else f"{element}[")
    return text.replace("KERNEL", str(kernel)).replace("STRIDE", str(stride)).replace("PAD", str(pad))


CASES = [
    pytest.param(CUBES, {"N": 128, "H": 64, "H2": 64}, "tile", 790.0, id="cubes"),
    pytest.param(
        CUBES.replace("K=16", "(G=4 K=4)").replace("[N, K,", "[N, (G K),"),
        {"N": 128, "H": 64, "H2": 64},
        "tile",
        790.0,
        id="columns of two names",
    ),
    pytest.param(SMALLEST, {"N": 64, "C": 16, "K": 64}, "whole", None, id="reduced"),
    pytest.param(_images("f32", 3, 1, 1), {"N": 10, "C": 3, "K": 64}, "tile", 108.0, id="3x3"),
    pytest.param(_images("f32", 3, 2, 1), {"N": 64, "C": 3, "K": 32}, "tile", 87.0, id="3x3/2"),
    pytest.param(_images("f32", 7, 2, 3), {"N": 64, "C": 3, "K": 64}, "fold", 407.0, id="7x7/2"),
    pytest.param(_images("f32", 11, 4, 2), {"N": 256, "C": 3, "K": 96}, "fold", 1584.0, id="11x11/4"),
    pytest.param(_images("f32", 3, 1, 1), {"N": 128, "C": 8, "K": 64}, "whole", None, id="8 channels"),
    pytest.param(_images("tf32", 7, 2, 3), {"N": 64, "C": 3, "K": 64}, "fold", None, id="7x7/2 tf32"),
    pytest.param(_images("bf16", 7, 2, 3, True), {"N": 64, "C": 3, "K": 64}, "tile", None, id="7x7/2 bf16"),
    pytest.param(_images("bf16", 3, 1, 1, True), {"N": 10, "C": 3, "K": 64}, "tile", None, id="3x3 bf16"),
    pytest.param(_images("bf16", 3, 2, 1, True), {"N": 64, "C": 3, "K": 32}, "tile", None, id="3x3/2 bf16"),
]


@pytest.mark.parametrize(("text", "sizes", "kernel", "microseconds"), CASES)
def test_the_fastest_kernel_is_taken(
    text: str, sizes: dict[str, int], kernel: str, microseconds: float | None
) -> None:
    planned = plan(text, sizes, "sm90a")
    assert isinstance(planned.plan, ConvolutionPlan)
    match planned.plan.schedule:
        case RegisterTileSchedule():
            assert kernel == "tile"
        case Im2colSchedule(fold=fold):
            assert kernel == ("fold" if fold else "whole")
        case Sm80Schedule():
            assert kernel == "multistage"
    if microseconds is not None:
        assert 0.65 * microseconds < 1e6 * planned.seconds < 1.2 * microseconds


def test_rows_of_32_bytes_are_gathered_by_tall_tiles() -> None:
    """An H100 took 1.78 ms of 2.54 by them, of 8 to 64 channels in TF32."""
    text = _images("tf32", 3, 1, 1, last=True).replace("N, C, H=224, W=224", "N, H=224, W=224, C")
    text = text.replace("K, C, R=3, S=3", "K, R=3, S=3, C")
    chosen = plan(text, {"N": 128, "C": 8, "K": 64}, "sm90a").plan
    assert isinstance(chosen, ConvolutionPlan) and isinstance(chosen.schedule, Im2colSchedule)
    assert chosen.schedule.math == "tensor" and chosen.schedule.tile == (192, 64, 32)


def test_a_window_of_eight_channels_is_one_row_of_f16() -> None:
    """An H100 took 293 us of 488 by taps beside channels, of 128 x 8 to 128 channels at 112 x 112 in TF32."""
    chosen = plan(_images("tf32", 7, 2, 3), {"N": 128, "C": 8, "K": 128}, "sm90a").plan
    assert isinstance(chosen, ConvolutionPlan) and isinstance(chosen.schedule, Im2colSchedule)
    assert chosen.schedule.math == "f16" and chosen.schedule.fold


def test_what_a_schedule_fixes_stays() -> None:
    text, sizes = _images("f32", 3, 1, 1), {"N": 10, "C": 3, "K": 64}
    for schedule, of in (
        ("tile 64x64x32", Im2colSchedule),
        ("warps multistage", Sm80Schedule),
        ("fold no", Im2colSchedule),
    ):
        chosen = plan(text.replace("\n}", f"\n  schedule sm90a {{ {schedule} }}\n}}"), sizes, "sm90a").plan
        assert isinstance(chosen, ConvolutionPlan) and isinstance(chosen.schedule, of), schedule
        assert schedule != "fold no" or not getattr(chosen.schedule, "fold", True)
