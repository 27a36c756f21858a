"""Sums of products taken a slice of the result at a time: the bounds of one piece, and windows that are read once a block."""

from __future__ import annotations

import pytest
import torch

from tests.reference.tasks import named
from ucutlass.reference import accumulation, expect
from ucutlass.reference import contract as contract_module
from ucutlass.reference.indexing import LazyRead, read
from ucutlass.reference.named_tensor import Named
from ucutlass.runtime.inputs import generate

CONVOLUTION = """kernel k(x: f32[B=4, C=20, H=40], w: f32[K=5, C, R=3]) -> f32[B, K, P=H] {
  return dot[C, R](x[H = P + R - 1], w)
}"""
STRIDED = """kernel k(x: f32[B=4, C=20, H=40], w: f32[K=5, C, R=3]) -> f32[B, K, P=H//2] {
  return dot[C, R](w, x[H = 2*P + R - 1])
}"""
MATRIX = """kernel k(x: bf16[M=33, K=300], w: bf16[N=7, K]) -> f32[M, N] {
  return dot[K](x, w)
}"""
ALONE = """kernel k(x: f32[K=40], w: f32[K]) -> f32[1] {
  return dot[K](x, w)
}"""
GROUPED = """kernel k(x: bf16[T=9, K=24], w: bf16[E=3, N=5, K], ids: i32[T]) -> f32[T, N] {
  return dot[K](x, w[E = ids])
}"""
FP8 = """kernel k(x: e4m3[M=18, K=300], w: e4m3[N=7, K]) -> f32[M, N] {
  return dot[K](x, w)
}"""


@pytest.mark.parametrize("text", [CONVOLUTION, STRIDED, MATRIX, ALONE, GROUPED, FP8])
def test_slices_give_the_bounds_of_one_piece(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = named(text, "k")
    arguments = generate(program, {}, "normal", seed=3)
    (whole,) = expect(program, arguments)
    monkeypatch.setattr(accumulation, "CHUNK", 16)
    monkeypatch.setattr(accumulation, "UNROLLED", 64)
    (sliced,) = expect(program, arguments)
    assert bool((whole.bound > 0).any())
    torch.testing.assert_close(sliced.reference, whole.reference, rtol=1e-6, atol=0.0)
    torch.testing.assert_close(sliced.bound, whole.bound, rtol=1e-6, atol=0.0)


def test_a_window_is_unrolled_a_slice_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dimension of the window is cut, since to cut the weights' would unroll the window for each of their slices."""
    program = named(CONVOLUTION, "k")
    windows: list[LazyRead] = []

    def counted(window: LazyRead) -> Named:
        windows.append(window)
        return read(window)

    for module in (accumulation, contract_module):
        monkeypatch.setattr(module, "UNROLLED", 1000)
    monkeypatch.setattr(contract_module, "read", counted)
    expect(program, generate(program, {}, "normal", seed=3))
    taps = 4 * 20 * 40 * 3
    assert max(window.numel for window in windows) <= 1000
    assert sum(window.numel for window in windows) == taps, "each once"
