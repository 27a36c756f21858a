"""Outcomes: what a journal keeps of them is what comes back."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucutlass.agent.outcome import (
    Failed,
    NotAnOutcome,
    Outcome,
    Refused,
    Rejected,
    Repeated,
    Timed,
    Wrong,
    outcome_of_json,
    outcome_to_json,
    words,
)

TEXT = st.text(max_size=40)
NUMBER = st.floats(1e-9, 1e3)
MAYBE = st.none() | NUMBER
TEXTS = st.lists(TEXT, max_size=3).map(tuple)
OUTCOMES: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Refused, TEXT, TEXTS),
    st.builds(Repeated, st.integers(0, 99)),
    st.builds(Failed, st.sampled_from(["build", "run", "time"]), TEXT),
    st.builds(Wrong, TEXT),
    st.builds(Rejected, TEXT, TEXT, TEXTS),
    st.builds(Timed, NUMBER, MAYBE, MAYBE, MAYBE, MAYBE, TEXTS, TEXT, MAYBE),
)


@given(OUTCOMES)
def test_an_outcome_comes_back_from_json(outcome: Outcome) -> None:
    assert outcome_of_json(json.loads(json.dumps(outcome_to_json(outcome)))) == outcome


def test_an_outcome_of_an_older_journal_is_read() -> None:
    assert outcome_of_json({"kind": "timed", "seconds": 1e-5}) == Timed(1e-5)
    assert outcome_of_json({"kind": "rejected", "verdict": "a", "words": "b"}) == Rejected("a", "b")


@pytest.mark.parametrize(
    "value", [{}, {"kind": "perfect"}, {"kind": "timed"}, {"kind": ["timed"]}, {"kind": "wrong", "why": ""}]
)
def test_what_no_outcome_is_says_so(value: dict[str, object]) -> None:
    with pytest.raises(NotAnOutcome, match="no outcome reads"):
        outcome_of_json(value)


@pytest.mark.parametrize(
    ("outcome", "says"),
    [
        (Refused("no"), "refused: no"),
        (Refused("no", ("UC0403", "UC0405")), "refused UC0403, UC0405: no"),
        (Repeated(3), "the same as candidate 3: not measured again"),
        (Failed("run", "illegal address"), "failed (run): illegal address"),
        (Wrong("out[0]"), "wrong: out[0]"),
        (Rejected("gaming", "constant"), "rejected (gaming): constant"),
        (Timed(1.5e-5), "15.00 us"),
        (Timed(1.5e-5, 1.25), "15.00 us, 1.250 of the baseline's speed"),
    ],
)
def test_what_became_of_it_in_words(outcome: Outcome, says: str) -> None:
    assert words(outcome) == says
