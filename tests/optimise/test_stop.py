"""When a session stops, by examples that were computed by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucutlass.agent.budget import NOTHING, Budget, Spend
from ucutlass.agent.stop import SearchStanding, StopRule, idle_attempts, reason

FREE = Budget(None)


def why(
    seconds: Sequence[float | None],
    stop: StopRule,
    bound: float = 0.0,
    baseline: float | None = None,
    budget: Budget = FREE,
    spend: Spend = NOTHING,
) -> str | None:
    return reason(stop, budget, SearchStanding(seconds, bound, baseline, spend))


@pytest.mark.parametrize(
    ("seconds", "idle"),
    [
        ([], 0),
        ([10.0], 0),
        ([10.0, None, None], 2),
        ([10.0, 9.0, 9.5], 1),
        ([10.0, 9.95, 9.94], 2),  # half a per cent is what two readings differ by
        ([10.0, 9.95, 9.89], 2),  # 0.6 % of the best before it; small steps are no progress
        ([10.0, 9.95, 9.84], 0),
        ([None, None, 10.0], 0),
        ([None, None], 2),
    ],
)
def test_attempts_since_the_last_progress(seconds: list[float | None], idle: int) -> None:
    assert idle_attempts(seconds, 0.01) == idle


def test_within_eps_of_the_bound_it_stops() -> None:
    near = StopRule(0.10, None)
    assert why([1.2, 1.11], near, bound=1.0) is None
    assert why([1.2, 1.10], near, bound=1.0) == "the best is within 10% of the bound of 1000000.00 us"
    assert why([1.2, 1.10], near, bound=0.0) is None, "no bound is known"
    assert why([1.2, 1.10], StopRule(None, None), bound=1.0) is None


def test_after_idle_attempts_it_stops() -> None:
    assert why([10.0, 11.0, None], StopRule(None, 3)) is None
    assert why([10.0, 11.0, None, 10.0], StopRule(None, 3)) == "3 attempts brought no more than 1%"


def test_no_rule_speaks_before_something_is_right() -> None:
    """One problem of arXiv 2606.26453 needed 43 failures before its first success."""
    assert why([None] * 60, StopRule(0.05, 12), bound=1.0) is None


def test_no_rule_speaks_before_the_baseline_is_beaten() -> None:
    seconds = [1.05] + [None] * 30
    assert why(seconds, StopRule(0.10, 12), bound=1.0, baseline=1.05) is None
    assert why(seconds, StopRule(0.10, 12), bound=1.0, baseline=1.06) is not None


def test_the_purse_speaks_always() -> None:
    says = why([None], StopRule(None, None), budget=Budget(1), spend=Spend(1))
    assert says == "the budget of 1 attempts is spent"


@given(st.lists(st.none() | st.floats(1.0, 100.0), max_size=30), st.integers(1, 10))
def test_a_rule_that_waits_longer_stops_no_sooner(seconds: list[float | None], patience: int) -> None:
    if why(seconds, StopRule(None, patience + 1)) is not None:
        assert why(seconds, StopRule(None, patience)) is not None


@given(st.lists(st.none() | st.floats(1.0, 100.0), min_size=1, max_size=30), st.floats(0.0, 5.0))
def test_a_rule_that_is_content_with_less_stops_no_later(seconds: list[float | None], eps: float) -> None:
    if why(seconds, StopRule(eps, None), bound=1.0) is not None:
        assert why(seconds, StopRule(eps + 1, None), bound=1.0) is not None
