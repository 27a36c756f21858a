"""A reference in slices is the reference."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from functools import partial

import pytest
import torch
from torch import Tensor

from tests.pairs.spaces import SPACES
from ucutlass import frontend, ir
from ucutlass.diagnostics import ProgramError
from ucutlass.reference import evaluate, evaluated_slices, expect, expected_results, sizes_of, whole_results
from ucutlass.reference.errors import RequirementError
from ucutlass.reference.freeing import separable
from ucutlass.reference.slices import ReferenceSlice, products, values
from ucutlass.runtime.inputs import generate
from ucutlass.runtime.verify import check, judge
from ucutlass.runtime.verify.judge import compare_results
from ucutlass.shapes import free_dims


def kernel(text: str) -> ir.Kernel:
    program = frontend.program(frontend.read_text(f"kernel k{text}\n"))
    assert isinstance(program, ir.Kernel)
    return program


SCAN = "(x: f32[A, L]) -> f32[A, L] { return cumsum[L](x) }"
SOFTMAX = "(x: f32[A, L]) -> (y: f32[A, L], m: f32[A]) { return y = softmax[L](x), m = max[L](x) }"
PRODUCT = "(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return dot[K](x, w) }"


@pytest.mark.parametrize(
    ("text", "dims"),
    [
        (SCAN, "A"),
        (SOFTMAX, "A"),
        (PRODUCT, "MN"),
        ("(x: f32[A, L]) -> f32[A, L] { return gelu(x) }", "AL"),
        ("(x: f32[A, L]) -> i64[L] { return argmax[A](x) }", "L"),
        ("(x: bf16[B, M, K], w: bf16[B, N, K]) -> bf16[B, M, N] { return dot[K](x, w) }", "BMN"),
        # What looks at a coordinate or an extent is another program on a slice.
        ("(x: f32[A, L]) -> f32[A, L] { return where(index(L) < index(A), x, 0.0) }", ""),
        ("(x: f32[A, L]) -> f32[A, L] { return x / f32(size(A)) }", "L"),
        ("(x: f32[A, L]) -> f32[A, L] { require A > 2 return x }", "L"),
        ("(x: f32[A, H]) -> f32[A, P=H//2] { return max[R=2](x[H = 2*P + R]) }", "A"),
        ("(x: f32[A=4, L]) -> f32[A, L] { return x }", "L"),
        ("(x: f32[A, L], i: i64[P]) -> f32[P, L] { return x[A = i] }", "PL"),
        ("(x: f32[A, B]) -> f32[A, B] { return x + x[B = A, A = B] }", ""),
        ("(x: f32[A, (B C=4)]) -> f32[A, B, C] { return x }", "A"),
    ],
)
def test_dimensions_that_may_be_sliced(text: str, dims: str) -> None:
    assert separable(kernel(text)) == frozenset(dims)


def joined(made: Sequence[ReferenceSlice], number: int) -> tuple[Tensor, Tensor]:
    """A result's reference and bound, put together from slices."""
    slices = [p.expected[number] for p in made]
    if len(made) == 1:
        return slices[0].reference, slices[0].bound
    axis = made[0].axes[number]
    return torch.cat([e.reference for e in slices], axis), torch.cat([e.bound for e in slices], axis)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["reduction", "grouped_gemm"])
