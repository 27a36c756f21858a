"""The loop over a workshop that answers from recorded times: what fails costs itself alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tune_fakes import TABLES, Recorded

from ucutlass.tune.policy import POLICIES, Name, SearchLimits
from ucutlass.tune.tune import FINALISTS, MOST_IN_UNIT, FailedTrial, SearchResult, Trial, best_so_far, search

TABLE = TABLES["M 128"]


def tune(shop: Recorded, policy: Name = "guided", jobs: int = 1, **limits: float) -> SearchResult:
    chosen = SearchLimits(**{"close": 0.0, **limits})  # type: ignore[arg-type]
    return search(shop.table.space, shop, policy, chosen, jobs=jobs)


@pytest.mark.parametrize("shape", TABLES)
def test_the_winner_is_within_three_per_cent_of_the_best(shape: str) -> None:
    shop = Recorded(TABLES[shape])
    search_result = tune(shop)
    assert search_result.winner is not None and isinstance(search_result.winner.result, float)
    assert shop.table.best / search_result.winner.result >= 0.97
    assert len(shop.built) == len(set(shop.built)) <= 8
    assert search_result.shrinkage == pytest.approx(0.0)


def test_the_winner_is_the_fastest_setting_of_its_binary() -> None:
    search_result = tune(Recorded(TABLE), builds=len(TABLE.space.groups), hopeful=float("inf"))
    assert search_result.winner is not None and search_result.winner.search == TABLE.best
    assert search_result.stopped == "every binary was tried"
    assert len(search_result.trials) == len(TABLE.space.groups)
    assert best_so_far(search_result.trials) == TABLE.best


def test_what_the_compiler_chooses_is_built_first_and_compared() -> None:
    late = replace(TABLE, space=replace(TABLE.space, start=(30, 0)))
    shop = Recorded(late)
    search_result = tune(shop)
    assert shop.built[0] == 30 and 30 in shop.confirmed
    assert search_result.gain is not None and search_result.winner is not None
    assert search_result.gain.median == pytest.approx(search_result.winner.search / late.times[30][0])


@pytest.mark.parametrize("policy", POLICIES)
def test_builds_that_fail_are_passed_over(policy: Name) -> None:
    bad = frozenset({0, 1, 2})
    shop = Recorded(TABLE, unbuilt=bad)
    search_result = tune(shop, policy, builds=12, hopeful=float("inf"))
    lost = {t.group: t.result for t in search_result.trials if isinstance(t.result, FailedTrial)}
    assert set(lost) == bad & set(shop.built) and all(f.stage == "build" for f in lost.values())
    assert search_result.winner is not None and not bad & set(shop.confirmed)


def test_a_timing_process_that_is_lost_costs_one_kernel() -> None:
    shop = Recorded(TABLE, lost=frozenset({0}))
    search_result = tune(shop, jobs=4)
    assert [t.group for t in search_result.trials if isinstance(t.result, FailedTrial)] == [0]
    assert search_result.winner is not None and "SIGSEGV" in str(search_result.trials)


def test_a_kernel_that_is_wrong_does_not_win() -> None:
    right = tune(Recorded(TABLE))
    assert right.winner is not None
    fastest = next(i for i, g in enumerate(TABLE.space.groups) if g.plan == right.winner.kernel.plan)
    search_result = tune(Recorded(TABLE, wrong=frozenset({fastest})))
    assert search_result.winner is not None and search_result.winner.kernel.plan != right.winner.kernel.plan
    assert [f.result.stage for f in search_result.finals if isinstance(f.result, FailedTrial)] == [
        "verification"
    ]


def test_where_all_finalists_are_wrong_the_next_ones_are_asked() -> None:
    order = sorted(range(len(TABLE.space.groups)), key=TABLE.best_of)
    limits = {"builds": len(order), "hopeful": float("inf")}
    shop = Recorded(TABLE, wrong=frozenset({*order[:FINALISTS], 0}))
    search_result = tune(shop, **limits)
    assert search_result.winner is not None and search_result.winner.search == TABLE.best_of(order[FINALISTS])
    nothing = tune(Recorded(TABLE, wrong=frozenset(order)), **limits)
    assert nothing.winner is None and nothing.shrinkage is None and nothing.gain is None
    assert len(nothing.finals) == len(order)


def test_luck_of_the_search_is_reported() -> None:
    search_result = tune(Recorded(TABLE, luck=1.25))
    assert search_result.shrinkage == pytest.approx(1 - 1 / 1.25)


def test_a_budget_of_seconds_ends_the_search() -> None:
    shop = Recorded(TABLE, seconds=50.0)
    search_result = tune(shop, builds=40, seconds=120.0, hopeful=float("inf"))
    assert search_result.stopped == "the budget of 120 s is spent"
    assert (
        len(search_result.trials) == 3 * MOST_IN_UNIT
        and search_result.winner is not None
        and search_result.seconds == 150.0
    )


def test_builds_under_way_at_the_end_are_cancelled() -> None:
    shop = Recorded(TABLE, seconds=200.0, hang=True)
    search_result = tune(shop, seconds=120.0)
    assert shop.cancelled.is_set() and search_result.winner is None and search_result.trials == ()


def test_an_interruption_cancels_builds() -> None:
    shop = Recorded(TABLE)

    def stop(_: Trial) -> None:
        shop.hang = True
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(TABLE.space, shop, "guided", SearchLimits(close=0.0), jobs=2, on_trial=stop)


@pytest.mark.parametrize(("jobs", "builds"), [(1, 8), (2, 8), (4, 8), (16, 8), (2, 40), (3, 1)])
def test_half_of_the_builds_know_of_others_and_few_compilers_take_units(jobs: int, builds: int) -> None:
    shop = Recorded(TABLE)
    search_result = tune(shop, jobs=jobs, builds=builds, hopeful=float("inf"))
    assert len(shop.built) == len(set(shop.built)) and len(search_result.trials) <= builds
    assert max(shop.units) <= min(MOST_IN_UNIT, max(1, -(-builds // 2)))
    if jobs <= 2 and builds == 8:
        assert max(shop.units) == 4 // jobs
    assert search_result.winner is not None
