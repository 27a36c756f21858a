"""Programs in the compute type that a problem allows: what is rounded, and what stays as it is."""

from __future__ import annotations

import pytest

from ucutlass import frontend
from ucutlass.agent.compute_type_casts import in_compute_type, in_half
from ucutlass.agent.integrity.precision import UnknownComputeType, declared, losses
from ucutlass.runtime.bench.eager import compute_types

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


CHAIN = """pipeline k(x: f32[M=48, K=32], w: f32[(A=4 B=16), K], v: f32[J=16, (A B)]) -> f32[M, J] {
  h: f32[M, (A B)] = relu(dot[K](tf32(x), tf32(w)))
  return dot[A, B](h, v)
}
"""


@pytest.mark.parametrize("text", [KERNEL, CHAIN])
@pytest.mark.parametrize(
    ("compute_type", "halves"), [("bf16", ["bf16"]), ("f16", ["f16"]), ("tf32", []), ("f32", [])]
)
def test_operands_are_stored_in_16_bits_where_the_problem_allows_it(
    text: str, compute_type: str, halves: list[str]
) -> None:
    before = frontend.program(frontend.read_text(text), "k")
    texts = {elem.name: half for elem, half in in_half(text, "k", compute_type).items()}
    assert list(texts) == halves
    for elem, half in texts.items():
        program = frontend.program(frontend.read_text(half), "k")
        assert [p.type for p in program.params] == [p.type for p in before.params]
        assert compute_types(program) == {elem} and "tf32" not in half
        assert not losses(program, declared(compute_type)) and losses(program, declared("tf32"))
        assert ("h_" in half) == (text is CHAIN), "what products alone read is stored so by its own launch"
        assert "  h:" not in half


def test_what_else_is_read_stays_in_f32() -> None:
    (half,) = in_half(CHAIN.replace("(h, v)", "(h, v) + sum[A, B](h)"), "k", "bf16").values()
    assert "h: f32[M, (A B)]" in half and "h_bf16: bf16[M, (A B)] = bf16(h)" in half
    computed = KERNEL.replace("dot[K](x, w)", "dot[K](x * x, w)")
    assert in_half(computed, "k", "bf16") == {}, "no operand that stands in memory"
    assert in_half(KERNEL.replace("x:", "w_bf16:").replace("(x", "(w_bf16"), "k", "bf16") == {}


def test_what_is_stored_so_keeps_the_extents_that_it_introduces() -> None:
    (half,) = in_half(PIPELINE, "k", "bf16").values()
    assert "h: f32[B, K, P, Q] = conv(x, w)\n  h_bf16: bf16[B, K, P, Q] = bf16(h)" in half, (
        "as a kernel gives it"
    )
    pooled = """pipeline k(x: f32[B=2, H=8], w: f32[N=8, P=4]) -> f32[B, N] {
  h: f32[B, P2=4] = max[R=2](x[H = 2*P2 + R])
  return dot[P2](h, w[P = P2])
}
"""
    (half,) = in_half(pooled, "k", "bf16").values()
    assert "h_bf16: bf16[B, P2=4] = max" in half
