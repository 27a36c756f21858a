"""The fit of the cost model finds constants again, and reads what was recorded."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.fit_heuristic import FITTED, Row, by_shape, fit, loss, read, table, weights
from benchmarks.gemm_cases import SHAPES
from benchmarks.record import SCHEDULES, plans
from ucutlass.kernels.gemm.cost import DEFAULT, Constants, estimate

DATA = Path(__file__).resolve().parents[2] / "benchmarks" / "data"


@pytest.fixture(scope="module")
def recorded() -> list[Row]:
    return read(DATA / "h200_bf16.json")[0]


@pytest.fixture(scope="module")
def few(recorded: list[Row]) -> list[Row]:
    """Every fourth schedule of four shapes."""
    shapes = ("square 2048", "M 1 wide", "M 128 wide", "K 64")
    return [row for row in recorded if row.shape in shapes][::4]


def made_with(rows: list[Row], constants: Constants) -> list[Row]:
    """The rows with the times that the model itself predicts."""
    device = read(DATA / "h200_speed.json")[1]
    return [replace(row, seconds=estimate(row.candidate, device, constants).seconds) for row in rows]


def test_all_rows_of_both_files_are_read(recorded: list[Row]) -> None:
    ours = [row for row in json.loads((DATA / "h200_bf16.json").read_text())["rows"] if row["request"]]
    assert [row.seconds for row in recorded] == pytest.approx([row["us"] * 1e-6 for row in ours])
    timed = read(DATA / "h200_speed.json")[0]
    report = json.loads((DATA / "h200_speed.json").read_text())["gemm"]
    assert [row.seconds for row in timed] == pytest.approx([row["ours"] * 1e-6 for row in report])
    assert {row.candidate.problem.compute_type.name for row in timed} == {"bf16", "f16"}


def test_the_fit_finds_what_made_the_times(few: list[Row]) -> None:
    device = read(DATA / "h200_speed.json")[1]
    truth = replace(DEFAULT, dram=0.7, l2_bytes=30.0, beyond_bytes=12.0, element=0.1, start=2e-6)
    groups = by_shape(made_with(few, truth))
    before = max(loss(g, device, DEFAULT).error for g in groups)
    fitted = fit(groups, device, DEFAULT, 12)
    after = [loss(g, device, fitted) for g in groups]
    assert before > 0.05
    assert max(found.error for found in after) < before / 10
    assert fitted.dram == pytest.approx(truth.dram, rel=0.05)


def test_constants_stay_within_their_meaning(few: list[Row]) -> None:
    """Times that no constants explain do not drive them anywhere."""
    device = read(DATA / "h200_speed.json")[1]
    fitted = fit(by_shape([replace(row, seconds=row.seconds * 1e-3) for row in few]), device, DEFAULT, 8)
    assert fitted.dram <= 1.0 and fitted.sustained <= 1.0
    for name in FITTED:
        assert getattr(DEFAULT, name) / 4.001 <= getattr(fitted, name) <= getattr(DEFAULT, name) * 4.001


def test_a_first_choice_that_is_slow_is_regretted(few: list[Row]) -> None:
    device = read(DATA / "h200_speed.json")[1]
    rows = by_shape(made_with(few, DEFAULT))[0]
    assert loss(rows, device, DEFAULT).regret == 0.0
    first = loss(rows, device, DEFAULT).first
    slowed = [replace(row, seconds=row.seconds * (9 if row is first else 1)) for row in rows]
    second = min(row.seconds for row in rows if row is not first)
    assert loss(slowed, device, DEFAULT).regret == pytest.approx(math.log(9 * first.seconds / second))
    (line,) = [text for text in table([slowed], device, {"as it is": [DEFAULT]}) if text.startswith("mean")]
    assert f"{second / (9 * first.seconds):.1%}" in line


def test_slow_rows_and_few_rows_weigh_less(few: list[Row]) -> None:
    rows = by_shape(few)[0]
    by_time = sorted(zip(weights(rows), (row.seconds for row in rows), strict=True), key=lambda w: w[1])
    assert [w for w, _ in by_time] == sorted((w for w, _ in by_time), reverse=True)
    assert sum(w * w for w in weights(rows[:1])) < sum(w * w for w in weights(rows * 4)) <= 1.0


def test_recorded_schedules_are_those_that_are_asked_for() -> None:
    shape = next(s for s in SHAPES if s[0] == "square 4096")
    legal = plans(shape, "bf16", SCHEDULES)
    assert len(legal) > len(SCHEDULES) / 2
    for text, plan in legal.items():
        assert plan.planned.request.warps == text.split()[1]
