"""Builds by the default path against one run of nvcc: what is compared, and how rounds become a table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import build_time
from benchmarks.build_time import (
    EDITED,
    FIRST,
    SCHEDULE,
    SCHEDULES,
    STEPS,
    WARMUP,
    build_round,
    plan,
    table_of,
)
from ucutlass.emit.gemm.lean import lean
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.errors import BuildTimedOut
from ucutlass.runtime.ptxas import PtxasReport
from ucutlass.runtime.switches import CACHE_DIR

ARTIFACT = Artifact("key", Path("nowhere"), "nvcc", "ucc_0", "sm_90a", "", {}, 1.0, PtxasReport())


def test_the_edit_is_of_the_epilogue_alone() -> None:
    first, edited = (lean(plan(epilogue)[2].plan) for epilogue in (FIRST, EDITED))
    assert (first.device, first.host) == (edited.device, edited.host)
    assert first.arithmetic != edited.arithmetic


def test_the_schedules_are_of_one_kernel() -> None:
    """Each of which the default path serves, and none of which another's skeleton builds."""
    plans = [plan(FIRST, schedule)[2].plan for schedule in (*SCHEDULES, WARMUP)]
    kernels = [lean(p) for p in plans]
    assert len({kernel.device.entry for kernel in kernels}) == len(SCHEDULES) + 1
    assert len({kernel.arithmetic for kernel in kernels}) == 1
    assert len({p.problem for p in plans}) == 1


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None, int]]:
    """In place of compilers: the cache, the path and the number of kernels of each build, in order."""
    seen: list[tuple[str, str | None, int]] = []

    def build_sources(pairs: Sequence[Any], *, build_path: str | None) -> list[Artifact]:
        seen.append((Path(os.environ[CACHE_DIR]).name, build_path, len(pairs)))
        return [ARTIFACT for _ in pairs]

    monkeypatch.setattr(build_time, "build_sources", build_sources)
    return seen


@pytest.mark.parametrize("forwards", [True, False])
def test_a_round_builds_each_thing_from_an_empty_cache(
    forwards: bool, builds: list[tuple[str, str | None, int]]
) -> None:
    assert set(build_round(SCHEDULE, forwards)) == set(STEPS)
    new = [("new", None, 1), ("new", None, 1)]
    groups = [[("nvcc", "nvcc", 1)], new, [("schedules", None, len(SCHEDULES))]]
    turns = groups if forwards else groups[::-1]
    assert builds == [("new", None, 1), ("schedules", None, 1), *(b for group in turns for b in group)]


def test_a_kernel_that_is_not_built_spoils_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else fewer kernels would count as a quicker build."""
    failed = BuildTimedOut("ucc_0", 1.0)
    monkeypatch.setattr(build_time, "build_sources", lambda pairs, **_: [failed for _ in pairs])
    with pytest.raises(SystemExit, match="was not built"):
        build_round(SCHEDULE, True)


def test_ratios_are_of_one_rounds_builds() -> None:
    """The machine is four times as slow in the second round, and the ratios stay."""
    walls = {name: 20.0 / 2**i for i, name in enumerate(STEPS)}
    rounds = [{n: {"wall": w * slow, "cpu": w} for n, w in walls.items()} for slow in (1.0, 4.0, 1.0)]
    rows = {line[:12].strip(): line[12:].split() for line in table_of(rounds).splitlines()[1:]}
    assert tuple(rows) == STEPS
    for name, wall in walls.items():
        assert float(rows[name][-1]) == pytest.approx(wall / walls["nvcc"], abs=6e-4)
        assert float(rows[name][2]) == pytest.approx(4.0 * wall, abs=6e-3)


def test_time_is_that_of_the_work_and_its_children() -> None:
    done: list[int] = []
    assert build_time.timed(lambda: done.append(1)).keys() == {"wall", "cpu"} and done == [1]
