"""Builds in stages against plain ones: what is compared, and how rounds become a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import build_stages
from benchmarks.build_stages import EDITED, FIRST, STEPS, SWEEP, one_round, parts, table_of
from ucutlass.emit.gemm.lean import lean
from ucutlass.emit.gemm.staged import stage
from ucutlass.runtime.build import Artifact, Recipe
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.errors import BuildTimedOut
from ucutlass.runtime.jit import link
from ucutlass.runtime.jit import nvrtc_build as lean_parts
from ucutlass.runtime.ptxas import Report


def test_the_edit_is_of_the_epilogue_alone() -> None:
    (source, plan), (edited_source, edited) = parts(FIRST), parts(EDITED)
    assert source.entry != edited_source.entry
    assert stage(plan).skeleton == stage(edited).skeleton
    assert stage(plan).arithmetic != stage(edited).arithmetic
    assert (lean(plan).device, lean(plan).host) == (lean(edited).device, lean(edited).host)
    assert lean(plan).arithmetic != lean(edited).arithmetic


def test_the_sweep_is_of_one_kernels_schedules() -> None:
    """Each of which a lean build serves, and none of which another's skeleton builds."""
    plans = [parts(FIRST, schedule)[1] for schedule in SWEEP]
    kernels = [lean(plan) for plan in plans]
    assert len({kernel.device.entry for kernel in kernels}) == len(SWEEP)
    assert len({kernel.arithmetic for kernel in kernels}) == 1
    assert len({plan.problem for plan in plans}) == 1


def artifact(entry: str) -> Artifact:
    return Artifact("key", Path("nowhere"), "nvcc", entry, "sm_90a", "", {}, 1.0, Report())


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """In place of compilers: what was built, in order."""
    seen: list[str] = []

    def note(what: str) -> Artifact:
        seen.append(what)
        return artifact(what)

    def recipe(source: object, staged: object, *_: object) -> object:
        return type(staged).__name__

    def make_many(recipes: list[Recipe], cache: Cache, **_: object) -> list[object]:
        return [note("sweep") for _ in recipes]

    monkeypatch.setattr(build_stages, "toolchain", lambda: None)
    monkeypatch.setattr(lean_parts, "driver", lambda *_: note("driver"))
    monkeypatch.setattr(link, "recipe", recipe)
    monkeypatch.setattr(build_stages, "build", lambda *_: note("plain"))
    monkeypatch.setattr(build_stages, "make", lambda what, _: note(what))
    monkeypatch.setattr(build_stages, "make_many", make_many)
    return seen


@pytest.mark.parametrize("forwards", [True, False])
def test_a_round_builds_each_thing_from_an_empty_cache(forwards: bool, builds: list[str]) -> None:
    assert set(one_round(forwards)) == set(STEPS)
    assert Counter(builds) == {"driver": 2, "plain": 1, "Staged": 2, "Lean": 2, "sweep": len(SWEEP)}
    assert builds[2] == ("plain" if forwards else "sweep"), "turns of order"


def test_a_schedule_that_is_not_built_spoils_the_round(
    builds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else fewer kernels would count as a quicker sweep."""
    failed = BuildTimedOut("ucc_0", 1.0)
    monkeypatch.setattr(build_stages, "make_many", lambda recipes, *_, **__: [failed for _ in recipes])
    with pytest.raises(SystemExit, match="was not built"):
        one_round(True)


def test_ratios_are_of_one_rounds_builds() -> None:
    """The machine is four times as slow in the second round, and the ratios stay."""
    walls = {name: 20.0 / 2**i for i, name in enumerate(STEPS)}
    rounds = [{n: {"wall": w * slow, "cpu": w} for n, w in walls.items()} for slow in (1.0, 4.0, 1.0)]
    rows = {line[:12].strip(): line[12:].split() for line in table_of(rounds).splitlines()[1:]}
    assert tuple(rows) == STEPS
    for name, wall in walls.items():
        assert float(rows[name][-1]) == pytest.approx(wall / walls["plain"], abs=6e-4)
        assert float(rows[name][2]) == pytest.approx(4.0 * wall, abs=6e-3)


def test_time_is_that_of_the_work_and_its_children() -> None:
    done: list[int] = []
    work: Callable[[], None] = lambda: done.append(1)  # noqa: E731
    assert build_stages.timed(work).keys() == {"wall", "cpu"} and done == [1]
