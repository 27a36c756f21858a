"""The reference interpreter against plain torch on the twenty tasks, and an honest f32 device
within the bounds."""

from __future__ import annotations

import pytest
import torch

from tests.reference.tasks import TASKS, Task, load, results
from ucutlass.reference import evaluate, expect
from ucutlass.reference.rounding import store
from ucutlass.runtime.inputs import DISTRIBUTIONS, Distribution, generate
from ucutlass.runtime.verify import compare

by_name = pytest.mark.parametrize("task", TASKS, ids=lambda t: t.program)


def _arguments(task: Task, distribution: Distribution, seed: int = 0) -> list[object]:
    arguments = generate(load(task), task.sizes, distribution, seed=seed)
    if task.program == "conv_bn_relu":
        arguments[4] = arguments[4].abs()  # a variance
    return arguments


@by_name
def test_unrounded_results_are_plain_torchs(task: Task) -> None:
    arguments = _arguments(task, "normal")
    for ours, theirs in zip(
        evaluate(load(task), arguments, rounded=False), results(task, arguments, torch.float64), strict=True
    ):
        torch.testing.assert_close(ours, theirs.reshape(ours.shape), rtol=1e-11, atol=1e-11)


@by_name
def test_rounded_results_have_the_declared_type(task: Task) -> None:
    arguments = _arguments(task, "uniform", seed=1)
    exact = evaluate(load(task), arguments, rounded=False)
    for result, ours, wide in zip(load(task).results, evaluate(load(task), arguments), exact, strict=True):
        elem = result[1].elem if isinstance(result, tuple) else result.type.elem
        assert torch.equal(ours, store(wide, elem))


@pytest.mark.parametrize(
    ("task", "distribution"),
    [
        pytest.param(task, distribution, id=f"{task.program}-{distribution}")
        for task in TASKS
        for distribution in DISTRIBUTIONS
        # torch folds the mean into the shift, so what cancels exactly as written does not there.
        if (task.program, distribution) != ("conv_bn_relu", "residue")
    ],
)
def test_an_f32_device_is_within_the_bound(task: Task, distribution: Distribution) -> None:
    arguments = _arguments(task, distribution, seed=2)
    expected = expect(load(task), arguments)
    for e, out in zip(expected, results(task, arguments, torch.float32), strict=True):
        verdict = compare(store(out.double(), e.elem).reshape(e.reference.shape), e.reference, e.bound)
        assert verdict.ok, verdict
