"""Rows worked off on devices that time by a table: processes that end early, time that is over, runs that go on
behind others, and what is said of bars."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bars, campaign, harness
from benchmarks.bars import Bar
from benchmarks.campaign import Case, Emitted
from benchmarks.harness import Row, append, lines

ITEMS = [{"name": name} for name in "abcdef"]
MACHINE = {"gpu": "a table", "commit": "one", "tree": "abc"}
PROGRAM = "kernel k(x: f32[A]) -> f32[A] { return x + 1 }"


def row(item: dict[str, Any]) -> dict[str, Any]:
    """In the child: `how` says how the process ends at an item."""
    match item.get("how"):
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "exit":
            os._exit(3)
        case "hang":
            time.sleep(1000)
        case "raise":
            raise ValueError("no such thing")
        case "wrong":
            raise ArithmeticError("it errs")
        case "sticky":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
    time.sleep(item.get("seconds", 0.0))
    return {
        "pid": os.getpid(),
        "on": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "ratio": item.get("ratio", 1.0),
        "verdict": item.get("verdict", "right"),
    }


def _with(how: str, at: str = "c") -> list[dict[str, Any]]:
    return [item | ({"how": how} if item["name"] == at else {}) for item in ITEMS]


def _run(items: list[dict[str, Any]], rows: Path, **more: Any) -> list[dict[str, Any]]:
    return campaign.run(f"{__name__}:row", items, rows, item_seconds=more.pop("item_seconds", 60.0), **more)


@pytest.mark.parametrize(
    ("how", "error"),
    [("crash", "Crashed"), ("exit", "Exited"), ("raise", "ValueError"), ("sticky", "RuntimeError")],
)
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_one_item_is_lost_alone(how: str, error: str, processes: int, tmp_path: Path) -> None:
    rows = _run(_with(how), tmp_path / "deeper" / "rows.jsonl", environs=[None] * processes)
    assert [row["name"] for row in rows] == list("abcdef")
    assert [row["ok"] for row in rows] == [True, True, False, True, True, True]
    assert rows[2]["error"] == error
    if processes == 1:
        same = rows[3]["pid"] == rows[1]["pid"]
        assert same == (how == "raise"), "a broken context is left behind, a mere error not"


def test_a_hang_ends_at_the_items_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = _run(_with("hang", at="b")[:3], tmp_path / "rows.jsonl", item_seconds=1.0)
    assert [row["ok"] for row in rows] == [True, False, True]
    assert rows[1]["error"] == "TimedOut"


def test_a_target_that_cannot_start_loses_all_at_once(tmp_path: Path) -> None:
    rows = campaign.run("no_such_module:f", ITEMS, tmp_path / "rows.jsonl", item_seconds=1.0)
    assert [row["ok"] for row in rows] == [False] * 6
    assert all(row["error"] == "ModuleNotFoundError" for row in rows)


def test_every_device_takes_rows_and_each_row_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    items = [item | {"seconds": 1.0} for item in ITEMS]
    rows = _run(items, tmp_path / "rows.jsonl", environs=campaign.environments(2))
    assert {row["on"] for row in rows} == {"0", "1"}
    assert len(lines(tmp_path / "rows.jsonl")) == len(ITEMS)


def test_what_the_time_does_not_reach_is_told_and_not_written(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = _run(_with("hang"), path, deadline=time.monotonic() + 6.0)
    assert [row["ok"] for row in rows] == [True, True] + 4 * [False]
    assert {row["error"] for row in rows[2:]} == {campaign.NOT_REACHED}
    assert [row["name"] for row in lines(path)] == ["a", "b"]


# --- a script's run -----------------------------------------------------------------------


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Compilers that build nothing; says how many kernels each run had to build."""
    counts: list[int] = []

    def build(kernels: list[Emitted], jobs: int | None, deadline: float | None = None) -> list[str]:
        counts.append(len(kernels))
        return [""] * len(kernels)

    monkeypatch.setattr(campaign, "build", build)
    monkeypatch.setattr(harness, "machine", lambda: dict(MACHINE))
    return counts


