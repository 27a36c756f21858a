"""A pipeline judged from its files alone, at the asked extents and at others, as `ucc verify` does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.pipeline.test_series import ADD, CHAIN, TWO
from ucutlass import frontend
from ucutlass.runtime.verify.batch import judge_case
from ucutlass.runtime.verify.suite import suite
from ucutlass.runtime.verify.verdict import Verdict
from ucutlass.trials.verify import _Loaded, facts

MIXED = ADD + TWO + """
pipeline mixed(x: f32[A, B], y: f32[A, B], s: f32) -> (p: f32[A, B], q: f32[A, B]) {
  a = add(x, s)
  b: f32[A, B] = torch.flip(a, dims=0)
  c, d = two(b, y)
  return p = c, q = add(d, 3)
}
"""


def judged(text: str, stages: Sequence[tuple[str, str, tuple[int, ...]] | None]) -> list[tuple[str, Verdict]]:
    program = frontend.program(frontend.read_text(text))
    loaded = _Loaded(facts(text, "p.ucu", program.name, stages), "cpu")
    asked = suite(program, {"A": 9, "B": 17}, seed=5, distributions=("integer", "normal"), most=12)
    return [
        (case.name, judge_case(program, loaded.judged, case, {}, "cpu"))
        for case in asked.cases
        if case.kind != "repeats"  # beside which another CUDA stream copies
    ]


def test_a_right_pipeline_is_right_everywhere(stages: Path) -> None:
    chain = [(str(stages), "add", (i, 100 * i, 0)) for i in range(4)]
    for name, verdict in judged(CHAIN, chain):
        assert verdict.ok, f"{name}: {verdict}"


def test_so_is_one_with_a_torch_function_and_two_results(stages: Path) -> None:
    lib = str(stages)
    mixed = [(lib, "add", (0, 0, 0)), None, (lib, "two", (1, 64, 0)), (lib, "add", (2, 0, 0))]
    for name, verdict in judged(MIXED, mixed):
        assert verdict.ok, f"{name}: {verdict}"


@pytest.mark.parametrize("at", range(4))
def test_a_stage_that_writes_past_its_workspace_is_caught(stages: Path, at: int) -> None:
    """It smears what lives beside it, or the guard behind all: `spill` takes 2 KiB more than it says."""
    chain = [(str(stages), "spill" if i == at else "add", (i, 300, 0)) for i in range(4)]
    assert not all(verdict.ok for _, verdict in judged(CHAIN, chain))
