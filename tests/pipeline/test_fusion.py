"""What two stages come to as one kernel, and which cuts a family would close."""

from __future__ import annotations

import pytest
import torch

from tests.pipeline.test_layout import laid
from ucutlass import frontend, ir
from ucutlass.pipeline.fused_kernel import FusedKernel, NotFusible, fuse
from ucutlass.pipeline.fusion import FusionCandidate, fusion_candidates, fusion_chains, operators
from ucutlass.pipeline.planning import plan_pipeline
from ucutlass.pipeline.sized import SizedPipeline
from ucutlass.reference import evaluate
from ucutlass.reference.interpreter import run_stage, stage_arguments
from ucutlass.runtime.inputs import generate
from ucutlass.shapes import complete

LINEAR = "kernel linear(x: bf16[M, K], w: bf16[N, K], s: f32) -> bf16[M, N] { return dot[K](x, w) * s }\n"

JOINABLE = {
    "an epilogue": (
        LINEAR + "pipeline p(x: bf16[T, D], w: bf16[F, D], s: f32, r: bf16[T, F]) -> bf16[T, F] {\n"
        "  h = linear(x, w, s)\n  return gelu(h) + r\n}\n",
        {"T": 5, "D": 6, "F": 7},
    ),
    "two calls of one kernel": (
        LINEAR + "pipeline p(x: bf16[A, B], w: bf16[C, B], v: bf16[E, C], s: f32) -> bf16[A, E] {\n"
        "  h = linear(x, w, s)\n  return linear(h, v, 0.5)\n}\n",
        {"A": 3, "B": 4, "C": 5, "E": 6},
    ),
    "what both read, summed by the first": (
        "pipeline p(x: f32[T, D]) -> f32[T, D] {\n  m: f32[T] = mean[D](x)\n  return x - m\n}\n",
        {"T": 4, "D": 9},
    ),
    "a tensor read along its own other axis": (
        "kernel rows(x: f32[M, N]) -> f32[M] { return sum[N](x) }\n"
        "kernel below(x: f32[A, B], y: f32[B]) -> f32[A, B] { return x * y }\n"
        "pipeline p(x: f32[D, E=D]) -> f32[D, E] {\n"
        "  s = rows(x)\n  return below(x, s)\n}\n",
        {"D": 5},
    ),
    "a shift and a neighbour": (
        "pipeline p(x: f32[L, C]) -> f32[L, C] {\n  h: f32[L, C] = x * 2\n  return h[L = L - 1] + h\n}\n",
        {"L": 6, "C": 3},
    ),
}


def evaluated(found: SizedPipeline, one: FusedKernel, arguments: list[object]) -> tuple[torch.Tensor, ...]:
    known = dict(zip((p.name for p in found.pipeline.params), arguments, strict=True))
    return evaluate(one.kernel, [known[a] if isinstance(a, str) else a for a in one.arguments])  # type: ignore[misc]


@pytest.mark.parametrize("what", JOINABLE)
def test_a_joined_kernel_computes_what_its_stages_do(what: str) -> None:
    text, sizes = JOINABLE[what]
    sized_pipeline = laid(text, **sizes)
    arguments = list(generate(sized_pipeline.pipeline, sizes, "normal", seed=4))
    one = fuse(*sized_pipeline.steps[:2])
    (expected,) = evaluate(sized_pipeline.pipeline, arguments)
    (actual,) = evaluated(sized_pipeline, one, arguments)
    # What was stored in bf16 is rounded as it was; f32 is the arithmetic's own.
    assert (
        torch.equal(actual, expected) if actual.dtype == torch.bfloat16 else torch.allclose(actual, expected)
    )
    assert dict(zip(one.kernel.dims, one.sizes, strict=True)).keys() == one.kernel.dims.keys()


def test_what_others_read_is_stored_as_well() -> None:
    text, sizes = JOINABLE["an epilogue"]
    sized_pipeline = laid(text, **sizes)
    one = fuse(*sized_pipeline.steps, keep=("h",))
    assert one.outputs == ("return", "h")
    arguments = list(generate(sized_pipeline.pipeline, sizes, "normal", seed=4))
    buffers = dict(zip((p.name for p in sized_pipeline.pipeline.params), arguments, strict=True))
    (h,) = run_stage(
        sized_pipeline.steps[0].stage,
        stage_arguments(sized_pipeline.steps[0].stage, buffers),
        sized_pipeline.sizes,
    )
    assert torch.equal(evaluated(sized_pipeline, one, arguments)[1], h)


