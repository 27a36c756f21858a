"""A name that a rename introduces inside the brackets that consume it has the extent of the renamed one."""

from __future__ import annotations

import pytest
import torch

from tests.typed import check
from ucutlass import frontend
from ucutlass.diagnostics import Diagnostic, ProgramError
from ucutlass.ir.extents import Free
from ucutlass.reference import evaluate
from ucutlass.typical_sizes import typical_sizes

PREFIX = "kernel k(x: f32[B, L]) -> f32[B, L] { return sum[S](where(index(S) <= index(L), x[L = S], 0)) }"

PROGRAMS: dict[str, str] = {
    "masked sum": PREFIX,
    "after its first use": "kernel k(x: f32[L]) -> f32[L] { return sum[S](index(S) * x[L = S] - x) }",
    "softmax": "kernel k(x: f32[B, L]) -> f32[B, S] { return softmax[S](x[L = S]) }",
    "scan": "kernel k(x: f32[B, L]) -> f32[B, S] { return cumsum[S](x[L = S]) }",
    "dot": "kernel k(x: f16[L, D], w: f16[F, L]) -> f32[D, F] { return dot[S](x[L = S], w[L = S]) }",
    "around a dot": "kernel k(x: f16[L, D]) -> f32[L] { return max[S](dot[D](x, x[L = S])) }",
    "several": "kernel k(x: f32[L, M]) -> f32[] { return sum[S, T](x[L = S, M = T]) }",
    "a call of a function": "fn f[D](x) = x - max[D](x)\n"
    "kernel k(x: f32[B, L]) -> f32[B, S] { return f[S](x[L = S]) }",
    "of a name that is renamed before": "kernel k(x: f32[L]) -> f32[] { a = x[L = R]  return sum[S](a[R = S]) }",
}


def refused(text: str) -> Diagnostic:
    with pytest.raises(ProgramError) as caught:
        check(text)
    (problem,) = caught.value.diagnostics
    return problem


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_checks_and_plans(name: str) -> None:
    checked = frontend.read_text(PROGRAMS[name])
    (program,) = (p for p in checked.module.programs)
    new = "R" if "R" in program.dims else "S"
    assert program.dims[new] == Free("L")
    kernel = frontend.kernel(checked)
    sizes = typical_sizes(kernel, None)
    assert sizes is not None
    frontend.plan_kernel(checked, kernel, sizes, "sm90a")


def test_the_reference_computes_it() -> None:
    x = torch.arange(12.0).reshape(2, 6)
    (program,) = check(PREFIX).programs
    (result,) = evaluate(program, [x])
    assert torch.equal(result.double(), x.double().cumsum(1))


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("kernel k(x: f32[B, L]) -> f32[B] { return sum[S](x[L = S + 1]) }", "sum[S=3](..)"),
        ("kernel k(x: f32[B, L]) -> f32[B] { return max[S](x[Q = S]) }", "max[S=3](..)"),
        ("kernel k(x: f32[B, L]) -> f32[B] { return sum[S](x) }", "dimensions here: B, L"),
    ],
)
def test_a_name_that_nothing_gives_an_extent(text: str, hint: str) -> None:
    problem = refused(text)
    assert problem.code == "UC0101" and hint in (problem.hint or "")


def test_a_value_is_no_new_dimension() -> None:
    problem = refused("kernel k(x: f32[L], i: i32[L]) -> f32[L] { return sum[i](x[L = i]) }")
    assert problem.message == "i is a value, and a dimension is due here"
