"""Races: what a few rounds decide, and how often they may decide wrongly."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucutlass.runtime.statistics import race_verdict, sign_evidence
from ucutlass.runtime.timing import MOST_ROUNDS, race


@given(st.integers(0, 60), st.integers(0, 60))
def test_evidence_is_a_fair_bet(wins: int, losses: int) -> None:
    """Its mean after another round is what it is now where a win is as likely as a loss, and less where it is
    less likely: so it ever reaches 20 with a probability of 1 in 20 at most."""
    win, loss = sign_evidence(wins + 1, losses), sign_evidence(wins, losses + 1)
    assert (win + loss) / 2 == pytest.approx(sign_evidence(wins, losses))
    assert win > loss


def test_evidence_begins_at_one_and_grows_with_every_win() -> None:
    assert sign_evidence(0, 0) == 1.0
    assert [sign_evidence(n, 0) >= 20 for n in range(9)] == [False] * 7 + [True] * 2


def _chance_of(verdict: str, winning: Fraction) -> float:
    """The probability of a verdict within MOST_ROUNDS, by all paths of wins and losses."""
    paths: dict[tuple[int, int], Fraction] = {(0, 0): Fraction(1)}
    decided = Fraction(0)
    for _ in range(MOST_ROUNDS):
        after: dict[tuple[int, int], Fraction] = {}
        for (wins, losses), chance in paths.items():
            for state, share in (((wins + 1, losses), winning), ((wins, losses + 1), 1 - winning)):
                after[state] = after.get(state, Fraction(0)) + chance * share
        decided += sum(c for s, c in after.items() if _decision(*s) == verdict)
        paths = {s: c for s, c in after.items() if _decision(*s) == "undecided"}
    return float(decided)


def _decision(wins: int, losses: int) -> str:
    if sign_evidence(wins, losses) >= 20:
        return "faster"
    return "slower" if sign_evidence(losses, wins) >= 20 else "undecided"


@pytest.mark.parametrize("winning", [Fraction(1, 2), Fraction(3, 5), Fraction(9, 10)])
def test_a_kernel_that_is_no_slower_is_rarely_called_slower(winning: Fraction) -> None:
    assert _chance_of("slower", winning) <= 0.05


def test_a_kernel_that_wins_most_rounds_is_mostly_called_faster() -> None:
    assert _chance_of("faster", Fraction(9, 10)) > 0.95


@pytest.mark.parametrize(
    ("times", "verdict", "rounds"),
    [((1.0, 1.1), "faster", 7), ((1.1, 1.0), "slower", 7), ((1.0, 1.0), "undecided", MOST_ROUNDS)],
)
def test_a_race_stops_once_it_is_decided(times: tuple[float, float], verdict: str, rounds: int) -> None:
    plays: list[int] = []

    def play(which: int) -> float:
        plays.append(which)
        return times[which]

    raced = race((print, 1), (print, 1), play=play)
    assert (raced.verdict, raced.rounds) == (verdict, rounds)
    assert raced.ratio == pytest.approx(times[0] / times[1])
    assert plays == [0, 1, 1, 0] * rounds


def test_a_drift_that_is_linear_drops_out() -> None:
    clock = 0

    def play(which: int) -> float:
        nonlocal clock
        clock += 1
        return math.exp(0.01 * clock) * (1.001 if which else 1.0)

    assert race((print, 1), (print, 1), play=play).verdict == "faster"


def test_rounds_without_a_difference_count_for_neither() -> None:
    assert race_verdict([0.0] * 100) == "undecided"
    assert race_verdict([0.0, -0.1] * 7) == "faster"
