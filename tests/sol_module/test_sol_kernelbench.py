"""The KernelBench table: every problem has independent figures, and differs from them as explained."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from module_files import worked

from tests.sol_module import derivations as bench
from tests.sol_module.problems import PROBLEMS, Problem
from ucutlass.ir.hardware import DEVICES
from ucutlass.runtime.module.work import ModuleWork

GIVEN = bench._given()


def test_the_table_and_the_figures_are_of_the_same_problems() -> None:
    assert len(PROBLEMS) >= 36
    assert {(p.level, p.number) for p in PROBLEMS} == set(GIVEN)
    assert len(GIVEN) == len(PROBLEMS)
    for problem in PROBLEMS:
        ast.parse(problem.source)
        assert bool(problem.why) == bool(problem.bytes_more or problem.flops_more)


def test_the_given_bounds_follow_from_the_given_work() -> None:
    """What the independent table prints is its own formula, to its three digits."""
    for given in GIVEN.values():
        milliseconds = 1e3 * max((given["flops"] or 0) / 494.7e12, given["bytes"] / 3.35e12)
        assert given["sol_ms"] == pytest.approx(milliseconds, rel=6e-3)


_QUICK = {
    "L1-1",
    "L1-3",
    "L1-19",
    "L1-23",
    "L1-33",
    "L1-40",
    "L1-42",
    "L1-50",
    "L1-75",
    "L1-76",
    "L1-89",
    "L1-95",
    "L1-97",
    "L2-45",
    "L2-88",
    "L2-100",
    "L3-43",
}
"""One of each kind of operator; the others are marked slow."""


@pytest.mark.parametrize(
    "problem",
    [pytest.param(p, id=p.key, marks=() if p.key in _QUICK else pytest.mark.slow) for p in PROBLEMS],
)
def test_two_derivations_agree(tmp_path: Path, problem: Problem) -> None:
    work = _work(tmp_path, problem)
    row = bench.compare(problem, work, GIVEN[problem.level, problem.number], H100)
    assert row.verdict == ("explained" if problem.why else "agrees"), row
    assert work.fused.bytes <= work.unfused.bytes
    assert not work.not_counted and not work.attempts
    if row.verdict == "agrees":
        assert row.our_ms == pytest.approx(row.given_ms, rel=6e-3)


H100 = DEVICES["H100-SXM"]


def _work(folder: Path, problem: Problem) -> ModuleWork:
    return worked(folder, problem.source, "tf32")


def test_a_difference_that_is_not_exactly_explained_is_told(tmp_path: Path) -> None:
    problem = next(p for p in PROBLEMS if p.key == "L1-88")
    values: dict[str, Any] = dict(GIVEN[1, 88])
    values["bytes"] -= 4
    assert bench.compare(problem, _work(tmp_path, problem), values, H100).verdict == "DISAGREES"
