"""What lies outside of a window's tensor, and meets an infinity or a NaN: a kernel may multiply or leave it out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ucutlass import frontend, ir
from ucutlass.agent.compute_type_casts import in_compute_type
from ucutlass.ir.elements import TF32
from ucutlass.ir.traversal import walk
from ucutlass.reference import expect
from ucutlass.reference.liveness import steps, unrealised, window_source
from ucutlass.reference.rounding import round_float
from ucutlass.runtime.verify.comparison import compare

TRANSPOSED = """kernel k(x: f32[B, C, H], w: f32[C, K, R=3]) -> f32[B, K, P=2*H+1] {
  return dot[C, R](x[2*H = P - R], w)
}"""
PADDED = """kernel k(x: f32[B, C, H], w: f32[K, C, R=3]) -> f32[B, K, P=H] {
  return abs(dot[C, R](x[H = P + R - 1], w))
}"""


def compared(text: str, out: Tensor, x: Tensor, w: Tensor) -> bool:
    (expected,) = expect(frontend.kernel(frontend.read_text(text)), [x, w])
    return compare(
        out, expected.reference, expected.bound, overflows=expected.overflows, free=expected.free
    ).ok


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("text", [TRANSPOSED, PADDED])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_product_with_what_is_outside_may_be_left_out(text: str, bad: float, rounded: bool) -> None:
    torch.manual_seed(1)
    x = torch.randint(-8, 8, (2, 4, 6)).float()  # exact in TF32
    w = torch.randint(-8, 8, (4, 5, 3) if text is TRANSPOSED else (5, 4, 3)).float()
    w[(1, 2, 0) if text is TRANSPOSED else (2, 1, 0)] = bad
    if text is TRANSPOSED:
        skipping = torch.nn.functional.conv_transpose1d(x.double(), w.double(), stride=2)
        gathered = torch.zeros(2, 4, 13).double()
        gathered[:, :, 1:12:2] = x
        multiplying = torch.nn.functional.conv1d(
            torch.nn.functional.pad(gathered, (1, 1)), w.double().flip(2).transpose(0, 1)
        )
    else:
        multiplying = torch.nn.functional.conv1d(x.double(), w.double(), padding=1).abs()
        skipping = multiplying.clone()
        own = torch.nn.functional.conv1d(x.double(), w.double().nan_to_num(0, 0, 0), padding=1).abs()
        skipping[:, 2, 0] = own[:, 2, 0]
    assert multiplying.shape == skipping.shape
    text = in_compute_type(text, "k", "tf32" if rounded else None)
    assert ("tf32" in text) == rounded
    assert not torch.equal(multiplying.isfinite(), skipping.isfinite())
    for out in (skipping, multiplying):
        assert compared(text, out.float(), x, w)
    elsewhere = skipping.clone()
    inside = (~skipping.isfinite()).nonzero()[-1]
    elsewhere[tuple(inside)] = 1.0
    assert not compared(text, elsewhere.float(), x, w), "what is read is no matter of choice"


def test_a_window_in_tf32_is_read_tap_by_tap() -> None:
    """It takes the memory of its tensor, as one in f32 does, and is what the whole window would be."""
    text = PADDED.replace("x[H = P + R - 1], w", "tf32(x[H = P + R - 1]), tf32(w)")
    kernel = frontend.kernel(frontend.read_text(text))
    dot = next(node for node in walk(*(r.value for r in kernel.results)) if isinstance(node, ir.Dot))
    assert unrealised(dot.left) and not unrealised(dot.right)
    assert window_source(dot.left) in [node for node, _ in steps([r.value for r in kernel.results])]
    assert dot.left not in [node for node, _ in steps([r.value for r in kernel.results])]
    torch.manual_seed(1)
    x, w = torch.randn(2, 4, 6), torch.randn(5, 4, 3)
    (expected,) = expect(kernel, [x, w])
    rounded = [round_float(t.double(), TF32) for t in (x, w)]
    exact = torch.nn.functional.conv1d(*rounded, padding=1).abs()
    assert (expected.reference - exact).abs().max() < 1e-6 and expected.bound.max() < 1e-4
