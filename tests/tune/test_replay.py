"""Policies on what an H200 recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tune_fakes import RECORDING, TABLES

from benchmarks import gemm_cases
from ucutlass.tune import replay, tables


@pytest.fixture(scope="module")
def lines() -> list[replay.ReplayRow]:
    return [replay.line(table, seeds=10) for table in TABLES.values()]


def test_the_bar(lines: list[replay.ReplayRow]) -> None:
    """97 % of the exhaustive best with at most 8 builds, on at least 20 shapes, also where the tuner
    stops by itself."""
    assert len(lines) >= 20
    assert all(one.shares["guided"][-1] >= replay.ENOUGH for one in lines)
    assert all(one.share >= replay.ENOUGH and one.builds <= 8 for one in lines)
    total = replay.summary(lines)
    assert total.enough["guided"][-1] == total.shapes
    assert total.mean["random"][-1] < total.mean["analytic"][-1] <= total.mean["guided"][-1]


def test_a_group_costs_one_build_and_has_all_its_rows() -> None:
    table = TABLES["M 128"]
    assert table.space.kernels == sum(map(len, table.times)) > len(table.space.groups)
    assert all(len(t) == len(g.members) for t, g in zip(table.times, table.space.groups, strict=True))
    run = replay.run(table, "guided")
    assert sorted(run.order) == list(range(len(table.space.groups)))
    assert run.shares[-1] == 1.0 and list(run.shares) == sorted(run.shares)
    assert run.share(1) == run.shares[0] and run.share(10_000) == 1.0


def test_times_are_those_of_the_file() -> None:
    rows = [r for r in json.loads(RECORDING.read_text())["rows"] if r["shape"] == "M 128" and r["request"]]
    table = TABLES["M 128"]
    assert table.best == pytest.approx(min(r["us"] for r in rows) * 1e-6) and table.refused == 0
    for row in rows:
        expected = tables.partial_schedule_of_json(row["request"])
        times = [
            seconds
            for g, mine in zip(table.space.groups, table.times, strict=True)
            for m, seconds in zip(g.members, mine, strict=True)
            if m.request == expected
        ]
        assert times == [pytest.approx(row["us"] * 1e-6)]


def test_the_programs_are_those_of_the_benchmarks() -> None:
    assert (tables.PLAIN, tables.BATCHED) == (gemm_cases.PLAIN, gemm_cases.BATCHED)


@pytest.mark.parametrize("text", ["[]", "{}", "no json", '{"rows": [{"request": {}}]}'])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(tables.NotATable, match="no recording"):
        tables.read(path)
