"""What the benchmark of a call's host time calls, and how ratios are taken."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import host_overhead
from benchmarks.host_overhead import Variant, main, measure, summary


def test_batches_take_turns() -> None:
    log: list[str] = []
    timed = {name: Variant(lambda name=name: log.append(name), ()) for name in "ab"}
    times = measure(timed, "cpu", rounds=2, batch=3)
    assert "".join(log[2 * host_overhead.WARMUP_CALLS :]) == "aaabbb" + "bbbaaa"
    assert [len(values) for values in times.values()] == [2, 2]


def test_ratios_are_of_the_same_round() -> None:
    rows = summary({"ours": [2.0, 6.0, 9.0], "theirs": [1.0, 2.0, 9.0]}, {"ours": "theirs", "theirs": ""})
    assert rows["ours"]["against"] == "theirs" and rows["ours"]["ratio"] == 2.0
    assert rows["ours"]["median_us"] == 6.0 and "ratio" not in rows["theirs"]


def test_a_dry_run_reports_all_and_says_that_it_is_dry(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    assert main(["--dry", "--rounds", "2", "--batch", "4", "--extent", "64", "--json", str(path)]) == 0
    report = json.loads(path.read_text())
    rows = report["results"]
    assert report["dry"] and rows.keys() >= {"kernel", "three kernels", "pipeline", "five torch calls"}
    assert all(row.get("against", name) in rows for name, row in rows.items())