def test_axes_that_are_split_differently_are_not_joined() -> None:
    sized_pipeline = laid(
        "kernel halves(x: f32[M, (G=2 C)]) -> f32[M, G] { return sum[C](x) }\n"
        "pipeline p(x: f32[A, B]) -> f32[A, E=2] {\n"
        "  h: f32[A, B] = x + 1\n  return halves(h)\n}\n",
        A=3,
        B=8,
    )
    with pytest.raises(NotFusible, match="differently"):
        fuse(*sized_pipeline.steps)


def cut(text: str, **sizes: int) -> tuple[FusionCandidate, ...]:
    checked = frontend.read_text(text)
    pipeline = frontend.program(checked)
    assert isinstance(pipeline, ir.Pipeline)
    return fusion_candidates(plan_pipeline(checked, pipeline, complete(pipeline, sizes), "sm90a"), "sm90a")


def test_a_buffer_with_another_reader_costs_one_reading() -> None:
    found = cut(
        "pipeline p(x: bf16[T, D], w: bf16[F, D], v: bf16[E, F]) -> (a: bf16[T, F], b: bf16[T, E]) {\n"
        "  h: bf16[T, F] = dot[D](x, w)\n  g: bf16[T, F] = silu(h)\n"
        "  return a = g, b = dot[F](h, v)\n}\n",
        T=256,
        D=256,
        F=256,
        E=256,
    )
    first, second = found
    assert (first.buffer, first.possible, first.bytes) == ("h", True, 256 * 256 * 2)
    assert "still stored" in first.why
    assert not second.possible and "[UC0" in second.why


def test_stages_with_another_between_them_are_left_apart() -> None:
    found = cut(
        "pipeline p(x: bf16[T, D], w: bf16[F, D]) -> bf16[T, F] {\n"
        "  h: bf16[T, F] = dot[D](x, w)\n  m: f32[T] = mean[F](h)\n  return h - m\n}\n",
        T=256,
        D=256,
        F=256,
    )
    between = next(c for c in found if (c.producer, c.reader) == (0, 2))
    assert not between.possible and "between the two" in between.why


ATTENTION = """
pipeline cut(q: bf16[B, T, D], k: bf16[B, S, D], v: bf16[B, S, E]) -> bf16[B, T, E] {
  s: bf16[B, T, S] = dot[D](q, k) * rsqrt(size(D))
  p: bf16[B, T, S] = softmax[S](s)
  return dot[S](p, v)
}
"""


def test_three_stages_are_one_where_the_last_two_are_not() -> None:
    checked = frontend.read_text(ATTENTION)
    pipeline = frontend.program(checked)
    assert isinstance(pipeline, ir.Pipeline)
    sizes = {"B": 8, "T": 512, "S": 512, "D": 64, "E": 64}
    plan = plan_pipeline(checked, pipeline, complete(pipeline, sizes), "sm90a")
    pairs = fusion_candidates(plan, "sm90a")
    assert [c.possible for c in pairs] == [True, False]
    (run,) = fusion_chains(plan, pairs, "sm90a")
    assert run.stages == (0, 1, 2) and run.buffers == ("s", "p")
    assert run.bytes == 4 * 8 * 512 * 512 * 2 and run.saves > 0


def test_a_gate_that_is_stored_could_be_half_of_a_pair() -> None:
    (found,) = cut(
        "pipeline p(x: bf16[T, D], g: bf16[F, D], u: bf16[F, D]) -> bf16[T, F] {\n"
        "  a: bf16[T, F] = dot[D](x, g)\n  return silu(a) * dot[D](x, u)\n}\n",
        T=512,
        D=256,
        F=512,
    )
    assert found.possible, found.why


def test_operators_name_what_a_launch_does() -> None:
    (kernel,) = frontend.read_text(
        "kernel k(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return relu(bf16(dot[K](x, w)) * 2) }"
    ).module.programs
    assert isinstance(kernel, ir.Kernel)
    assert operators(kernel) == ("dot[K]", "bf16", "multiply", "relu")
