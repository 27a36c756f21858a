"""Advice and planner agree: what the cost model prices below the planner's choice says why it was not taken."""

from __future__ import annotations

import pytest
from advice_cases import FP8, GELU, PLAIN, RESIDUAL, facts, problem_of
from hypothesis import given, settings
from hypothesis import strategies as st

from ucutlass import frontend
from ucutlass.advice import KernelFacts, advise, finding
from ucutlass.advice.considered import NOT_CONSIDERED, SCHEDULE_FIXES, explained, priced
from ucutlass.advice.finding import ScheduleEdit
from ucutlass.advice.rules import RULES
from ucutlass.cli.advice import rows, within_schedule
from ucutlass.ir.hardware import ARCHES
from ucutlass.kernels.gemm.planner import candidates
from ucutlass.shapes import complete

EXTENTS = (1, 8, 16, 64, 100, 128, 512, 768, 1024, 2304, 4096, 8192, 16384)


def edits(f: KernelFacts) -> list[ScheduleEdit]:
    """Every edit of every rule, whatever the kernel's class."""
    return [e for rule in RULES if (found := finding(rule, f)) for e in found.edits]


@settings(max_examples=60)
@given(
    st.sampled_from((PLAIN, GELU, FP8, RESIDUAL)),
    st.sampled_from(EXTENTS),
    st.sampled_from(EXTENTS),
    st.sampled_from((64, 512, 4096, 16384)),
)
def test_what_is_cheaper_than_the_planners_choice_is_outside_of_its_search(
    text: str, m: int, n: int, k: int
) -> None:
    f = facts(text, m, n, k)
    p = f.planned
    searched = {priced(c.request) for c in candidates(problem_of(f), p.sizes, ARCHES[p.plan.arch], p.device)}
    for edit in edits(f):
        cheaper = edit.ratio < 1
        if cheaper:
            assert priced(edit.request) not in searched, edit.schedule
            assert explained(f, [edit])[0].note == NOT_CONSIDERED
        assert bool(explained(f, [edit])[0].note) == cheaper


def test_an_edit_outside_of_the_search_says_so() -> None:
    text = "kernel k(x: f16[B=8, M, K], w: f16[B, K, N]) -> f32[B, M, N] { return dot[K](x, w) SCHEDULE }"
    f = facts(text, 16, 16384, 16)
    notes = [e.note for e in explained(f, edits(f)) if e.ratio < 1]
    assert notes and set(notes) == {NOT_CONSIDERED}


def test_an_edit_that_a_free_schedule_would_take_says_so() -> None:
    f = facts(PLAIN, 4096, 4096, 4096, "warps pingpong tile 64x64x64 cluster 1x1 stages 2")
    advice = advise(f)
    assert SCHEDULE_FIXES in {e.note for found in advice.findings for e in found.edits}


@pytest.mark.parametrize(("schedule", "outside"), [("tile 64x64x64", True), ("", False)])
def test_an_edit_outside_of_the_files_schedule_says_so(schedule: str, outside: bool) -> None:
    block = f"schedule sm90a {{ {schedule} }}" if schedule else ""
    checked = frontend.read_text(PLAIN.replace("SCHEDULE", block))
    program = frontend.kernel(checked)
    sizes = complete(program, {"M": 4096, "N": 4096, "K": 4096})
    advice = advise(facts(PLAIN, 4096, 4096, 4096, "tile 64x64x64"))
    assert any(f.edits for f in advice.findings)
    within = within_schedule(advice, program, sizes, "sm90a")
    notes = [e.note for f in within.findings for e in f.edits if "tile" in e.changes]
    words = "outside of the file's schedule, which admits tile 64x64x64"
    assert notes and all((words in note) == outside for note in notes)
    assert any(words in text for _, text in rows(within)) == outside
