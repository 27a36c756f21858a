"""What the tuner chooses from, and that a group is what one build serves."""

from __future__ import annotations

from dataclasses import replace
from operator import eq

import pytest

from ucutlass import frontend
from ucutlass.backend import source_of
from ucutlass.diagnostics import ProgramError
from ucutlass.kernels.gemm.plan import GemmPlan, LaunchParameters, Sm90Schedule
from ucutlass.kernels.gemm.rules import legal
from ucutlass.kernels.gemm.schedule import candidate_of
from ucutlass.kernels.gemm.space import SPLITS
from ucutlass.shapes import complete
from ucutlass.tune.policy import neighbours
from ucutlass.tune.space import LEADERS, ScheduleSpace, explore, explore_near

LINEAR = "kernel k(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] {{ return dot[K](x, w) {} }}"
EITHER = "schedule sm90a { warps cooperative  tile 128x256x64 or 256x128x64  cluster 2x1 %s }"
SIZES = {"M": 4096, "N": 4096, "K": 4096}


def space(schedule: str = "", free: bool = False, **sizes: int) -> ScheduleSpace:
    checked = frontend.read_text(LINEAR.format(schedule))
    program = frontend.kernel(checked)
    return explore(checked, program, complete(program, SIZES | sizes), "sm90a", free=free)


def test_alternatives_are_binaries_and_open_knobs_are_swept() -> None:
    schedule_space = space(EITHER % "split_k 1")
    assert {g.request.tile for g in schedule_space.groups} == {(128, 256, 64), (256, 128, 64)}
    assert len(schedule_space.groups) == 2
    for group in schedule_space.groups:
        launch_parameters = {
            (LaunchParameters(*m.launch).raster, LaunchParameters(*m.launch).swizzle) for m in group.members
        }
        assert {r for r, _ in launch_parameters} == {0, 1, 2} and {s for _, s in launch_parameters} == {
            1,
            2,
            4,
            8,
        }


def test_knobs_that_the_program_fixes_stay() -> None:
    schedule_space = space(EITHER % "split_k 1  raster along_m  swizzle 2")
    assert [len(g.members) for g in schedule_space.groups] == [1, 1]
    assert {(g.request.raster, g.request.swizzle) for g in schedule_space.groups} == {("along_m", 2)}


def test_the_guard_that_holds_decides() -> None:
    small = "schedule sm90a when M <= 64 { warps pingpong  tile 64x64x64  cluster 1x1 }"
    schedule_space = space(small + EITHER % "split_k 1", M=64)
    assert {g.request.tile for g in schedule_space.groups} == {(64, 64, 64)}


def test_splits_share_a_binary() -> None:
    schedule_space = space(
        "schedule sm90a { warps cooperative  tile 128x64x64  swap yes  cluster 1x1 }", M=64
    )
    parts = {
        g.plan.schedule.scheduler: {LaunchParameters(*m.launch).splits for m in g.members}
        for g in schedule_space.groups
        if isinstance(g.plan, GemmPlan) and isinstance(g.plan.schedule, Sm90Schedule)
    }
    assert len(schedule_space.groups) == 3 and parts["persistent"] == {1}
    assert parts["stream_k"] >= {0, *SPLITS} and parts["cluster_k"] == set(range(2, 9))


def test_a_group_is_one_source_and_groups_differ_in_it() -> None:
    checked = frontend.read_text(LINEAR.format(""))
    program = frontend.kernel(checked)
    schedule_space = explore(checked, program, complete(program, SIZES | {"M": 64}), "sm90a")
    codes = [{source_of(checked, program, m).code for m in g.members} for g in schedule_space.groups[:12]]
    assert any(len(g.members) > 1 for g in schedule_space.groups[:12])
    assert all(len(code) == 1 for code in codes)
    assert len(set.union(*codes)) == len(codes)


