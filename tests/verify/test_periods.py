"""Numbers that repeat along a batch: one reference serves every period, and every element is compared all the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.verify import candidates
from ucutlass import frontend, ir
from ucutlass.reference import evaluate, expect, expected_results, slices
from ucutlass.reference.repetition import Period, period_of
from ucutlass.runtime.distributions import MEANINGS, Distribution
from ucutlass.runtime.inputs import generate
from ucutlass.runtime.verify import check, pool, suite
from ucutlass.runtime.verify import periods as periods_of
from ucutlass.runtime.verify.batch import judge_case
from ucutlass.runtime.verify.evidence import evidence_of
from ucutlass.runtime.verify.periods import WHOLE, period_for
from ucutlass.shapes import complete

LINEAR = "kernel k(x: f32[M, K], w: f32[N, K]) -> f32[M, N] { return relu(dot[K](x, w)) }\n"
FIXED = LINEAR.replace("[M, K]", "[M=52, K=9]").replace("[N, K]", "[N=12, K]")
NORM = "kernel k(x: f32[B, C, H]) -> f32[B, C, H] { return x / sqrt(mean[C](x * x) + 1e-5) }\n"
SUMMED = "kernel k(x: f32[M]) -> f32[M] { return softmax[M](x) }\n"
CHAIN = """
pipeline chain(x: f32[M, K], w: f32[N, K]) -> f32[M, N] {
  h: f32[M, N] = relu(dot[K](x, w))
  return softmax[N](h)
}
"""
SIZES = {"M": 52, "N": 12, "K": 9, "B": 13, "C": 4, "H": 6}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is large by these thresholds is small enough for a test."""
    monkeypatch.setattr(slices, "REPEATING_VALUES", 0)
    monkeypatch.setattr(slices, "BLOCK_ELEMENTS", 150)
    monkeypatch.setattr(periods_of, "LARGE_VALUES", 0)
    monkeypatch.setattr(periods_of, "PERIOD_VALUES", 200)


def program_of(text: str) -> ir.Program:
    return frontend.program(frontend.read_text(text))


def full_of(program: ir.Program) -> dict[str, int]:
    return dict(zip(program.dims, complete(program, free_of(program)), strict=True))


def free_of(program: ir.Program) -> dict[str, int]:
    return {d: SIZES[d] for d, extent in program.dims.items() if isinstance(extent, ir.extents.Free)}


def arguments_of(program: ir.Program, distribution: Distribution) -> tuple[list[Any], Period | None]:
    period = period_for(program, full_of(program), distribution)
    return generate(program, free_of(program), distribution, seed=3, period=period), period


@pytest.mark.parametrize("text", [LINEAR, FIXED, NORM])
@pytest.mark.parametrize("distribution", [d for d in MEANINGS if d not in WHOLE])
def test_a_reference_of_one_period_is_that_of_all(text: str, distribution: Distribution) -> None:
    program = program_of(text)
    assert isinstance(program, ir.Kernel)
    arguments, period = arguments_of(program, distribution)
    if period is None:
        assert distribution.startswith("residue")
        return
    dim = program.results[0].type.dims[0]
    assert period.dim == dim and 1 <= period.length <= SIZES[dim] // 2
    made = expected_results(program, arguments)
    (whole,) = expect(program, arguments)
    covered = 0
    for part in made.slices():
        (e,) = part.expected
        torch.testing.assert_close(
            e.reference, part.slice_of(0, whole.reference), rtol=1e-12, atol=0, equal_nan=True
        )
        exact = part.slice_of(0, whole.bound)
        assert bool(((e.bound <= exact * (1 + 1e-6)) | ~exact.isfinite()).all()), "no bound is wider"
        covered += e.reference.shape[0]
    assert covered == SIZES[dim], "every element is compared"
    assert made.whole is None or distribution == "zeros"


def test_the_marks_of_special_numbers_are_in_every_period() -> None:
    program = program_of(NORM)
    (x,), period = arguments_of(program, "special")
    assert period is not None
    for start in range(0, SIZES["B"] - period.length, period.length):
        part = x.narrow(0, start, period.length)
        assert int(part.isnan().sum()) == 1 and int(part.isinf().sum()) == 2


def test_what_does_not_repeat_has_no_period() -> None:
    program = program_of(LINEAR)
    assert isinstance(program, ir.Kernel)
    for distribution in WHOLE:
        assert period_for(program, full_of(program), distribution) is None
    arguments = generate(program, free_of(program), "normal", seed=1)
    assert period_of(program, arguments, "M", 52) is None
    repeating, period = arguments_of(program, "uniform")
    assert period_of(program, repeating, "M", 52) == period
    repeating[0][51, 8] += 1
    assert period_of(program, repeating, "M", 52) is None, "one number is another"
    assert period_for(program_of(SUMMED), {"M": 52}, "uniform") is None


