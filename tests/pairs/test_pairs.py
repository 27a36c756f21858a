"""Every pair of features of every family is drawn and right, or refused for a known reason."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.pairs.gemm import GEMM
from tests.pairs.on_host import emulated
from tests.pairs.pairs import OTHER, Judged, Program, Space, cover, refusal, table, undrawn
from tests.pairs.schedules import drawn as drawn_schedule
from tests.pairs.schedules import shown
from tests.pairs.spaces import SPACES
from tests.pairs.text import Stored, kernel
from ucutlass.kernels.reduction.plan import ReductionPlan

DIAGNOSTICS = (Path(__file__).parents[2] / "docs" / "diagnostics.md").read_text(encoding="utf-8")

CHOICES = 150
"""Choices whose programs are checked, drawn at random."""

EVERY = {"reduction": 1}
"""Of a family's drawn programs one in so many is emulated, of the others' one in six: each is built alone."""

MOST_PROGRAMS = 640
"""Of a family, so that a GPU builds and judges them in minutes."""


def _documented(code: str) -> bool:
    return code == OTHER or f"## {code}" in DIAGNOSTICS


@pytest.mark.parametrize("name", SPACES)
def test_programs_of_any_choice_are_right_or_refused_by_a_rule(name: str) -> None:
    space, draw = SPACES[name], Random(name)
    codes = set()
    for _ in range(CHOICES):
        choice = {axis: draw.choice(features) for axis, features in space.axes.items()}
        program = space.program(choice, draw)
        code = refusal(space, program)
        codes.add(code)
        assert code is None or code == OTHER or code.startswith(space.refusals), (
            f"{code}: {program.text}{choice}"
        )
    assert len(codes) > 1, "a space with nothing accepted, or nothing refused, tells nothing"


@pytest.mark.parametrize("name", SPACES)
def test_each_feature_changes_a_program(name: str) -> None:
    """A feature that no program shows would count as drawn without having been."""
    space = SPACES[name]
    for axis, features in space.axes.items():
        shown: set[tuple[str, ...]] = set()
        for feature in features:
            draw = Random(0)
            choices = [
                {a: draw.choice(f) for a, f in space.axes.items()} | {axis: feature} for _ in range(12)
            ]
            shown.add(tuple(str(space.program(choice, Random(1))) for choice in choices))
        assert len(shown) == len(features), f"{axis}: two features write the same programs"


@pytest.mark.slow
@pytest.mark.parametrize("name", SPACES)
def test_every_accepted_pair_is_drawn_and_computes_what_it_says(name: str) -> None:
    space = SPACES[name]
    covered = cover(space, 0)
    assert not covered.mistakes
    assert len(covered.drawn) <= MOST_PROGRAMS
    drawn = {pair for one in covered.drawn for pair in one.pairs()}
    assert drawn | covered.refused.keys() == set(space.pairs())
    for pair, codes in covered.refused.items():
        assert codes and all(map(_documented, codes)), pair
        assert space.refuses(pair) or not space.refused, f"{pair} is refused, {codes}, and no rule says why"
    assert not [p for p in drawn if space.refuses(p)], "accepted now: take it off the space's `refused`"
    if shutil.which("g++") is None:
        pytest.skip("no g++ to compile emulated kernels")
    judged = emulated(covered.drawn[:: EVERY.get(name, 6)], 2)
    wrong = [j for j in judged if j.state == "wrong"]
    assert not wrong, "\n".join(
        f"{j.drawn.program.text}{dict(j.drawn.program.sizes)}\n{j.detail}" for j in wrong
    )
    assert any(j.state == "right" for j in judged)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPACES)
def test_programs_compute_what_they_say_under_any_schedule_of_their_space(name: str) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++ to compile emulated kernels")
    judged = emulated([drawn_schedule(SPACES[name], seed) for seed in range(3)], 1)
    assert not [shown(j) for j in judged if j.state in ("wrong", "not emulable")]
    assert any(j.state == "right" for j in judged)


def test_a_seed_has_one_program_and_a_schedule_that_the_planner_keeps() -> None:
    once, again = (drawn_schedule(GEMM, 1) for _ in range(2))
    assert once == again and once.program.text.count("schedule sm90a {") == 1
    assert refusal(GEMM, once.program) is None


# --- how pairs are drawn and judged ----------------------------------------------------


def _rows(choice: Mapping[str, str], draw: Random) -> Program:
    """Sums of rows, where `elem` f64 is refused, and i32 by `along` columns is no program."""
    over, left = ("N", "M") if choice["along"] == "rows" else ("M", "N")
    elem = "f99" if choice == {**choice, "elem": "i32", "along": "columns"} else choice["elem"]
    text = f"kernel k(x: {elem}[M, N]) -> f32[{left}] {{ return sum[{over}](f32(x)) }}\n"
    return Program(text, {"M": 5, "N": 3})


ROWS = Space(
    "rows",
    {"elem": ("f32", "f16", "i32", "f64"), "along": ("rows", "columns"), "rest": ("a", "b")},
    _rows,
    lambda planned: isinstance(planned.plan, ReductionPlan),
)


def test_what_no_program_can_be_is_a_mistake_and_what_a_rule_refuses_is_not() -> None:
    covered = cover(ROWS, 0)
    assert {p for p in covered.refused if ("elem", "f64") in p} == {
        p for p in ROWS.pairs() if ("elem", "f64") in p
    }
    assert {covered.refused[p] for p in covered.refused if ("elem", "f64") in p} == {("UC0310",)}
    assert covered.mistakes and all("f99" in mistake for mistake in covered.mistakes)
    assert covered.refused.keys() >= {(("elem", "i32"), ("along", "columns"))}


def test_a_pair_that_nobody_judged_right_is_undrawn() -> None:
    covered = cover(ROWS, 0)
    judged = [Judged(one, "right") for one in covered.drawn]
    assert undrawn(ROWS, covered, judged) == []
    of = [replace(j, state="not emulable") if j.drawn.choice["elem"] == "f16" else j for j in judged]
    assert {p[0] for p in undrawn(ROWS, covered, of) if p[0][0] == "elem"} == {("elem", "f16")}
    assert "undrawn" in table(ROWS, covered, of)


def test_an_extent_that_no_call_tells_is_written() -> None:
    x = Stored("x", "f32", (("M", "U"), "K"))
    program = kernel(
        [x], [(Stored("y", "f32", ("M", "U", "P")), "v")], ["v = x"], {"M": 3, "U": 2, "K": 5, "P": 7}
    )
    assert "(x: f32[(M U=2), K]) -> f32[M, U, P=7]" in program.text
    assert program.sizes == {"M": 3, "K": 5}
