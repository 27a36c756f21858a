"""Extents from argument shapes, and one error per mistake."""

from __future__ import annotations

import pytest
import torch

from tests.reference.tasks import named
from ucutlass.ir import Kernel, MemoryAxis, ParamDecl, Program, TensorType
from ucutlass.ir.elements import F32
from ucutlass.ir.extents import Combined, Free
from ucutlass.reference import bind, errors, evaluate
from ucutlass.reference.interpreter import device_of, open_call


def _program(signature: str, body: str) -> Program:
    return named(f"kernel k({signature} {{ {body} }}", "k")


LINEAR = _program("x: bf16[M, K], w: bf16[N, K], b: f32[N]) -> bf16[M, N]", "return dot[K](x, w) + b")
HEADS = _program("x: f32[B, (H G=4), D], y: f32[B, H]) -> f32[B, (H G), D]", "return x + y")
SPLIT = _program("x: f32[(H G)], y: f32[G]) -> f32[H, G]", "return x + y")
HALF = _program("x: f32[N], y: f32[2*N+1, 1]) -> f32[N]", "return x")


def test_free_composite_derived_and_nameless() -> None:
    assert bind(LINEAR, [(3, 5), (7, 5), (7,)]) == {"M": 3, "K": 5, "N": 7}
    assert bind(HEADS, [(2, 12, 5), (2, 3)]) == {"B": 2, "H": 3, "G": 4, "D": 5}
    assert bind(SPLIT, [(12,), (4,)]) == {"H": 3, "G": 4}
    conv = _program(
        "x: f32[N, H], w: f32[R=3]) -> f32[N, P=(H+1)//2]", "return sum[R](x[H = 2*P + R - 1] * w)"
    )
    assert bind(conv, [(2, 7), (3,)]) == {"N": 2, "H": 7, "R": 3, "P": 4}


@pytest.mark.parametrize(
    ("program", "shapes", "error", "words"),
    [
        (LINEAR, [(3, 5), (7, 6), (7,)], errors.ExtentMismatchError, "axis 1 of w is 6.*axis 1 of x is 5"),
        (LINEAR, [(3, 5), (7, 5), (8,)], errors.ExtentMismatchError, "axis 0 of b is 8.*axis 0 of w is 7"),
        (LINEAR, [(3, 5, 1), (7, 5), (7,)], errors.RankMismatchError, r"x has 3 axes.*\[M, K\]"),
        (HEADS, [(2, 13, 5), (2, 3)], errors.ExtentMismatchError, r"axis 1 of x is 13.*\(H G\)"),
        (HALF, [(3,), (8, 1)], errors.ExtentMismatchError, "axis 0 of y is 8.*is 7.*axis 0 of x is 3"),
        (HALF, [(3,), (7, 2)], errors.ExtentMismatchError, "axis 1 of y is 2, but the program says 1"),
    ],
)
def test_extents_that_disagree_name_both_places(
    program: Program, shapes: list[tuple[int, ...]], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        bind(program, shapes)


def test_an_extent_that_no_argument_gives() -> None:
    axis = MemoryAxis(("H", "G"), Combined("*", Free("H"), Free("G")))  # the checker refuses such a text
    x = ParamDecl("x", TensorType(F32, (axis,)))
    program = Kernel("k", {"H": Free("H"), "G": Free("G")}, (x,), (), (), ())
    with pytest.raises(errors.ExtentUnknownError, match="H, G"):
        bind(program, [(12,)])


def test_a_negative_extent() -> None:
    program = _program("x: f32[L]) -> f32[P=L-3]", "return x[L = P + 3]")
    with pytest.raises(errors.ExtentRangeError, match=r"P, .*is -1 at L = 2"):
        bind(program, [(2,)])


def test_arguments_of_the_wrong_number_kind_or_element() -> None:
    program = _program("x: bf16[M], a: f32) -> bf16[M]", "return x * a")
    x = torch.ones(3, dtype=torch.bfloat16)
    with pytest.raises(errors.ArgumentCountError, match=r"takes 2 arguments \(x, a\), 1 were given"):
        evaluate(program, [x])
    with pytest.raises(errors.ElementMismatchError, match=r"x is bf16.*float32"):
        evaluate(program, [x.float(), 1.0])
    with pytest.raises(errors.ArgumentKindError, match="a is a number"):
        evaluate(program, [x, torch.ones(())])
    with pytest.raises(errors.ArgumentKindError, match="x is a tensor"):
        evaluate(program, [1.0, 1.0])


def test_a_requirement_of_the_program() -> None:
    program = _program("x: f32[K]) -> f32[K]", "require K % 8 == 0  return x")
    assert evaluate(program, [torch.ones(16)])[0].shape == (16,)
    with pytest.raises(errors.RequirementError, match="K = 12"):
        evaluate(program, [torch.ones(12)])


def test_a_kernel_without_tensors_runs_where_its_pipeline_does() -> None:
    there = torch.device("meta")
    assert open_call(_program(") -> f32[N=3]", "return expand[N](1.0)"), [], {}, there).device == there
    assert device_of([1.0, torch.empty(2)], there) == torch.device("cpu")
    assert device_of([1.0]) == torch.device("cpu")
