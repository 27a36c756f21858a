"""Functions that jump, behind a buffer that a launch computed inexactly: whatever the buffer holds within its
bound, what the next launch makes of it is within the bound end to end."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.reference.tasks import named
from ucutlass.reference import evaluate, expect
from ucutlass.runtime.verify import compare

M, N, J, V = 6, 40, 3, 64

JUMPS = {
    "round": ("f32[M, N]", "round(h)"),
    "floor": ("f32[M, N]", "floor(h)"),
    "sign": ("f32[M, N]", "sign(h - 1.5)"),
    "less": ("bool[M, N]", "h < 2.5"),
    "equal": ("bool[M, N]", "h == 2.5"),
    "not equal": ("bool[M, N]", "not h == 2.5"),
    "s8": ("s8[M, N]", "h"),
    "u8": ("u8[M, N]", "h - 3"),
    "i32": ("i32[M, N]", "i32(h)"),
    "i64": ("i64[M, N]", "i64(h * 3)"),
    "bool": ("bool[M, N]", "bool(h - 2)"),
    "bool of a far end": ("bool[M, N]", "bool(h * 1e-30 - 2e-30)"),
    "e4m3": ("e4m3[M, N]", "h * 0.3"),
    "f16": ("f16[M, N]", "h * 1.00048828125"),
    "floor_divide": ("f32[M, N]", "h // 0.5"),
    "modulo": ("f32[M, N]", "h % 0.5"),
    "whole floor_divide": ("i32[M, N]", "i32(h) // 3"),
    "whole modulo": ("i32[M, N]", "i32(h) % 3"),
    "where": ("f32[M, N]", "where(h >= 1.5, 100.0, -100.0)"),
    "argmax": ("i64[M]", "argmax[N](round(h) % 5)"),
    "argmin": ("i64[M]", "argmin[N](abs(h - 7.25))"),
    "max": ("i32[M]", "max[N](where(h < 3.6, i32(h), 0))"),
    "count": ("i64[M]", "sum[N](where(h > 2.5, 1, 0))"),
    "scan": ("i64[M, N]", "cumsum[N](i32(h), reverse=true)"),
    "gather": ("f32[M, N]", "t[V = min(i32(h), 63)]"),
    "gather under a sum": ("f32[M]", "sum[N](t[V = min(i32(h), 63)])"),
    "integer dot": ("i32[M, J]", "dot[N](s8(h), w)"),
    "integer dot that wraps": ("i32[M, J]", "dot[N](s8(h), w) * 1000000"),
    "product that wraps": ("i32[M, N]", "i32(h) * 1000000000"),
    "softmax": ("f32[M, N]", "softmax[N](round(h) * 0.1)"),
    "steep softmax": ("f32[M, N]", "softmax[N](round(h) * 1000)"),
    "quotient by what may be 0": ("f32[M, N]", "1 / round(h - 2)"),
    "clamped quotient by what may be 0": ("f32[M, N]", "clamp(1 / round(h - 2), 0, 1)"),
    "logarithm of what may be 0": ("f32[M, N]", "log(floor(h))"),
    "read elsewhere": ("f32[M, N]", "round(h)[N = N - 1]"),
    "window": ("i32[M, P=N]", "min[R=3](i32(h)[N = P + R - 1])"),
}


def arguments() -> list[Tensor]:
    """Quotients that are whole numbers and halves but for their rounding."""
    s = torch.tensor([0.1, 0.3, 0.7, 1.1, 3.0, 1 / 3])
    x = (torch.arange(M * N).reshape(M, N) % 37 * 0.5 * s[:, None].double()).float()
    random = torch.Generator().manual_seed(0)
    w = torch.randint(-9, 9, (N, J), generator=random, dtype=torch.int8)
    return [x, s, w, torch.randn(V, generator=random)]


PARAMS = "w: s8[N, J], t: f32[V]"


@pytest.mark.parametrize("name", JUMPS)
def test_any_buffer_within_its_bound_gives_a_result_within_its_own(name: str) -> None:
    result, text = JUMPS[name]
    whole = named(
        f"pipeline p(x: f32[M, N], s: f32[M], {PARAMS}) -> (h: f32[M, N], y: {result}) {{\n"
        f"  h: f32[M, N] = x * (1 / s)\n  return h = h, y = {text}\n}}",
        "p",
    )
    second = named(f"kernel k(h: f32[M, N], {PARAMS}) -> {result} {{ return {text} }}", "k")
    tensors = arguments()
    h, y = expect(whole, tensors)
    assert bool((h.bound > 0).any())
    random = torch.Generator().manual_seed(1)
    shifts = [-1.0, 1.0, *(torch.rand(h.bound.shape, generator=random) * 2 - 1 for _ in range(6))]
    moved = 0
    for shift in shifts:
        near = (h.reference + shift * h.bound).float()
        near = torch.where((near - h.reference).abs() <= h.bound, near, h.reference.float())
        (actual,) = evaluate(second, [near, *tensors[2:]])
        comparison = compare(actual, y.reference, y.bound, overflows=y.overflows, free=y.free)
        assert comparison.ok, comparison
        moved += int((actual != y.reference.to(actual.dtype)).sum())
    assert moved, "no jump was crossed"


LINEAR = """
kernel quantise(x: f32[M, K]) -> (q: s8[M, K], s: f32[M]) {
  top = max[K](abs(x)) / 127
  return q = round(x / top), s = top
}
kernel product(q: s8[M, K], s: f32[M], w: s8[N, K]) -> f32[M, N] { return f32(dot[K](q, w)) * s }
pipeline linear(x: f32[M, K], w: s8[N, K]) -> f32[M, N] {
  q, s = quantise(x)
  return product(q, s, w)
}
"""


def quantised(x: Tensor, w: Tensor, form: str) -> Tensor:
    """The linear layer as f32 kernels may write it; `truncated` and `neighbour` are wrong."""
    s = x.abs().amax(1, keepdim=True) / 127
    scaled = x * (1 / s) if form == "reciprocal" else x * (127 / x.abs().amax(1, keepdim=True))
    scaled = x / s if form in ("quotient", "neighbour") else scaled
    q = scaled.trunc() if form == "truncated" else scaled.round()
    return (q.double() @ w.double().T).float() * (s.roll(1, 0) if form == "neighbour" else s)


@pytest.mark.parametrize(
    ("form", "right"),
    [("quotient", True), ("reciprocal", True), ("factor", True), ("truncated", False), ("neighbour", False)],
)
def test_an_int8_linear_is_judged_end_to_end(form: str, right: bool) -> None:
    random = torch.Generator().manual_seed(2)
    # Multiples of half a step: every second number is a tie.
    x = (torch.randint(-253, 254, (32, 256), generator=random) * 0.5 * 0.013).float()
    x[:, 0] = 127 * 0.013
    w = torch.randint(-127, 128, (16, 256), generator=random, dtype=torch.int8)
    (expected,) = expect(named(LINEAR, "linear"), [x, w])
    comparison = compare(quantised(x, w, form), expected.reference, expected.bound)
    assert comparison.ok or not right, comparison  # to cut a tie off is to take its lower side
    y = torch.randn(32, 256, generator=random)
    (usual,) = expect(named(LINEAR, "linear"), [y, w])
    comparison = compare(quantised(y, w, form), usual.reference, usual.bound)
    assert comparison.ok is right and comparison.decided, comparison
