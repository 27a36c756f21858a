"""Scans of few long rows in one pass: what is chosen and refused, and blocks side by side on the host."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import isolated
from tests.emit import emulator, plan_reference
from tests.emit.harness import HOST_SHIM
from tests.emulated import LIMIT_SECONDS, Job, emulate
from ucutlass import frontend
from ucutlass.backend import source_of
from ucutlass.diagnostics import ProgramError
from ucutlass.emit import Source
from ucutlass.kernels.gemm.plan import LaunchParameters
from ucutlass.kernels.planned import Planned
from ucutlass.kernels.reduction.plan import ReductionPlan, ReductionSchedule
from ucutlass.runtime import isolation
from ucutlass.shapes import complete

compiled = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile emulated kernels")

SCAN = "kernel k(x: f32[A, L]) -> f32[A, L] { return cumsum[L](x) SCHEDULE }"
DOWN = "kernel k(x: f32[L, C]) -> f32[L, C] { return cumsum[L](x, exclusive=true) SCHEDULE }"
COUNTS = "kernel k(x: i32[A, L]) -> i64[A, L] { return cumsum[L](x, reverse=true) SCHEDULE }"
TWO = (
    "kernel k(x: f32[A, L]) -> (y: f32[A, L], p: f32[A, L]) "
    "{ return y = cumsum[L](x), p = cumprod[L](x * 0.001 + 1) SCHEDULE }"
)
NORM = "kernel k(x: f32[A, L]) -> f32[A, L] { return cumsum[L](x / sum[L](abs(x))) SCHEDULE }"


def text_of(program: str, fields: str = "") -> str:
    return program.replace("SCHEDULE", f"schedule sm90a {{ {fields} }}" if fields else "")


def made(program: str, fields: str = "", arch: str = "sm90a", **sizes: int) -> tuple[Planned, Source]:
    checked = frontend.read_text(text_of(program, fields).replace("sm90a", arch))
    kernel = frontend.kernel(checked)
    planned = frontend.plan_kernel(checked, kernel, complete(kernel, sizes), arch).planned
    assert isinstance(planned, Planned)
    return planned, source_of(checked, kernel, planned)


def schedule(program: str, fields: str = "", **sizes: int) -> ReductionSchedule:
    plan = made(program, fields, **sizes)[0].plan
    assert isinstance(plan, ReductionPlan)
    return plan.schedule


# --- what is chosen -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "sizes"),
    [
        (SCAN, {"A": 1, "L": 1_000_000}),
        (SCAN, {"A": 60, "L": 1_000_000}),
        (DOWN, {"L": 1_000_000, "C": 8}),
        (DOWN, {"L": 100_003, "C": 77}),
        (COUNTS, {"A": 2, "L": 1_000_000}),
    ],
)
def test_few_long_rows_are_read_once(program: str, sizes: dict[str, int]) -> None:
    plan, source = made(program, **sizes)
    assert isinstance(plan.plan, ReductionPlan) and plan.plan.schedule.look_back
    assert source.code.count("cudaLaunchKernelEx(&config, reduction<") == 1
    assert any("in one pass" in note.value for note in plan.notes)
    twice, _ = made(program, "keep reread", **sizes)
    assert isinstance(twice.plan, ReductionPlan) and twice.plan.schedule.splits > 1
    assert plan.seconds < twice.seconds
    assert any("read for their totals first" in note.reason for note in twice.notes)
    assert any("each of 2 passes reads it" in note.reason for note in twice.notes)


def test_rows_of_odd_lengths_are_read_twice_unless_asked() -> None:
    """Element by element two passes are the faster on an H200."""
    assert schedule(SCAN, A=3, L=1_000_003).splits > 1
    assert schedule(SCAN, "keep registers", A=3, L=1_000_003).look_back


def test_why_a_row_is_read_twice_is_told() -> None:
    plan, _ = made(NORM, A=2, L=1_000_000)
    assert any("needs the whole row before" in note.reason for note in plan.notes)


@pytest.mark.parametrize(
    ("program", "sizes"),
    [
        (SCAN, {"A": 200, "L": 1_000_000}),
        (SCAN, {"A": 2, "L": 4096}),
        (DOWN, {"L": 4096, "C": 100_000}),
        (NORM, {"A": 2, "L": 1_000_000}),
    ],
)
def test_other_scans_are_not_chained(program: str, sizes: dict[str, int]) -> None:
    assert not schedule(program, **sizes).look_back


def test_a_row_that_fits_a_block_needs_no_chain() -> None:
    for program in (SCAN, NORM):
        reduction_schedule = schedule(program, "keep registers", A=1000, L=4096)
        assert reduction_schedule.keep == "registers" and not reduction_schedule.look_back
        assert "LookBack" not in made(program, "keep registers", A=1000, L=4096)[1].code


def test_the_same_fields_give_the_same_kernel() -> None:
    """What `ucc explain` shows is a program's schedule."""
    for program, sizes in ((SCAN, {"A": 2, "L": 999_999}), (DOWN, {"L": 100_003, "C": 77})):
        plan, _ = made(program, **sizes)
        shown = " ".join(f"{k} {v}" for k, v in plan.request.fixed().items())
        assert made(program, shown, **sizes)[0].plan == plan.plan


