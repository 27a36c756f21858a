"""Random projections of products: what a sample of rows does not see they see, and they refuse no right one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from ucutlass import frontend, ir
from ucutlass.reference import RowSample, evaluate, sampled_results, sizes_of
from ucutlass.reference.projections import projection_errors, projections
from ucutlass.runtime.inputs import generate
from ucutlass.runtime.verify import LaunchVerdict, check
from ucutlass.shapes import free_dims

GEMM = "kernel k(x: TYPE[M=600, K=40], w: TYPE[N=24, K]) -> TYPE[M, N] { return dot[K](x, w) }"
TURNED = "kernel k(x: f32[K=40, M=600], w: f32[K, N=24]) -> f32[N, M] { return dot[K](x, w) }"
BATCHED = "kernel k(x: f32[B=3, M=300, K=8], w: f32[B, N=16, K]) -> f32[B, M, N] { return dot[K](x, w) }"
TF32 = "kernel k(x: f32[M=600, K=40], w: f32[N=24, K]) -> f32[M, N] { return dot[K](tf32(x), tf32(w)) }"
CONV = """kernel k(x: f32[B=3, C=4, H=9, W=9], w: f32[K=400, C, R=3, S=3]) -> f32[B, K, P=H, Q=W] {
  return dot[C, R, S](x[H = P + R - 1, W = Q + S - 1], w)
}"""
EPILOGUE = "kernel k(x: f32[M=600, K=40], w: f32[N=24, K]) -> f32[M, N] { return relu(dot[K](x, w)) }"
COMPUTED = "kernel k(x: f32[M=600, K=40], w: f32[N=24, K]) -> f32[M, N] { return dot[K](exp(x), w) }"
PRODUCTS = {
    **{f"gemm {t}": GEMM.replace("TYPE", t) for t in ("f32", "bf16", "f16")},
    "turned": TURNED,
    "batched": BATCHED,
    "tf32": TF32,
    "convolution": CONV,
    "convolution in tf32": CONV.replace("(x[", "(tf32(x[").replace("], w)", "]), tf32(w))"),
}


def kernel(text: str) -> ir.Kernel:
    return frontend.kernel(frontend.read_text(text))


def verdict(program: ir.Kernel, spoil: Callable[[Tensor], None], seed: int = 3) -> LaunchVerdict:
    assert not free_dims(program)

    def launch(arguments: Sequence[Any], outputs: Sequence[Tensor]) -> None:
        outputs[0].copy_(evaluate(program, arguments)[0])
        spoil(outputs[0])

    arguments = generate(program, {}, "normal", seed=1)
    return check(program, launch, arguments, sample=RowSample(64, seed))


def unsampled(program: ir.Kernel, seed: int = 3) -> tuple[int, int]:
    """Returns the axis that is sampled, and a coordinate that is not."""
    sampled = sampled_results(program, generate(program, {}, "normal", seed=1), RowSample(64, seed))
    assert sampled is not None
    (part,) = sampled.slices()
    assert part.index is not None
    axis = part.axes[0]
    return axis, min(set(range(sampled.results[0].shape[axis])) - set(part.index.tolist()))


@pytest.mark.parametrize("name", PRODUCTS)
def test_an_error_outside_the_sample_is_seen_and_a_right_product_is_right(name: str) -> None:
    program = kernel(PRODUCTS[name])
    axis, row = unsampled(program)
    for seed in range(3, 8):
        assert verdict(program, lambda out: None, seed).ok

    def another_row(out: Tensor) -> None:
        out.select(axis, row).copy_(out.select(axis, row - 1))

    wrong = verdict(program, another_row)
    assert wrong.state == "wrong" and [p.kind for p in wrong.problems] == ["not its operands'"]
    assert all(c.ok for c in wrong.comparisons), "the sample alone does not see it"
    assert "from the product of its operands" in str(wrong)


def test_honest_rounding_is_far_from_what_is_refused() -> None:
    """A product in f32 errs by some of its bound, and a projection by a fraction of its own."""
    program = kernel(PRODUCTS["gemm f32"])
    arguments = generate(program, {}, "normal", seed=1)
    x, w = arguments
    sampled = sampled_results(program, arguments, RowSample(64, 3))
    assert sampled is not None and isinstance(x, Tensor) and isinstance(w, Tensor)
    (part,) = sampled.slices()
    errors = [projection_errors(program, arguments, [x @ w.t()], part, seed)[0] for seed in range(20)]
    assert 0 < max(errors) < 0.5


def test_infinities_and_results_of_more_than_a_product_are_left_to_others() -> None:
    program = kernel(PRODUCTS["gemm f32"])

    def infinite(out: Tensor) -> None:
        out[unsampled(program)[1], 0] = torch.inf

    assert verdict(program, infinite).state == "wrong"
    for text in (EPILOGUE, COMPUTED):
        other = kernel(text)
        arguments = generate(other, {}, "normal", seed=1)
        assert not projections(other, sizes_of(other, arguments), ["M"])
        assert verdict(other, lambda out: None).ok


def test_the_longest_dimension_of_one_operand_is_summed() -> None:
    program = kernel(CONV)
    sizes = {**dict.fromkeys("BCHWKRSPQ", 9), "K": 400, "B": 3}
    (over_batch,) = projections(program, sizes, ["K"])
    (over_channels,) = projections(program, sizes, ["B"])
    assert (over_batch.dim, over_batch.in_left) == ("B", True)
    assert (over_channels.dim, over_channels.in_left) == ("K", False)
