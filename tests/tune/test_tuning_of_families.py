"""The tuner over kernels of other families than one product: their space, their text, what is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ucutlass import frontend
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels.families import FAMILIES, family_of_plan
from ucutlass.kernels.planned import Planned
from ucutlass.shapes import complete, parse_sizes
from ucutlass.tune.database import TunedRow, TuningDatabase, key_of
from ucutlass.tune.lookup import recall
from ucutlass.tune.policy import SearchLimits, neighbours
from ucutlass.tune.source import with_schedule
from ucutlass.tune.space import BinaryGroup, ScheduleSpace, explore
from ucutlass.tune.tune import ConfirmedKernel, FailedTrial, TimedGroup, search

SOFTMAX = "kernel k(x: f16[T, D]) -> f16[T, D] {{ return softmax[D](x) {} }}"
CONV = (
    "kernel k(x: f16[N, H, W, C], w: f16[K, R=3, S=3, C]) -> f16[N, P=H, Q=W, K] "
    "{{ return dot[R, S, C](x[H = P + R - 1, W = Q + S - 1], w) {} }}"
)
ATTEND = (
    "kernel k(q: bf16[H, L, D=64], k: bf16[H, S, D], v: bf16[H, S, D]) -> bf16[H, L, D] "
    "{{ return dot[S](bf16(softmax[S](dot[D](q, k))), v) {} }}"
)
PAIR = (
    "kernel k(x: bf16[T, D], w: bf16[F, D], u: bf16[F, D]) -> bf16[T, F] "
    "{{ return silu(dot[D](x, w)) * dot[D](x, u) {} }}"
)
SIZES = {
    SOFTMAX: "T=512,D=4096",
    CONV: "N=8,H=28,W=28,C=64,K=64",
    ATTEND: "H=8,L=1024,S=1024",
    PAIR: "T=1024,D=512,F=1024",
}


def space(text: str, schedule: str = "", free: bool = False) -> ScheduleSpace:
    checked = frontend.read_text(text.format(schedule))
    program = frontend.kernel(checked)
    return explore(checked, program, complete(program, parse_sizes([SIZES[text]])), "sm90a", free=free)


def test_every_family_is_tuned() -> None:
    """GEMM is what the other tests of tuning tune."""
    served = {family_of_plan(space(text).groups[0].members[0].plan).name for text in SIZES}
    assert served | {"gemm"} == {family.name for family in FAMILIES}


@pytest.mark.parametrize("text", SIZES)
def test_a_space_starts_with_the_planners_choice_and_is_of_many_binaries(text: str) -> None:
    schedule_space = space(text)
    group, member = schedule_space.start
    checked = frontend.read_text(text.format(""))
    program = frontend.kernel(checked)
    sizes = complete(program, parse_sizes([SIZES[text]]))
    own = frontend.plan_kernel(checked, program, sizes, "sm90a").planned
    assert schedule_space.groups[group].members[member].request == own.request
    assert len(schedule_space.groups) >= 15 and schedule_space.bound > 0
    assert [g.estimate for g in schedule_space.groups] == sorted(g.estimate for g in schedule_space.groups)
    assert len({g.plan for g in schedule_space.groups}) == len(schedule_space.groups)


def test_what_the_program_fixes_stays_and_alternatives_are_the_space() -> None:
    schedule_space = space(SOFTMAX, "schedule sm90a { threads 64 or 128  keep registers  cluster 1x1 }")
    assert {g.request.threads for g in schedule_space.groups} == {64, 128}
    assert {g.request.keep for g in schedule_space.groups} == {"registers"}
    assert len(space(SOFTMAX, free=True).groups) > len(space(SOFTMAX).groups) > len(schedule_space.groups)


def test_knobs_share_a_binary() -> None:
    schedule_space = space(CONV)
    group = schedule_space.groups[schedule_space.start[0]]
    assert {m.request.swizzle for m in group.members} == {1, 2, 4, 8}
    assert {m.request.raster for m in group.members} == {"heuristic", "along_m", "along_n"}


def test_a_neighbour_differs_in_one_field_and_what_follows_from_it() -> None:
    a = PartialSchedule(threads=128, rows=1, vector=8, items=4, keep="registers", cluster=(1, 1))
    assert neighbours(
        a, PartialSchedule(threads=64, rows=1, vector=8, items=8, keep="registers", cluster=(1, 1))
    )
    assert neighbours(a, PartialSchedule(threads=256, rows=1, vector=8, items=2, keep="reread", split_k=1))
    assert not neighbours(
        a, PartialSchedule(threads=64, rows=4, vector=4, items=8, keep="registers", cluster=(1, 2))
    )


@dataclass
class Shop:
    """Every kernel takes what `seconds` says of its schedule; `drift` slows what is confirmed first."""

    best: PartialSchedule
    built: list[BinaryGroup] = field(default_factory=list)

    def build(self, groups: Sequence[BinaryGroup]) -> Sequence[FailedTrial | None]:
        self.built += groups
        return [None] * len(groups)

    def _seconds(self, one: Planned) -> float:
        return 1e-5 if one.request == self.best else 2e-5

    def time(self, groups: Sequence[BinaryGroup]) -> Sequence[TimedGroup | FailedTrial]:
        return [TimedGroup(tuple(self._seconds(m) for m in g.members)) for g in groups]

    def confirm(self, finalists: Sequence[Planned]) -> Sequence[ConfirmedKernel | FailedTrial]:
        return [ConfirmedKernel((self._seconds(one),) * 24) for one in finalists]

    def cancel(self) -> None:
        pass

    def now(self) -> float:
        return 0.0


@pytest.mark.parametrize("text", SIZES)
def test_the_search_finds_the_fastest_of_what_it_builds(text: str) -> None:
    schedule_space = space(text)
    expected = schedule_space.groups[2].request
    done = search(schedule_space, Shop(expected), "guided", SearchLimits(builds=8))
    assert done.winner is not None and done.winner.kernel.request == expected
    assert done.gain is not None and done.gain.median == pytest.approx(0.5)


def test_the_compilers_choice_stays_where_turn_by_turn_it_is_the_faster() -> None:
    schedule_space = space(SOFTMAX)
    own = schedule_space.groups[schedule_space.start[0]].members[schedule_space.start[1]].request

    class Drifting(Shop):
        def confirm(self, finalists: Sequence[Planned]) -> Sequence[ConfirmedKernel | FailedTrial]:
            """Of the first thirteen rounds the others are slower by a little, then all are slower."""
            base = [1.0] * 11 + [2.0] * 13
            other = [1.1] * 13 + [2.05] * 11
            return [ConfirmedKernel(tuple(base if one.request == own else other)) for one in finalists]

    done = search(
        schedule_space, Drifting(schedule_space.groups[1].request), "guided", SearchLimits(builds=4)
    )
    assert done.winner is not None and done.winner.kernel.request == own and done.gain is None


@pytest.mark.parametrize("text", SIZES)
def test_a_winner_is_written_guarded_and_planned_as_itself(text: str) -> None:
    checked = frontend.read_text(text.format(""))
    program = frontend.kernel(checked)
    sizes = parse_sizes([SIZES[text]])
    winner = space(text).groups[3].members[0]
    assert isinstance(winner, Planned)
    again = frontend.read_text(with_schedule(checked, program, sizes, winner, None))
    kernel = frontend.kernel(again)
    planned = frontend.plan_kernel(again, kernel, complete(kernel, sizes), "sm90a").planned
    assert (planned.plan, planned.request) == (winner.plan, winner.request)


@pytest.mark.parametrize("text", SIZES)
def test_a_recorded_winner_is_recalled(text: str, tmp_path: Path) -> None:
    checked = frontend.read_text(text.format(""))
    program = frontend.kernel(checked)
    sizes = complete(program, parse_sizes([SIZES[text]]))
    winner = space(text).groups[3].members[0]
    database = TuningDatabase.open(tmp_path / "tuned.sqlite")
    row = TunedRow(winner.request, 10.0, 1.0, {"nvcc": "13"}, "r" * 64, "2026-11-22T00:00:00+00:00")
    database.keep(key_of(program, sizes, "NVIDIA H200", "sm90a"), row)
    tuned, origin = recall(checked, program, sizes, "sm90a", "NVIDIA H200", beyond=True, database=database)
    assert origin.kind == "tuned"
    assert frontend.plan_kernel(checked, tuned, sizes, "sm90a").planned.plan == winner.plan
