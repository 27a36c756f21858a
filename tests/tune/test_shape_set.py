"""Sets of shapes over what an H200 recorded."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from set_fakes import CHECKED, PROGRAM, Floor, TableShop, job_of, shape
from tune_fakes import TABLES

from ucutlass import frontend
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.runtime.store import EvidenceStore
from ucutlass.shapes import complete
from ucutlass.tune.database import TuningDatabase, key_of
from ucutlass.tune.dispatch import KEEP
from ucutlass.tune.job import TuningJob, TuningSettings
from ucutlass.tune.job import job_of as job_with
from ucutlass.tune.policy import SearchLimits
from ucutlass.tune.shape_set import TunedSet, to_json, tune_set
from ucutlass.tune.shapes_file import WeightedShape
from ucutlass.tune.source import with_schedules
from ucutlass.tune.tune import OnTrial, Trial

LARGE = ("square 4096", "square 8192", "wide N", "wide K", "tall")
MIXED = (*LARGE, "M 16", "M 64", "M 128")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCUTLASS_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "kernel.so").touch()


def run(
    floor: Floor,
    shapes: Sequence[WeightedShape],
    most: int | None = None,
    heard: list[Trial] | None = None,
    **limits: float,
) -> TunedSet:
    def on_job(at: int, job: TuningJob) -> OnTrial:
        return (heard if heard is not None else []).append

    settings = TuningSettings(SearchLimits(**limits))  # type: ignore[arg-type]
    return tune_set(shapes, job_of, floor.shop_of, settings, most=most, on_job=on_job)


@pytest.fixture
def floor(tmp_path: Path) -> Floor:
    return Floor(tmp_path / "kernel.so")


def share(name: str, request: PartialSchedule, floor: Floor) -> float:
    """The winner's recorded time over that of a schedule."""
    times = floor.of(name)[0].times
    key = key_of(PROGRAM, tuple(shape(name).sizes.values()), "NVIDIA H200", "sm90a")
    row = TuningDatabase.open().find(key)
    assert row is not None
    return times[row.request] / times[request]


@pytest.mark.parametrize("names", [LARGE, MIXED])
def test_few_schedules_keep_the_speed_of_every_winner(floor: Floor, names: tuple[str, ...]) -> None:
    heard: list[Trial] = []
    done = run(floor, [shape(n) for n in names], heard=heard)
    assert done.ok and len(done.dispatch) < len(names)
    assert len(heard) == sum(len(one.row["trials"]) for one in done.shapes)
    placed = {at: d.request for d in done.dispatch for at, _ in d.shapes}
    assert sorted(placed) == list(range(len(names)))
    for at, name in enumerate(names):
        assert share(name, placed[at], floor) >= KEEP
        kernel = done.shapes[at].kernel
        assert kernel is not None and kernel.request == placed[at]
        # What it is given was verified at this very shape.
        assert any(placed[at] in told for shop in floor.of(name) for told in shop.confirmed)


def test_nothing_is_built_that_no_search_built(floor: Floor) -> None:
    run(floor, [shape(n) for n in MIXED])
    searches = [s for s in floor.shops if s.table.shape in MIXED and s.binaries]
    first = {name: floor.of(name)[0] for name in MIXED}
    searched = {plan for shop in first.values() for plan in shop.binaries}
    assert {plan for shop in searches for plan in shop.binaries} == searched
    assert all(shop.closed for shop in floor.shops)
    assert any(len(floor.of(name)) > 1 for name in MIXED), "winners are timed at other shapes too"


class Estimated(TableShop):
    """Of any extents: a schedule takes what the model says."""

    @property
    def times(self) -> dict[PartialSchedule, float]:
        members = [m for g in self.job.space.groups for m in g.members]
        return {m.request: m.estimate.seconds for m in members}

    job: TuningJob


def test_a_winner_whose_binary_was_built_for_other_alignments_is_not_built_anew(tmp_path: Path) -> None:
    shops: list[Estimated] = []
    jobs: dict[tuple[int, ...], TuningJob] = {}

    def made(sizes: Mapping[str, int]) -> TuningJob:
        job = job_with(CHECKED, PROGRAM, sizes, "sm90a")
        jobs[tuple(sizes.values())] = job
        return job

    def shop_of(job: TuningJob) -> Estimated:
        shop = Estimated(TABLES["M 64"], tmp_path / "kernel.so")
        shop.job = jobs[tuple(job.sizes.values())]
        shops.append(shop)
        return shop

    shapes = [WeightedShape({"M": m, "K": 4096, "N": n}) for m, n in ((64, 4096), (2048, 4100))]
    done = tune_set(
        shapes, made, shop_of, TuningSettings(SearchLimits(builds=1)), on_job=lambda *_: lambda _: None
    )
    first, second = (one.kernel for one in done.shapes)
    assert first is not None and second is not None and first.request != second.request
    assert first.plan.problem != second.plan.problem
    searched = [plan for shop in shops[:2] for plan in shop.binaries]
    assert len(searched) == 2 and not [plan for shop in shops[2:] for plan in shop.binaries]


