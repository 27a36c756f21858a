"""No decision follows the spelling of a name: a program under other names becomes the same code and plans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.check.test_diagnostics import CHECKED
from tests.pairs.spaces import SPACES
from tests.random_programs import random_program
from tests.renaming import corpus, decided, own_names, renamed, reversed_names
from tests.typed import check
from ucutlass import frontend
from ucutlass.diagnostics import ProgramError
from ucutlass.ir import extents
from ucutlass.ir.extents import Combined, Fixed, Free
from ucutlass.ir.hardware import DEVICES
from ucutlass.shapes import ShapeError, free_dims
from ucutlass.sol.bounds import bounds
from ucutlass.typical_sizes import typical_sizes

TEXTS = sorted(corpus())
EXTENTS = st.sampled_from((1, 2, 7, 24, 64, 130, 1024))


def outcome(text: str, name: str, sizes: Mapping[str, int] | None, arch: str) -> Any:
    """What is launched, or how it is refused."""
    try:
        return decided(text, name, sizes, arch)
    except ProgramError as problem:
        return [d.code for d in problem.diagnostics]
    except ShapeError as problem:
        return problem.code


def assert_same(
    text: str, name: str, sizes: Mapping[str, int] | None, arch: str, names: Mapping[str, str]
) -> None:
    others = None if sizes is None else {names.get(d, d): size for d, size in sizes.items()}
    mine = outcome(text, name, sizes, arch)
    theirs = outcome(renamed(text, names), names.get(name, name), others, arch)
    assert mine == theirs, f"{text}\nunder {names}"


@st.composite
def renamings(draw: st.DrawFn, text: str) -> dict[str, str]:
    """Another name for each: in the reverse of the alphabetical order, or exchanged among each other."""
    if draw(st.booleans()):
        return reversed_names(text)
    own = own_names(text)
    return dict(zip(own, draw(st.permutations(own)), strict=True))


@pytest.mark.parametrize("where", TEXTS)
def test_the_reverse_order_of_names_changes_nothing(where: str) -> None:
    text = corpus()[where]
    for program in frontend.read_text(text).module.programs:
        assert_same(text, program.name, None, "sm90a", reversed_names(text))


@pytest.mark.slow
@settings(max_examples=150)
@given(st.data())
def test_other_names_change_nothing(data: st.DataObject) -> None:
    text = corpus()[data.draw(st.sampled_from(TEXTS))]
    program = data.draw(st.sampled_from(frontend.read_text(text).module.programs))
    sizes = {dim: data.draw(EXTENTS) for dim in free_dims(program)}
    arch = data.draw(st.sampled_from(("sm90a", "sm80")))
    assert_same(text, program.name, sizes, arch, data.draw(renamings(text)))


RANDOM = {"random GEMM": random_program, **{name: space.drawn for name, space in SPACES.items()}}


@settings(max_examples=100)
@given(st.data())
def test_other_names_change_nothing_of_random_programs(data: st.DataObject) -> None:
    drawn: Any = RANDOM[data.draw(st.sampled_from(sorted(RANDOM)))](data.draw(st.integers(0, 10_000)))
    try:
        (program,) = frontend.read_text(drawn.text).module.programs
    except ProgramError:
        return
    sizes = {dim: drawn.sizes[dim] for dim in free_dims(program)}
    assert_same(drawn.text, program.name, sizes, "sm90a", data.draw(renamings(drawn.text)))


@pytest.mark.parametrize("code", CHECKED)
def test_other_names_change_no_diagnostic(code: str) -> None:
    def codes(text: str) -> list[str]:
        with pytest.raises(ProgramError) as caught:
            check(text)
        return [d.code for d in caught.value.diagnostics]

    assert codes(CHECKED[code]) == codes(renamed(CHECKED[code], reversed_names(CHECKED[code])))


@pytest.mark.parametrize("where", [w for w in TEXTS if w.startswith("examples/")])
def test_other_names_change_no_bound(where: str) -> None:
    """Triangles and windows are counted along one variable, which no name may choose."""

    def seconds(text: str, name: str) -> list[float]:
        program = frontend.program(frontend.read_text(text), name)
        sizes = typical_sizes(program, None)
        assert sizes is not None
        time_bounds = bounds(program, dict(zip(program.dims, sizes, strict=True)), DEVICES["H200"])
        return [time_bounds.fused.seconds, time_bounds.unfused.seconds]

    text = corpus()[where]
    names = reversed_names(text)
    for program in frontend.read_text(text).module.programs:
        assert seconds(text, program.name) == seconds(
            renamed(text, names), names.get(program.name, program.name)
        )


def test_an_extents_names_come_as_they_first_stand() -> None:
    extent = Combined("+", Combined("*", Free("Z"), Free("A")), Combined("-", Free("Z"), Fixed(1)))
    assert extents.names(extent) == ("Z", "A")
