"""The runner of all benchmarks names scripts that exist and keeps each one's output."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from benchmarks.everything import STEPS, Step, run


@pytest.mark.parametrize("step", STEPS, ids=lambda s: s.name)
def test_steps_name_modules(step: Step, tmp_path: Path) -> None:
    assert importlib.util.find_spec(step.arguments(tmp_path)[0]) is not None


def test_output_is_kept_and_failure_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Step("fine", lambda _: ("this",), 1), tmp_path)
    assert not run(Step("wrong", lambda _: ("no_such_module_here",), 1), tmp_path)
    assert not run(Step("long", lambda _: ("timeit", "-n", "1", "while True: pass"), 0.02), tmp_path)
    assert "no_such_module_here" in (tmp_path / "wrong.txt").read_text()
    out = capsys.readouterr().out
    assert "exit status 1" in out and "not done after 0.02 minutes" in out
