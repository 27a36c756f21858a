"""The data file of recorded winners: made by its script from the recordings, and worth more than it costs."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import tuned, winners
from benchmarks.budget import NEVER
from benchmarks.tuned_rows import GROUPS, tasks
from ucutlass.ir.hardware import DEVICES
from ucutlass.kernels.gemm.candidate import request_of
from ucutlass.kernels.gemm.winners import form_of, of_json


@pytest.fixture(scope="module")
def recorded() -> Any:
    return winners.read(winners.RECORDINGS)


@pytest.fixture(scope="module")
def lines(recorded: Any) -> list[winners.Line]:
    return winners.lines(recorded[1])


def test_the_committed_file_is_what_the_script_makes(recorded: Any) -> None:
    device, measured = recorded
    assert winners.TARGET.read_text() == winners.text_of(device, winners.RECORDINGS, winners.made(measured))


def test_shapes_left_out_lose_nothing(lines: list[winners.Line]) -> None:
    assert len(lines) >= 20
    assert [one.name for one in lines if one.without_own < one.alone] == []
    alone, told = [one.alone for one in lines], [one.without_own for one in lines]
    assert statistics.fmean(told) > statistics.fmean(alone)
    assert min(told) >= min(alone)


def test_a_recorded_shape_has_its_winner(lines: list[winners.Line]) -> None:
    # All but what MARGIN calls noise, which two recordings of one problem have twice.
    assert all(one.with_own >= winners.MARGIN**-2 for one in lines)
    assert min(one.alone for one in lines) < 0.9 < min(one.with_own for one in lines)


def test_the_table_tells_means_and_whose_winner_it_was(lines: list[winners.Line]) -> None:
    text = winners.table(lines)
    told = next(one for one in lines if one.told_by)
    assert f"| {told.name} |" in text and told.told_by in text
    assert f"mean of {len(lines)}" in text and f"worst of {len(lines)}" in text


def test_kernels_that_are_nearly_as_fast_are_not_beaten(recorded: Any) -> None:
    for one in recorded[1]:
        beaten = winners.winner_of([one]).beaten
        for candidate, seconds in one.times.items():
            if seconds <= one.times[one.best] * winners.MARGIN:
                assert form_of(request_of(candidate)) not in beaten


def test_recordings_of_one_problem_are_judged_each_by_itself(recorded: Any) -> None:
    """A second recording of everything, twice as slow but for one kernel that was beaten: it is no more."""
    one = recorded[1][0]
    alone = winners.winner_of([one])
    lucky = next(c for c in one.times if form_of(request_of(c)) in alone.beaten)
    times = {c: 2 * seconds for c, seconds in one.times.items()} | {lucky: one.times[one.best]}
    again = replace(one, times=times, priority=0)
    both = winners.winner_of([one, again])
    assert both.request == alone.request
    assert both.beaten == alone.beaten - {form_of(request_of(lucky))}


def test_a_report_of_tuned_kernels_is_a_recording(tmp_path: Path) -> None:
    some = [t for t in tasks(GROUPS, ["f16"]) if t.shape[0] == "1000 rows" or t.kind == "bias+gelu"][:2]
    report = tuned.run(some, [], tuned.DRY, tmp_path / "tuned.json", deadline=NEVER, builds=8)
    report["machine"] = {"gpu": "NVIDIA H200, 1"}
    path = tmp_path / "tuned.json"
    path.write_text(json.dumps(report))
    device, measured = winners.read([path])
    assert device == DEVICES["H200"] and [one.name for one in measured] == [t.shape[0] for t in some]
    content = json.loads(winners.text_of(device, [path], winners.made(measured)))
    assert {w.dtype for w in of_json(content)} == {t.dtype for t in some}
    assert {w.request for w in of_json(content)} == {request_of(one.best) for one in measured}


def test_recordings_of_two_devices_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    content = {"machine": {"gpu": "NVIDIA H100 80GB HBM3, 1"}, "dtype": "bf16", "rows": []}
    other.write_text(json.dumps(content))
    with pytest.raises(winners.NotOneDevice, match=r"H100.*H200"):
        winners.read([winners.RECORDINGS[0], other])
