"""A program without its roundings is what torch computes in float64."""

from __future__ import annotations

import torch

from ucutlass import frontend, ir
from ucutlass.reference import evaluate
from ucutlass.reference.liveness import steps, unrealised
from ucutlass.reference.unrounded import unrounded, wide

TEXT = """
kernel layer(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return gelu(dot[K](x, w)) }
pipeline p(x: bf16[M, K], w: bf16[N, K], v: bf16[P, N], i: i32[M]) -> (y: bf16[M, P], z: i32[M]) {
  h = layer(x, w)
  f: bf16[M, N] = torch.flip(h, dims=0)
  y = layer(f, v)
  return y = y, z = i32(f32(i) * 1.5)
}
kernel casts(x: f16[M, K], w: f16[N, K]) -> e4m3[M, N] {
  return bf16(dot[K](e5m2(x), e5m2(w))) * f16(0.1)
}
"""


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_a_pipeline_keeps_every_digit_between_its_stages_and_its_integers() -> None:
    program = unrounded(frontend.program(frontend.read_text(TEXT), "p"))
    x, w, v = (drawn(*s).bfloat16() for s in ((4, 8), (6, 8), (5, 6)))
    y, z = evaluate(program, wide([x, w, v, torch.tensor([1, 2, 3, 5], dtype=torch.int32)]))
    gelu = torch.nn.functional.gelu
    expected = gelu(gelu(x.double() @ w.double().t()).flip(0) @ v.double().t())
    assert y.dtype == torch.float64 and z.dtype == torch.int32
    torch.testing.assert_close(y, expected, rtol=1e-13, atol=1e-13)
    assert z.tolist() == [2, 3, 4, 8]


def test_casts_between_floats_fall_away() -> None:
    program = unrounded(frontend.program(frontend.read_text(TEXT), "casts"))
    x, w = (drawn(*s).half() for s in ((4, 8), (6, 8)))
    (y,) = evaluate(program, wide([x, w]))
    torch.testing.assert_close(y, x.double() @ w.double().t() * 0.1, rtol=1e-13, atol=1e-13)


def test_a_window_that_is_cast_is_still_read_by_its_dot() -> None:
    text = """
    kernel conv(x: f32[B=1, C=2, W=6], w: f32[F=3, C, S=3]) -> f32[B, F, V=6] {
      return dot[C, S](tf32(x[W = V + S - 1]), tf32(w))
    }
    """
    kernel = unrounded(frontend.program(frontend.read_text(text)))
    assert isinstance(kernel, ir.Kernel)
    (dot,) = (node for node, _ in steps([r.value for r in kernel.results]) if isinstance(node, ir.Dot))
    assert unrealised(dot.left)
    assert not any(isinstance(node, ir.Read) for node, _ in steps([r.value for r in kernel.results]))
    x, w = drawn(1, 2, 6), drawn(3, 2, 3)
    (found,) = evaluate(kernel, wide([x, w]))
    torch.testing.assert_close(
        found, torch.nn.functional.conv1d(x.double(), w.double(), padding=1), rtol=1e-13, atol=1e-13
    )
