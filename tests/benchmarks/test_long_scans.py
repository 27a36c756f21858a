"""The scans that `benchmarks.long_scans` times: every variant is a kernel, the second alone of two passes."""

from __future__ import annotations

import pytest

from benchmarks.long_scans import ROWS, TWICE, variants
from ucutlass import frontend
from ucutlass.kernels.reduction.plan import SweepPlan
from ucutlass.shapes import complete


@pytest.mark.parametrize("name", ROWS)
def test_every_variant_is_a_kernel(name: str) -> None:
    row = ROWS[name]
    for fields in variants(row, plain=False):
        checked = frontend.read_text(row.text(fields))
        program = frontend.kernel(checked)
        sizes = complete(program, dict(row.sizes))
        plan = frontend.plan_kernel(checked, program, sizes, "sm90a").planned.plan
        assert isinstance(plan, SweepPlan)
        assert plan.schedule.chained == (fields != TWICE) and (plan.schedule.splits > 1) == (fields == TWICE)