def _options(out: Path, *words: str) -> argparse.Namespace:
    return campaign.parser_of("", drawn=3).parse_args(["--out", str(out), *words])


def _report(cases: list[Case], options: argparse.Namespace, held: dict[str, Bar] | None = None) -> int:
    with pytest.raises(SystemExit) as ended:
        campaign.report(
            f"{__name__}:row",
            cases,
            options,
            lambda r: str(r["name"]),
            lambda rows: {"all": {r["name"]: r["ratio"] for r in rows}},
            row_seconds=60.0,
            held={"all": Bar(geomean=1.0, least=0.8)} if held is None else held,
        )
    return int(ended.value.code or 0)


def _cases(**facts: dict[str, Any]) -> list[Case]:
    return [Case(name, PROGRAM, {"A": 64}, own) for name, own in facts.items()]


def test_a_bar_that_is_missed_and_a_row_that_is_wrong_end_a_run_with_1(
    built: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.json"
    assert _report(_cases(a={"ratio": 1.5}, b={"ratio": 0.9}), _options(out)) == 0
    assert _report(_cases(a={"ratio": 1.5}, c={"ratio": 0.5}), _options(out)) == 1
    assert "all: geomean 0.866, least 0.500 (c), 2 rows; bar geomean 1.0, least 0.8: missed" in (
        capsys.readouterr().out
    )
    assert _report(_cases(a={"ratio": 1.5}, d={"how": "wrong"}), _options(out)) == 1
    summary = json.loads(bars.summary_path(out).read_text())
    assert summary["wrong"] == ["d"] and summary["classes"][0]["rows"] == 1
    assert "wrong: d: ArithmeticError: it errs" in capsys.readouterr().out


def test_a_row_that_nobody_can_judge_is_named(
    built: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = _cases(a={"ratio": 1.5}, b={"ratio": 1.5, "verdict": "undecided"})
    assert _report(cases, _options(tmp_path / "rows.json")) == 0
    assert "undecided, within bounds too wide to tell: 1 rows: b\n" in capsys.readouterr().out


def test_a_run_goes_on_behind_rows_of_the_same_programs_device_and_item(
    built: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "rows.json"
    cases = _cases(a={}, b={"how": "raise"}, c={})
    assert _report(cases, _options(out)) == 1
    assert _report(cases, _options(out)) == 1
    assert built == [3, 1], "the row that was lost alone"
    assert [r["name"] for r in json.loads(out.read_text())["rows"]] == ["a", "b", "c"]
    monkeypatch.setattr(harness, "machine", lambda: MACHINE | {"commit": "two"})
    _report(cases, _options(out))
    _report(cases, _options(out, "--seed", "5"))
    monkeypatch.setattr(harness, "machine", lambda: MACHINE | {"tree": "other"})
    _report(cases, _options(out))
    _report(cases, _options(out, "--again"))
    assert built == [3, 1, 1, 3, 3, 3]


def test_a_run_without_time_tells_what_it_did_not_reach(
    built: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.json"
    assert _report(_cases(a={}, b={}), _options(out, "--seconds", "0")) == 3
    assert "not reached: 2 of 2 rows" in capsys.readouterr().out
    assert json.loads(bars.summary_path(out).read_text())["not reached"] == ["a", "b"]
    assert _report(_cases(a={}, b={}), _options(out)) == 0


def test_a_program_without_a_kernel_costs_its_row(built: list[int], tmp_path: Path) -> None:
    cases = [*_cases(a={}), Case("b", "kernel k(x: f32[A]) -> f32[A] { return y }", {"A": 64})]
    out = tmp_path / "rows.json"
    assert _report(cases, _options(out)) == 1
    rows = json.loads(out.read_text())["rows"]
    assert rows[0]["ok"] and rows[1]["error"] == "NotBuilt" and "y" in rows[1]["detail"]


def test_a_dry_run_plans_in_several_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = _options(tmp_path / "rows.json", "--dry", "--jobs", "2")
    assert _report(_cases(a={}, b={}), options) == 0
    assert "2 rows, 1 kernels, 0 rows without one" in capsys.readouterr().out
    assert _report([Case("c", "kernel k(", {})], options) == 1
    assert not list(tmp_path.iterdir())


def test_builds_that_the_time_ends_are_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    from ucutlass.runtime.errors import BuildCancelled

    def build_sources(pairs: list[Any], *, max_jobs: int | None, cancel: Any) -> list[Any]:
        assert cancel.wait(60)
        return [BuildCancelled("k"), OSError("no room")]

    monkeypatch.setattr(campaign, "build_sources", build_sources)
    kernel = campaign.emitted((PROGRAM, {"A": 64}))
    assert isinstance(kernel, Emitted)
    assert campaign.build([kernel, kernel], 1, time.monotonic()) == [campaign.NOT_REACHED, "no room"]


def test_rows_in_turn_go_on_and_end_where_a_context_is_lost(built: list[int], tmp_path: Path) -> None:
    out, asked = tmp_path / "rows.json", []

    def measure(item: dict[str, Any]) -> Row:
        asked.append(item["name"])
        if item.get("how") == "sticky" and asked.count(item["name"]) == 1:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return {"value": 1.0}

    def rows(*words: str) -> list[Row]:
        return campaign.in_turn("f", _with("sticky"), _options(out, *words), measure, str)

    first = rows()
    assert [r["ok"] for r in first] == [True, True] + 4 * [False]
    assert [r["error"] for r in first[2:]] == ["RuntimeError"] + 3 * [campaign.NOT_REACHED]
    assert all(r["ok"] for r in rows()) and asked == [*"abc", *"cdef"]
    assert not any(r["ok"] for r in rows("--seconds", "0", "--seed", "1", "--again"))
    assert len(asked) == 7


# --- bars ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bar", "values", "missed"),
    [
        (Bar(geomean=1.0), [2.0, 0.5], False),
        (Bar(geomean=1.0), [2.0, 0.49], True),
        (Bar(least=0.95), [2.0, 0.94], True),
        (Bar(most=1.0), [0.9, 1.0], False),
        (Bar(most=1.0), [0.9, 1.1], True),
        (Bar(most=0), [0.0, 0.0], False),
        (Bar(most=0), [0.0, 1.0], True),
        (Bar(median=10.0), [1.0, 9.0, 90.0], False),
        (Bar(median=10.0), [1.0, 11.0, 90.0], True),
        (Bar(share=(0.952, 0.95)), [1.0] * 19 + [0.5], False),
        (Bar(share=(0.952, 0.95)), [1.0] * 9 + [0.5], True),
        (Bar(geomean=1.0), [2.0, float("nan")], True),
        (Bar(), [float("nan")], True),
        (Bar(), [0.1], False),
    ],
)
def test_a_bar_is_held_or_missed(bar: Bar, values: list[float], missed: bool) -> None:
    (figure,) = bars.figures({"all": {str(n): value for n, value in enumerate(values)}}, {"all": bar})
    assert bool(figure.missed) is missed
    assert bars.status([figure], [], []) == int(missed)
    (line,) = bars.lines([figure])
    assert ("missed" in line) is (missed and bar != Bar())


def test_a_figure_names_its_worst_row_and_the_widest_spread() -> None:
    rows: list[Row] = [{"name": "a", "spread": 0.1, "v": 3.0}, {"name": "b", "spread": 0.2, "v": 2.0}]
    classes = bars.classed(rows, lambda r: r["v"], lambda r: "all")
    (figure,) = bars.figures(classes, {}, rows)
    facts = figure.as_json()
    assert facts["least"] == (2.0, "b") and facts["most"] == (3.0, "a") and facts["spread"] == 0.2
    with pytest.raises(KeyError, match="bars of no class: some"):
        bars.figures(classes, {"some": Bar(least=1.0)})


def test_rows_are_known_by_their_keys(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append(path, {"name": "a", "key": "1", "ok": True})
    append(path, {"name": "b", "key": "2", "ok": False})
    append(path, {"name": "c", "ok": True})
    assert list(campaign.known_rows(path)) == ["1"]
