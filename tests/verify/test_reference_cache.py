"""What a process keeps for its next candidates: the same as is made anew, and never what somebody altered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from ucutlass import frontend, ir
from ucutlass.reference import evaluate
from ucutlass.runtime import verify
from ucutlass.runtime.inputs import generate
from ucutlass.runtime.verify import reference_cache
from ucutlass.runtime.verify.reference_cache import ReferenceCache
from ucutlass.tasks import candidate_run

LINEAR = "kernel linear(x: f32[M, K], w: f32[N, K]) -> f32[M, N] { return relu(dot[K](x, w)) }"
CHAIN = "pipeline c(x: f32[M, K]) -> f32[M, K] { h: f32[M, K] = x * 2  return h + 1 }"
SIZES = {"M": 12, "N": 8, "K": 16}


def program(text: str = LINEAR) -> ir.Program:
    return frontend.program(frontend.read_text(text))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes what is drawn, by its distribution."""
    log: list[str] = []

    def noted(*arguments: Any, **more: Any) -> Any:
        log.append(arguments[2])
        return generate(*arguments, **more)

    monkeypatch.setattr(reference_cache, "generate", noted)
    return log


def same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True) if isinstance(x, Tensor))


def test_what_is_kept_is_what_is_made_anew(made: list[str]) -> None:
    cache = ReferenceCache()
    first = cache.case(program(), SIZES, "normal", 3, "cpu")
    assert same(first.arguments, generate(program(), SIZES, "normal", seed=3))
    assert first.expected is not None and first.expected.whole is not None
    assert torch.equal(first.expected.whole[0].reference, evaluate(program(), first.arguments)[0].double())
    scheduled = program(LINEAR.replace("{ return", "{ schedule sm90a { tile 64x64x32 } return"))
    assert cache.case(scheduled, SIZES, "normal", 3, "cpu") is first
    assert made == ["normal"]


@pytest.mark.parametrize(
    "other",
    [
        {"text": LINEAR.replace("relu", "gelu")},
        {"sizes": {**SIZES, "M": 13}},
        {"distribution": "integer"},
        {"seed": 4},
    ],
)
def test_another_case_is_another(other: dict[str, Any], made: list[str]) -> None:
    cache = ReferenceCache()
    first = cache.case(program(), SIZES, "normal", 3, "cpu")
    values = {"text": LINEAR, "sizes": SIZES, "distribution": "normal", "seed": 3} | other
    second = cache.case(
        program(values["text"]), values["sizes"], values["distribution"], values["seed"], "cpu"
    )
    assert second is not first and len(made) == 2


@pytest.mark.parametrize("what", ["argument", "reference", "bound"])
def test_what_a_kernel_altered_is_made_again(what: str, made: list[str]) -> None:
    cache = ReferenceCache()
    first = cache.case(program(), SIZES, "normal", 3, "cpu")
    assert first.expected is not None and first.expected.whole is not None
    tensor = {
        "argument": first.arguments[0],
        "reference": first.expected.whole[0].reference,
        "bound": first.expected.whole[0].bound,
    }[what]
    before = [t.clone() for t in first.tensors()]
    tensor.reshape(-1)[5] += 1e3
    second = cache.case(program(), SIZES, "normal", 3, "cpu")
    assert same([*second.tensors()], before) and len(made) == 2


def test_the_oldest_goes_first_and_the_too_large_is_not_kept(made: list[str]) -> None:
    size = sum(
        t.numel() * t.element_size()
        for t in ReferenceCache().case(program(), SIZES, "normal", 0, "cpu").tensors()
    )
    cache = ReferenceCache(2 * size)
    made.clear()
    for seed in (1, 2, 1, 3, 1, 2):
        cache.case(program(), SIZES, "normal", seed, "cpu")
    assert len(made) == 4, "1, 2 and 3 are made, 2 once more"
    small = ReferenceCache(size - 1)
    assert small.case(program(), SIZES, "normal", 1, "cpu") is not small.case(
        program(), SIZES, "normal", 1, "cpu"
    )


def test_a_pipeline_has_arguments_alone() -> None:
    assert ReferenceCache().case(program(CHAIN), {"M": 4, "K": 8}, "normal", 0, "cpu").expected is None


class Loaded:
    """A kernel in a process that judges one candidate after another."""

    def __init__(self, spoils: bool) -> None:
        self.program, self.spoils = program(), spoils

    def judged(self, *_: Any) -> Any:
        def run(given: Sequence[Any], outputs: Sequence[Tensor]) -> None:
            outputs[0].copy_(evaluate(self.program, given)[0])
            if self.spoils:
                outputs[0][3, 4] += 1.0

        return run


def test_one_candidate_after_another_is_held_against_what_is_kept(made: list[str]) -> None:
    cache = ReferenceCache()
    states = []
    for spoils in (False, True, False):
        case = cache.case(program(), SIZES, "normal", 3, "cpu")
        loaded = Loaded(spoils)
        verdict = candidate_run.verdict_of(program(), loaded, case.arguments, True, case.expected)
        states.append(verdict.state)
        # The whole reference is there, so that nothing is sampled.
        assert verdict.comparisons[0].elements == 12 * 8
    assert states == ["right", "wrong", "right"] and made == ["normal"]
    assert verify.check(program(), Loaded(True).judged(), case.arguments).state == "wrong"
