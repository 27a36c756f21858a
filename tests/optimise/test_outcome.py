"""Outcomes: what a journal keeps of them is what comes back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucutlass.agent.outcome import (
    FailedOutcome,
    NotAnOutcome,
    Outcome,
    RefusedOutcome,
    RejectedOutcome,
    RepeatedOutcome,
    TimedOutcome,
    WrongOutcome,
    outcome_of_json,
    outcome_to_json,
    words,
)

TEXT = st.text(max_size=40)
NUMBER = st.floats(1e-9, 1e3)
MAYBE = st.none() | NUMBER
TEXTS = st.lists(TEXT, max_size=3).map(tuple)
OUTCOMES: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(RefusedOutcome, TEXT, TEXTS),
    st.builds(RepeatedOutcome, st.integers(0, 99)),
    st.builds(FailedOutcome, st.sampled_from(["build", "run", "time"]), TEXT),
    st.builds(WrongOutcome, TEXT),
    st.builds(RejectedOutcome, TEXT, TEXT, TEXTS),
    st.builds(TimedOutcome, NUMBER, MAYBE, MAYBE, MAYBE, MAYBE, TEXTS, TEXT, MAYBE),
)


@given(OUTCOMES)
def test_an_outcome_comes_back_from_json(outcome: Outcome) -> None:
    assert outcome_of_json(json.loads(json.dumps(outcome_to_json(outcome)))) == outcome


def test_an_outcome_of_an_older_journal_is_read() -> None:
    assert outcome_of_json({"kind": "timed", "seconds": 1e-5}) == TimedOutcome(1e-5)
    assert outcome_of_json({"kind": "rejected", "verdict": "a", "words": "b"}) == RejectedOutcome("a", "b")


@pytest.mark.parametrize(
    "value", [{}, {"kind": "perfect"}, {"kind": "timed"}, {"kind": ["timed"]}, {"kind": "wrong", "why": ""}]
)
def test_what_no_outcome_is_says_so(value: dict[str, object]) -> None:
    with pytest.raises(NotAnOutcome, match="no outcome reads"):
        outcome_of_json(value)


@pytest.mark.parametrize(
    ("outcome", "says"),
    [
        (RefusedOutcome("no"), "refused: no"),
        (RefusedOutcome("no", ("UC0403", "UC0405")), "refused UC0403, UC0405: no"),
        (RepeatedOutcome(3), "the same as candidate 3: not measured again"),
        (FailedOutcome("run", "illegal address"), "failed (run): illegal address"),
        (WrongOutcome("out[0]"), "wrong: out[0]"),
        (RejectedOutcome("gaming", "constant"), "rejected (gaming): constant"),
        (TimedOutcome(1.5e-5), "15.00 us"),
        (TimedOutcome(1.5e-5, 1.25), "15.00 us, 1.250 of the baseline's speed"),
    ],
)
def test_what_became_of_it_in_words(outcome: Outcome, says: str) -> None:
    assert words(outcome) == says
