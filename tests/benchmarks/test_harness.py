"""Items worked off in processes that end early, rows that options choose, and reports."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import harness
from benchmarks.harness import append, lines, selected

ITEMS = [{"name": name} for name in "abcdef"]


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
        case "sticky":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
    return {"pid": os.getpid()}


def _with(how: str, at: str = "c") -> list[dict[str, Any]]:
    return [item | ({"how": how} if item["name"] == at else {}) for item in ITEMS]


def _run(items: list[dict[str, Any]], rows: Path, **more: Any) -> list[dict[str, Any]]:
    return harness.run(f"{__name__}:row", items, rows, item_seconds=more.pop("item_seconds", 60.0), **more)


@pytest.mark.parametrize(
    ("how", "error"),
    [("crash", "Crashed"), ("exit", "Exited"), ("raise", "ValueError"), ("sticky", "RuntimeError")],
)
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_one_item_is_lost_alone(how: str, error: str, processes: int, tmp_path: Path) -> None:
    rows = _run(_with(how), tmp_path / "deeper" / "rows.jsonl", processes=processes)
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
    rows = harness.run("no_such_module:f", ITEMS, tmp_path / "rows.jsonl", item_seconds=1.0)
    assert [row["ok"] for row in rows] == [False] * 6
    assert all(row["error"] == "ModuleNotFoundError" for row in rows)


def test_a_line_that_was_cut_short_is_no_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append(path, {"name": "b", "ok": True})
    path.open("a").write('{"name": "c", "ok"')
    assert [row["name"] for row in lines(path)] == ["b"]
    assert lines(harness.fresh(path)) == []


NAMES = ["M 1", "M 16", "wide", "wide N", "tall"]


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        ([], NAMES),
        (["--only", "M 1"], ["M 1"]),
        (["--only", "M"], ["M 1", "M 16"]),
        (["--only", "tall,wide"], ["wide", "tall"]),
        (["--quick"], ["M 1", "tall"]),
    ],
)
def test_a_word_is_a_name_or_a_beginning(words: list[str], chosen: list[str]) -> None:
    options = harness.parser_of("", compiles=True).parse_args(["--out", "o.json", *words])
    assert selected(NAMES, options, str) == chosen
    assert harness.compiles(options) is ("--quick" not in words)


def test_a_word_that_names_nothing_is_refused() -> None:
    with pytest.raises(SystemExit, match="no row is named deep"):
        selected(NAMES, argparse.Namespace(only="M 1,deep", quick=False), str)


def test_json_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "deeper" / "report.json"
    harness.write(path, {"a": 1})
    harness.write(path, {"a": 2})
    assert path.read_text() == '{\n "a": 2\n}' and list(path.parent.iterdir()) == [path]
    assert lines(tmp_path / "absent.jsonl") == []


def test_a_run_that_is_cut_has_written_the_chunks_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = SimpleNamespace(plan=SimpleNamespace(schedule="a schedule"))
    begun: list[str] = []

    def run(target: str, items: list[dict[str, Any]], rows: Path, **more: Any) -> list[dict[str, Any]]:
        begun.extend(item["name"] for item in items)
        if "e" in begun:
            raise KeyboardInterrupt
        return [{"name": item["name"], "ok": True} for item in items]

    monkeypatch.setattr(harness, "planned", lambda text, sizes: (None, None, planned))
    monkeypatch.setattr(harness, "prebuild", lambda plans: {name: "no" for name in plans if name == "c"})
    monkeypatch.setattr(harness, "run", run)
    monkeypatch.setattr(harness, "machine", dict)
    options = argparse.Namespace(out=tmp_path / "rows.json", seed=0, quick=True, no_compile=True)
    programs: dict[str, tuple[str, dict[str, int]]] = {name: ("", {}) for name in "abcdef"}
    with pytest.raises(KeyboardInterrupt):
        harness.measured("target", programs, options, row_seconds=1.0, at_once=2)
    report = json.loads(options.out.read_text())
    assert [row["name"] for row in report["rows"]] == ["a", "b", "d"] and report["unbuilt"] == {"c": "no"}
    assert begun == ["a", "b", "d", "e", "f"]
