"""What `ucc run` draws for a model's block is what a judge can decide on."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from ucutlass import frontend
from ucutlass.ir import Kernel, Pipeline
from ucutlass.reference import expect, sizes_of
from ucutlass.reference.expect import expect_in
from ucutlass.reference.interpreter import Argument, run_stage, stage_arguments
from ucutlass.runtime import verify
from ucutlass.runtime.fan_in import fan_in
from ucutlass.runtime.inputs import generate
from ucutlass.runtime.verify import Comparison, compare
from ucutlass.shapes import complete

GPTJ = """
fn layer_norm[C](x, g, b) {
  d = x - mean[C](x)
  return d * rsqrt(mean[C](d * d) + 1e-5) * g + b
}

fn angle[T, J]() = f32(index(T)) * exp(f32(index(J)) * (-9.21034 / f32(size(J))))

fn rotary[T, J, P](x) {
  a = angle[T, J]()
  return x * cos(a) + where(index(P) == 0, -1.0, 1.0) * x[P = 1 - P] * sin(a)
}

# GPT-J: rotary causal attention and the MLP read one layer norm, and their sum is added to what came in.
pipeline gptj_block(
  x: bf16[T, C], g: bf16[C], b: bf16[C],
  wq: bf16[(H=4 J P=2), C], wk: bf16[(H J P), C], wv: bf16[(H D), C], wo: bf16[O=C, (H D)],
  up: bf16[F, C], up_b: bf16[F], down: bf16[O, F], down_b: bf16[O]
) -> bf16[T, O] {
  n: bf16[T, C] = layer_norm[C](x, g, b)
  q0: bf16[T, (H J P)] = dot[C](n, wq)
  k0: bf16[T, (H J P)] = dot[C](n, wk)
  v: bf16[S=T, (H D)] = dot[C](n[T = S], wv)
  q: bf16[T, (H J P)] = rotary[T, J, P](q0)
  k: bf16[T, (H J P)] = rotary[T, J, P](k0)
  s = where(index(S) <= index(T), dot[J, P](q, k[T = S]) * rsqrt(2 * size(J)), -inf)
  a: bf16[T, (H D)] = dot[S](bf16(softmax[S](s)), v)
  r: bf16[T, O] = dot[H, D](a, wo) + x[C = O]
  h: bf16[T, F] = gelu_tanh(dot[C](n, up) + up_b)
  return dot[F](h, down) + down_b + r
}
"""


def block() -> Pipeline:
    program = frontend.program(frontend.read_text(GPTJ), "gptj_block")
    assert isinstance(program, Pipeline)
    return program


def of_stages(program: Pipeline, arguments: list[Argument]) -> list[Comparison]:
    """Each stage's reference against itself, on what the references of the stages before it store."""
    sizes = sizes_of(program, arguments)
    buffers: dict[str, Argument] = dict(zip((p.name for p in program.params), arguments, strict=True))
    found = []
    for stage in program.stages:
        given = stage_arguments(stage, buffers)
        assert isinstance(stage.call, Kernel)
        for e in expect_in(stage.call, given, sizes):
            found.append(compare(e.reference, e.reference, e.bound, name=stage.outputs[0]))
        buffers |= dict(zip(stage.outputs, run_stage(stage, given, sizes), strict=True))
    return found


SMALL = {"T": 24, "C": 64, "J": 8, "D": 16, "F": 256}
LARGE = {"T": 192, "C": 1024, "J": 128, "D": 256, "F": 4096}


@pytest.mark.parametrize("distribution", ["normal", "uniform"])
@pytest.mark.parametrize("sizes", [SMALL, LARGE], ids=["small", "large"])
def test_a_gptj_block_is_decidable(sizes: dict[str, int], distribution: str) -> None:
    program = block()
    arguments = generate(program, sizes, distribution, seed=3)  # type: ignore[arg-type]
    for comparison in of_stages(program, arguments):
        assert comparison.useless <= comparison.elements // 20, comparison


def test_a_small_block_is_decidable_end_to_end() -> None:
    program = block()
    (expected,) = expect(program, generate(program, SMALL, "normal", seed=4))
    assert compare(expected.reference, expected.reference, expected.bound).decided


def test_weights_are_drawn_by_the_length_of_their_sums() -> None:
    program = block()
    sizes = dict(zip(program.dims, complete(program, SMALL), strict=True))
    c, f, heads = SMALL["C"], SMALL["F"], 4 * SMALL["D"]
    assert fan_in(program, sizes) == {"wq": c, "wk": c, "wv": c, "wo": heads, "up": c, "down": f}
    values = dict(zip((p.name for p in program.params), generate(program, SMALL, "normal"), strict=True))
    for name, spread in (("x", 1.0), ("up", 1 / math.sqrt(c)), ("down", 1 / math.sqrt(f))):
        tensor = values[name]
        assert isinstance(tensor, torch.Tensor)
        assert float(tensor.double().std()) == pytest.approx(spread, rel=0.1)


RECURRENT = """
pipeline k(
  x: f32[L=128, B=4, D=32], h: f32[Q=2, B, E=64], w0: f32[G=192, D], u0: f32[G, E], w1: f32[G, E], u1: f32[G, E]
) -> f32[L, B, E] {
  y: f32[L, B, E] = torch.gru(x, h, w0, u0, w1, u1, layers=2)
  return y
}
"""


@pytest.mark.parametrize("distribution", ["integer", "residue_rows", "normal", "large"])
def test_recurrent_layers_are_decidable_after_many_steps(distribution: Any) -> None:
    """Weights that grow a difference in each step leave no two evaluations alike."""
    program = frontend.program(frontend.read_text(RECURRENT))
    (expected,) = expect(program, generate(program, {}, distribution, seed=4))
    assert float(expected.bound.max()) < 1e-3
    assert compare(expected.reference, expected.reference, expected.bound).decided


def test_whole_weights_of_recurrent_layers_stay_what_nothing_rounds() -> None:
    program = frontend.program(frontend.read_text(RECURRENT))
    values = dict(zip((p.name for p in program.params), generate(program, {}, "integer"), strict=True))
    for name, most in (("x", 4.0), ("w0", 4 / 16), ("u0", 4 / 32)):
        tensor = values[name]
        assert isinstance(tensor, torch.Tensor) and float(tensor.abs().max()) == most
        assert bool((tensor * 4 / most == (tensor * 4 / most).round()).all())


def test_a_kernel_keeps_its_numbers() -> None:
    kernel = frontend.kernel(
        frontend.read_text("kernel k(x: bf16[M, K], w: bf16[N, K]) -> f32[M, N] { return dot[K](x, w) }")
    )
    assert not fan_in(kernel, {"M": 4, "N": 4, "K": 64})


@pytest.mark.parametrize(
    ("states", "together"),
    [(["right", "right"], "right"), (["right", "undecided"], "undecided"), (["undecided", "wrong"], "wrong")],
)
def test_verdicts_together(states: list[Any], together: str) -> None:
    assert verify.worst(states) == together
