"""Where one launch does not serve a program, the hint's stages do: they check and plan as they are written."""

from __future__ import annotations

import pytest

from ucutlass import frontend, ir
from ucutlass.diagnostics import ProgramError
from ucutlass.pipeline.sized import kernels
from ucutlass.typical_sizes import typical_sizes

PARAMS = "q: {0}[B, H, L, D=64], k: {0}[B, H, S, D], v: {0}[B, H, S, D]"
RESULT = "f32[B, H, L, D]"


def hint_of(text: str, code: str) -> str:
    checked = frontend.read_text(text)
    with pytest.raises(ProgramError) as caught:
        frontend.pattern(checked, frontend.kernel(checked))
    (problem,) = caught.value.diagnostics
    assert problem.code == code
    return problem.hint or ""


def plans(text: str) -> None:
    checked = frontend.read_text(text)
    program = checked.module.programs[-1]
    assert isinstance(program, ir.Pipeline)
    for kernel in kernels(program):
        sizes = typical_sizes(kernel, None)
        assert sizes is not None
        frontend.plan_kernel(checked, kernel, sizes, "sm90a")


@pytest.mark.parametrize(
    ("stored", "compute_type"), [("e4m3", "e4m3"), ("e5m2", "e5m2")], ids=("e4m3", "e5m2")
)
def test_attention_in_another_compute_type_is_three_stages(stored: str, compute_type: str) -> None:
    q, k, v = ("q", "k", "v") if compute_type == stored else (f"{compute_type}({name})" for name in "qkv")
    p = f"{compute_type}(softmax[S](s))"
    params = PARAMS.format(stored)
    hint = hint_of(
        f"kernel a({params}) -> {RESULT} {{ s = dot[D]({q}, {k})  return dot[S]({p}, {v}) }}", "UC0320"
    )
    _, _, stages = hint.partition("in a pipeline: ")
    plans(f"pipeline a({params}) -> {RESULT} {{ {stages} }}")


def test_the_stages_of_attention_have_the_programs_names() -> None:
    text = (
        "kernel a(x: e4m3[T, E], keys: e4m3[U, E], values: e4m3[U, E]) -> f32[T, E] "
        "{ return dot[U](e4m3(softmax[U](where(index(U) <= index(T), dot[E](x, keys), -inf))), values) }"
    )
    hint = hint_of(text, "UC0320")
    assert "s: f32[T, U] = dot[E](x, keys)  p: e4m3[T, U] = softmax[U](s)  return dot[U](p, values)" in hint
    assert hint.endswith("with scale and mask in s")


def test_a_gathered_bias_is_stored_in_a_stage_before() -> None:
    params = PARAMS.format("f16") + ", t: f16[H, R], i: i32[L, S]"
    body = "return dot[S](f16(softmax[S](dot[D](q, k) * 0.125 + {})), v)"
    text = f"kernel a({params}) -> f16[B, H, L, D] {{ {body.format('t[R = i]')} }}"
    hint = hint_of(text, "UC0304")
    assert "b: f16[H, L, S] = .." in hint
    stage = "b: f16[H, L, S] = t[R = i]"
    plans(f"pipeline a({params}) -> f16[B, H, L, D] {{ {stage}  {body.format('b')} }}")


def test_a_shifted_operand_is_stored_in_a_stage_before() -> None:
    params = "x: bf16[M, K], w: bf16[N, K], r: f32[M]"
    text = f"kernel a({params}) -> f32[M, N] {{ return dot[K](x, w) + r[M = M - 1] }}"
    assert "b: f32[M] = .." in hint_of(text, "UC0304")
    plans(f"pipeline a({params}) -> f32[M, N] {{ b: f32[M] = r[M = M - 1]  return dot[K](x, w) + b }}")
