"""Products that a seed draws, their candidates, and what of them a number of builds serves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import harness
from benchmarks.first_choice import GROUPED, KINDS, SPANS, Problem, candidates, drawn, table, within
from benchmarks.fit_heuristic import read
from ucutlass import frontend
from ucutlass.ir.hardware import DEVICES
from ucutlass.shapes import complete

H100 = DEVICES["H100-SXM"]


@pytest.mark.parametrize("kind", [*KINDS, *GROUPED])
def test_a_seed_draws_products_that_the_planner_takes(kind: str) -> None:
    problems = drawn(4, 7, [kind])
    assert problems == drawn(4, 7, [kind]) != drawn(4, 8, [kind])
    assert len({problem.name for problem in problems}) == 4
    for problem in problems:
        ranked = candidates(problem, H100, 3)
        checked = frontend.read_text(problem.text)
        program = frontend.kernel(checked)
        chosen = frontend.plan_kernel(checked, program, complete(program, problem.sizes), "sm90a", H100)
        assert ranked[0].request == chosen.planned.request
        assert len({planned.request for planned in ranked}) == len(ranked) > 1


def test_spans_are_drawn_in_turn() -> None:
    deep = drawn(8, 3, ["bf16"], ["deep"])
    assert all(200 <= p.m <= 808 and 1500 <= p.n <= 2560 and 7000 <= p.k <= 10240 for p in deep)
    assert {p.order for p in deep} == {"KK", "KN", "MK", "MN"}
    assert set(SPANS) == {"few", "deep", "large", "small"}


def test_builds_go_to_first_choices_and_then_in_turns() -> None:
    def planned(plan: str) -> Any:
        return SimpleNamespace(plan=plan)

    ranked: dict[str, list[Any]] = {
        "x": [planned("a"), planned("b"), planned("c")],
        "y": [planned("d"), planned("a"), planned("e")],
    }
    assert {name: [str(p.plan) for p in every] for name, every in within(ranked, 1).items()} == {
        "x": ["a"],
        "y": ["d", "a"],
    }
    served = within(ranked, 4)
    assert [str(p.plan) for p in served["x"]] == ["a", "b", "c"] and [str(p.plan) for p in served["y"]] == [
        "d",
        "a",
    ]


def report() -> dict[str, Any]:
    problem = Problem("bf16", "KK", 1, 512, 2048, 8192)
    timed = [
        {"request": p.request.fixed(), "schedule": f"schedule {i}", "estimate": 1.0, "us": us}
        for i, (p, us) in enumerate(zip(candidates(problem, H100, 2), (30.0, 24.0), strict=True))
    ]
    row = {
        "name": problem.name,
        "ok": True,
        "problem": ["bf16", "KK", 1, 512, 2048, 8192],
        "candidates": timed,
        "over best": 0.8,
        "over torch": 0.9,
        "best over torch": 1.125,
    }
    return {"machine": {"gpu": "NVIDIA H100 80GB HBM3"}, "drawn": [row]}


def test_the_table_names_what_was_faster() -> None:
    lines = table(report()["drawn"]).splitlines()
    assert "best 24.0: schedule 1" in lines[0]
    assert "bf16: first choice within 5% of the best for 0% of 1" in lines[1]


def test_the_fit_reads_candidates(tmp_path: Any) -> None:
    path = tmp_path / "drawn.json"
    harness.write(path, report())
    rows, device = read(path)
    assert device == H100 and [row.seconds for row in rows] == pytest.approx([30e-6, 24e-6])
    assert {row.candidate.shape.k for row in rows} == {8192}
