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
from tests.emulated import LIMIT_SECONDS, Job, emulate
from ucutlass import frontend
from ucutlass.backend import source_of
from ucutlass.diagnostics import ProgramError
from ucutlass.emit import Source
from ucutlass.ir.hardware import ARCHES, DEVICES
from ucutlass.kernels.gemm.plan import LaunchParameters
from ucutlass.kernels.planned import Planned
from ucutlass.kernels.reduction.cost import VectorRows, measure
from ucutlass.kernels.reduction.cost_held import held_schedules, held_seconds
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
    ("program", "sizes", "expected"), [(GROUP_NORM, {"T": 64, "C": 4, "P": 262144}, (1024, 1, 32, 8))]
)
def test_rows_that_pass_through_a_ring(
    program: str, sizes: dict[str, int], expected: tuple[int, ...]
) -> None:
    own = schedule(program, **sizes)
    assert own.keep == "registers"
    assert (own.threads, own.cluster, own.grid, own.stages) == expected


@pytest.mark.parametrize(
    ("elem", "rows", "columns", "chosen"),
    [
        ("bf16", 512, 131072, (256, "reread", 4, 1)),
        ("f32", 512, 99_000, (256, "reread", 4, 1)),
        ("bf16", 512, 40_000, (256, "reread", 4, 1)),
        ("bf16", 512, 40_001, (256, "reread", 4, 1)),
        ("bf16", 512, 16_640, (512, "registers", 5, 1)),
        ("bf16", 8128, 16_512, (256, "registers", 9, 1)),
        ("f16", 4194, 18_433, (256, "registers", 9, 1)),
        ("f16", 4194, 18_440, (256, "reread", 4, 1)),
        ("f32", 512, 20_000, (1024, "registers", 5, 1)),
        ("bf16", 200, 262_144, (256, "reread", 4, 11)),
    ],
)
def test_rows_of_one_value_that_a_block_holds_ill_stream_through_it(
    elem: str, rows: int, columns: int, chosen: tuple[int, str, int, int]
) -> None:
    own = schedule(ENTROPY.replace("bf16", elem), T=rows, D=columns)
    assert (own.threads, own.keep, own.items, own.splits) == chosen
    assert (own.cluster, own.stages) == (1, 1)


def test_two_blocks_hold_softmaxes_of_16_bits_beyond_the_registers_of_half_a_block() -> None:
    held = schedule(SOFTMAX, T=3826, D=35_072)
    assert (held.threads, held.items, held.blocks, held.keep) == (512, 9, 2, "registers")
    assert schedule(SOFTMAX, T=3826, D=36_872).threads == 1024
    assert schedule(LAYER_NORM, T=3826, D=35_072).threads == 1024


def test_two_blocks_hold_rows_of_16_bits_that_vectors_do_not_divide() -> None:
    own = schedule(SOFTMAX, T=4400, D=29_999)
    assert (own.threads, own.items, own.blocks, own.keep) == (512, 8, 2, "registers")
    assert "__launch_bounds__(512, 2)" in planned_source(SOFTMAX, "", T=4400, D=29_999)[1].text


@pytest.mark.parametrize(
    ("program", "sizes", "chosen"),
    [
        (SOFTMAX, {"T": 1024, "D": 65536}, (256, 8, 4)),
        (SOFTMAX, {"T": 1342, "D": 100_008}, (256, 13, 4)),
        (SOFTMAX, {"T": 512, "D": 131072}, (256, 8, 8)),
        (SOFTMAX.replace("bf16", "f32"), {"T": 442, "D": 151_808}, (512, 10, 8)),
        (LAYER_NORM.replace("bf16", "f32"), {"T": 1252, "D": 53_560}, (256, 14, 4)),
    ],
)
def test_clusters_of_small_blocks_keep_long_rows_in_registers(
    program: str, sizes: dict[str, int], chosen: tuple[int, int, int]
) -> None:
    """Norms of 16-bit elements or of odd rows, and rows that so few vectors do not hold, lie in shared memory, and so do
    those of words on an H200."""
    own = _on(program, sizes, "H100-SXM")
    assert (own.threads, own.items, own.cluster, own.keep, own.stages) == (*chosen, "registers", 1)
    words = "bf16" not in program
    assert _on(program, sizes, "H200").keep == ("shared" if words else "registers")


def _on(program: str, sizes: dict[str, int], device: str) -> ReductionSchedule:
    checked = frontend.read_text(text_of(program, ""))
    kernel = frontend.kernel(checked)
    extents = complete(kernel, sizes)
    plan = frontend.plan_kernel(checked, kernel, extents, "sm90a", DEVICES[device]).planned.plan
    assert isinstance(plan, ReductionPlan)
    return plan.schedule


@pytest.mark.parametrize(
    ("program", "sizes", "cluster"),
    [
        (SOFTMAX, {"T": 512, "D": 800_000}, 8),
        (GROUP_NORM, {"T": 128, "C": 4, "P": 131072}, 16),
        (LAYER_NORM, {"T": 1860, "D": 72_142}, 4),
        (LAYER_NORM, {"T": 670, "D": 200_192}, 16),
        (LAYER_NORM.replace("bf16", "f32"), {"T": 300, "D": 223_456}, 16),
        (LAYER_NORM.replace("bf16", "f32"), {"T": 838, "D": 80_001}, 8),
    ],
)
def test_rows_that_lie_in_shared_memory(program: str, sizes: dict[str, int], cluster: int) -> None:
    """The longer a row, and the more of what all rows share lies there too, the more blocks have a part of it."""
    own = schedule(program, **sizes)
    assert (own.keep, own.cluster, own.retain) == ("shared", cluster, True)
    assert own.items <= own.stages


