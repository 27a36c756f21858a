"""Random programs keep their meaning on the way to a plan, and mistakes on that way are seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from tests.soundness import lowering
from tests.soundness.lowering import check_program, lowered
from ucutlass.kernels.access import Access, Reduction
from ucutlass.kernels.gemm.plan import GemmProblem
from ucutlass.kernels.gemm.problem import gemm_problem

SEEDS, PART = 320, 20
"""Programs that every run checks. `python -m tests.emulated --lowering 5000` checks more."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tensors are small: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("first", range(0, SEEDS, PART))
def test_random_programs_keep_their_meaning(first: int) -> None:
    lowereds = [lowered(seed) for seed in range(first, first + PART)]
    wrong = [one for one in lowereds if one.outcome == "wrong"]
    assert not wrong, "\n\n".join(f"seed {o.seed} {o.sizes}\n{o.text}{o.wrong[0]}" for o in wrong)
    assert sum(one.outcome == "right" for one in lowereds) >= PART * 3 // 4


# --- programs that random ones do not come by ----------------------------------------

KEPT = {
    "a square transposed by renames": (
        "kernel k(x: f16[M, K], w: f16[N=M, K], b: f32[M, N]) -> f32[M, N]"
        " { return dot[K](x, w) + b[M = N, N = M] }",
        {"M": 5, "K": 6},
    ),
    "the same operand twice": (
        "kernel k(x: f32[M, K=M]) -> f32[M, J] { return dot[K](x, x[M = J]) + x[K = J] }",
        {"M": 5},
    ),
    "coordinates of extents of 1": (
        "kernel k(x: bf16[M, K], w: bf16[K, N]) -> f32[N, M] { return dot[K](x, w) + index(M) + index(N) }",
        {"M": 1, "N": 1, "K": 1},
    ),
    "an extent computed from others": (
        "kernel k(x: bf16[M, K], w: bf16[N, K], b: f32[P=2*M+1]) -> f32[M, N]"
        " { return dot[K](x, w) * size(P) }",
        {"M": 5, "N": 4, "K": 6},
    ),
    "integers divided with signs": (
        "kernel k(x: s8[M, K], w: s8[N, K]) -> i32[M, N] { d = dot[K](x, w) return d // -7 + d % -5 }",
        {"M": 5, "N": 4, "K": 6},
    ),
    "scalars of all kinds in order": (
        "kernel k(a: i32, x: bf16[M, K], b: f16, w: bf16[N, K], c: bool) -> f32[M, N]"
        " { return where(c, dot[K](x, w) * b, a) }",
        {"M": 5, "N": 4, "K": 6},
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_programs_keep_their_meaning(name: str) -> None:
    one = check_program(*KEPT[name])
    assert one.outcome == "right", one.wrong


NOT_RENAMES = {
    "summed names of two extents": (
        "kernel k(x: f16[M, K], w: f16[N, L]) -> f32[M, N] { return dot[K](x, w[L = K]) }",
        {"M": 3, "N": 5, "K": 7, "L": 6},
    ),
    "batch names of two extents": (
        "kernel k(x: f16[B, M, K], w: f16[C, N, K]) -> f32[B, M, N] { return dot[K](x, w[C = B]) }",
        {"M": 5, "N": 4, "K": 6, "B": 3, "C": 2},
    ),
    "a Gram matrix with more columns": (
        "kernel k(x: f16[M, K], p: f32[J]) -> f32[M, J] { return dot[K](x, x[M = J]) + p }",
        {"M": 5, "J": 9, "K": 6},
    ),
    "an operand shorter than the result": (
        "kernel k(x: f16[M, K], w: f16[N, K], b: f32[L]) -> f32[M, N] { return dot[K](x, w) + b[L = N] }",
        {"M": 3, "N": 5, "K": 7, "L": 3},
    ),
    "an exchange of two extents": (
        "kernel k(x: f16[M, K], w: f16[N, K]) -> f32[M, N] { return dot[K](x[M = K, K = M], w) }",
        {"M": 5, "N": 4, "K": 6},
    ),
    "a diagonal": (
        "kernel k(x: f16[M, K], w: f16[N, K]) -> f32[N] { return dot[K](x[M = K], w) }",
        {"M": 5, "N": 4, "K": 5},
    ),
    "a diagonal of an operand": (
        "kernel k(x: f16[M, K], w: f16[N, K], b: f32[T=M, M]) -> f32[M, N]"
        " { return dot[K](x, w) + b[T = M] }",
        {"M": 5, "N": 4, "K": 5},
    ),
    "two exchanges, which undo each other": (
        "kernel k(x: f16[M, K], w: f16[N=M, K], b: f32[M, N]) -> f32[M, N]"
        " { return dot[K](x, w) + b[M = N, N = M][N = M, M = N] }",
        {"M": 5, "K": 5},
    ),
}
CONVERTED_LATE = {
    "a mean of integers as integers": (
        "kernel k(x: s8[M, K], w: s8[N, K]) -> i32[M] { return mean[N](dot[K](x, w)) }",
        {"M": 5, "N": 4, "K": 6},
    ),
    "a sum of floats as integers": (
        "kernel k(x: bf16[M, K], w: bf16[N, K]) -> s8[M] { return s8(sum[N](dot[K](x, w) * 0.25)) }",
        {"M": 5, "N": 4, "K": 6},
    ),
    "a sum as a truth value": (
        "kernel k(x: s8[M, K], w: s8[N, K]) -> bool[M]"
        " { d = dot[K](x, w) return bool(sum[N](d - d + index(N) % 2 * 2 - 1)) }",
        {"M": 5, "N": 4, "K": 6},
    ),
}

INTEGERS = {
    "products that wrap, sums that saturate": (
        "kernel k(x: s8[M, K], w: s8[N, K], r: i32[M, N]) -> (y: i32[M, N], rows: i32[M], low: s8[N])"
        " { v = (dot[K](x, w) * 2000000000 - r) * 3 return y = v, rows = sum[N](v), low = sum[M](v) }",
        {"M": 21, "N": 4, "K": 16},
    ),
    "terms of 64 bits": (
        "kernel k(x: s8[M, K], w: s8[N, K]) -> i32[M]"
        " { return sum[N](dot[K](x, w) * 5000000000 * (index(N) % 2 * 2 - 1)) }",
        {"M": 5, "N": 6, "K": 16},
    ),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_keep_their_width(name: str) -> None:
    one = check_program(*INTEGERS[name])
    assert one.outcome == "right", one.wrong


@pytest.mark.parametrize("name", NOT_RENAMES | CONVERTED_LATE)
def test_programs_keep_their_meaning_or_are_refused(name: str) -> None:
    one = check_program(*(NOT_RENAMES | CONVERTED_LATE)[name])
    assert one.outcome != "wrong", one.wrong


# --- the check itself ------------------------------------------------------------------

BROKEN_TEXT = (
    "kernel k(x: f16[B, M, K], w: f16[B, K, N], b: f32[N], r: f16[B, M, N], s: f32, t: f32)"
    " -> (y: f16[B, M, N], total: f32[B, M])"
    " { v = (dot[K](x, w) + b) * s - r * t + index(M) return y = v, total = sum[N](v) }"
)
BROKEN_SIZES = {"B": 3, "M": 16, "N": 24, "K": 32}


def _input(problem: GemmProblem, at: int, access: Access) -> GemmProblem:
    return replace(problem, inputs=(*problem.inputs[:at], access, *problem.inputs[at + 1 :]))


def _instructions(problem: GemmProblem, kind: str, **fields: object) -> GemmProblem:
    changed = tuple(
        replace(i, **fields) if type(i).__name__ == kind else i  # type: ignore[arg-type]
        for i in problem.arithmetic.instructions
    )
    return replace(problem, arithmetic=replace(problem.arithmetic, instructions=changed))


# Dimensions by position: B, M, K, N.
MISTAKES: dict[str, Callable[[GemmProblem], GemmProblem]] = {
    "batch stride of A": lambda p: replace(p, a=replace(p.a, batch=((1,),))),
    "row stride of A": lambda p: replace(p, a=replace(p.a, m=(3,), k=((),))),
    "B as if stored the other way": lambda p: replace(p, b=replace(p.b, n=(2,), k=((),))),
    "no batch of B": lambda p: replace(p, b=replace(p.b, batch=(None,))),
    "pointers exchanged": lambda p: replace(
        p, inputs=tuple(replace(a, pointer=5 - a.pointer) for a in p.inputs)
    ),
    "a bias along M": lambda p: _input(p, 0, replace(p.inputs[0], n=None, m=())),
    "the alignment of A": lambda p: replace(p, a=replace(p.a, align=16)),
    "the alignment of a bias": lambda p: _input(p, 0, replace(p.inputs[0], align=8)),
    "an element type": lambda p: _input(p, 1, replace(p.inputs[1], elem=p.inputs[0].elem)),
    "a result written over itself": lambda p: replace(
        p, outputs=(replace(p.outputs[0], access=replace(p.outputs[0].access, batch=((3,),))), p.outputs[1])
    ),
    "max for sum": lambda p: replace(p, outputs=(p.outputs[0], Reduction("max", p.outputs[1].access))),
    "one scalar for both": lambda p: _instructions(p, "HostScalar", index=0),
    "the other coordinate": lambda p: _instructions(p, "CoordinateValue", mode="n"),
    "results exchanged": lambda p: replace(p, arithmetic=replace(p.arithmetic, results=(0, 0))),
}


def test_the_program_of_the_mistakes_is_right() -> None:
    assert check_program(BROKEN_TEXT, BROKEN_SIZES).outcome == "right"


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_plan_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "gemm_problem", lambda *given: MISTAKES[name](gemm_problem(*given)))
    monkeypatch.setattr(lowering, "_chosen", lambda *_: None)
    assert check_program(BROKEN_TEXT, BROKEN_SIZES).outcome == "wrong"
