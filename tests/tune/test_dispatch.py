"""The fewest schedules for many shapes, as a pure function of times."""

from __future__ import annotations

import itertools
import random

import pytest

from ucutlass.ir.schedule import PartialSchedule
from ucutlass.tune.dispatch import KEEP, ShapeTimes, cover_shapes, geomean

A, B, C, D = (PartialSchedule(stages=n) for n in (2, 3, 4, 5))


def test_one_schedule_that_keeps_the_speed_of_all_serves_all() -> None:
    shapes = [ShapeTimes(A, {A: 1.0, C: 1.0 / KEEP}), ShapeTimes(B, {B: 2.0, C: 2.0})]
    (entry,) = cover_shapes(shapes)
    assert entry.request == C and entry.shapes == (0, 1)
    slow = [ShapeTimes(A, {A: 1.0, C: 1.001 / KEEP}), shapes[1]]
    assert {e.shapes for e in cover_shapes(slow)} == {(0,), (1,)} and len(cover_shapes(slow)) == 2


def test_each_shape_takes_the_fastest_of_those_chosen() -> None:
    shapes = [
        ShapeTimes(A, {A: 1.0, B: 1.015, C: 1.01}),
        ShapeTimes(B, {B: 1.0, C: 1.01}),
        ShapeTimes(C, {C: 1.0, B: 1.015}),
        ShapeTimes(D, {D: 1.0, C: 1.002}),
        ShapeTimes(A, {A: 1.0}),
    ]
    table = {e.request: e.shapes for e in cover_shapes(shapes)}
    assert table == {C: (1, 2, 3), A: (0, 4)}


def test_what_was_wrong_at_a_shape_does_not_serve_it() -> None:
    shapes = [ShapeTimes(A, {A: 1.0, B: 1.0}), ShapeTimes(B, {B: 1.0})]
    assert [e.request for e in cover_shapes(shapes)] == [B]
    assert {e.request: e.shapes for e in cover_shapes(shapes, {(0, B)})} == {A: (0,), B: (1,)}


def test_the_fewest_do_not_depend_on_weights_and_a_limit_does() -> None:
    shapes = [
        ShapeTimes(A, {A: 1.0, B: 1.0}),
        ShapeTimes(B, {B: 1.0}),
        ShapeTimes(C, {C: 1.0}, weight=10.0),
        ShapeTimes(D, {D: 1.0}, weight=0.1),
    ]
    assert [e.request for e in cover_shapes(shapes)] == [C, B, D], "in front what serves most weight"
    assert [e.request for e in cover_shapes(shapes, most=1)] == [C]
    assert [(e.request, e.shapes) for e in cover_shapes(shapes, most=2)] == [(C, (2,)), (B, (0, 1))]
    assert cover_shapes(shapes, most=9) == cover_shapes(shapes) and cover_shapes([]) == ()


def test_heavy_shapes_do_not_cost_schedules() -> None:
    """By weight C would be first, and A and B were still needed."""
    both = {A: 1.0, C: 1.0}, {B: 1.0, C: 1.0}
    shapes = [
        ShapeTimes(A, {A: 1.0}),
        ShapeTimes(A, {A: 1.0}),
        ShapeTimes(A, both[0], 9.0),
        ShapeTimes(B, both[1], 9.0),
        ShapeTimes(B, {B: 1.0}),
        ShapeTimes(B, {B: 1.0}),
    ]
    assert {e.request for e in cover_shapes(shapes)} == {A, B}
    assert [e.request for e in cover_shapes(shapes, most=1)] == [C]


@pytest.mark.parametrize("seed", range(20))
def test_every_shape_is_served_and_few_schedules_are_taken(seed: int) -> None:
    rng = random.Random(seed)
    requests = [PartialSchedule(stages=n) for n in range(2, 9)]
    shapes = []
    for _ in range(8):
        seconds = {r: rng.choice((1.0, 1.01, 1.2)) for r in rng.sample(requests, 4)}
        shapes.append(ShapeTimes(min(seconds, key=lambda r: seconds[r]), seconds, rng.random()))
    dispatch_entries = cover_shapes(shapes)
    assert sorted(itertools.chain.from_iterable(e.shapes for e in dispatch_entries)) == list(
        range(len(shapes))
    )
    assert all(shapes[at].share(e.request) >= KEEP for e in dispatch_entries for at in e.shapes)

    def serves(chosen: tuple[PartialSchedule, ...]) -> bool:
        return all(any(r in s.seconds and s.share(r) >= KEEP for r in chosen) for s in shapes)

    least = next(n for n in range(1, 8) if any(map(serves, itertools.combinations(requests, n))))
    harmonic = sum(1 / n for n in range(1, len(shapes) + 1))
    assert least <= len(dispatch_entries) <= harmonic * least


def test_geomean_weighs() -> None:
    assert geomean([]) is None
    assert geomean([(2.0, 1.0), (0.5, 1.0)]) == pytest.approx(1.0)
    assert geomean([(2.0, 3.0), (1.0, 1.0)]) == pytest.approx(2**0.75)
