"""Results that were right everywhere need no reference again, and no others are taken for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.mutants import judging
from ucutlass import frontend, ir
from ucutlass.pipeline.sized import sized_pipeline
from ucutlass.reference import RowSample, evaluate
from ucutlass.runtime.inputs import generate
from ucutlass.runtime.verify import check, judge, stages
from ucutlass.runtime.verify.accepted import MOST, AcceptedResults

TEXT = "kernel k(x: f32[M, N], w: f32[N]) -> f32[M, N] { return cumsum[N](x) * w }\n"
SIZES = {"M": 200, "N": 12}


def program_of(text: str = TEXT) -> ir.Kernel:
    return frontend.kernel(frontend.read_text(text))


@pytest.fixture
def references(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which references were made."""
    made: list[str] = []
    whole, some = judge.least_results, judge.sampled_results
    monkeypatch.setattr(judge, "least_results", lambda *a, **k: made.append("whole") or whole(*a, **k))
    monkeypatch.setattr(judge, "sampled_results", lambda *a, **k: made.append("sample") or some(*a, **k))
    return made


def launch(program: ir.Kernel, off: float = 0.0) -> Any:
    def run(arguments: Sequence[Any], outputs: Sequence[Tensor]) -> None:
        outputs[0].copy_(evaluate(program, arguments)[0])
        outputs[0][7, 3] += off

    return run


def test_equal_bits_on_equal_arguments_need_no_reference(references: list[str]) -> None:
    program, accepted = program_of(), AcceptedResults()
    arguments = generate(program, SIZES, "normal", seed=1)
    first = check(program, launch(program), arguments, accepted=accepted)
    again = check(program, launch(program), arguments, accepted=accepted, sample=RowSample(64, 3))
    assert first.ok and again == first and references == ["whole"]
    check(program, launch(program), generate(program, SIZES, "normal", seed=2), accepted=accepted)
    other = program_of(TEXT.replace("* w", "+ w"))
    check(other, launch(other), arguments, accepted=accepted)
    assert references == ["whole"] * 3, "other arguments, or another algorithm"
    whole = check(program, launch(program), arguments)
    assert whole == first and len(references) == 4, "who has none makes a reference"


def test_other_bits_are_compared_and_wrong_ones_never_accepted(references: list[str]) -> None:
    program, accepted = program_of(), AcceptedResults()
    arguments = generate(program, SIZES, "normal", seed=1)
    for _ in range(2):
        assert not check(program, launch(program, 1.0), arguments, accepted=accepted).ok
    assert check(program, launch(program), arguments, accepted=accepted).ok
    assert not check(program, launch(program, 1.0), arguments, accepted=accepted).ok
    assert references == ["whole"] * 4


def test_a_sample_that_is_right_accepts_nothing(references: list[str]) -> None:
    program, accepted = program_of(), AcceptedResults()
    arguments = generate(program, SIZES, "normal", seed=1)
    for _ in range(2):
        assert check(program, launch(program), arguments, accepted=accepted, sample=RowSample(64, 3)).ok
    assert references == ["sample"] * 2


def test_what_a_launch_does_besides_is_judged_as_ever() -> None:
    program, accepted = program_of(), AcceptedResults()
    arguments = generate(program, SIZES, "normal", seed=1)
    assert check(program, launch(program), arguments, accepted=accepted).ok

    def spoils(arguments: Sequence[Any], outputs: Sequence[Tensor]) -> None:
        outputs[0].copy_(evaluate(program, arguments)[0])
        arguments[1].zero_()

    verdict = check(program, spoils, arguments, accepted=accepted)
    assert not verdict.ok and "input changed" in str(verdict)


def test_few_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ucutlass.runtime.verify.accepted.MOST", 2)
    assert MOST > 100
    program, accepted = program_of(), AcceptedResults()
    for seed in range(4):
        arguments = generate(program, SIZES, "normal", seed=seed)
        assert check(program, launch(program), arguments, accepted=accepted).ok
    assert len(accepted._comparisons) == 2
    assert accepted.find(accepted.mark(program, arguments, [torch.zeros(1)])) is None


@pytest.mark.parametrize("name", judging.TRIALS)
def test_the_trials_of_the_judge_end_as_ever(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also once right results on the same arguments are remembered."""
    accepted = AcceptedResults()
    monkeypatch.setattr(judging.verify, "check", partial(check, accepted=accepted))
    for _ in range(2):
        assert judging.TRIALS[name].right()


CHAIN = """
pipeline chain(x: f32[M, N], w: f32[N]) -> f32[M, N] {
  h: f32[M, N] = cumsum[N](x) * w
  return softmax[N](h)
}
"""


def test_stages_and_the_whole_are_remembered_each(
    references: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wholes: list[str] = []
    whole = stages._program_reference
    monkeypatch.setattr(stages, "_program_reference", lambda *a: wholes.append("") or whole(*a))
    program = frontend.program(frontend.read_text(CHAIN))
    assert isinstance(program, ir.Pipeline)
    layout = sized_pipeline(program, (200, 12))

    def staged(off: float) -> stages.StagedLaunch:
        def of(kernel: ir.Kernel, add: float) -> Any:
            def run(arguments: Sequence[Any], outputs: Sequence[Tensor]) -> None:
                outputs[0].copy_(evaluate(kernel, arguments)[0])
                outputs[0][7, 3] += add

            return run

        first, second = (step.kernel for step in layout.steps)
        assert first is not None and second is not None
        steps = (of(first, 0.0), of(second, off))

        def entire(arguments: Sequence[Any], outputs: Sequence[Tensor]) -> None:
            h = torch.empty(200, 12)
            steps[0](arguments, [h])
            steps[1]([h], outputs)

        return stages.StagedLaunch(entire, layout, steps)

    arguments = generate(program, SIZES, "normal", seed=1)
    accepted = AcceptedResults()
    first = check(program, staged(0.0), arguments, accepted=accepted)
    assert first.ok and references == ["whole"] * 2 and len(wholes) == 1
    again = check(program, staged(0.0), arguments, accepted=accepted)
    assert again.ok and again.comparisons == first.comparisons
    assert references == ["whole"] * 2 and len(wholes) == 1
    wrong = check(program, staged(1.0), arguments, accepted=accepted)
    assert not wrong.ok and references == ["whole"] * 3, "the first stage is as it was"