@pytest.mark.parametrize(
    ("program", "sizes", "fields", "code", "said"),
    [
        (NORM, {"A": 2, "L": 1_000_000}, "keep registers", "UC0472", "needs all 1000000 of them first"),
        (SCAN, {"A": 2, "L": 1_000_000}, "keep registers  rows 2", "UC0472", "2 rows a block"),
        (SCAN, {"A": 2, "L": 1_000_000}, "keep registers  split_k 4", "UC0472", "leave `split_k` out"),
        (SCAN, {"A": 2, "L": 1_000_000}, "keep registers  items 64", "UC0472", "use `items 16` or more"),
        (SCAN, {"A": 2, "L": 1_000_000}, "keep registers  threads 16", "UC0471", "whole warps"),
        (SCAN, {"A": 2, "L": 1_000_000}, "cluster 1x2", "UC0473", "a cluster of 1x2"),
        (
            DOWN,
            {"L": 4_000_000, "C": 2048},
            "keep registers  threads 1  rows 1  vector 1  items 1",
            "UC0472",
            "the launch would have 8192000000 blocks",
        ),
    ],
)
def test_what_no_chain_does_is_refused(
    program: str, sizes: dict[str, int], fields: str, code: str, said: str
) -> None:
    with pytest.raises(ProgramError) as refused:
        made(program, fields, **sizes)
    assert code in str(refused.value) and said in str(refused.value)


# --- what is computed ---------------------------------------------------------------------

SMALL = (
    (SCAN, {"A": 2, "L": 70_001}, "keep registers  threads 32  items 1"),
    (SCAN, {"A": 1, "L": 280_000}, "keep registers  threads 64  items 1"),
    (COUNTS, {"A": 2, "L": 10_007}, "keep registers  threads 64  items 3"),
    (TWO, {"A": 3, "L": 9_001}, "keep registers  threads 64  items 2"),
    (DOWN, {"L": 3_001, "C": 5}, "keep registers  threads 1  rows 4  items 2"),
    (DOWN, {"L": 6_007, "C": 16}, "keep registers  threads 8  rows 4  items 2"),
    (NORM, {"A": 5, "L": 1_000}, "keep registers"),
    (DOWN, {"L": 6_007, "C": 16}, "keep reread  split_k 7"),
)
"""More than a run of parts along columns, 1024, and down them, 256."""


@pytest.mark.slow
@compiled
@pytest.mark.parametrize(
    ("program", "sizes", "fields"), [SMALL[0], *(pytest.param(*s, marks=pytest.mark.slow) for s in SMALL[1:])]
)
def test_scans_compute_their_programs(program: str, sizes: dict[str, int], fields: str) -> None:
    row = emulate(Job("scan", text_of(program, fields), "k", sizes, None, 0))
    assert row.status == "right", row.detail


@compiled
@pytest.mark.parametrize(
    ("program", "shape", "fields"),
    [
        pytest.param(SCAN, (1, 34_003), "keep registers  threads 32  items 1", marks=pytest.mark.slow),
        pytest.param(DOWN, (3_001, 8), "keep registers  threads 4  rows 2  items 1", marks=pytest.mark.slow),
    ],
)
def test_blocks_side_by_side_in_any_order_give_the_same_bits(
    program: str, shape: tuple[int, int], fields: str
) -> None:
    """Three blocks run at a time, started in another order at each launch: one that waited for a block that
    has not begun would wait for ever."""
    given = {"program": program, "shape": shape, "fields": fields}
    outcome = isolated.run(f"{__name__}:side_by_side", given, limit_seconds=LIMIT_SECONDS)
    assert isinstance(outcome, isolation.Returned) and outcome.value == [True] * 4, outcome


def side_by_side(program: str, shape: list[int], fields: str) -> list[bool]:
    """Whether each of four launches gives the bits of blocks that run one after another."""
    names = "AL" if program == SCAN else "LC"
    planned, source = made(program, fields, **dict(zip(names, shape, strict=True)))
    source = replace(source, text=f"#include <cmath>\n{HOST_SHIM}{source.text}")
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        in_order = emulator.build(source, Path(one))
        together = emulator.build(source, Path(other), threads=3)
    expected = launched(in_order, planned, x)
    return [torch.equal(launched(together, planned, x), expected) for _ in range(4)]


def launched(entry: Any, planned: Planned, x: torch.Tensor) -> torch.Tensor:
    out = torch.full_like(x, torch.nan)
    code = plan_reference.call(
        entry, [x.data_ptr(), out.data_ptr()], planned.sizes, [], LaunchParameters(*planned.launch), "cpu", 0
    )
    assert code == 0
    return out
