"""Rows that pass through a ring in shared memory: what is refused, and what blocks compute on the host."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests import isolated
from tests.emit import emulator, plan_reference
from tests.emit.harness import HOST_SHIM
from tests.emulated import Job, emulate
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

SOFTMAX = "kernel k(x: bf16[T, D]) -> bf16[T, D] { return softmax[D](x) SCHEDULE }"
LAYER_NORM = (
    "kernel k(x: bf16[T, D], g: bf16[D], b: f32[D]) -> bf16[T, D] { d = x - mean[D](x)\n"
    " return d * rsqrt(mean[D](d * d) + 1e-5) * g + b SCHEDULE }"
)
ADD_NORM = (
    "kernel k(x: bf16[T, D], y: f32[T, D], g: bf16[D]) -> (r: bf16[T, D], s: f32[T, D]) { z = x + y\n"
    " return r = z * rsqrt(mean[D](z * z) + 1e-5) * g, s = z SCHEDULE }"
)
ENTROPY = "kernel k(x: bf16[T, D], t: i64[T]) -> f32[T] { return logsumexp[D](x) - x[D = t] SCHEDULE }"
ARGMAX = "kernel k(x: f32[A, B, D]) -> i64[A, B] { return argmax[D](x) SCHEDULE }"
GROUP_NORM = (
    "kernel k(x: f32[T, C, P], g: f32[C]) -> f32[T, C, P] { d = x - mean[C, P](x)\n"
    " return d * rsqrt(mean[C, P](d * d) + 1e-5) * g SCHEDULE }"
)
SCAN = "kernel k(x: f32[T, D]) -> f32[T, D] { return cumsum[D](x) SCHEDULE }"


def text_of(program: str, fields: str) -> str:
    return program.replace("SCHEDULE", f"schedule sm90a {{ {fields} }}" if fields else "")


def planned_source(program: str, fields: str, **sizes: int) -> tuple[Planned, Source]:
    checked = frontend.read_text(text_of(program, fields))
    kernel = frontend.kernel(checked)
    planned = frontend.plan_kernel(checked, kernel, complete(kernel, sizes), "sm90a").planned
    assert isinstance(planned, Planned)
    return planned, source_of(checked, kernel, planned)


def schedule(program: str, fields: str = "", **sizes: int) -> ReductionSchedule:
    plan = planned_source(program, fields, **sizes)[0].plan
    assert isinstance(plan, ReductionPlan)
    return plan.schedule


# --- what is chosen -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "sizes", "expected"),
    [
        (SOFTMAX, {"T": 1024, "D": 65536}, (256, 4, 1, 8)),
        (SOFTMAX, {"T": 512, "D": 131072}, (256, 8, 1, 8)),
        (SOFTMAX, {"T": 512, "D": 72000}, (512, 4, 1, 8)),
        (SOFTMAX, {"T": 512, "D": 150_016}, (512, 4, 1, 8)),
        (SOFTMAX, {"T": 512, "D": 100_007}, (512, 4, 1, 8)),
        (LAYER_NORM, {"T": 512, "D": 200_192}, (512, 8, 1, 6)),
        (SOFTMAX.replace("bf16", "f32"), {"T": 256, "D": 160_000}, (512, 8, 1, 6)),
        (LAYER_NORM, {"T": 256, "D": 262144}, (512, 8, 1, 12)),
        (SOFTMAX.replace("bf16", "f32"), {"T": 256, "D": 262144}, (512, 8, 1, 12)),
        (GROUP_NORM, {"T": 64, "C": 4, "P": 262144}, (1024, 1, 32, 8)),
    ],
)
def test_rows_that_pass_through_a_ring(
    program: str, sizes: dict[str, int], expected: tuple[int, ...]
) -> None:
    own = schedule(program, **sizes)
    assert (own.threads, own.cluster, own.grid, own.stages) == expected


@pytest.mark.parametrize(
    ("program", "sizes"),
    [
        (SOFTMAX, {"T": 512, "D": 50264}),  # a block holds it well
        (ARGMAX.replace("f32", "bf16"), {"A": 8, "B": 64, "D": 131076}),  # no whole pieces of 16 bytes
        (SOFTMAX, {"T": 8, "D": 131072}),  # most SMs would have none
        (ADD_NORM, {"T": 512, "D": 131072}),  # two tensors, which nobody has timed
        (LAYER_NORM.replace("bf16", "f32"), {"T": 512, "D": 131072}),  # as many words that all rows share
        (ARGMAX, {"A": 8, "B": 64, "D": 262144}),
        (GROUP_NORM, {"T": 3, "C": 4, "P": 262144}),
        (GROUP_NORM, {"T": 64, "C": 4, "P": 400_000}),  # blocks of 49 leave 34 SMs idle
    ],
)
def test_rows_that_pass_through_none(program: str, sizes: dict[str, int]) -> None:
    assert schedule(program, **sizes).stages == 1


def test_other_fields_leave_a_ring_out_where_it_does_not_fit() -> None:
    reread = schedule(SOFTMAX, "keep reread", T=512, D=131072)
    assert (reread.keep, reread.stages) == ("reread", 1)
    assert schedule(SOFTMAX, "vector 4", T=512, D=131072).stages == 1


# --- what is filled, and what is refused --------------------------------------------------


def test_a_ring_follows_from_its_stages() -> None:
    own = schedule(SOFTMAX, "stages 4  cluster 1x4  threads 512", T=512, D=131072)
    assert (own.stages, own.cluster, own.items, own.sharers, own.keep) == (4, 4, 8, 4, "registers")
    of_grid = schedule(SOFTMAX, "stages 4  split_k 16  threads 512", T=8, D=2**20)
    assert (of_grid.grid, of_grid.splits, of_grid.items) == (16, 1, 16)


def test_what_rows_share_stays_where_it_fits() -> None:
    assert schedule(LAYER_NORM, "stages 2", T=512, D=4096).resident
    assert not schedule(LAYER_NORM, "stages 8  threads 1024  cluster 1x2", T=512, D=131072).resident


@pytest.mark.parametrize(
    ("program", "sizes", "fields", "message"),
    [
        (ARGMAX.replace("f32", "bf16"), {"A": 8, "B": 8, "D": 4100}, "stages 4", "whole pieces of 16 bytes"),
        (SCAN, {"T": 64, "D": 4096}, "stages 4", "not scanned"),
        (SOFTMAX, {"T": 64, "D": 4096}, "stages 32  threads 1024", "bytes of shared memory"),
        (SOFTMAX, {"T": 64, "D": 4096}, "stages 4  threads 16  rows 8", "whole warps of 32"),
        (SOFTMAX, {"T": 64, "D": 4096}, "blocks 2", "give `stages` too"),
        (SOFTMAX, {"T": 8, "D": 2**20}, "stages 4  split_k 8  cluster 1x2", "leave `split_k` out"),
        (SOFTMAX, {"T": 64, "D": 4096}, "stages 4  keep reread", "lie in registers"),
    ],
)
def test_rings_that_no_kernel_has(program: str, sizes: dict[str, int], fields: str, message: str) -> None:
    with pytest.raises(ProgramError) as refused:
        planned_source(program, fields, **sizes)
    assert message in str(refused.value)


# --- what is computed ---------------------------------------------------------------------

COMPUTED = (
    (LAYER_NORM, {"T": 9, "D": 1000}, "stages 3  threads 64  rows 2"),
    (SOFTMAX, {"T": 11, "D": 1000}, "stages 2  threads 32  rows 4"),
    (SOFTMAX, {"T": 5, "D": 2048}, "stages 4  threads 128  rows 1  vector 8"),
    (ADD_NORM, {"T": 9, "D": 1000}, "stages 4"),
    (ENTROPY, {"T": 13, "D": 1000}, "stages 3"),
    (ARGMAX, {"A": 3, "B": 5, "D": 500}, "stages 3  threads 64  rows 2"),
    (GROUP_NORM, {"T": 7, "C": 4, "P": 260}, "stages 2"),
)
"""Rows and columns that no block and no line divides, more rows than blocks, rings that hold less than a row."""


@compiled
@pytest.mark.parametrize(
    ("program", "sizes", "fields"),
    [COMPUTED[0], *(pytest.param(*case, marks=pytest.mark.slow) for case in COMPUTED[1:])],
)
def test_rings_compute_their_programs(program: str, sizes: dict[str, int], fields: str) -> None:
    row = emulate(Job("ring", text_of(program, fields), "k", sizes, None, 0))
    assert row.status == "right", row.detail


@compiled
@pytest.mark.slow
def test_kept_exponentials_of_huge_numbers() -> None:
    """Also where a number's last place times log2(e) is more than exponentials span."""
    given = {
        "program": text_of(SOFTMAX, "stages 3  threads 64  rows 2"),
        "sizes": {"T": 18, "D": 1000},
        "scores": "rows",
        "seed": 3,
    }
    outcome = isolated.run("tests.kernels.huge_numbers:emulate_here", given, limit_seconds=200)
    assert isinstance(outcome, isolation.Returned), outcome
    assert outcome.value["missing"] == 0
    assert outcome.value["error"] < 2.0**-7


