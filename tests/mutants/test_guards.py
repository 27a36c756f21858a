"""The guards of judge, timing and emitter fire, each is needed, and its mutant is noticed."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.mutants import injection, judging, keeping, timing
from tests.mutants.guards import Mutant, Trial, noticed
from ucutlass.diagnostics import ProgramError

Trials = Mapping[str, Trial]

GUARDS = (judging, timing, injection, keeping)
TRIALS = [pytest.param(t, id=n) for m in GUARDS for n, t in m.TRIALS.items()]
MUTANTS = [pytest.param(x, m.TRIALS, id=x.name) for m in GUARDS for x in m.MUTANTS]


@pytest.mark.parametrize("trial", TRIALS)
def test_the_guard_is_right(trial: Trial) -> None:
    assert trial.right()


@pytest.mark.parametrize(("mutant", "trials"), MUTANTS)
def test_a_mutant_is_noticed(mutant: Mutant, trials: Trials) -> None:
    assert noticed(mutant, trials), "the guard that this mutant takes away is not needed"


def test_a_mutant_that_changes_nothing_is_not_noticed() -> None:
    (same,) = (Mutant("same", (), judging.MUTANTS[0].places, lambda original: original, "idle"),)
    assert not noticed(same, judging.TRIALS)


def test_rows_of_timing_and_emitter_have_mutants() -> None:
    assert {33, 48} <= {row for m in timing.MUTANTS for row in m.patterns}
    assert {64} <= {row for m in injection.MUTANTS for row in m.patterns}


@pytest.mark.parametrize("text", ["x; evil", 'x" evil', "x/*", "x$(evil)", "../x", "x\0", "<iostream>"])
def test_what_is_no_name_is_no_program(text: str) -> None:
    with pytest.raises(ProgramError):
        injection.emitted(injection.with_name(text))
