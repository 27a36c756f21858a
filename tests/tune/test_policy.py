"""Policies as pure functions, and why a search ends."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tune_fakes import TABLES

from ucutlass.ir.schedule import PartialSchedule
from ucutlass.tune.correction import PRIOR, distance, factor
from ucutlass.tune.policy import (
    OPENING,
    POLICIES,
    GroupTimes,
    SearchLimits,
    best,
    distinct,
    neighbours,
    predictions,
    stop_reason,
)

BASE = PartialSchedule(
    warps="cooperative",
    tile=(128, 256, 64),
    cluster=(2, 1),
    stages=4,
    swap="no",
    split_k=1,
    raster="heuristic",
    swizzle=1,
)
TABLE = TABLES["square 4096"]
SPACE = TABLE.space


def seen(*groups: int) -> dict[int, float | None]:
    return {at: TABLE.best_of(at) for at in groups}


# --- likeness and correction -------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "one_field"),
    [
        (replace(BASE, tile=(256, 128, 64), stages=5), True),
        (replace(BASE, cluster=(1, 1)), True),
        (replace(BASE, warps="pingpong", stages=6), True),
        (replace(BASE, stages=3), True),
        (replace(BASE, split_k="stream"), True),
        (replace(BASE, swap="yes"), True),
        (replace(BASE, raster="along_m", swizzle=4), False),
        (replace(BASE, cluster=(1, 1), stages=3), False),
        (replace(BASE, tile=(256, 128, 64), cluster=(1, 1)), False),
    ],
)
def test_neighbours_differ_in_one_field_that_costs_a_build(other: PartialSchedule, one_field: bool) -> None:
    assert neighbours(BASE, other) is one_field and neighbours(other, BASE) is one_field


def test_distance_grows_with_every_difference() -> None:
    near, far = replace(BASE, cluster=(1, 1)), replace(BASE, cluster=(1, 1), tile=(64, 256, 64))
    assert 0 == distance(BASE, BASE) < distance(BASE, near) < distance(BASE, far)
    assert distance(BASE, far) == distance(far, BASE)


def test_a_correction_is_its_neighbours_residual_and_fades() -> None:
    log = math.log(1.5)
    own, near, far = (
        factor(r, [(BASE, log)])
        for r in (BASE, replace(BASE, cluster=(1, 1)), replace(BASE, warps="gemv", tile=None, swap="yes"))
    )
    assert 1.0 < far < near < own < 1.5
    assert own == pytest.approx(1.5 ** (1 / (1 + PRIOR)))
    assert factor(BASE, []) == 1.0


def test_predictions_are_the_corrected_estimates_of_what_was_not_looked_at() -> None:
    assert predictions(SPACE, {}) == {at: g.estimate for at, g in enumerate(SPACE.groups)}
    slow: GroupTimes = {0: 2 * SPACE.groups[0].estimate}
    moved = predictions(SPACE, slow)
    assert 0 not in moved and all(moved[at] > SPACE.groups[at].estimate for at in moved)


# --- policies ----------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_proposes_all_that_is_left_once_and_the_same_again(policy: str) -> None:
    propose = POLICIES[policy]  # type: ignore[index]
    for looked in ({}, seen(0, 3), {**seen(0, 1, 2, 5), 7: None}):
        order = propose(SPACE, looked, 3)
        assert sorted([*order, *looked]) == list(range(len(SPACE.groups)))
        assert order == propose(SPACE, dict(looked), 3)


def test_random_is_the_seeds() -> None:
    orders = {POLICIES["random"](SPACE, {}, seed) for seed in range(5)}
    assert len(orders) == 5
    assert POLICIES["analytic"](SPACE, {}, 0) == tuple(range(len(SPACE.groups)))


def test_guided_opens_with_the_analytic_order_of_prices_that_differ() -> None:
    twins = replace(SPACE, groups=(SPACE.groups[0], SPACE.groups[0], *SPACE.groups[1:]))
    prices = [twins.groups[at].estimate for at in distinct(twins.groups)]
    assert 1 not in distinct(twins.groups) and prices == sorted(set(prices))
    assert POLICIES["guided"](twins, {}, 0)[:OPENING] == tuple(distinct(twins.groups)[:OPENING])


def test_guided_puts_off_what_is_like_kernels_that_were_slow() -> None:
    slow: GroupTimes = {at: 10 * SPACE.groups[at].estimate for at in range(OPENING)}
    order, plain = (POLICIES[p](SPACE, slow, 0) for p in ("guided", "analytic"))

    def apart(at: int) -> float:
        return min(distance(SPACE.groups[at].request, SPACE.groups[other].request) for other in slow)

    near, far = min(plain, key=apart), max(plain, key=apart)
    assert order.index(near) - plain.index(near) > order.index(far) - plain.index(far)


def test_the_best_of_nothing_is_none() -> None:
    assert best({}) is None and best({3: None}) is None
    assert best({3: None, 4: 2.0, 5: 1.0}) == (5, 1.0)


# --- stopping ----------------------------------------------------------------------

OPEN = SearchLimits(builds=1000, close=0.0, hopeful=math.inf)


@pytest.mark.parametrize(
    ("looked", "limits", "spent", "words"),
    [
        (range(len(SPACE.groups)), OPEN, 0.0, "every binary was tried"),
        (range(4), replace(OPEN, builds=4), 0.0, "the budget of 4 builds is spent"),
        (range(4), replace(OPEN, seconds=120.0), 120.0, "the budget of 120 s is spent"),
        (range(1), replace(OPEN, close=1000.0), 0.0, "of what any plan here could come to"),
        (range(3), replace(OPEN, hopeful=0.01), 0.0, "no kernel is predicted"),
    ],
)
def test_every_reason_to_stop(looked: range, limits: SearchLimits, spent: float, words: str) -> None:
    assert words in (stop_reason(SPACE, seen(*looked), limits, spent) or "")


def test_nothing_stops_a_search_that_may_go_on() -> None:
    assert stop_reason(SPACE, seen(*range(4)), OPEN, 1e9) is None
    assert stop_reason(SPACE, {0: None, 1: None}, SearchLimits(), 0.0) is None
    assert stop_reason(SPACE, seen(0), replace(OPEN, hopeful=0.01), 0.0) is None  # too little is known
