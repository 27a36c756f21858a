"""Indices that read nothing are refused, and only those."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.typed import check
from ucutlass.diagnostics import Diagnostic, ProgramError


def diagnostics(text: str) -> tuple[Diagnostic, ...]:
    try:
        check(text)
    except ProgramError as problem:
        return problem.diagnostics
    return ()


def codes(text: str) -> set[str]:
    return {d.code for d in diagnostics(text) if d.severity == "error"}


def reads(scale: int, p: int, r: int, size: int, offset: int, extents: tuple[int, int, int]) -> bool:
    """Whether `x[scale*H = p*P + r*R + size*size(H) + offset]` reads an element for some P and R."""
    h, over, along = extents
    positions = {p * i + r * j + size * h + offset for i, j in itertools.product(range(over), range(along))}
    return any(at % scale == 0 and 0 <= at // scale < h for at in positions)


SMALL = st.integers(-3, 3)


@settings(max_examples=300)
@given(
    st.integers(1, 3),
    SMALL,
    SMALL,
    st.integers(-1, 1),
    st.integers(-12, 12),
    st.lists(st.one_of(st.none(), st.integers(1, 4)), min_size=3, max_size=3),
)
def test_what_is_refused_reads_nothing(
    scale: int, p: int, r: int, size: int, offset: int, given_: list[int | None]
) -> None:
    """For extents of a call, all small ones; where every extent is given, also what reads nothing by its
    range is refused."""
    at = f"{p}*P + {r}*R + {size}*size(H) + {offset}".replace("+ -", "- ")
    names = [name if n is None else f"{name}={n}" for name, n in zip("HPR", given_, strict=True)]
    text = f"kernel k(x: f32[{names[0]}], y: f32[{', '.join(names[1:])}]) -> f32[P, R] {{\n"
    text += f"  return y + x[{scale}*H = {at}]\n}}\n"
    texts = codes(text)
    assert texts <= {"UC0224"}, texts
    every = itertools.product(*(range(1, 5) if n is None else (n,) for n in given_))
    some = any(reads(scale, p, r, size, offset, (a, b, c)) for a, b, c in every)
    assert not (texts and some), text
    if None not in given_ and scale == 1 and abs(p) + abs(r) <= 1:
        assert bool(texts) is not some, text


@pytest.mark.parametrize(
    "value",
    [
        "x[L = -1] + x",
        "x[L = L + size(L)]",
        "x[L = size(L)] + x",
        "x[L = L - 9 - size(L)]",
        "x[2*L = 2*L + 1]",
        "x[L = i64(-1)] + x",
        "max[R=3](x[L = R - 5]) + x",
        "f(x)",
    ],
)
def test_an_index_that_reads_nothing_is_refused(value: str) -> None:
    text = "fn f(x) = x + x[L = -2]\n".replace("L", "L") if value == "f(x)" else ""
    text = text.replace("fn f(", "fn f[L](")
    assert codes(text + f"kernel k(x: f32[L]) -> f32[L] {{ return {value.replace('f(x)', 'f[L](x)')} }}") == {
        "UC0224"
    }


@pytest.mark.parametrize(
    "value", ["x[L = L - 1]", "max[R=3](x[L = L + R - 1])", "x[L = 7] + x", "x[2*L = L + 1]", "x[L = L - 9]"]
)
def test_padding_is_legal(value: str) -> None:
    assert codes(f"kernel k(x: f32[L]) -> f32[L] {{ return {value} }}") == set()


def test_a_negative_position_is_told_from_pythons() -> None:
    (found,) = diagnostics("kernel k(x: f32[L]) -> f32[L] { return x[L = -1] + x }")
    assert found.hint is not None and "Python" in found.hint and "x[L = size(L) - 1]" in found.hint


@pytest.mark.parametrize("extent", ["L-L", "3-4*L", "L*M-L*M", "1-L"])
def test_an_axis_that_is_always_empty_is_refused(extent: str) -> None:
    text = f"kernel k(x: f32[L], y: f32[M]) -> f32[P={extent}] {{ return x[L = P] }}"
    assert codes(text) == {"UC0221"}


def test_stages_in_place_are_looked_at_too() -> None:
    text = "pipeline p(x: f32[L]) -> f32[L] {\n  h: f32[L] = x[L = -2] + x\n  return h * 2\n}\n"
    assert codes(text) == {"UC0224"}