def test_slices_of_random_programs_are_their_reference(family: str) -> None:
    sliced = 0
    for seed in range(60):
        case = SPACES[family].drawn(seed)
        try:
            program = frontend.program(frontend.read_text(case.text))
        except ProgramError:
            continue
        assert isinstance(program, ir.Kernel)
        arguments = generate(program, case.sizes, "normal", seed=seed)
        try:
            whole = expect(program, arguments)
        except RequirementError:
            continue
        count = values(program, sizes_of(program, arguments))
        found = list(expected_results(program, arguments, limit=max(1, count // 3)).slices())
        sliced += len(found) > 1
        for number, e in enumerate(whole):
            reference, bound = joined(found, number)
            torch.testing.assert_close(reference, e.reference, rtol=1e-12, atol=0, equal_nan=True)
            # Of fewer sums the longest error is shorter, and more of them are exact.
            assert bool((bound <= e.bound * (1 + 1e-9)).all()) and bool((bound >= 0).all())
    assert sliced >= 15


FIXED = "(x: f32[A=31, L=70]) -> f32[A, L] { return cumsum[L](x) }"


@pytest.mark.parametrize("text", [SCAN, SOFTMAX, PRODUCT, FIXED])
def test_a_comparison_in_slices_is_the_comparison(text: str) -> None:
    program = kernel(text)
    sizes = {d: n for d, n in {"A": 31, "L": 70, "M": 31, "N": 70, "K": 9}.items() if d in free_dims(program)}
    arguments = generate(program, sizes, "normal", seed=3)
    assert len(list(expected_results(program, arguments, limit=1500).slices())) > 1
    outputs = [o.clone() for o in evaluate(program, arguments)]
    outputs[0][17, 66] += 1000.0
    whole = compare_results(
        whole_results(expect(program, arguments)), outputs, [(4, 4), (4, 4)][: len(outputs)]
    )
    comparisons = compare_results(
        expected_results(program, arguments, limit=1500), outputs, [(4, 4), (4, 4)][: len(outputs)]
    )
    for a, b in zip(whole, comparisons, strict=True):
        for field in ("ok", "bad", "index", "in_tile", "elements", "exact", "out", "reference", "varies"):
            assert getattr(a, field) == getattr(b, field), field
    assert comparisons[0].index == (17, 66) and comparisons[0].in_tile == (1, 2) and comparisons[0].bad == 1


def test_a_constant_result_in_slices_does_not_vary() -> None:
    program = kernel("(x: f32[A, L]) -> f32[A, L] { return x }")
    same = [torch.full((8, 8), 2.0)]
    (found,) = compare_results(expected_results(program, same, limit=40), [same[0].clone()], [None])
    assert not found.varies and not found.reference_varies
    apart = [torch.arange(8.0)[:, None].expand(8, 8).contiguous()]
    (found,) = compare_results(expected_results(program, apart, limit=16), [apart[0].clone()], [None])
    assert found.varies and found.reference_varies


def test_the_judge_takes_the_reference_of_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices are made after the launch, which may have changed its arguments."""
    monkeypatch.setattr(judge, "least_results", partial(expected_results, limit=100))
    program = kernel(SCAN)

    def honest(arguments: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        outputs[0].copy_(evaluate(program, arguments)[0])

    def spoils(arguments: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        arguments[0].zero_()
        outputs[0].zero_()

    given = generate(program, {"A": 31, "L": 70}, "normal", seed=3)
    assert check(program, honest, given).ok
    verdict = check(program, spoils, given)
    assert verdict.comparisons[0].bad > 2000 and "input changed" in str(verdict)


def test_what_is_wrong_with_the_arguments_is_said_at_once() -> None:
    program = kernel("(x: f32[A, L]) -> f32[A, L] { require L > 90 return x }")
    with pytest.raises(RequirementError):
        expected_results(program, [torch.zeros(31, 70)], limit=100)


LIVE = {
    "scan": SCAN,
    "softmax": SOFTMAX,
    "product": PRODUCT,
    "window": "(x: bf16[A, M], w: bf16[N, R=3]) -> bf16[A, P=M-2, N] { return dot[R](x[M = P + R], w) }",
}


@pytest.mark.parametrize("text", LIVE.values(), ids=LIVE)
def test_no_value_of_a_reference_outlives_it(text: str) -> None:
    """Gigabytes on a GPU would wait for a collection that nothing there triggers."""
    program = kernel(text)
    sizes = {d: n for d, n in {"A": 31, "L": 70, "M": 31, "N": 70, "K": 9}.items() if d in program.dims}
    arguments = generate(program, sizes, "normal", seed=3)

    def launch(arguments: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        for out, result in zip(outputs, evaluate(program, arguments), strict=True):
            out.copy_(result)

    def tensors() -> int:
        return sum(type(o) is Tensor for o in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = tensors()
        verdict = check(program, launch, arguments)
        assert verdict.ok and tensors() == before
    finally:
        gc.enable()


def test_products_are_those_that_dots_sum() -> None:
    program = kernel(
        "(x: f32[M, K], w: f32[N, K], v: f32[N]) -> f32[M] { return dot[N](relu(dot[K](x, w)), v) }"
    )
    assert products(program, {"M": 3, "K": 5, "N": 7}) == 3 * 5 * 7 + 3 * 7


def test_results_in_slices_are_the_results() -> None:
    for text in (SCAN, SOFTMAX, FIXED, PRODUCT):
        program = kernel(text)
        sizes = {
            d: n for d, n in {"A": 31, "L": 70, "M": 31, "N": 70, "K": 9}.items() if d in free_dims(program)
        }
        arguments = generate(program, sizes, "normal", seed=3)
        whole = evaluate(program, arguments)
        parts = list(evaluated_slices(program, arguments, limit=1500))
        assert len(parts) > 1 and parts[1].words.startswith(" in the slice from ")
        for number, result in enumerate(whole):
            axis = parts[0].axes[number]
            joined_parts = torch.cat([part.results[number] for part in parts], axis)
            torch.testing.assert_close(joined_parts, result, rtol=1e-12, atol=0)
            assert all(torch.equal(p.slice_of(number, joined_parts), p.results[number]) for p in parts)
        (entire,) = evaluated_slices(program, arguments)
        assert not entire.words and torch.equal(entire.slice_of(0, whole[0]), whole[0])
