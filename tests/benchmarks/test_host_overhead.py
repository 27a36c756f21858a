"""What the benchmark of a call's host time calls, how often a shape is planned, and how ratios are taken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import host_overhead, host_programs
from benchmarks.host_overhead import main, measure, parse, summary
from benchmarks.host_programs import CHAIN, GUARDED_ROWS, Variant, chain, first_calls, guarded, planned

EXTENT = 64


@pytest.fixture
def chosen() -> list[str]:
    return []


@pytest.fixture
def make(tmp_path: Path, chosen: list[str]) -> host_programs.Make:
    return planned(host_programs.nothing(tmp_path), "cpu", chosen)


def test_each_guard_is_asked_once_and_then_remembered(make: host_programs.Make, chosen: list[str]) -> None:
    variant = guarded(make, "cpu", EXTENT)["guarded, 4 guards in turns"]
    measure({"guarded": variant}, "cpu", rounds=2, batch=12)
    tiles = [next(word for word in one.split() if word.count("x") == 2) for one in chosen]
    assert tiles == ["64x64x64", "64x128x64", "128x128x64", "128x256x64"], (
        "one plan a shape, each its guard's"
    )


def test_every_first_call_is_of_a_shape_never_seen(make: host_programs.Make, chosen: list[str]) -> None:
    times = first_calls(make, "cpu", EXTENT, 9)
    assert [len(values) for values in times.values()] == [9, 9]
    assert len(chosen) == len(GUARDED_ROWS) + 9
    last = host_programs.FIRST_CALLS_MOST - 1
    assert GUARDED_ROWS[last % 4] - 1 - last // 4 > 0


def test_a_chain_is_three_kernels_as_calls_and_as_a_graph() -> None:
    log: list[tuple[str, bool]] = []

    def make(text: str, name: str) -> Callable[..., Any]:
        def kernel(*given: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
            log.append((name, out is not None))
            return given[0] if out is None else out

        assert text == CHAIN
        return kernel

    graphs: list[Callable[[], Any]] = []

    def capture(work: Callable[[], Any]) -> Callable[[], Any]:
        graphs.append(work)
        return lambda: None

    found = chain(make, "cpu", EXTENT, capture)
    found["chain"].function()
    assert log == [("up", False), ("down", False), ("head", False)]
    log.clear()
    found["chain, out="].function()
    assert log == [("up", True), ("down", True), ("head", True)]
    log.clear()
    found["chain, graph"].function()
    assert not log, "a replay calls no kernel"
    assert graphs == [found["chain, out="].function, found["chain, torch"].function]


def test_batches_take_turns_and_calls_go_round() -> None:
    log: list[str] = []
    variants = {
        name: Variant(
            lambda x, name=name: log.append(f"{name}{x}"), tuple(((i,), {}) for i in range(count)), ""
        )
        for name, count in (("a", 2), ("b", 3))
    }
    times = measure(variants, "cpu", rounds=2, batch=3)
    assert log[2 * host_overhead.WARMUP_CALLS :] == [
        *("a0", "a1", "a0", "b0", "b1", "b2"),
        *("b0", "b1", "b2", "a0", "a1", "a0"),
    ]
    assert [len(values) for values in times.values()] == [2, 2]


def test_ratios_are_of_the_same_round() -> None:
    rows = summary({"ours": [2.0, 6.0, 9.0], "theirs": [1.0, 2.0, 9.0]}, {"ours": "theirs", "theirs": ""})
    assert rows["ours"]["against"] == "theirs"
    assert rows["ours"]["ratio"] == {"median": 2.0, "p05": 1.0, "p95": 3.0}
    assert rows["ours"]["median_us"] == 6.0 and "ratio" not in rows["theirs"]


def test_a_dry_run_reports_all_and_says_that_it_is_dry(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    assert main(["--dry", "--rounds", "2", "--batch", "4", "--first", "4", "--json", str(path)]) == 0
    report = json.loads(path.read_text())
    assert report["dry"] and report["also"] == ["guarded", "chain"]
    rows = report["results"]
    wanted = {"kernel", "kernel, out=", "guarded, 4 guards in turns", "guarded, first call of a shape"}
    assert rows.keys() >= wanted | {"chain", "chain, out=", "chain, graph"}
    assert all(row.get("against", name) in rows for name, row in rows.items())
    ours = [
        name for name in rows if name.split(",")[0] in ("kernel", "guarded", "chain") and "torch" not in name
    ]
    assert all({"median", "p05", "p95"} == rows[name]["ratio"].keys() for name in ours)


@pytest.mark.parametrize(
    "wrong",
    [
        ["--device", "cpu", "--also", "chain"],
        ["--dry", "--program", "k.ucu"],
        ["--dry", "--first", "0"],
        ["--dry", "--first", str(host_programs.FIRST_CALLS_MOST + 1)],
    ],
    ids=" ".join,
)
def test_what_cannot_be_measured_is_refused(wrong: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse(wrong)
