"""Whole derivations: what is found, that it is equal, and that it is bounded."""

from __future__ import annotations

import pytest
import torch

from ucutlass import frontend, ir
from ucutlass.algebra.derivation import Derivation, derive, proof
from ucutlass.algebra.saturation import Bounds
from ucutlass.ir.hardware import DEVICES
from ucutlass.reference.interpreter import evaluate
from ucutlass.reference.unrounded import unrounded

BOUNDS = Bounds(seconds=60)

LINEAR_SUM = """
pipeline scores(x: f32[M=1024, K=1024], w: f32[N=1024, K], b: f32[N]) -> f32[M, 1] {
  s: f32[M, 1] = sum[N]((dot[K](x, w) + b) / 2)
  return s * 1.5
}
"""
POOLED_CONVOLUTION = """
pipeline pooled(x: f32[B=32, C=16, H=34, W=34], w: f32[F=64, C, R=3, S=3], b: f32[F]) -> f32[B, F, 1, 1] {
  y: [B, F, P=32, Q=32] = dot[C, R, S](x[H = P + R, W = Q + S], w) + b
  return mean[P, Q](y)
}
"""
LOW_RANK = """
pipeline low_rank(x: f32[M=2048, K=64], a: f32[K, J=4096], b: f32[J, N=64]) -> f32[M, N] {
  h: f32 = dot[K](x, a)
  return dot[J](h, b)
}
"""
NOTHING = """
kernel gelu_linear(x: bf16[M=64, K=64], w: bf16[N=64, K]) -> bf16[M, N] {
  return gelu(dot[K](x, w))
}
"""
BEFORE_STORED = """
pipeline stored(x: bf16[M=64, K=64], w: bf16[N=64, K]) -> f32[M] {
  h: bf16 = dot[K](x, w)
  return sum[N](h)
}
"""


def derived(text: str, sizes: dict[str, int] | None = None, bounds: Bounds = BOUNDS) -> Derivation:
    checked = frontend.read_text(text)
    return derive(checked, frontend.program(checked), sizes or {}, device=DEVICES["H200"], bounds=bounds)


def same_results(one: str, other: str) -> None:
    first, second = (unrounded(frontend.program(frontend.read_text(text))) for text in (one, other))
    arguments = _arguments(first)
    for a, b in zip(evaluate(first, arguments), evaluate(second, arguments), strict=True):
        assert a.dtype is torch.float64
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def _arguments(program: ir.Program) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(
            [_size(program.dims, axis.dims) for axis in p.type.axes],  # type: ignore[union-attr]
            generator=generator,
            dtype=torch.float64,
        )
        for p in program.params
    ]


def _size(dims: object, names: tuple[str, ...]) -> int:
    size = 1
    for name in names:
        size *= dims[name].value  # type: ignore[index]
    return size


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        (LINEAR_SUM, {"sum across dot", "sum of a sum", "factor of a sum"}),
        (POOLED_CONVOLUTION, {"sum across dot", "sum of a sum"}),
        (LOW_RANK, {"dot of a dot"}),
    ],
)
def test_a_cheaper_program_is_derived_and_equal(text: str, rules: set[str]) -> None:
    derivation = derived(text)
    assert derivation.seconds is not None
    for candidate in derivation.candidates:
        assert candidate.seconds < derivation.seconds and not candidate.constants
        same_results(text, candidate.text)
    assert {r.name for r in derivation.candidates[0].rules} >= rules


def test_each_step_is_a_program_that_is_equal_to_the_one_before() -> None:
    derivation = derived(LINEAR_SUM)
    steps = list(derivation.steps(derivation.candidates[0]))
    assert len(steps) >= 3
    for step in steps:
        assert step.text
        same_results(LINEAR_SUM, step.text)


@pytest.mark.parametrize("text", [NOTHING, BEFORE_STORED])
def test_nothing_is_derived_across_a_rounding(text: str) -> None:
    assert not derived(text).candidates


def test_a_result_that_depends_on_no_input_is_named() -> None:
    text = "kernel zero(x: f32[M=4096, N=4096]) -> f32[M] { m = max[N](x) return gelu(m - m) }"
    (candidate,) = derived(text).candidates
    assert candidate.constants == ("return",)
    assert "difference of equals" in {r.name for r in candidate.rules}


def test_extents_that_the_body_gave_stay_where_it_goes() -> None:
    text = """
pipeline zero(x: f32[B=64, C=8, H=34], w: f32[F=16, C, R=3]) -> f32[B, F, P] {
  y: f32[B, F, P=32] = dot[C, R](x[H = P + R], w)
  return clamp(min(y, 0.0), 0.0, 1.0)
}
"""
    (candidate,) = derived(text).candidates
    assert candidate.constants == ("return",) and "P=32" in candidate.text
    assert {r.name for r in candidate.rules} >= {"absorbed bound"}
    same_results(text, candidate.text)


def test_a_search_ends_at_its_bounds() -> None:
    long = " + ".join(f"p{i} * x" for i in range(12))
    params = ", ".join(f"p{i}: f32[M]" for i in range(12))
    text = f"kernel long(x: f32[M=64], {params}) -> f32[M] {{ return {long} }}"
    derivation = derived(text, bounds=Bounds(terms=400, seconds=60))
    assert derivation.saturation.terms <= 400
    assert not derivation.saturation.saturated


FOLDED = {
    "low rank": (LOW_RANK, ("a", "b")),
    "sum": (LINEAR_SUM, ("w", "b")),
    "composite": (
        "pipeline heads(x: bf16[M=4096, (H=8 D=64)], w: bf16[(H D), N=512], g: f32[N]) -> f32[M, 1] {\n"
        "  y: f32 = dot[H, D](x, w)\n  return sum[N](y * g)\n}\n",
        ("w", "g"),
    ),
}


@pytest.mark.parametrize("name", FOLDED)
def test_what_depends_on_weights_alone_is_computed_once(name: str) -> None:
    text, weights = FOLDED[name]
    derivation = derived(text)
    folded = derivation.folded(weights)
    assert folded is not None and derivation.seconds is not None
    assert folded.seconds < min([derivation.seconds, *(c.seconds for c in derivation.candidates)])
    module = frontend.read_text(folded.text).module
    whole = unrounded(frontend.program(frontend.read_text(text)))
    once, each = (unrounded(p) for p in module.programs)
    assert once.name == f"{each.name}_folded" and {p.name for p in once.params} <= {*weights}
    values = dict(zip((p.name for p in whole.params), _arguments(whole), strict=True))
    tensors = evaluate(once, [values[p.name] for p in once.params])
    values |= dict(zip((n.removeprefix("return ") for n, _ in once.results), tensors, strict=True))  # type: ignore[union-attr,str-unpack]
    for a, b in zip(
        evaluate(whole, [values[p.name] for p in whole.params]),
        evaluate(each, [values[p.name] for p in each.params]),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_nothing_is_folded_where_nothing_depends_on_weights_alone() -> None:
    assert derived(NOTHING).folded(("w",)) is None


def test_a_name_of_another_extent_is_another_name() -> None:
    text = "kernel k(x: f32[M=3, H=9]) -> f32[M, P] {{ w: [M, P=3, R={}] = x[H = 2*P + R] return sum[R](w) }}"
    two, three = (frontend.kernel(frontend.read_text(text.format(n))) for n in (2, 3))
    assert proof(two, two) == ()
    assert proof(two, three) is None
