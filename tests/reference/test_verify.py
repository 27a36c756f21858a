"""The judge: numbers, poison, canaries, inputs, repeats."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tests.reference.tasks import named
from ucutlass.reference import evaluate
from ucutlass.runtime.inputs import generate
from ucutlass.runtime.verify import GUARD, POISONS, check, compare, guarded

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
        (1.0, 1.0, 0.0, True), (1.0, 1.1, 0.2, True), (1.0, 1.3, 0.2, False), (0.0, -0.0, 0.0, True),
        (NAN, NAN, 0.0, True), (NAN, 1.0, INF, False), (1.0, NAN, INF, False),
        (INF, INF, 0.0, True), (INF, -INF, INF, False), (INF, 1.0, INF, False), (1.0, INF, INF, False),
        (5.0, 1.0, INF, True),
    ],
)
def test_nan_and_infinity_only_pass_for_themselves(
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


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match=r"\(2,\)"):
        compare(torch.zeros(2), torch.zeros(1, dtype=torch.float64), torch.zeros(1))
