"""Algebra sees through calls of a file's kernels, and leaves those calls that nothing changes."""

from __future__ import annotations

import pytest

from tests.algebra.test_derivation import derived, same_results
from ucutlass import frontend, ir
from ucutlass.algebra.derivation import proof
from ucutlass.algebra.whole import WholeProgram, new_graph, whole_program

LINEAR = "kernel linear(x: f32[M, K], w: f32[K, N]) -> f32[M, N] {\n  return dot[K](x, w)\n}\n"
LOW_RANK = (
    LINEAR
    + """
pipeline low_rank(x: f32[B=2048, C=64], a: f32[C, D=4096], b: f32[D, E=64]) -> f32[B, E] {
  h: f32[B, D] = linear(x, a)
  y: f32[B, E] = linear(h, b)
  return y * 2
}
"""
)
NORMED = """
kernel statistics(x: f32[M, N]) -> (y0: f32[M, 1], y1: f32[M, 1]) {
  return y0 = mean[N](x), y1 = var[N](x)
}

kernel scores(x: f32[M, K], w: f32[N, K]) -> f32[M, N] {
  return dot[K](x, w)
}

pipeline normed(x: f32[B=1024, C=1024], w: f32[D=1024, C]) -> f32[B] {
  mean: f32[B, 1], var: f32[B, 1] = statistics(x)
  normal: f32[B, C] = tanh((x - mean) * rsqrt(var + 1e-5))
  s: f32[B, D] = scores(normal, w)
  return sum[D](s)
}
"""


def _whole(text: str) -> WholeProgram:
    program = frontend.program(frontend.read_text(text))
    return whole_program(program, new_graph(program, 1000))


def test_products_of_called_kernels_are_taken_in_the_cheaper_order() -> None:
    derivation = derived(LOW_RANK)
    assert derivation.seconds is not None
    best = derivation.candidates[0]
    assert best.seconds < derivation.seconds and "dot of a dot" in {rule.name for rule in best.rules}
    assert "kernel linear" not in best.text, "nothing calls it any more"
    same_results(LOW_RANK, best.text)


def test_a_call_that_nothing_changes_stays() -> None:
    derivation = derived(NORMED)
    best = derivation.candidates[0]
    assert "sum across dot" in {rule.name for rule in best.rules}
    assert "mean: f32[B, 1], var: f32[B, 1] = statistics(x)" in best.text and "scores(" not in best.text
    same_results(NORMED, best.text)
    programs = [frontend.program(frontend.read_text(text)) for text in (NORMED, best.text)]
    by = proof(*programs)
    assert by is not None and "sum across dot" in {rule.name for rule in by}


def test_dimensions_of_a_kernel_alone_have_names_of_their_own() -> None:
    text = """
kernel pooled(x: f32[M, N]) -> f32[M, P=3] {
  w: [M, P, R=2] = x[N = 2*P + R]
  return max[R](w)
}

pipeline twice(x: f32[R=4, N=6], y: f32[R, N]) -> (c: f32[R, Q=3], d: f32[R, Q]) {
  a: f32[R, Q] = pooled(x)
  b: f32[R, Q] = pooled(y)
  return c = a + 1, d = b + 1
}
"""
    whole = _whole(text)
    assert {*whole.program.dims} == {"R", "N", "Q", "R2"} and whole.program.dims["R2"] == ir.extents.Fixed(2)
    assert len(whole.calls) == 2 and not whole.kept


@pytest.mark.parametrize(
    "call",
    [
        "kernel f(x: f32[M, N]) -> f32[M, N] { return relu(x) }\npipeline p(x: f32[(A=2 B=3), N=4]) -> f32[(A B), N] {\n"
        "  y: f32[(A B), N] = f(x)\n  return y + 1\n}\n",
        "kernel f(x: f32[M, N], y: f32[K, M]) -> f32[M, N, K] { return relu(x) * y }\n"
        "pipeline p(x: f32[A=3, B=4], y: f32[B, A]) -> f32[A, B, B2=4] {\n"
        "  s: f32[A, B, B2] = f(x, y)\n  return s + 1\n}\n",
    ],
)
def test_a_kernel_of_other_names_is_not_seen_through(call: str) -> None:
    whole = _whole(call)
    assert len(whole.kept) == 1 and not whole.calls