def launch(program: ir.Kernel, off: tuple[int, ...] | None = None) -> Any:
    def run(arguments: Sequence[Any], outputs: Sequence[Tensor]) -> None:
        outputs[0].copy_(evaluate(program, arguments)[0])
        if off is not None:
            outputs[0][off] += 1.0

    return run


@pytest.mark.parametrize("row", [0, 17, 51])
def test_a_wrong_element_of_any_period_is_found(row: int) -> None:
    program = program_of(LINEAR)
    assert isinstance(program, ir.Kernel)
    arguments, _ = arguments_of(program, "uniform")
    right = check(program, launch(program), arguments)
    assert right.ok and right.comparisons[0].elements == 52 * 12
    wrong = check(program, launch(program, (row, 5)), arguments)
    assert not wrong.ok and wrong.comparisons[0].bad == 1 and wrong.comparisons[0].index == (row, 5)


def test_a_pipeline_s_batch_repeats() -> None:
    program = program_of(CHAIN)
    arguments, period = arguments_of(program, "uniform")
    assert period is not None and period.dim == "M"
    assert torch.equal(arguments[0][: 52 - period.length], arguments[0][period.length :])


def test_cases_with_the_numbers_of_others_need_no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """`refilled`, `repeats` and `shifted` are held against what `normal` and `uniform` were found to be."""
    from ucutlass.runtime.verify import judge
    from ucutlass.runtime.verify.accepted import AcceptedResults

    program = program_of(LINEAR)
    assert isinstance(program, ir.Kernel)
    references: list[str] = []

    def counted(*arguments: Any, **keywords: Any) -> Any:
        references.append("")
        return expected_results(*arguments, **keywords)

    monkeypatch.setattr(judge, "least_results", counted)
    cases = [c for c in suite(program, free_of(program), seed=5).cases if c.sizes == free_of(program)]
    wanted = [c for c in cases if c.kind != "values" or c.distribution in ("normal", "uniform")]
    accepted = AcceptedResults()
    for case in wanted:
        verdict = judge_case(program, lambda _: launch(program), case, {}, "cpu", accepted)
        assert verdict.ok
    assert len(wanted) == 5 and len(references) == 2


def test_parts_hold_every_case_once_and_those_of_the_same_numbers_together() -> None:
    program = frontend.kernel(frontend.read_text(candidates.TEXT))
    cases = suite(program, {"M": 40, "K": 200, "N": 24}, seed=11).cases
    for count in (1, 2, 3, 100):
        parts = pool.parts_of(cases, count)
        assert sorted(c.name for part in parts for c in part) == sorted(c.name for c in cases)
        assert 1 <= len(parts) <= count and all(parts)
        for case in cases:
            (mine,) = (part for part in parts if case in part)
            if case.kind == "refilled":
                before = [c.distribution for c in mine[: mine.index(case)]]
                assert {"normal", "uniform"} <= set(before)


def test_a_suite_side_by_side_finds_what_one_process_does() -> None:
    program = frontend.kernel(frontend.read_text(candidates.TEXT))
    whole = suite(program, {"M": 40, "K": 200, "N": 24}, seed=11, most=19)
    shared = {"mistake": "loses_nan", "tile": candidates.TILE}
    found = pool.run("tests.verify.candidates:batch", shared, whole.cases, side_by_side=2)
    evidence = evidence_of(whole, found)
    assert [r.case.name for r in found] == [c.name for c in whole.cases], "in their order"
    assert not evidence.ok
    assert [r.case.distribution for r in evidence.results if not r.ok] == ["special"]


FIXED_CHAIN = (
    CHAIN.replace("[M, K]", "[M=52, K=9]").replace("[M, N]", "[M=52, N=12]").replace("[N, K]", "[N=12, K=9]")
)
COUPLED_CHAIN = CHAIN.replace("softmax[N]", "softmax[M]")


@pytest.mark.parametrize("text", [CHAIN, FIXED_CHAIN, COUPLED_CHAIN], ids=["free", "fixed", "coupled"])
def test_a_pipeline_has_the_reference_of_one_period(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_of(text)
    arguments, period = arguments_of(program, "uniform")
    assert period is not None and period.dim == "M"
    whole = expect(program, arguments)
    asked: list[int] = []

    def noted(program: ir.Program, arguments: Sequence[Any], least: bool) -> Any:
        asked.append(arguments[0].shape[0])
        return expect(program, arguments, least)

    monkeypatch.setattr(slices, "expect", noted)
    (expected,) = expected_results(program, arguments).whole or ()
    assert asked == [52 if text == COUPLED_CHAIN else period.length]
    assert expected.name == whole[0].name and expected.reference.shape == whole[0].reference.shape
    torch.testing.assert_close(expected.reference, whole[0].reference, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(expected.bound, whole[0].bound, rtol=1e-6, atol=0.0)