def test_memory_bounds_what_rows_in_shared_memory_take() -> None:
    """No schedule is estimated to beat a copy, and one that shares a row among too many blocks takes several times as long
    as the cheapest: on an H100 16 blocks of 512 threads took 448 us for a softmax of 100,008 bf16, two 203."""
    planned = planned_source(SOFTMAX, "", T=1342, D=100_008)[0]
    assert isinstance(planned.plan, ReductionPlan)
    extent = measure(planned.plan.problem, planned.sizes)
    rows = VectorRows(planned.plan.problem, extent, 8, ARCHES["sm90a"], DEVICES["H100-SXM"])
    seconds = {(s.threads, s.cluster, s.blocks): held_seconds(rows, s) for s in held_schedules(rows)}
    copy = extent.bytes / DEVICES["H100-SXM"].bandwidth
    assert copy < min(seconds.values()) < 1.4 * copy
    assert seconds[512, 16, 2] > 1.6 * seconds[512, 2, 1]


@pytest.mark.parametrize(
    ("program", "sizes"),
    [
        (SOFTMAX, {"T": 512, "D": 50264}),  # a block holds it well
        (SOFTMAX, {"T": 2230, "D": 60_000}),
        (ARGMAX.replace("f32", "bf16"), {"A": 8, "B": 64, "D": 131076}),  # no whole pieces of 16 bytes
        (SOFTMAX, {"T": 8, "D": 131072}),  # most SMs would have none
        (ADD_NORM, {"T": 512, "D": 131072}),  # two tensors, which nobody has timed
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
        (SOFTMAX, {"T": 64, "D": 4096}, "stages 4  keep reread", "bulk copies of Hopper bring"),
        (SOFTMAX, {"T": 64, "D": 4096}, "keep shared", "`stages` says how many lines"),
        (
            SOFTMAX,
            {"T": 64, "D": 4096},
            "keep shared  stages 4  threads 64  cluster 1x1",
            "a ring of 4 does not hold them",
        ),
        (SCAN, {"T": 64, "D": 4096}, "keep shared  stages 4", "nothing is scanned"),
        (
            SOFTMAX,
            {"T": 8, "D": 2**20},
            "keep shared  stages 8  split_k 64  threads 512",
            "leave `split_k` out",
        ),
    ],
)
def test_rings_that_no_kernel_has(program: str, sizes: dict[str, int], fields: str, message: str) -> None:
    with pytest.raises(ProgramError) as refused:
        planned_source(program, fields, **sizes)
    assert message in str(refused.value)


def test_groups_of_threads_share_what_lies_in_shared_memory() -> None:
    """Groups of threads share what is the same for all rows, and each has rows of its own."""
    held = schedule(LAYER_NORM, "keep shared  stages 9  cluster 1x8  threads 256  rows 2", T=512, D=131072)
    assert (held.keep, held.items, held.rows, held.cluster, held.resident) == ("shared", 8, 2, 8, True)
    straddling = schedule(LAYER_NORM, "keep shared  stages 9  cluster 1x4  threads 256", T=512, D=65001)
    assert (straddling.straddle, straddling.resident) == (True, True)


# --- what is computed ---------------------------------------------------------------------

COMPUTED = (
    (LAYER_NORM, {"T": 9, "D": 1000}, "stages 3  threads 64  rows 2"),
    (SOFTMAX, {"T": 11, "D": 1000}, "stages 2  threads 32  rows 4"),
    (SOFTMAX, {"T": 5, "D": 2048}, "stages 4  threads 128  rows 1  vector 8"),
    (ADD_NORM, {"T": 9, "D": 1000}, "stages 4"),
    (ENTROPY, {"T": 13, "D": 1000}, "stages 3"),
    (ARGMAX, {"A": 3, "B": 5, "D": 500}, "stages 3  threads 64  rows 2"),
    (GROUP_NORM, {"T": 7, "C": 4, "P": 260}, "stages 2"),
    (LAYER_NORM, {"T": 9, "D": 1000}, "keep shared  stages 5  threads 32  rows 2"),
    (SOFTMAX, {"T": 11, "D": 2000}, "keep shared  stages 11  threads 32  rows 2"),
    (SOFTMAX, {"T": 7, "D": 1003}, "keep shared  stages 6  threads 32  vector 8"),
    (LAYER_NORM, {"T": 7, "D": 1051}, "keep shared  stages 5  threads 32  rows 2  vector 8"),
    (ADD_NORM, {"T": 9, "D": 1000}, "keep shared  stages 3  threads 64"),
    (ENTROPY, {"T": 13, "D": 1000}, "keep shared  stages 5  threads 32"),
    (GROUP_NORM, {"T": 7, "C": 4, "P": 260}, "keep shared  stages 10  threads 32"),
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
        "scores": ["rows"],
        "seed": 3,
    }
    outcome = isolated.run("tests.kernels.huge_numbers:emulate_here", given, limit_seconds=LIMIT_SECONDS)
    assert isinstance(outcome, isolation.Returned), outcome
    (result,) = outcome.value
    assert result["missing"] == 0
    assert result["error"] < 2.0**-7


@compiled
def test_blocks_of_the_grid_share_a_row() -> None:
    """Three blocks, side by side, are all that run: one that waited for a fourth would wait for ever."""
    outcome = isolated.run(f"{__name__}:of_a_grid", {}, limit_seconds=LIMIT_SECONDS)
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
