"""Conclusions from sessions: only what was confirmed, and what was purged stays away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ucutlass.agent import memory
from ucutlass.agent.budget import Budget, Spend
from ucutlass.agent.journal import Journal
from ucutlass.agent.outcome import Outcome, RejectedOutcome, TimedOutcome
from ucutlass.agent.proposer import Answer
from ucutlass.agent.run import (
    CandidateJudgement,
    open_journal_session,
    record_answer,
    record_ask,
    record_judgement,
)
from ucutlass.agent.session import Ask, End, Judge, ProposedProgram, SessionSettings, due
from ucutlass.agent.stop import StopRule

PROBLEM = {"text": "a\nb", "program": "linear", "sizes": {"M": 8}, "lane": "bf16"}


def worked(journal: Journal, id: str, outcomes: list[Outcome], **more: Any) -> None:
    """A session by hand: who proposes and who measures need not be in one process."""
    chosen = SessionSettings("flat", budget=Budget(len(outcomes) - 1), stop=StopRule(None, None))
    session = open_journal_session(journal, PROBLEM | more, chosen, bound=0.0, baseline=None, id=id)
    for number, outcome in enumerate(outcomes):
        if number:
            ask = due(session.state)
            assert isinstance(ask, Ask)
            record_ask(session, ask)
            record_answer(
                session, ask, Answer([ProposedProgram(f"a\nschedule {number}", "")], spend=Spend(output=3))
            )
        judge = due(session.state)
        assert isinstance(judge, Judge)
        record_judgement(session, judge, CandidateJudgement(outcome), f"key {number}")
    assert isinstance(due(session.state), End)
    assert session.state.spend.output == 3 * (len(outcomes) - 1)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "sessions.sqlite")


def test_a_confirmed_gain_is_a_conclusion(journal: Journal) -> None:
    worked(journal, "a", [TimedOutcome(2e-5, records=("r0",)), TimedOutcome(1e-5, records=("r1", "r2"))])
    (found,) = memory.conclusions(journal)
    assert found.words == "linear M=8: 2.00 times as fast as the compiler's own choice with: schedule 1"
    assert (found.session, found.records, found.lane) == ("a", ("r1", "r2"), "bf16")
    assert memory.conclusions_for([found], "bf16", "other") == [found]
    assert (
        memory.conclusions_for([found], "f16", "other")
        == memory.conclusions_for([found], "bf16", found.problem)
        == []
    )


@pytest.mark.parametrize(
    "outcomes",
    [
        [TimedOutcome(2e-5, records=("r0",)), TimedOutcome(1e-5)],
        [TimedOutcome(2e-5, records=("r0",)), TimedOutcome(1.99e-5, records=("r1",))],
        [TimedOutcome(2e-5, records=("r0",)), RejectedOutcome("gaming", "too fast")],
    ],
)
def test_nothing_else_is(journal: Journal, outcomes: list[Outcome]) -> None:
    worked(journal, "a", outcomes)
    assert memory.conclusions(journal) == []


def test_what_is_purged_stays_away(journal: Journal) -> None:
    for id, seconds in (("a", 1e-5), ("b", 1.5e-5)):
        worked(journal, id, [TimedOutcome(2e-5, records=("r",)), TimedOutcome(seconds, records=("s",))])
    first, second = memory.conclusions(journal)
    assert (first.session, second.session) == ("a", "b")
    memory.purge(journal, first.id[:8])
    assert memory.conclusions(journal) == [second]
    with pytest.raises(LookupError, match="0 conclusions"):
        memory.purge(journal, first.id)