def test_a_schedule_that_is_wrong_or_slow_at_a_shape_is_not_given_to_it(floor: Floor, tmp_path: Path) -> None:
    plain = run(floor, [shape(n) for n in LARGE])
    request, at = next((d.request, d.shapes) for d in plain.dispatch if len(d.shapes) > 1)
    winners = {n: r["schedule"] for n, r in zip(LARGE, (s.row for s in plain.shapes), strict=True)}
    from ucutlass.ir.schedule import show

    name = next(LARGE[i] for i, _ in at if winners[LARGE[i]] != show(request))
    for more in ({"wrong": {name: frozenset({request})}}, {"turns": {name: {request: 0.9}}}):
        again = run(Floor(tmp_path / "kernel.so", **more), [shape(n) for n in LARGE])  # type: ignore[arg-type]
        kernel = again.shapes[LARGE.index(name)].kernel
        assert again.ok and kernel is not None and kernel.request != request


def test_winners_are_recorded_each_and_the_gain_is_weighted(floor: Floor) -> None:
    shapes = [shape("square 4096", 3.0), shape("M 64", 1.0)]
    done = run(floor, shapes)
    gains = [one.gain for one in done.shapes]
    assert None not in gains and done.gain == pytest.approx(
        math.exp((3 * math.log(gains[0] or 0) + math.log(gains[1] or 0)) / 4)
    )
    records = {r.id for r in EvidenceStore.open().find(kind="tune")}
    for one in done.shapes:
        sizes = complete(PROGRAM, one.shape.sizes)
        row = TuningDatabase.open().find(key_of(PROGRAM, sizes, "NVIDIA H200", "sm90a"))
        assert row is not None and row.record in records and row.record == one.row["record"]
        assert row.microseconds == one.row["microseconds"] and row.versions["nvcc"] == "13.0.88"


def test_a_shape_without_a_winner_costs_the_others_nothing(tmp_path: Path) -> None:
    every = frozenset(m.request for g in TABLES["M 64"].space.groups for m in g.members)
    floor = Floor(tmp_path / "kernel.so", wrong={"M 64": every})
    done = run(floor, [shape("square 4096"), shape("M 64"), shape("tall")])
    assert not done.ok and [one.row["ok"] for one in done.shapes] == [True, False, True]
    assert done.shapes[1].kernel is None and done.gain is not None
    row = to_json(done)
    json.dumps(row)
    assert row["shapes"][1]["dispatch"] is None and not row["ok"]
    assert {at for d in row["dispatch"] for at in d["shapes"]} == {0, 2}


def test_a_limit_of_guards_leaves_out_what_weighs_least(floor: Floor) -> None:
    done = run(floor, [shape("square 4096", 0.1), shape("M 64", 5.0)], most=1)
    assert len(done.dispatch) == 1
    assert done.shapes[0].kernel is None and done.shapes[1].kernel is not None and done.ok


@pytest.mark.parametrize(("seconds", "spent"), [(60.0, [20.0] * 3), (45.0, [20.0] * 3), (90.0, [30.0] * 3)])
def test_the_budget_is_of_all_shapes(
    floor: Floor, monkeypatch: pytest.MonkeyPatch, seconds: float, spent: list[float]
) -> None:
    """A unit of builds takes ten seconds. Of 45 each shape has 15, and the second unit runs beyond."""
    monkeypatch.setattr("ucutlass.runtime.parallel.jobs", lambda: 1)
    done = run(floor, [shape(n) for n in LARGE[:3]], seconds=seconds, builds=40, hopeful=math.inf, close=0.0)
    assert [one.row["seconds"] for one in done.shapes] == spent and done.ok


def test_what_a_shape_leaves_over_is_for_those_behind(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ucutlass.runtime.parallel.jobs", lambda: 1)
    # The first is as near to its bound as asked after one unit; the others never are.
    shapes = [shape("square 4096"), shape("small K"), shape("M 128")]
    done = run(floor, shapes, seconds=60.0, builds=46, hopeful=math.inf, close=1.3)
    assert [one.row["seconds"] for one in done.shapes] == [10.0, 30.0, 20.0]


def test_an_older_result_that_is_faster_stays_and_is_told(floor: Floor) -> None:
    run(floor, [shape("M 64")])
    again = run(floor, [shape("M 64")], builds=1)
    first, second = (r.result for r in reversed(EvidenceStore.open().find(kind="tune")))
    if second["microseconds"] > first["microseconds"]:
        assert again.shapes[0].row["faster"]["microseconds"] == first["microseconds"]
    key = key_of(PROGRAM, complete(PROGRAM, shape("M 64").sizes), "NVIDIA H200", "sm90a")
    row = TuningDatabase.open().find(key)
    assert row is not None and row.microseconds == min(first["microseconds"], second["microseconds"])


def test_the_table_is_written_as_guarded_schedules(floor: Floor) -> None:
    done = run(floor, [shape(n) for n in MIXED])
    winners = [(one.shape.sizes, one.kernel) for one in done.shapes if one.kernel is not None]
    text = with_schedules(CHECKED, PROGRAM, winners, None)
    assert text.count("schedule sm90a when") == len(done.dispatch)
    again = frontend.read_text(text)
    kernel = frontend.kernel(again)
    for sizes, expected in winners:
        planned = frontend.plan_kernel(again, kernel, complete(kernel, sizes), "sm90a").planned
        assert planned.request == expected.request and planned.plan == expected.plan
    other = {"M": 4096, "N": 4096, "K": 8192}
    unscheduled = frontend.plan_kernel(CHECKED, PROGRAM, complete(PROGRAM, other), "sm90a").planned
    assert frontend.plan_kernel(again, kernel, complete(kernel, other), "sm90a").planned.plan == (
        unscheduled.plan
    )
