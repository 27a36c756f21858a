"""Sampled rows: what they look at, how often they miss a wrong kernel, and that they refuse no right one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.mutants import judging
from ucutlass import frontend, ir
from ucutlass.reference import RowSample, evaluate, expect, sampled_results
from ucutlass.reference.slices import EDGE_ROWS
from ucutlass.runtime import verify
from ucutlass.runtime.inputs import generate
from ucutlass.runtime.verify import check
from ucutlass.shapes import free_dims
from ucutlass.tasks.candidate_run import ROWS, verdict_of

LINEAR = "kernel k(x: f32[M, K], w: f32[N, K], b: f32[N]) -> f32[M, N] { return relu(dot[K](x, w) + b) }\n"
FIXED = LINEAR.replace("[M, K]", "[M=600, K=9]").replace("[N, K]", "[N=12, K]")
TWO = "kernel k(x: f32[M, N]) -> (y: f32[M, N], z: f32[M]) { return y = exp(x), z = max[N](x) }\n"
COUPLED = "kernel k(x: f32[M]) -> f32[M] { return softmax[M](x) }\n"
SIZES = {"M": 600, "N": 12, "K": 9}


def kernel(text: str) -> ir.Kernel:
    return frontend.kernel(frontend.read_text(text))


def arguments_of(program: ir.Kernel, seed: int = 1) -> list[Any]:
    return generate(program, {d: SIZES[d] for d in free_dims(program)}, "normal", seed=seed)


def coordinates(program: ir.Kernel, arguments: Sequence[Any], seed: int, rows: int = ROWS) -> list[int]:
    sampled = sampled_results(program, arguments, RowSample(rows, seed))
    assert sampled is not None
    (part,) = sampled.slices()
    assert part.index is not None
    return [int(i) for i in part.index]


@pytest.mark.parametrize("text", [LINEAR, FIXED, TWO])
def test_a_sample_is_a_part_of_the_whole_reference(text: str) -> None:
    program = kernel(text)
    arguments = arguments_of(program)
    sampled = sampled_results(program, arguments, RowSample(ROWS, 5))
    assert sampled is not None
    (part,) = sampled.slices()
    assert part.index is not None
    for at, (few, whole) in enumerate(zip(part.expected, expect(program, arguments), strict=True)):
        rows = part.index
        torch.testing.assert_close(few.reference, whole.reference[rows], rtol=1e-13, atol=0.0)
        torch.testing.assert_close(few.bound, whole.bound[rows], rtol=1e-6, atol=0.0)
        assert torch.equal(part.slice_of(at, whole.reference), whole.reference[rows])


def test_edges_are_in_every_sample_and_others_by_chance() -> None:
    program = kernel(LINEAR)
    arguments = arguments_of(program)
    first, second = (set(coordinates(program, arguments, seed)) for seed in (1, 2))
    edges = {*range(EDGE_ROWS), *range(600 - EDGE_ROWS, 600)}
    assert edges < first and edges < second and first != second
    assert ROWS <= len(first) <= ROWS + 2 * EDGE_ROWS


def test_what_cannot_be_sampled_is_compared_as_a_whole() -> None:
    coupled, program = kernel(COUPLED), kernel(LINEAR)
    assert sampled_results(coupled, arguments_of(coupled), RowSample(ROWS, 1)) is None
    small = generate(program, {"M": 100, "N": 12, "K": 9}, "normal", seed=1)
    assert sampled_results(program, small, RowSample(ROWS, 1)) is None


@pytest.mark.parametrize("wrong", [1, 30, 120])
def test_a_wrong_kernel_is_missed_as_rarely_as_is_said(wrong: int) -> None:
    """Over seeds, of a kernel that is wrong at so many coordinates away from the edges."""
    program = kernel(LINEAR)
    arguments = arguments_of(program)
    bad = set(range(EDGE_ROWS + 3, EDGE_ROWS + 3 + wrong))
    seeds = 300
    missed = sum(not bad & set(coordinates(program, arguments, seed)) for seed in range(seeds)) / seeds
    exact = math.comb(600 - wrong, ROWS) / math.comb(600, ROWS)
    assert exact <= (1 - wrong / 600) ** ROWS
    assert abs(missed - exact) <= 4 * math.sqrt(exact * (1 - exact) / seeds) + 1e-9


class Loaded:
    """A kernel whose result something is done to; counts how often it was to be judged."""

    def __init__(self, program: ir.Kernel, spoil: Callable[[Tensor], None]) -> None:
        self.program, self.spoil, self.judgements = program, spoil, 0

    def judged(self, *_: Any) -> Callable[..., None]:
        self.judgements += 1

        def run(given: Sequence[Any], outputs: Sequence[Tensor]) -> None:
            outputs[0].copy_(evaluate(self.program, given)[0])
            self.spoil(outputs[0])

        return run


def every_second_row(out: Tensor) -> None:
    out[1::2] += 1.0


def last_row(out: Tensor) -> None:
    out[-1] += 1.0


def one_element_of_each_row(out: Tensor) -> None:
    out[:, 7] -= 0.5


@pytest.mark.parametrize("spoil", [every_second_row, last_row, one_element_of_each_row])
def test_wrong_kernels_are_caught_with_their_place(spoil: Callable[[Tensor], None]) -> None:
    program = kernel(LINEAR)
    arguments = arguments_of(program)
    loaded = Loaded(program, spoil)
    sampled = verify.check(program, loaded.judged(), arguments, sample=RowSample(ROWS, 3))
    assert sampled.state == "wrong"
    row, _ = sampled.comparisons[0].index
    assert {every_second_row: row % 2 == 1, last_row: row == 599}.get(spoil, True)
    assert verdict_of(program, loaded, arguments, True).state == "wrong"


def test_a_right_kernel_is_right_by_a_sample() -> None:
    program = kernel(LINEAR)
    loaded = Loaded(program, lambda out: None)
    verdict = verdict_of(program, loaded, arguments_of(program), True)
    assert verdict.ok and loaded.judgements == 1
    assert verdict.comparisons[0].elements < 600 * 12


def test_what_a_sample_does_not_find_right_the_whole_decides() -> None:
    program = kernel(LINEAR)
    spoilt: list[bool] = []

    def only_the_first_time(out: Tensor) -> None:
        if len(spoilt) < 2:
            out += 1.0
        spoilt.append(True)

    loaded = Loaded(program, only_the_first_time)
    assert verdict_of(program, loaded, arguments_of(program), True).ok and loaded.judgements == 2


ONE_ROW = {"NaN lost"}
"""Trials that are wrong in few rows, which a sample may miss: a confirmation looks at all."""


@pytest.mark.parametrize("name", [name for name in judging.TRIALS if name not in ONE_ROW])
def test_the_trials_of_the_judge_end_as_ever(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sampled = partial(check, sample=RowSample(ROWS, 11))
    monkeypatch.setattr(judging, "SIZES", {"M": 600, "N": 8, "K": 5})
    monkeypatch.setattr(judging.verify, "check", sampled)
    assert judging.TRIALS[name].right()
