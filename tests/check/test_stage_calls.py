"""What a call of a kernel gives: its axes keep the pipeline's names."""

from __future__ import annotations

import pytest
import torch

from tests.typed import check
from ucutlass import ir
from ucutlass.diagnostics import Diagnostic, ProgramError
from ucutlass.reference import evaluate

PROJECT = "kernel project(x: f16[M, K], w: f16[N, K]) -> f16[M, N] { return dot[K](x, w) }\n"
HEADS = "kernel project(x: f16[M, K], w: f16[(P Q=4), K]) -> f16[M, P, Q] { return dot[K](x, w) }\n"
POOL = "kernel pool(x: f32[M, K]) -> f32[M, P=K//2] { return max[R=2](x[K = 2*P + R]) }\n"

NAMED: dict[str, tuple[str, tuple[tuple[str, ...], ...]]] = {
    "free": (
        PROJECT + "pipeline p(x: f16[T, D], w: f16[F, D]) -> f16[T, F] { y = project(x, w)  return y }",
        (("T",), ("F",)),
    ),
    "fixed in the kernel": (
        PROJECT.replace("K]", "K=64]", 1).replace("[N,", "[N=128,", 1)
        + "pipeline p(x: f16[T, D=64], w: f16[F=128, D]) -> f16[T, F] { y = project(x, w)  return y }",
        (("T",), ("F",)),
    ),
    "composite in the pipeline": (
        PROJECT
        + "pipeline p(x: f16[T, D], w: f16[(H G=4), D]) -> f16[T, (H G)] { y = project(x, w)  return y }",
        (("T",), ("H", "G")),
    ),
    "composite in both": (
        HEADS
        + "pipeline p(x: f16[T, D], w: f16[(H G=4), D]) -> f16[T, H, G] { y = project(x, w)  return y }",
        (("T",), ("H",), ("G",)),
    ),
    "computed, of the result's names": (
        POOL + "pipeline p(x: f32[B, D]) -> f32[B, E=D//2] { y = pool(x)  return y }",
        (("B",), ("E",)),
    ),
    "computed, and new in the result": (
        POOL + "pipeline p(x: f32[B, D]) -> f32[B, E] { y = pool(x)  return y }",
        (("B",), ("E",)),
    ),
    "computed, in an expression": (
        POOL + "pipeline p(x: f32[B, D], b: f32[P=D//2]) -> f32[B, P] { y = pool(x)  return y + b }",
        (("B",), ("P",)),
    ),
    "one name twice": (
        PROJECT + "pipeline p(x: f16[T, D]) -> f16[T, S=T] { y = project(x, x)  return y }",
        (("T",), ("S",)),
    ),
}


def refused(text: str) -> tuple[Diagnostic, ...]:
    with pytest.raises(ProgramError) as caught:
        check(text)
    return caught.value.diagnostics


@pytest.mark.parametrize("name", NAMED)
def test_the_result_of_a_call_keeps_its_names(name: str) -> None:
    text, names = NAMED[name]
    program = check(text).programs[-1]
    assert isinstance(program, ir.Pipeline)
    assert tuple(axis.dims for axis in dict(program.buffers)["y"].axes) == names


def test_a_returned_stage_is_what_the_kernel_gives() -> None:
    program = check(NAMED["computed, and new in the result"][0]).programs[-1]
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    (result,) = evaluate(program, [x])
    assert torch.equal(result.float(), x.reshape(3, 4, 2).amax(2))


def test_axes_without_names_must_be_as_long_as_the_results() -> None:
    (problem,) = refused(POOL + "pipeline p(x: f32[B, D=8]) -> f32[B, E=5] { y = pool(x)  return y }")
    assert problem.code == "UC0501"
    assert problem.message == "axis 1 of what y gives has extent 4, the type here says 5"


@pytest.mark.parametrize(
    ("call", "code", "hint"),
    [
        ("projekt(x, w)", "UC0104", "did you mean project?"),
        ("project(x, ww = w)", "UC0105", "did you mean w?"),
        ("project(x, x = x)", "UC0105", "its parameters: x, w"),
        ("project(x)", "UC0105", "its parameters: x, w"),
    ],
)
def test_a_call_with_a_wrong_name(call: str, code: str, hint: str) -> None:
    text = PROJECT + f"pipeline p(x: f16[T, D], w: f16[F, D]) -> f16[T, F] {{ y = {call}  return y }}"
    (problem,) = refused(text)
    assert (problem.code, problem.hint) == (code, hint)
