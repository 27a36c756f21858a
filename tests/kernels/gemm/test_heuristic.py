"""Prices behave as the machine does: more work is never cheaper, and what slows a kernel raises its price."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.gemm.problems import gemm
from ucutlass.ir.hardware import ARCHES, DEVICES
from ucutlass.ir.schedule import PartialSchedule, Warps
from ucutlass.kernels.gemm.cost import Estimate, estimate
from ucutlass.kernels.gemm.plan import GemvSchedule, LaunchParameters, Sm90Schedule
from ucutlass.kernels.gemm.planner import plan
from ucutlass.kernels.gemm.problem import ceil_div
from ucutlass.kernels.gemm.schedule import build, case_of
from ucutlass.kernels.planned import Planned

SM90, H200 = ARCHES["sm90a"], DEVICES["H200"]

TILED = st.builds(
    PartialSchedule,
    warps=st.sampled_from(["cooperative", "pingpong", "multistage"]),
    tile=st.sampled_from([(128, 128, 64), (128, 64, 64), (128, 256, 64)]),
    swap=st.just("no"),
)


def price(
    m: int, n: int, k: int, request: PartialSchedule, batch: int = 1, residual: bool = False
) -> Estimate:
    problem, sizes = gemm(m, n, k, batch, residual=residual)
    case = case_of(problem, sizes, SM90, H200)
    return estimate(build(case, request), H200)


def chosen(m: int, n: int, k: int) -> Planned:
    outcome = plan(*gemm(m, n, k), SM90, H200)
    assert isinstance(outcome, Planned)
    return outcome


@settings(max_examples=200)
@given(TILED, *[st.integers(1, 6)] * 3, st.sampled_from(["m", "n", "k", "batch", "residual"]))
def test_more_work_is_never_cheaper(request: PartialSchedule, m: int, n: int, k: int, more: str) -> None:
    """Extents of whole tiles: rows that only fill up a tile are another matter (below)."""
    extents = {"m": 256 * m, "n": 256 * n, "k": 512 * k, "batch": 2}
    less = price(request=request, **extents).seconds  # type: ignore[arg-type]
    if more == "residual":
        assert price(request=request, residual=True, **extents).seconds >= less  # type: ignore[arg-type]
        return
    extents[more] *= 2
    assert price(request=request, **extents).seconds >= less  # type: ignore[arg-type]


@pytest.mark.parametrize("warps", ["cooperative", "pingpong"])
def test_rows_beyond_the_edge_cost_more_than_rows_inside(warps: Warps) -> None:
    request = PartialSchedule(warps=warps, tile=(128, 128, 64), cluster=(1, 1), swap="no")
    assert price(1, 14336, 4096, request).sm_seconds > price(128, 14336, 4096, request).sm_seconds


@given(st.sampled_from([(2, 1), (1, 2)]), st.integers(1, 8), st.integers(1, 8))
def test_a_cluster_that_fits_loads_less_through_l2(cluster: tuple[int, int], m: int, n: int) -> None:
    request = PartialSchedule(warps="cooperative", tile=(128, 128, 64), swap="no")
    alone = price(512 * m, 512 * n, 4096, request)
    shared = price(512 * m, 512 * n, 4096, PartialSchedule(**{**request.fixed(), "cluster": cluster}))  # type: ignore[arg-type]
    assert shared.l2_seconds < alone.l2_seconds


def test_a_limit_is_not_undercut() -> None:
    """Whatever limits a kernel, its price is at least that."""
    for m, n, k in ((4096, 4096, 4096), (1, 8192, 8192), (8192, 8192, 64), (256, 256, 16384)):
        for request in (
            PartialSchedule(warps="cooperative", tile=(128, 128, 64)),
            PartialSchedule(warps="multistage", tile=(128, 128, 32)),
            PartialSchedule(warps="gemv"),
        ):
            e = price(m, n, k, request)
            assert e.seconds > max(e.sm_seconds, e.l2_seconds, e.dram_seconds)


# --- what is chosen ----------------------------------------------------------------


@pytest.mark.parametrize(("n", "k"), [(1024, 1024), (4096, 4096), (14336, 4096), (8192, 8192)])
def test_the_matrix_vector_kernel_ends_where_its_blocks_read_more_columns_than_matrix(n: int, k: int) -> None:
    """Each of its blocks reads all columns. Where that is most of what a large matrix's kernel reads, tensor
    cores with their shared tiles do better; and once they do, so they do with more columns. One row of a
    larger matrix waits for memory in either kernel: an H200 measured them 1 to 3 % apart."""
    schedules = [chosen(m, n, k).plan.schedule for m in range(1, 17)]
    vector = [isinstance(schedule, GemvSchedule) for schedule in schedules]
    assert vector == sorted(vector, reverse=True)
    assert not vector[-1] and (vector[0] or n * k > 4096**2)
    for schedule in schedules:
        if isinstance(schedule, GemvSchedule) and n * k >= 4096**2:
            assert schedule.columns <= schedule.rows


@pytest.mark.parametrize(("n", "k"), [(4096, 4096), (8192, 8192)])
def test_eight_rows_go_to_the_tensor_cores(n: int, k: int) -> None:
    planned = chosen(8, n, k)
    assert isinstance(planned.plan.schedule, Sm90Schedule)
    assert planned.request.swap == "yes"  # so that N, not eight rows, fills the 64 rows of a wgmma


def test_rows_that_do_not_fill_a_tile_take_one_that_wastes_little() -> None:
    """304 rows are 2.4 tiles of 128, which would multiply 0.72 of the time for the result: 120 tiles on 132
    SMs, of 384 rows."""
    planned = chosen(304, 5120, 5120)
    e, schedule = planned.estimate, planned.plan.schedule
    assert isinstance(schedule, Sm90Schedule)
    rows = schedule.tile[1 if (planned.request.swap == "yes") else 0]
    useful = 304 / (ceil_div(304, rows) * rows)
    busy = e.tiles / (ceil_div(e.tiles, H200.sms) * H200.sms)
    assert useful > 304 / 384 and useful * busy > 0.75 and e.quantisation > 0.8


def test_stream_k_is_not_taken_where_equal_parts_fill_the_device() -> None:
    """64 tiles in two equal parts each; stream-K would do the same with more hand-overs."""
    planned = chosen(1024, 1024, 32768)
    assert LaunchParameters(*planned.launch).splits > 1
