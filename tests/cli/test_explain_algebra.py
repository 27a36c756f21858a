"""`ucc explain --algebra`: the derivation, in words and as data."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from ucutlass.cli import main

TEXT = """
pipeline scores(x: f32[M, K=1024], w: f32[N=2048, K]) -> f32[M] {
  s: f32 = sum[N](dot[K](x, w))
  return s * 1.5
}
"""


def _run(path: Path, *options: str) -> str:
    (path / "scores.ucu").write_text(TEXT)
    outcome = CliRunner().invoke(
        main, ["explain", str(path / "scores.ucu"), "-s", "M=4096", "--algebra", *options]
    )
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def test_a_derivation_is_shown_rule_by_rule(tmp_path: Path) -> None:
    output = _run(tmp_path)
    assert "candidate 1" in output and "times as fast: sum across dot" in output
    assert "step 1: sum across dot: sum[N](dot[K](x, w)) = dot[K](x, sum[N](w))" in output
    assert "(for finite values)" in output


def test_weights_are_folded_where_the_user_names_them(tmp_path: Path) -> None:
    output = _run(tmp_path, "--fold-weights", "w")
    assert "pipeline scores_folded(w: f32[N=2048, K=1024])" in output and " a call, and " in output
    wrong = CliRunner().invoke(
        main, ["explain", str(tmp_path / "scores.ucu"), "-s", "M=4096", "--algebra", "--fold-weights", "v"]
    )
    assert wrong.exit_code == 2 and "no parameter v" in wrong.stderr


def test_a_derivation_is_data(tmp_path: Path) -> None:
    row = json.loads(_run(tmp_path, "--json"))
    (first, *_) = row["candidates"]
    assert first["seconds"] < row["seconds"] and not first["constants"]
    assert [r["name"] for r in first["rules"]] == [s["rule"] for s in row["steps"]]
