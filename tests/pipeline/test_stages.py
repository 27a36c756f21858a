"""A pipeline judged stage by stage, on stages that plain torch computes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor

from ucutlass import frontend, ir
from ucutlass.pipeline.sized import SizedPipeline, sized_pipeline
from ucutlass.reference import evaluate
from ucutlass.reference.interpreter import run_stage, stage_arguments
from ucutlass.runtime.inputs import generate
from ucutlass.runtime.verify import LaunchVerdict, StagedLaunch, check
from ucutlass.runtime.verify.batch import as_json, judge_all, read_journal
from ucutlass.runtime.verify.evidence import evidence_of, plain, verdict_of
from ucutlass.runtime.verify.suite import suite
from ucutlass.shapes import complete

Spoil = Mapping[int, Callable[[Tensor], Tensor]]
"""What becomes of what a stage computes, by its number."""

NONE: Spoil = MappingProxyType({})

DEPTH = 12

DEEP = (
    "kernel layer(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] {\n  return relu(dot[K](x, w))\n}\n"
    "pipeline deep(x: bf16[M, D], "
    + ", ".join(f"w{i}: bf16[D{i}=D, D]" for i in range(DEPTH))
    + f") -> bf16[M, D{DEPTH - 1}] {{\n"
    + "".join(f"  h{i} = layer({f'h{i - 1}' if i else 'x'}, w{i})\n" for i in range(DEPTH - 1))
    + f"  return layer(h{DEPTH - 2}, w{DEPTH - 1})\n}}\n"
)

NORM = """
pipeline norm(x: bf16[M, K], w: bf16[N, K], v: bf16[P, N]) -> bf16[M, P] {
  h: bf16[M, N] = dot[K](x, w)
  d = h - mean[N](h)
  n: bf16[M, N] = d * rsqrt(mean[N](d * d) + 1e-5)
  return dot[N](n, v)
}
"""

MIXED = """
pipeline mixed(x: bf16[M, K], w: bf16[N, K], s: f32) -> (y: bf16[M, N], z: bf16[M, N]) {
  h: bf16[M, N] = dot[K](x, w) * s
  f: bf16[M, N] = torch.softmax(h, dim=1)
  return y = exp(f), z = h + f
}
"""


def staged(
    text: str, sizes: Mapping[str, int], spoil: Spoil = NONE, whole: Spoil | None = None
) -> StagedLaunch:
    """Stages as the interpreter has them; `spoil` those of the judge, `whole` those of the pipeline."""
    program = frontend.program(frontend.read_text(text))
    assert isinstance(program, ir.Pipeline)
    found = sized_pipeline(program, complete(program, sizes))

    def one(number: int, spoil: Spoil) -> Callable[..., None] | None:
        step = found.steps[number]
        if step.kernel is None:
            return None

        def run(arguments: Sequence[Any], results: Sequence[Tensor]) -> None:
            tensors = run_stage(step.stage, arguments, found.sizes)
            for result, value in zip(results, tensors, strict=True):
                result.copy_(spoil.get(number, lambda x: x)(value))

        return run

    def series(arguments: Sequence[Any], results: Sequence[Tensor]) -> None:
        stored = _series(found, arguments, spoil if whole is None else whole)
        for name, result in zip(found.results, results, strict=True):
            result.copy_(stored[name])

    return StagedLaunch(series, found, tuple(one(i, spoil) for i in range(len(found.steps))))


def _series(found: SizedPipeline, arguments: Sequence[Any], spoil: Spoil) -> Mapping[str, Tensor]:
    stored = dict(zip((p.name for p in found.pipeline.params), arguments, strict=True))
    for number, step in enumerate(found.steps):
        tensors = run_stage(step.stage, stage_arguments(step.stage, stored), found.sizes)
        change = spoil.get(number, lambda x: x)
        stored |= {n: change(m) for n, m in zip(step.stage.outputs, tensors, strict=True)}
    return stored


def judged(text: str, sizes: Mapping[str, int], **how: Any) -> LaunchVerdict:
    staged_launch = staged(text, sizes, **how)
    return check(staged_launch.sized.pipeline, staged_launch, drawn(staged_launch, sizes))


def drawn(made: StagedLaunch, sizes: Mapping[str, int]) -> list[Any]:
    """Matrices scaled so that numbers neither grow nor vanish."""
    first, *rest = generate(made.sized.pipeline, sizes, "normal", seed=7)
    return [first, *(g * (2 / g.shape[-1]) ** 0.5 if isinstance(g, Tensor) else g for g in rest)]


def off(x: Tensor) -> Tensor:
    return (x.float() * 1.01).to(x.dtype)


SMALL = {"M": 32, "D": 64}


def test_one_part_in_a_hundred_in_the_middle_of_a_deep_pipeline_is_found() -> None:
    """The bound end to end lets it pass."""
    staged_launch = staged(DEEP, SMALL, {DEPTH // 2: off})
    arguments = drawn(staged_launch, SMALL)
    alone = check(staged_launch.sized.pipeline, staged_launch.entire, arguments)
    assert alone.state == "undecided" and all(c.ok for c in alone.comparisons)
    verdict = check(staged_launch.sized.pipeline, staged_launch, arguments)
    assert verdict.state == "wrong" and not verdict.ok
    assert [s.name for s in verdict.stages if s.state != "right"] == [f"h{DEPTH // 2} = layer"]
    assert f"stage h{DEPTH // 2} = layer: result" in str(verdict)


def test_a_right_deep_pipeline_is_right_by_its_stages_and_says_so() -> None:
    verdict = judged(DEEP, SMALL)
    assert verdict.ok and not verdict.problems
    (whole,) = verdict.comparisons
    assert not whole.decided and 2 * whole.useless > whole.elements
    assert all(c.useless == 0 for s in verdict.stages for c in s.comparisons)
    assert verdict.proof().startswith(f"right: {DEPTH} of {DEPTH} stages are right")
    assert "says nothing of 100.00% of the elements: this rests on the stages" in verdict.proof()


def test_the_whole_alone_is_undecided_where_its_bounds_say_nothing() -> None:
    staged_launch = staged(DEEP, SMALL)
    verdict = check(staged_launch.sized.pipeline, staged_launch.entire, drawn(staged_launch, SMALL))
    assert verdict.state == "undecided" and not verdict.ok and not verdict.problems


def test_a_pipeline_that_gives_other_bits_than_its_stages_is_wrong() -> None:
    """One rounding step in one element, well within any bound."""

    def nudged(x: Tensor) -> Tensor:
        y = x.clone()
        y.view(torch.int16)[3, 5] += 1
        return y

    verdict = judged(DEEP, SMALL, whole={DEPTH - 1: nudged})
    assert verdict.state == "wrong" and all(s.state == "right" for s in verdict.stages)
    (problem,) = verdict.problems
    assert problem.kind == "not its stages'" and "1 of 2048 elements" in problem.message
    assert "[3, 5]" in problem.message


def test_a_torch_function_is_taken_as_given_and_needs_no_bound() -> None:
    """`torch.softmax` of an inexact buffer has none: end to end there is nothing to hold the results to."""
    verdict = judged(MIXED, {"M": 9, "K": 16, "N": 24})
    assert verdict.ok and verdict.missing.startswith("UnsupportedError")
    assert [s.torch for s in verdict.stages] == [False, True, False, False]
    assert "torch's own results are taken as given (f = torch.softmax)" in str(verdict)
    assert not judged(MIXED, {"M": 9, "K": 16, "N": 24}, spoil={3: off}).ok


def test_a_stage_that_leaves_elements_or_changes_its_input_is_told() -> None:
    staged_launch = staged(NORM, {"M": 8, "K": 16, "N": 32, "P": 4})

    def lazy(arguments: Sequence[Any], results: Sequence[Tensor]) -> None:
        results[0][:-1] = evaluate(staged_launch.sized.steps[1].kernel, arguments)[0][:-1]  # type: ignore[arg-type]
        arguments[0][0, 0] += 1

    spoilt = replace(staged_launch, steps=(staged_launch.steps[0], lazy, staged_launch.steps[2]))
    verdict = check(
        staged_launch.sized.pipeline, spoilt, drawn(staged_launch, {"M": 8, "K": 16, "N": 32, "P": 4})
    )
    assert verdict.state == "wrong"
    assert {p.kind for p in verdict.stages[1].problems} == {"unwritten", "input changed"}
    assert not verdict.stages[0].problems


GATHERS = """
kernel places(x: f32[M]) -> i32[M] { return i32(x) }
kernel take(t: f32[V], ids: i32[M]) -> f32[M] { return t[V = ids] }
pipeline gathers(x: f32[M], t: f32[V]) -> f32[M] {
  ids = places(x)
  return take(t, ids)
}
"""


def test_what_follows_a_wrong_stage_is_left_where_no_reference_takes_it() -> None:
    staged_launch = staged(GATHERS, {"M": 8, "V": 4}, {0: lambda x: x + 100})
    arguments = [torch.zeros(8), torch.arange(4.0)]
    verdict = check(staged_launch.sized.pipeline, staged_launch, arguments)
    assert verdict.state == "wrong" and len(verdict.stages) == 1
    assert "cannot be judged on what a wrong stage stored" in verdict.missing
    assert verdict.missing in str(verdict)


@pytest.mark.parametrize("alone, outcome", [(True, "undecided"), (False, "right")])
def test_a_suite_counts_no_undecided_case_as_right(alone: bool, outcome: str, tmp_path: Path) -> None:
    staged_launch = staged(DEEP, SMALL)
    asked = suite(staged_launch.sized.pipeline, SMALL, seed=1, distributions=("normal",), most=1)
    journal = tmp_path / "journal"
    seconds = signal.getitimer(signal.ITIMER_REAL)
    judge_all(
        staged_launch.sized.pipeline,
        lambda _: staged_launch.entire if alone else staged_launch,
        [as_json(c) for c in asked.cases],
        str(journal),
        tile={},
        device="cpu",
        case_seconds=60.0,
    )
    signal.setitimer(signal.ITIMER_REAL, *seconds)
    results, _ = read_journal(journal, asked.cases)
    evidence = evidence_of(asked, [results[0]])
    assert results[0].outcome == outcome and evidence.ok == (outcome == "right")
    (case,) = evidence.to_json()["cases"]
    assert case["rests_on_stages"] == (not alone) and len(case["stages"]) == (0 if alone else DEPTH)
    if alone:
        assert "undecided: result: within the bound, which says nothing of" in evidence.failures()[0]


@pytest.mark.parametrize("spoil", [{}, {1: off}])
def test_a_verdict_survives_json(spoil: Spoil) -> None:
    verdict = judged(NORM, {"M": 8, "K": 16, "N": 32, "P": 4}, spoil=spoil)
    assert verdict_of(plain(verdict)) == verdict


def test_buffers_are_dropped_after_their_last_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve layers' buffers at once would not fit where two do."""
    import weakref

    alive: list[weakref.ref[Tensor]] = []
    most = 0
    staged_launch = staged(DEEP, SMALL)

    def watched(run: Any) -> Any:
        def launch(arguments: Sequence[Any], results: Sequence[Tensor]) -> None:
            nonlocal most
            run(arguments, results)
            alive.append(weakref.ref(results[0]))
            most = max(most, sum(r() is not None for r in alive))

        return launch

    assert check(
        staged_launch.sized.pipeline,
        replace(staged_launch, steps=tuple(map(watched, staged_launch.steps))),
        drawn(staged_launch, SMALL),
    ).ok
    assert most <= 6  # two runs of a stage and of the one before
