"""Rows that options choose, and files of rows."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import harness
from benchmarks.harness import append, lines, selected
from ucutlass import frontend
from ucutlass.reference import evaluate
from ucutlass.runtime.inputs import generate


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


@pytest.mark.parametrize("off", [0.0, 1e-2])
def test_a_wrong_launch_is_an_arithmetic_error(off: float) -> None:
    text = "kernel k(x: f32[M, N]) -> f32[M] { return sum[N](x) }"
    program = frontend.kernel(frontend.read_text(text))

    def launch(arguments: Sequence[Any], results: Sequence[Any]) -> None:
        (result,) = evaluate(program, arguments)
        results[0].copy_(result + off)

    kernel = SimpleNamespace(program=program, judged=lambda *_: launch)
    arguments = generate(program, {"M": 4, "N": 32}, "normal", seed=1)
    if off:
        with pytest.raises(ArithmeticError, match="beyond the bound"):
            harness.check(kernel, arguments)
    else:
        assert harness.check(kernel, arguments) == "right"


def test_what_tells_runs_apart_is_not_the_commit() -> None:
    facts = {"gpu": "a", "torch": "1", "commit": "x", "tree": "t"}
    same = harness.identity(facts | {"commit": "y"})
    assert harness.identity(facts) == same != harness.identity(facts | {"tree": "u"})
    assert harness.machine()["tree"] == harness.machine()["tree"] != ""
