"""What every family counts of a kernel: its launch, its resources, its traffic, its bounds."""

from __future__ import annotations

import math
from functools import cache

import pytest

from tests.kernels.test_schedules import CASES
from ucutlass import frontend, ir
from ucutlass.diagnostics import ProgramError
from ucutlass.kernels.families import FAMILIES, family_of_plan, resources, tile_cost, traffic
from ucutlass.kernels.planned import Grid, Planned
from ucutlass.shapes import complete, free_dims
from ucutlass.sol.bounds import bounds

GEMM = "kernel k(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return dot[K](x, w) }"
PROGRAMS = {
    **CASES,
    "gemm": (GEMM, {"M": 1000, "N": 2000, "K": 512}),
    "gemv": (GEMM, {"M": 1, "N": 4096, "K": 512}),
}


@cache
def planned(name: str, arch: str) -> tuple[ir.Kernel, Planned]:
    text, sizes = PROGRAMS[name]
    checked = frontend.read_text(text)
    kernel = frontend.kernel(checked)
    extents = complete(kernel, {d: sizes[d] for d in free_dims(kernel)})
    return kernel, frontend.plan_kernel(checked, kernel, extents, arch).planned


@pytest.mark.parametrize("arch", ["sm90a", "sm80"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_launch_is_counted(name: str, arch: str) -> None:
    try:
        kernel, p = planned(name, arch)
    except ProgramError:
        return  # attention is of Hopper
    estimate, taken = p.estimate, resources(p)
    assert estimate.tiles >= 1 and estimate.slots >= p.device.sms
    assert estimate.waves == pytest.approx(estimate.tiles / estimate.slots)
    assert 0 < estimate.quantisation <= 1 and 0 < estimate.padding <= 1
    assert estimate.dram_bytes > 0 and estimate.dram_seconds > 0
    assert 32 <= taken.threads <= 1024
    assert 0 <= taken.shared_memory <= taken.memory_limit
    assert 0 <= taken.accumulators <= 255
    assert 1 <= taken.part_steps <= taken.steps
    assert (taken.stages is None) == (taken.most_stages is None)
    if taken.stages is not None and taken.most_stages is not None:
        assert 1 <= taken.stages <= taken.most_stages
    assert taken.rows >= 1 and taken.columns >= 1 and taken.batch >= 1
    bound = bounds(kernel, dict(zip(kernel.dims, p.sizes, strict=True)), p.device, planned=p)
    assert bound.realistic.seconds >= bound.fused.seconds


@pytest.mark.parametrize("name", PROGRAMS)
def test_tiles_have_traffic_and_a_price(name: str) -> None:
    _, p = planned(name, "sm90a")
    taken, moved, cost = resources(p), traffic(p), tile_cost(p)
    if taken.tile is None:
        assert moved is None and cost is None
        return
    assert moved is not None and cost is not None
    assert moved.operations > 0 and moved.compute_type in p.device.peaks
    assert moved.l2_bytes > 0 and cost.l2_seconds > 0
    assert cost.step_cycles > 0 and 0 <= cost.function_share <= cost.epilogue_share <= 1


def test_every_family_is_looked_at() -> None:
    served = {family_of_plan(planned(name, "sm90a")[1].plan).name for name in PROGRAMS}
    assert served == {family.name for family in FAMILIES}


def test_a_grid_of_two_waves() -> None:
    grid = Grid(150, 100)
    assert grid.waves == 1.5 and math.isclose(grid.quantisation, 0.75)
    assert Grid(50, 100).quantisation == 0.5
