"""What is spent adds up, and which limit is reached."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucutlass.agent.budget import NOTHING, Budget, Spend, exhausted, spend_of_json, to_json

WHOLE = st.integers(0, 10**9)
# Eighths add up exactly, in any order.
PART = st.integers(0, 10**6).map(lambda n: n / 8)
SPENDS = st.builds(Spend, WHOLE, WHOLE, WHOLE, WHOLE, WHOLE, PART, PART, PART)


@given(SPENDS, SPENDS, SPENDS)
def test_spends_add_up_in_any_order(a: Spend, b: Spend, c: Spend) -> None:
    assert a + b + c == c + (a + b)
    assert a + NOTHING == a
    assert (a + b).tokens == a.tokens + b.tokens


@given(SPENDS)
def test_a_spend_comes_back_from_json(spend: Spend) -> None:
    assert spend_of_json(json.loads(json.dumps(to_json(spend)))) == spend


def test_every_field_of_a_spend_is_added() -> None:
    one = Spend(1, 2, 3, 4, 5, 6.0, 7.0, 8.0)
    assert one + one == Spend(2, 4, 6, 8, 10, 12.0, 14.0, 16.0)
    assert one.tokens == 2 + 3 + 4 + 5


def test_another_field_is_no_spend() -> None:
    with pytest.raises(TypeError):
        spend_of_json({"attempts": 1, "favours": 2})


@pytest.mark.parametrize(
    ("budget", "spend", "says"),
    [
        (Budget(), Spend(39), None),
        (Budget(), Spend(40), "the budget of 40 attempts is spent"),
        (Budget(None, tokens=100), Spend(input=50, cached=30, written=10, output=9), None),
        (
            Budget(None, tokens=100),
            Spend(input=50, cached=30, written=10, output=10),
            "the budget of 100 tokens is spent",
        ),
        (Budget(None, dollars=0.5), Spend(dollars=0.51), "the budget of 0.5 dollars is spent"),
        (Budget(None, gpu_seconds=3.0), Spend(gpu_seconds=3.0), "the budget of 3 seconds of GPU is spent"),
        (Budget(None, seconds=60.0), Spend(seconds=61.0), "the budget of 60 seconds is spent"),
        (Budget(None), Spend(10**9, 10**9, 0, 0, 0, 1e9, 1e9, 1e9), None),
        (Budget(0), NOTHING, "the budget of 0 attempts is spent"),
    ],
)
def test_which_limit_is_reached(budget: Budget, spend: Spend, says: str | None) -> None:
    assert exhausted(budget, spend) == says
