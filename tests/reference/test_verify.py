"""The judge: numbers, poison, canaries, inputs, repeats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor

from tests.reference.tasks import named
from ucutlass import frontend
from ucutlass.reference import evaluate, expect
from ucutlass.runtime.inputs import generate
from ucutlass.runtime.verify import GUARD, POISONS, DirectLaunch, check, compare, guarded
from ucutlass.runtime.verify.comparison import FEWEST, _finite_ratios, _ratios, useless

PROGRAM = named("kernel k(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return dot[K](x, w) }", "k")
ARGUMENTS = generate(PROGRAM, {"M": 9, "N": 7, "K": 33}, "normal", seed=1)


def _honest(arguments: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    for out, result in zip(outputs, evaluate(PROGRAM, arguments), strict=True):
        out.copy_(result)


def _kinds(launch: object, **options: object) -> set[str]:
    return {p.kind for p in check(PROGRAM, launch, ARGUMENTS, **options).problems}


def test_an_honest_launch_passes() -> None:
    verdict = check(PROGRAM, _honest, ARGUMENTS)
    assert verdict.ok, str(verdict)
    assert verdict.comparisons[0].elements == 63


def test_a_launch_that_does_nothing() -> None:
    verdict = check(PROGRAM, lambda arguments, outputs: None, ARGUMENTS)
    assert not verdict.ok
    assert "63 of 63 elements of the result" in str(verdict)


def test_one_unwritten_element_is_placed() -> None:
    def launch(arguments: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        kept = outputs[0][4, 6].clone()
        _honest(arguments, outputs)
        outputs[0][4, 6] = kept

    verdict = check(PROGRAM, launch, ARGUMENTS, tile=(4, 4))
    assert "1 of 63 elements of the result, first [4, 6]" in str(verdict)
    assert verdict.comparisons[0].index == (4, 6)
    assert verdict.comparisons[0].in_tile == (0, 2)


@pytest.mark.parametrize("offset", [-1, 63])
def test_writing_past_the_output(offset: int) -> None:
    def launch(arguments: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        _honest(arguments, outputs)
        outputs[0].as_strided((1,), (1,), outputs[0].storage_offset() + offset).fill_(1.0)

    assert _kinds(launch) == {"overrun"}


def test_changing_an_input() -> None:
    arguments = [a.clone() for a in ARGUMENTS]

    def launch(given: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        _honest(given, outputs)
        given[1][0, 0] = 5.0

    verdict = check(PROGRAM, launch, arguments)
    assert "input changed: w changed" in str(verdict)


def test_runs_that_differ() -> None:
    calls: list[int] = []

    def launch(arguments: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        _honest(arguments, outputs)
        calls.append(1)
        if len(calls) % 2:
            outputs[0][0, 0] = torch.nextafter(outputs[0][0, 0], outputs[0].new_tensor(math.inf))

    assert _kinds(launch) == {"not repeatable"}
    assert not _kinds(launch, deterministic=False)


def test_without_determinism_both_runs_are_compared() -> None:
    calls: list[int] = []

    def launch(arguments: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        _honest(arguments, outputs)
        calls.append(1)
        outputs[0][0, 0] += 100 * (len(calls) - 1)

    assert not check(PROGRAM, launch, ARGUMENTS, deterministic=False).ok


def test_guards_hold_the_poison_and_are_aligned() -> None:
    made = guarded((3, 5), torch.float32, torch.device("cpu"), POISONS[0])
    assert made.result.isnan().all()
    assert made.result.storage_offset() * 4 == GUARD
    assert GUARD % 256 == 0
    assert guarded((2,), torch.float16, torch.device("cpu"), POISONS[1]).result.isfinite().all()


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("out", "reference", "bound", "ok"),
    [
        (1.0, 1.0, 0.0, True),
        (1.0, 1.1, 0.2, True),
        (1.0, 1.3, 0.2, False),
        (0.0, -0.0, 0.0, True),
        (NAN, NAN, 0.0, True),
        (NAN, 1.0, 9.0, False),
        (1.0, NAN, 9.0, False),
        (INF, INF, 0.0, True),
        (INF, -INF, 9.0, False),
        (INF, 1.0, 9.0, False),
        (1.0, INF, 9.0, False),
        (5.0, 1.0, INF, True),
        (NAN, 1.0, INF, True),
        (INF, 1.0, INF, True),
        (1.0, INF, INF, True),
    ],
)
def test_nan_and_infinity_only_pass_for_themselves_within_a_finite_bound(
    out: float, reference: float, bound: float, ok: bool
) -> None:
    made = [torch.tensor([v], dtype=torch.float64) for v in (out, reference, bound)]
    verdict = compare(*made)
    assert verdict.ok is ok
    assert (verdict.worst <= 1) is ok


def test_integers_are_compared_exactly() -> None:
    big = torch.tensor([2**53 + 1])
    bound = torch.zeros(1, dtype=torch.float64)
    assert compare(big, big, bound).ok
    assert not compare(big, big - 1, bound).ok


def test_integers_too_far_apart_for_64_bits_do_not_wrap_into_their_bound() -> None:
    low, high = torch.tensor([-(2**63)]), torch.tensor([2**63 - 1])
    one = torch.ones(1, dtype=torch.float64)
    assert not compare(high, low, one).ok
    assert not compare(low, torch.zeros_like(low), one).ok
    assert compare(high - 1, high, one).ok


def test_a_bound_that_is_no_number_bounds_nothing() -> None:
    bound = torch.tensor([math.nan], dtype=torch.float64)
    value = torch.ones(1, dtype=torch.float64)
    assert compare(value, value, bound).ok
    assert not compare(value + 1, value, bound).ok


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match=r"\(2,\)"):
        compare(torch.zeros(2), torch.zeros(1, dtype=torch.float64), torch.zeros(1))


# --- workspaces, repeats, tiles ----------------------------------------------------------


def _exposed(body: object) -> DirectLaunch:
    return DirectLaunch(body, 64)  # type: ignore[arg-type]


def test_the_workspace_is_poisoned_with_both_patterns_and_guarded() -> None:
    seen: list[tuple[int, int]] = []

    def run(arguments: Sequence[Tensor], outputs: Sequence[Tensor], workspace: Tensor) -> None:
        assert workspace.numel() == 64 and (workspace == workspace[0]).all()
        seen.append((int(outputs[0].view(torch.uint8)[0, 0]), int(workspace[0])))
        _honest(arguments, outputs)

    assert check(PROGRAM, _exposed(run), ARGUMENTS, repeats=5).ok
    first, second = POISONS
    assert seen == [(first, first), (second, second), (first, second), (second, first), (first, first)]


def test_writing_past_the_workspace() -> None:
    def run(arguments: Sequence[Tensor], outputs: Sequence[Tensor], workspace: Tensor) -> None:
        _honest(arguments, outputs)
        workspace.as_strided((1,), (1,), workspace.storage_offset() - 1).fill_(0)

    verdict = check(PROGRAM, _exposed(run), ARGUMENTS)
    assert "the workspace was written past: first canary hit at byte -1" in str(verdict)


@pytest.mark.parametrize(
    ("source", "words"), [("workspace", "the workspace held"), ("out", "the results held")]
)
def test_what_depends_on_the_poison_is_told_from_chance(source: str, words: str) -> None:
    def run(arguments: Sequence[Tensor], outputs: Sequence[Tensor], workspace: Tensor) -> None:
        memory = workspace if source == "workspace" else outputs[0].view(torch.uint8).reshape(-1)
        held = memory[0] == POISONS[1]
        _honest(arguments, outputs)
        outputs[0].view(torch.int16)[0, 0] ^= held.to(torch.int16)

    (problem,) = check(PROGRAM, _exposed(run), ARGUMENTS, repeats=4).problems
    assert problem.kind == "reads poison" and words in problem.message
    (problem,) = check(PROGRAM, _exposed(run), ARGUMENTS).problems
    assert problem.kind == "not repeatable"


def test_a_late_difference_is_chance() -> None:
    calls: list[int] = []

    def launch(arguments: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        _honest(arguments, outputs)
        calls.append(1)
        outputs[0].view(torch.int16)[0, 0] ^= len(calls) // 7

    (problem,) = check(PROGRAM, launch, ARGUMENTS, repeats=8).problems
    assert problem.kind == "not repeatable" and "run 7 of 8" in problem.message


def test_every_run_is_jittered() -> None:
    seen: list[int] = []

    def jitter(number: int) -> AbstractContextManager[None]:
        seen.append(number)
        return nullcontext()

    assert check(PROGRAM, _honest, ARGUMENTS, repeats=3, jitter=jitter).ok
    assert seen == [0, 1, 2]


def test_one_run_shows_nothing() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        check(PROGRAM, _honest, ARGUMENTS, repeats=1)


def test_the_tile_is_named_by_dimension() -> None:
    program = named("kernel k(x: bf16[M, K], w: bf16[N, K]) -> bf16[N, M] { return dot[K](x, w) }", "k")

    def launch(arguments: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        outputs[0].copy_(evaluate(program, arguments)[0])
        outputs[0][5, 8] = 1000.0

    (found,) = check(program, launch, ARGUMENTS, tile={"M": 6, "N": 4}).comparisons
    assert found.index == (5, 8) and found.in_tile == (1, 2)


def test_what_an_output_is_like_is_told() -> None:
    reference = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64).repeat(FEWEST)
    comparison = compare(torch.ones(3 * FEWEST), reference, torch.full_like(reference, 2.0))
    assert comparison.ok and not comparison.varies and comparison.reference_varies
    assert comparison.rms == pytest.approx(math.sqrt((0 + 0.25 + 1.0) / 3))
    assert compare(reference, reference, torch.zeros_like(reference)).rms is None
    few = reference[: FEWEST - 1]
    assert compare(few, few, torch.full_like(few, 2.0)).rms is None
    none = torch.full((3,), NAN, dtype=torch.float64)
    assert not compare(none, none, torch.zeros_like(none)).varies
    row = reference[None].T.T  # an axis of length 1 with a stride of its own
    assert compare(row.T, row.T, torch.zeros_like(row.T)).varies


# --- the end of the range ------------------------------------------------------------------


def test_infinity_stands_for_the_largest_number_where_either_is_honest() -> None:
    program = named("kernel k(x: f32[M]) -> f16[M] { return exp(x) }", "k")
    x = torch.tensor([math.log(65520.0), 1.0, 12.0])
    (expected,) = expect(program, [x])
    assert expected.overflows is not None
    assert expected.overflows.tolist() == [True, False, False]
    for first, ok in ((INF, True), (65504.0, True), (-INF, False), (NAN, False), (65000.0, False)):
        out = torch.tensor([first, math.e, INF]).half()
        comparison = compare(out, expected.reference, expected.bound, overflows=expected.overflows)
        assert comparison.ok is ok, comparison
    out = torch.tensor([65504.0, math.e, 65504.0]).half()
    assert not compare(out, expected.reference, expected.bound, overflows=expected.overflows).ok


# --- bounds that say nothing ---------------------------------------------------------


def _useless(reference: torch.Tensor, bound: float, scale: float = 0.0) -> int:
    return int(useless(reference, torch.full(reference.shape, bound, dtype=torch.float64), scale).sum())


def test_a_bound_wider_than_the_number_and_than_all_numbers_says_nothing() -> None:
    reference = torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert _useless(reference, torch.inf) == 1000
    assert _useless(reference, 5.0) == 1000
    assert 400 < _useless(reference, 1.2) < 900  # what is larger than that is known to some digit
    assert _useless(reference, 0.9) == 0 and _useless(reference, 0.0) == 0


def test_few_large_numbers_among_zeros_have_bounds_of_their_own() -> None:
    reference = torch.zeros(100_000, dtype=torch.float64)
    reference[7] = 100.0
    bound = reference * 2.0**-8
    assert int(useless(reference, bound).sum()) == 0


def test_numbers_that_are_not_finite_and_flushed_ones_are_no_spread() -> None:
    reference = torch.tensor([1.0, torch.inf, torch.nan, -1.0], dtype=torch.float64)
    assert int(useless(reference, torch.tensor([0.5, 0.0, 0.0, 2.0], dtype=torch.float64)).sum()) == 1
    assert _useless(torch.full((4,), 1e-40, dtype=torch.float64), 2.0**-126) == 0


def test_a_result_that_is_always_0_is_held_against_its_arguments() -> None:
    reference = torch.full((9,), 1e-17, dtype=torch.float64)
    assert _useless(reference, 1e-7) == 9
    assert _useless(reference, 1e-7, scale=4.0) == 0 and _useless(reference, 5.0, scale=4.0) == 9
    kernel = frontend.kernel(
        frontend.read_text("kernel k(x: f32[M, N]) -> f32[M] { return logsumexp[N](x) - max[N](x) }")
    )
    x = 1 + torch.rand(5, 1)
    assert check(kernel, lambda _, outs: outs[0].zero_(), [x]).state == "right"


@pytest.mark.parametrize("bound, count", [(0.0, 0), (1.0, 3)])
def test_a_bool_that_may_be_either_is_no_bool(bound: float, count: int) -> None:
    assert _useless(torch.tensor([True, False, True]), bound) == count


@pytest.mark.parametrize("seed", range(20))
def test_finite_numbers_are_compared_as_all_are(seed: int) -> None:
    """The quick way gives the other's bits: errors and bounds of many sizes, exact numbers among them."""
    random = torch.Generator().manual_seed(seed)

    def drawn() -> Tensor:
        size = torch.randint(-300, 300, (500,), generator=random)
        return torch.randn(500, generator=random, dtype=torch.float64) * 10.0 ** size.double()

    reference, bound = drawn(), drawn().abs()
    bound[::3] = 0.0
    out = reference + torch.where(torch.rand(500, generator=random) < 0.5, 0.0, drawn())
    quick, slow = _finite_ratios(out, reference, bound), _ratios(out, reference, bound, None)
    assert torch.equal(quick.isinf(), slow.isinf()) and torch.equal(quick, slow)


def test_one_infinity_among_many_is_found() -> None:
    reference = torch.linspace(1, 2, 4096, dtype=torch.float64)
    out, bound = reference.float(), torch.full_like(reference, 1e-6)
    assert compare(out, reference, bound).ok
    for wrong in (math.inf, -math.inf, math.nan):
        out[1234] = wrong
        comparison = compare(out, reference, bound)
        assert comparison.bad == 1 and comparison.index == (1234,) and comparison.worst == math.inf