@compiled
def test_blocks_of_the_grid_share_a_row() -> None:
    """Three blocks, side by side, are all that run: one that waited for a fourth would wait for ever."""
    outcome = isolated.run(f"{__name__}:of_a_grid", {}, limit_seconds=200)
    assert isinstance(outcome, isolation.Returned) and outcome.value < 1e-5, outcome


def of_a_grid() -> float:
    """The largest error of a group norm whose rows three blocks share."""
    planned, source = planned_source(GROUP_NORM, "stages 2  split_k 3  threads 64", T=5, C=4, P=1300)
    source = replace(source, text=f"#include <cmath>\n{HOST_SHIM}{source.text}")
    with tempfile.TemporaryDirectory() as folder:
        entry = emulator.build(source, Path(folder), threads=3)
    generator = torch.Generator().manual_seed(3)
    x, g = torch.randn((5, 4, 1300), generator=generator), torch.randn(4, generator=generator)
    out = torch.full_like(x, torch.nan)
    addresses = [t.data_ptr() for t in (x, g, out)]
    code = plan_reference.call(
        entry, addresses, planned.sizes, [], LaunchParameters(*planned.launch), "cpu", 0
    )
    assert code == 0
    d = x.double() - x.double().mean((1, 2), keepdim=True)
    expected = d * torch.rsqrt((d * d).mean((1, 2), keepdim=True) + 1e-5) * g.double()[:, None]
    return float((out - expected).abs().max())
