"""A pipeline judged from its files alone, at the asked extents and at others, as `ucc verify` does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.pipeline.test_series import ADD, CHAIN, TWO
from ucutlass import frontend
from ucutlass.pipeline import workspace
from ucutlass.pipeline.memory import Allocation, WorkspaceLayout
from ucutlass.runtime.verify.batch import judge_case
from ucutlass.runtime.verify.suite import suite
from ucutlass.runtime.verify.verdict import LaunchVerdict
from ucutlass.tasks.verify_cases import _Loaded, facts

MIXED = (
    ADD
    + TWO
    + """
pipeline mixed(x: f32[A, B], y: f32[A, B], s: f32) -> (p: f32[A, B], q: f32[A, B]) {
  a = add(x, s)
  b: f32[A, B] = torch.flip(a, dims=0)
  c, d = two(b, y)
  return p = c, q = add(d, 3)
}
"""
)


def judged(
    text: str, stages: Sequence[tuple[str, str, tuple[int, ...]] | None]
) -> list[tuple[str, LaunchVerdict]]:
    checked = frontend.read_text(text, "p.ucu")
    program = frontend.program(checked)
    loaded = _Loaded(facts(checked, program.name, stages), "cpu")
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


LATER = (
    ADD
    + TWO
    + """
pipeline later(x: f32[A, B], s: f32) -> (y: f32[A, B], z: f32[A, B]) {
  a = add(x, s)
  b = add(a, 2)
  c = add(b, s)
  p, q = two(a, c)
  return y = p, z = q
}
"""
)


def test_buffers_that_share_bytes_too_early_are_no_stages_fault(
    stages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every stage is right alone, on memory of its own; the pipeline, on its one workspace, is not."""

    def heaped(blocks: Sequence[Allocation], before: object) -> WorkspaceLayout:
        return WorkspaceLayout({b.name: 0 for b in blocks}, max(b.bytes for b in blocks), 0)

    entries = [(str(stages), name, (i, 0, 0)) for i, name in enumerate(("add", "add", "add", "two"))]
    assert all(verdict.ok for _, verdict in judged(LATER, entries))
    monkeypatch.setattr(workspace, "assign_offsets", heaped)
    for name, verdict in judged(LATER, entries):
        assert verdict.state == "wrong", name
        assert all(stage.state == "right" for stage in verdict.stages)
        assert "not its stages'" in {p.kind for p in verdict.problems}


@pytest.mark.parametrize("at", range(4))
def test_a_stage_that_writes_past_its_workspace_is_caught(stages: Path, at: int) -> None:
    """It hits the guard behind its own workspace, so it is named: `spill` takes 2 KiB more than it says."""
    chain = [(str(stages), "spill" if i == at else "add", (i, 300, 0)) for i in range(4)]
    for name, verdict in judged(CHAIN, chain):
        assert [i for i, s in enumerate(verdict.stages[:4]) if s.state == "wrong"] == [at], name
        assert {p.kind for p in verdict.stages[at].problems} == {"overrun"}
        assert not verdict.ok
