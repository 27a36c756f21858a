"""What prompts cost is measured against the local server."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.prompt_cost import PROBLEMS, ROOT, measured, shown
from ucutlass.agent.proposers.problem_facts import subject_of


@pytest.mark.parametrize("file", PROBLEMS)
def test_most_of_a_prompt_is_read_from_the_cache(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    subject = subject_of((ROOT / file).read_text(), None, PROBLEMS[file], "sm90a", "H200", lane="bf16")
    row = measured(subject, file, "stark", 4, tmp_path / "traffic.jsonl")
    assert row.requests >= 4 and 0.5 < row.cached < 1 and row.dollars < row.uncached
    assert row.turn <= row.longest < row.prefix < 5000
    assert f"| {Path(file).stem} | stark |" in shown([row], subject)
    assert len((tmp_path / "traffic.jsonl").read_bytes().splitlines()) == row.requests
