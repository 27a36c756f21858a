"""Values that take the place of what they are computed from in registers: which do, and what kernels compute then."""

from __future__ import annotations

import shutil

import pytest

from tests.emulated import Job, emulate
from tests.kernels.test_ring import planned_source
from ucutlass.kernels.reduction.plan import ReductionPlan
from ucutlass.kernels.reduction.plan_applied import applied_values

compiled = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile emulated kernels")

NORM = (
    "kernel k(x: f32[T, D], g: f32[D]) -> f32[T, D] { a = VALUE\n d = a - mean[D](a)\n"
    " return d * rsqrt(mean[D](d * d) + 1e-5) * g SCHEDULE }"
)
GELU = NORM.replace("VALUE", "gelu(x)")


@pytest.mark.parametrize(
    ("program", "count"),
    [
        (GELU, 1),
        (NORM.replace("VALUE", "x * sigmoid(x)"), 1),
        (NORM.replace("VALUE", "gelu(x) + g"), 1),  # the gain is read again
        (NORM.replace("VALUE", "x * 2.0 + 1.0"), 0),  # costs what it takes to read it
        (GELU.replace("* g SCHEDULE", "* g + x SCHEDULE"), 0),  # x is needed too
        (GELU.replace("x: f32", "x: bf16"), 0),  # registers of 16 bits have no room
    ],
)
def test_values_that_take_an_elements_place(program: str, count: int) -> None:
    planned, source = planned_source(program, "", T=64, D=4096)
    assert isinstance(planned.plan, ReductionPlan)
    assert len(applied_values(planned.plan.problem)) == count
    assert planned.plan.schedule.applied == (count > 0)
    # Once as the row comes, and not again in the passes over it.
    if "gelu" in program and count:
        assert source.text.count("ucc_gelu(v") == 1


def test_rows_that_are_read_again_keep_no_values() -> None:
    planned = planned_source(GELU, "keep reread", T=64, D=4096)[0]
    assert isinstance(planned.plan, ReductionPlan) and not planned.plan.schedule.applied


@compiled
@pytest.mark.parametrize(
    "fields", ["threads 64", pytest.param("stages 3  threads 64  rows 2", marks=pytest.mark.slow)]
)
def test_kernels_compute_with_values_in_place(fields: str) -> None:
    text = GELU.replace("SCHEDULE", f"schedule sm90a {{ {fields} }}")
    row = emulate(Job("applied", text, "k", {"T": 7, "D": 1000}, None, 0))
    assert row.status == "right", row.detail


@compiled
def test_one_row_computes_with_values_in_place() -> None:
    """All elements of a kernel without rows are the same for all rows, and are kept nevertheless."""
    text = "kernel k(x: f32[D], y: f32[D]) -> f32[] { s = sigmoid(x)\n return sum[D](s * log(s) - s * y) }"
    planned, _ = planned_source(text, "", D=300)
    assert isinstance(planned.plan, ReductionPlan) and planned.plan.schedule.applied
    row = emulate(Job("one row", text, "k", {"D": 300}, None, 0))
    assert row.status == "right", row.detail