@pytest.mark.parametrize(
    "sizes",
    [
        {"M": 33, "N": 24, "K": 72},
        *(pytest.param(s, marks=pytest.mark.slow) for s in ({}, {"M": 1}, {"M": 64})),
    ],
)
def test_free_holds_all_that_the_planner_weighs_only_legal_and_the_compilers_choice(
    sizes: dict[str, int],
) -> None:
    weighed, free = space(**sizes), space(free=True, **sizes)
    assert all(legal(candidate_of(m)) for g in free.groups for m in g.members)
    assert weighed.groups[0].plan in {g.plan for g in free.groups}
    assert len(free.groups) > len(weighed.groups)
    checked = frontend.read_text(LINEAR.format(""))
    program = frontend.kernel(checked)
    own = frontend.plan_kernel(checked, program, complete(program, SIZES | sizes), "sm90a").planned
    for found in (weighed, free):
        group, member = found.start
        assert found.groups[group].members[member].request == own.request


def test_cheapest_first_and_no_estimate_below_the_bound_of_the_space() -> None:
    schedule_space = space()
    prices = [g.estimate for g in schedule_space.groups]
    assert prices == sorted(prices) and 0 < schedule_space.bound <= prices[0]
    for group in schedule_space.groups:
        members = [m.estimate.seconds for m in group.members]
        assert members == sorted(members) and len({m.request for m in group.members}) == len(members)


def test_what_is_illegal_is_refused_with_its_rule() -> None:
    with pytest.raises(ProgramError):
        space("schedule sm90a { warps pingpong  tile 100x64x64 }")


def test_free_has_every_way_in_which_wgmma_multiplies_f32() -> None:
    checked = frontend.read_text("kernel k(x: f32[M, K], w: f32[N, K]) -> f32[M, N] { return dot[K](x, w) }")
    kernel = frontend.kernel(checked)
    sizes = complete(kernel, {"M": 128, "N": 4096, "K": 4096})
    weighed, free = (explore(checked, kernel, sizes, "sm90a", free=f) for f in (False, True))
    for word in ("tf32x3", "tf32x3_rs", "tf32x3_fused", "f16x3"):
        few, many = ([g for g in s.groups if g.request.math == word] for s in (weighed, free))
        assert len(many) > 2 * len(few), word


def test_convolutions_of_f32_are_tried_in_both_passes_of_wgmma() -> None:
    checked = frontend.read_text(
        "kernel k(x: f32[B, C, H, W], w: f32[F, C, R=3, S=3]) -> f32[B, F, P=H, Q=W] {\n"
        "  return dot[C, R, S](x[H = P + R - 1, W = Q + S - 1], w)\n}"
    )
    kernel = frontend.kernel(checked)
    sizes = complete(kernel, {"B": 8, "C": 64, "H": 56, "W": 56, "F": 128})
    tiles = {word: set[object]() for word in ("tf32x3", "f16x3")}
    for group in explore(checked, kernel, sizes, "sm90a").groups:
        if group.request.warps == "cooperative":
            assert group.request.math is not None
            tiles[group.request.math].add(group.request.tile)
    assert all(len(found) > 1 for found in tiles.values())


def test_near_the_planners_choice_is_what_it_weighs_and_one_field_beside_the_leaders() -> None:
    checked = frontend.read_text(LINEAR.format(""))
    program = frontend.kernel(checked)
    near = explore_near(checked, program, (1024, 8192, 8192), "sm90a")
    weighed, widest = space(M=1024, K=8192, N=8192), space(free=True, M=1024, K=8192, N=8192)
    weighed_plans = {group.plan for group in weighed.groups}
    added = [group for group in near.groups if group.plan not in weighed_plans]
    assert added and len(near.groups) == len(weighed_plans) + len(added) < len(widest.groups)
    leaders = [group.request for group in weighed.groups[:LEADERS]]
    for group in (g for g in added if g.request.warps != "multistage"):  # which has no cluster either
        requests = [replace(group.request, stages=leader.stages) for leader in leaders]
        assert any(map(neighbours, leaders, requests)) or any(map(eq, leaders, requests)), group.request
    assert near.groups[near.start[0]].plan == weighed.groups[weighed.start[0]].plan
    assert near.groups[0].estimate <= 1.01 * widest.groups[0].estimate
