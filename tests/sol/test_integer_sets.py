"""Regions against brute force: every operation and count on small extents, point by point."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ucutlass.sol import counting
from ucutlass.sol.counting import count
from ucutlass.sol.integer_sets import (
    EMPTY,
    FULL,
    BasicSet,
    IntegerSet,
    LinearExpr,
    constrained,
    intersection,
    linear,
    project,
    rename,
    union,
    variable,
)

EXTENTS = {"A": 5, "B": 4, "C": 3, "D": 6}
DIMS = tuple(EXTENTS)


def value(condition: LinearExpr, point: dict[str, int]) -> int:
    return condition.constant + sum(c * point[v] for v, c in condition.terms)


def holds(piece: BasicSet, point: dict[str, int]) -> bool:
    return any(
        all(value(c, full) >= 0 for c in piece.atleast) and all(value(c, full) == 0 for c in piece.equal)
        for inner in product(*(range(n) for n in piece.inner))
        for full in [{**point, **{f"?{i}": v for i, v in enumerate(inner)}}]
    )


def points(region: IntegerSet, dims: tuple[str, ...] = DIMS) -> set[tuple[int, ...]]:
    """The points over `dims`, all other coordinates 0: regions here must not use others."""
    return {
        at
        for at in product(*(range(EXTENTS[d]) for d in dims))
        if any(holds(p, dict(zip(dims, at, strict=True))) for p in region)
    }


conditions = st.builds(
    linear,
    st.lists(st.tuples(st.sampled_from(DIMS), st.integers(-3, 3)), min_size=1, max_size=3),
    st.integers(-6, 6),
)
regions = st.lists(
    st.builds(
        lambda a, e: constrained(a, e)[0], st.lists(conditions, max_size=3), st.lists(conditions, max_size=1)
    ),
    min_size=1,
    max_size=2,
).map(tuple)


@given(regions)
def test_counts_are_those_of_brute_force(region: IntegerSet) -> None:
    assert count(region, DIMS, EXTENTS) == len(points(region))


@given(regions, regions)
def test_intersections(left: IntegerSet, right: IntegerSet) -> None:
    assert points(intersection(left, right, EXTENTS)) == points(left) & points(right)


@given(regions, regions)
def test_unions(left: IntegerSet, right: IntegerSet) -> None:
    assert points(union(left, right, EXTENTS)) == points(left) | points(right)


@given(regions, st.sets(st.sampled_from(DIMS), min_size=1, max_size=3))
@settings(max_examples=200)
def test_projections(region: IntegerSet, away: set[str]) -> None:
    kept = tuple(d for d in DIMS if d not in away)
    expected = {tuple(p[DIMS.index(d)] for d in kept) for p in points(region)}
    shadow = project(region, away, EXTENTS)
    assert points(shadow, kept) == expected
    assert count(shadow, kept, EXTENTS) == len(expected)


@given(regions, st.integers(1, 40))
def test_blocks_count_never_too_much(region: IntegerSet, cells: int) -> None:
    before, counting.CELLS = counting.CELLS, cells
    try:
        assert count(region, DIMS, EXTENTS) <= len(points(region))
    finally:
        counting.CELLS = before


def test_names_change_all_at_once() -> None:
    region = constrained([variable("A").plus(variable("B"), -2)])
    assert rename(region, {"A": "B", "B": "A"}) == constrained([variable("B").plus(variable("A"), -2)])


def test_what_always_holds_is_everything_and_what_never_does_is_nothing() -> None:
    assert intersection(FULL, constrained([variable("A")]), EXTENTS) in (FULL, constrained([variable("A")]))
    assert project(constrained([variable("A").plus(variable("B"))]), ["A"], EXTENTS) == FULL
    assert union(constrained([linear([("A", -1)], -1)]), EMPTY, EXTENTS) == EMPTY


@pytest.mark.parametrize("n", [1, 7, 4096, 100_000])
def test_a_triangle_is_counted_by_the_formula(n: int) -> None:
    region = constrained([variable("L").plus(variable("S"), -1)])
    assert count(region, ("L", "S"), {"L": n, "S": n}) == n * (n + 1) // 2


def test_a_large_pyramid_comes_within_a_percent() -> None:
    """tril(a) @ tril(b) of 8192: n <= k <= m."""
    n = 8192
    chain = constrained([variable("M").plus(variable("K"), -1), variable("K").plus(variable("N"), -1)])
    exact = n * (n + 1) * (n + 2) // 6
    actual = count(chain, ("M", "K", "N"), dict.fromkeys("MKN", n))
    assert 0.99 * exact < actual <= exact


@pytest.mark.parametrize(("parts", "wanted"), [(64, 500), (4, 64)])
def test_what_cannot_be_taken_in_blocks_is_counted_in_parts(
    monkeypatch: pytest.MonkeyPatch, parts: int, wanted: int
) -> None:
    """Every second of 1000, in one of two ways, 32 at a time: all of them, or the first 128 in four parts."""
    monkeypatch.setattr(counting, "CELLS", 64)
    monkeypatch.setattr(counting, "PARTS", parts)
    extents = {"L": 1000, "P": 600, "Q": 2}
    region = project(constrained(equal=[linear([("L", 1), ("P", -2), ("Q", -4)])]), ["P", "Q"], extents)
    assert count(region, ("L",), extents) == wanted


@given(
    st.integers(2, 5),
    st.integers(-4, 4),
    st.integers(1, 3),
    st.integers(1, 30),
    st.integers(1, 5),
    st.integers(1, 12),
)
def test_strided_windows_are_counted_as_one_by_one(
    stride: int, offset: int, step: int, p: int, r: int, h: int
) -> None:
    """The points of `x[stride*H = step*P - R + offset]` that exist, without walking P."""
    extents = {"P": p, "R": r, "H": h}
    tie = linear([("H", -stride), ("P", step), ("R", -1)], offset)
    region = project(constrained(equal=[tie]), ["H"], extents)
    expected = sum(
        (step * i - j + offset) % stride == 0 and 0 <= (step * i - j + offset) // stride < h
        for i in range(p)
        for j in range(r)
    )
    assert count(region, ("P", "R"), extents) == expected


def test_a_strided_window_over_a_long_axis_is_counted_exactly() -> None:
    n = 10**8
    extents = {"P": 2 * n, "R": 3, "H": n}
    region = project(constrained(equal=[linear([("H", -2), ("P", 1), ("R", -1)], 1)]), ["H"], extents)
    # R = 0 and 2 meet every odd P; R = 0 with P = 2n - 1 is at H = n, outside; R = 1 every even one.
    assert count(region, ("P", "R"), extents) == 3 * n - 1
