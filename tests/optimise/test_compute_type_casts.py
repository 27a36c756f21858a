"""Programs in the compute type that a problem allows: what is rounded, and what stays as it is."""

from __future__ import annotations

import pytest

from ucutlass import frontend
from ucutlass.agent.compute_type_casts import in_compute_type
from ucutlass.agent.integrity.precision import UnknownComputeType, declared, losses

KERNEL = """kernel k(x: f32[M=64, K=32], w: f32[N=16, K]) -> f32[M, N] {
  return relu(dot[K](x, w))
}
"""
PIPELINE = """kernel conv(x: f32[B, C, H, W], w: f32[K, C, R=3, S=3]) -> f32[B, K, P=H, Q=W] {
  return dot[C, R, S](x[H = P + R - 1, W = Q + S - 1], w)
}

pipeline k(x: f32[B=2, C=4, H=8, W=8], w: f32[K=8, C, R=3, S=3], v: f32[N=5, K]) -> f32[B, P, Q, N] {
  h: f32[B, K, P, Q] = conv(x, w)
  return dot[K](h, v)
}
"""


@pytest.mark.parametrize("text", [KERNEL, PIPELINE])
@pytest.mark.parametrize("compute_type", ["tf32", "bf16"])
def test_products_are_rounded_where_the_problem_allows_it(text: str, compute_type: str) -> None:
    rounded = in_compute_type(text, "k", compute_type)
    assert rounded.count("tf32(") == 2 * text.count("dot[")
    program = frontend.program(frontend.read_text(rounded), "k")
    assert not losses(program, declared(compute_type)) and losses(program, declared("f32"))
    assert in_compute_type(rounded, "k", compute_type) == rounded


def test_other_programs_stay_as_they_are() -> None:
    assert in_compute_type(KERNEL, "k", None) == in_compute_type(KERNEL, "k", "f32") == KERNEL
    half = KERNEL.replace("f32[M=64", "f16[M=64").replace("f32[N=16", "f16[N=16")
    assert in_compute_type(half, "k", "f16") == half
    assert in_compute_type("", "", "tf32") == ""
    with pytest.raises(UnknownComputeType):
        in_compute_type(KERNEL, "k", "float")
