"""Lower estimates of bounds: never above the bounds, and of the same results."""

from __future__ import annotations

import pytest
import torch

from tests.reference.tasks import named
from ucutlass.reference import expect, expected_results, least_results
from ucutlass.runtime.inputs import generate
from ucutlass.runtime.verify import check, judge

CASES = {
    "f16 sums": "kernel k(x: f16[M=9, K=900], w: f16[N=7, K]) -> f16[M, N] { return dot[K](x, w, acc=f16) }",
    "bf16": "kernel k(x: bf16[M=9, K=900], w: bf16[N=7, K]) -> f32[M, N] { return dot[K](x, w) }",
    "f32": "kernel k(x: f32[M=9, K=900], w: f32[N=7, K]) -> f32[M, N] { return dot[K](x, w) }",
    "e4m3": "kernel k(x: e4m3[M=9, K=900], w: e4m3[N=7, K]) -> f32[M, N] { return dot[K](x, w) }",
    "function": "kernel k(x: f32[M=9, K=900], w: f32[N=7, K]) -> f32[M, N] { return gelu(dot[K](x, w)) }",
    "two": """kernel k(x: bf16[M=9, K=900], w: bf16[N=300, K], v: bf16[L=5, N]) -> f32[M, L] {
      return dot[N](bf16(softmax[N](dot[K](x, w))), v)
    }""",
    "window": """kernel k(x: f32[B=3, C=90, H=20], w: f32[K=5, C, R=3]) -> f32[B, K, P=H] {
      return dot[C, R](x[H = P + R - 1], w)
    }""",
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("distribution", ["normal", "integer", "wide", "positive", "special"])
def test_least_bounds_are_at_most_the_bounds(name: str, distribution: str) -> None:
    program = named(CASES[name], "k")
    arguments = generate(program, {}, distribution, seed=5)
    (full,), (least,) = expect(program, arguments), expect(program, arguments, least=True)
    torch.testing.assert_close(least.reference, full.reference, rtol=1e-6, atol=0.0, equal_nan=True)
    assert bool((least.bound <= full.bound * (1 + 1e-9)).all())
    if distribution == "normal":
        assert bool((least.bound < 0.99 * full.bound).any()), "long sums have prefixes"
        assert bool((least.bound > 0.05 * full.bound).all()), "and are not estimated at nothing"


def test_what_exceeds_least_bounds_alone_is_right() -> None:
    """The bounds decide where least bounds do not: the error here is between the two."""
    program = named(CASES["bf16"], "k")
    arguments = generate(program, {}, "normal", seed=5)
    (full,), (least,) = expect(program, arguments), expect(program, arguments, least=True)

    def launch(share: float) -> judge.JudgedLaunch:
        off = least.bound + share * (full.bound - least.bound)
        return lambda _, results: results[0].copy_(full.reference + off)

    assert check(program, launch(0.8), arguments).ok
    assert not check(program, launch(1.5), arguments).ok
    (comparison,) = check(program, launch(0.8), arguments).comparisons
    assert 0.5 < comparison.worst < 1, "said of the bounds"


def test_bounds_without_sums_are_the_bounds() -> None:
    program = named("kernel k(x: f32[M=9, K=30]) -> f32[M] { return sum[K](x) }", "k")
    arguments = generate(program, {}, "normal", seed=5)
    assert least_results(program, arguments).full is None
    (a,), (b,) = (r(program, arguments).whole or () for r in (least_results, expected_results))
    assert torch.equal(a.bound, b.bound)
