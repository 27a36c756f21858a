"""The cases of `benchmarks.ops`: each has a kernel, and rows become a table."""

from __future__ import annotations

import pytest
import torch

from benchmarks.ops import CASES, OperatorCase, rivals, table
from tests.ops.plans import plan_call
from ucutlass.ops.registry import OPERATORS
from ucutlass.ops.table import TABLE


def test_each_operator_has_three_shapes() -> None:
    shapes = [case.operator for case in CASES]
    assert {name: shapes.count(name) for name in shapes} == dict.fromkeys(TABLE, 3)
    assert len({case.name for case in CASES}) == len(CASES)


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_shape_has_a_kernel(case: OperatorCase) -> None:
    arguments = case.arguments(meta)
    entry = TABLE[case.operator]
    assert torch.bfloat16 in entry.elements and not entry.unserved(*arguments)
    plan_call(entry.call(*arguments), torch.bfloat16, "sm90a")
    assert OPERATORS[case.operator](*arguments) is not None


def test_rivals_compute_what_the_operator_does() -> None:
    x, weight = torch.randn(4, 8), torch.randn(8)
    calls, left_out = rivals("rms_norm", (x, weight, 1e-6), compiles=False)
    for call in calls.values():
        torch.testing.assert_close(call(x, weight, 1e-6), OPERATORS["rms_norm"](x, weight, 1e-6))
    assert set(calls) | set(left_out) >= {"eager"}


def test_rows_become_a_table() -> None:
    measured = {
        "name": "linear 1x2x3",
        "ok": True,
        "operator": "linear",
        "error": 1e-3,
        "theirs": 2e-3,
        "left_out": {"quack": "ValueError: no"},
        "over_best": 1.25,
        "over": {"eager": 1.5, "compile": 1.25},
        "microseconds": {"ours": 10.0},
        "spread": 0.01,
    }
    lost = {"name": "rms_norm 1x2", "ok": False, "error": "TimedOut", "detail": "late"}
    text = table([measured, lost])
    assert "linear 1x2x3" in text and "without quack: ValueError: no" in text
    assert "over eager: geomean 1.500, least 1.500, 1 rows" in text
    assert "lost: rms_norm 1x2: TimedOut: late" in text
