"""What a value cannot lie below: its interval's end is moved there, and no honest result is left out."""

from __future__ import annotations

import math

import pytest
import torch

from ucutlass import frontend, ir
from ucutlass.ir import Apply
from ucutlass.reference import expect
from ucutlass.reference.lower_bounds import lower_bound

NORM = """
fn norm[N](x) {
  d = x - mean[N](x)
  return d * rsqrt(mean[N](d * d) + 1e-5)
}
pipeline deep(x: f32[M, K], w: f32[N, K]) -> f32[M, N] {
  h: f32[M, N] = dot[K](x, w)
  return norm[N](h)
}
"""


def value(expression: str) -> ir.Value:
    text = f"kernel k(x: f32[M], y: f32[M]) -> f32[M] {{ return {expression} }}"
    (result,) = frontend.kernel(frontend.read_text(text)).results
    return result.value


@pytest.mark.parametrize(
    "expression, least",
    [
        ("x * x", 0.0),
        ("x * y", -math.inf),
        ("x ** 2", 0.0),
        ("x ** 3", -math.inf),
        ("abs(x) + exp(y)", 0.0),
        ("x - x", -math.inf),
        ("max(x, 0.5)", 0.5),
        ("min(abs(x), y)", -math.inf),
        ("x * x * sqrt(y)", 0.0),
        ("relu(x) / exp(y)", 0.0),
        ("where(x < y, 1.0, x)", -math.inf),
        ("x + sum[M](x * x)", -math.inf),
        ("x * 0 + mean[M](y * y)", -math.inf),
        ("sigmoid(x) + 0.25", 0.25),
        ("softmax[M](x) + 1", 1.0),
    ],
)
def test_signs_are_known(expression: str, least: float) -> None:
    assert lower_bound(value(expression)) == least


def test_a_constant_is_the_lower_of_its_two_forms() -> None:
    least = lower_bound(value("x * x + 1e-5"))
    assert least == min(1e-5, float(torch.tensor(1e-5, dtype=torch.float32)))


def test_shared_values_are_looked_at_once() -> None:
    """Otherwise this takes 2**60 steps."""
    node = value("exp(x)")
    for _ in range(60):
        node = Apply("add", (node, node), node.elem, node.dims)
    assert lower_bound(node) == 0.0


def test_a_norm_of_what_is_hardly_known_is_bounded_all_the_same() -> None:
    """Its variance's interval reaches below 0, where the root of its end would be no number."""
    program = frontend.program(frontend.read_text(NORM))
    random = torch.Generator().manual_seed(3)
    x, w = (torch.randn(s, generator=random) for s in ((8, 64), (96, 64)))
    (e,) = expect(program, [1000 + x, 1 + w * 1e-9])
    assert bool(e.bound.isfinite().all())


@pytest.mark.parametrize("root", ["sqrt(s)", "1 / s", "log(s)", "s ** -0.5", "rsqrt(s)"])
def test_an_honest_device_stays_within(root: str) -> None:
    """f32 work from the true dot's two ends, where the sum of squares nearly vanishes."""
    text = (
        "kernel k(x: f32[M, K], w: f32[N, K]) -> f32[M] {\n"
        f"  d = dot[K](x, w)\n  s = sum[N](d * d) + 1e-12\n  return {root}\n}}"
    )
    kernel = frontend.kernel(frontend.read_text(text))
    random = torch.Generator().manual_seed(5)
    x = torch.randn((16, 32), generator=random)
    x[:, 16:] = -x[:, :16]
    w = torch.randn((4, 32), generator=random)
    w[:, 16:] = w[:, :16]  # every dot is 0 but for rounding
    (e,) = expect(kernel, [x, w])
    assert bool(e.bound.isfinite().all())
    for spoilt in (x, x * (1 + 2**-22), x * (1 - 2**-22)):
        s = ((spoilt @ w.t()) ** 2).sum(1) + 1e-12
        actual = {"sqrt(s)": s.sqrt(), "1 / s": 1 / s, "log(s)": s.log()}.get(root, s.rsqrt())
        assert bool(((actual.double() - e.reference).abs() <= e.bound).all())
