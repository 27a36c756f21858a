"""Rows that options choose, and files of rows."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks import harness
from benchmarks.harness import append, lines, selected


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
