"""Programs that a proposer has measured while it is asked: candidates as any other, each judged once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.optimise.made_up import Bench, Killed, Mortal
from tests.optimise.proposers import talking
from tests.optimise.proposers.conftest import nothing_leaves  # noqa: F401
from tests.optimise.proposers.messages_api import KEY, calls, says, serving
from tests.optimise.proposers.talking import BETTER, PROGRAM, SIZES, block
from ucutlass.agent.budget import Budget
from ucutlass.agent.outcome import RefusedOutcome, RepeatedOutcome, TimedOutcome
from ucutlass.agent.proposer import Answer, Measure, Measuring, OnSpend
from ucutlass.agent.proposers.anthropic import open_service
from ucutlass.agent.proposers.conversation import ModelProposer, ModelSettings
from ucutlass.agent.proposers.problem_facts import subject_of
from ucutlass.agent.run import OptimizationSession, measurer, open_journal_session, run
from ucutlass.agent.session import Ask, ProposedProgram, SessionSettings, SessionState, replay_events
from ucutlass.agent.stop import StopRule
from ucutlass.frontend import read_text

OF_ALL_KINDS = ("11", "12", "prose", "13")
"""Programs that the made-up bench times, and one that it refuses."""


@dataclass
class Measures:
    """Has programs measured and answers with the first of them."""

    programs: Sequence[str] = OF_ALL_KINDS
    measure: Measure | None = None
    told: list[str] = field(default_factory=list)

    def measuring(self, measure: Measure) -> Measures:
        self.measure = measure
        return self

    def propose(self, ask: Ask, state: SessionState, on_spend: OnSpend) -> Answer:
        assert self.measure is not None
        if ask.call:
            return Answer(exhausted=True)
        self.told += [self.measure(text) for text in self.programs]
        return Answer([ProposedProgram(self.programs[0], "the best of them")], exhausted=True)


def worked(session: OptimizationSession, proposer: Measures, bench: Bench) -> SessionState:
    assert isinstance(proposer, Measuring)
    return run(session, proposer.measuring(measurer(session, bench)), bench)


def begun(sink: Any, attempts: int = 30) -> OptimizationSession:
    chosen = SessionSettings("flat", "single", Budget(attempts), StopRule(None, None))
    return open_journal_session(sink, {"text": "5"}, chosen, bound=1e-6, baseline=None, id="s")


def test_each_is_an_attempt_of_the_session_and_the_answer_no_other() -> None:
    session, proposer, bench = begun(Mortal()), Measures(), Bench()
    state = worked(session, proposer, bench)
    own, *made = state.tree.nodes
    assert [n.text for n in made] == [*OF_ALL_KINDS, "11"]
    assert {n.parent for n in made} == {own.id}
    assert isinstance(made[2].outcome, RefusedOutcome) and made[4].outcome == RepeatedOutcome(made[0].id)
    assert state.spend.attempts == len(OF_ALL_KINDS)
    assert state.spend.gpu_seconds == 0.5 * sum(bench.judged.values()) == 0.5 * 4
    assert proposer.told[0].startswith("candidate 1: ") and "refused UC0001" in proposer.told[2]


def test_a_budget_that_is_spent_measures_nothing() -> None:
    proposer = Measures()
    state = worked(begun(Mortal(), attempts=2), proposer, Bench())
    assert state.spend.attempts == 2 and len(proposer.told) == 4
    assert proposer.told[2] == "not measured: the budget of 2 attempts is spent; give your answer"


@pytest.mark.parametrize("at", range(1, 9))
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_death_amid_a_call_has_nothing_judged_or_counted_twice(at: int, when: str) -> None:
    whole = worked(begun(Mortal()), Measures(), Bench())
    sink, bench = Mortal(dies={at: when}), Bench()
    session, deaths = begun(sink), 0
    while True:
        try:
            state = worked(session, Measures(), bench)
            break
        except Killed:
            deaths += 1
            session = OptimizationSession("s", sink, replay_events(sink.events))
    assert deaths == 1 or at >= len(sink.events)
    assert state.spend == whole.spend and state.tree.nodes == whole.tree.nodes
    assert sum(bench.judged.values()) <= 4 + deaths


def test_a_model_calls_it_as_a_tool() -> None:
    subject = subject_of(read_text(PROGRAM, "problem"), None, SIZES, "sm90a", "H200")
    other = BETTER.replace("128x256", "256x128")
    scripts = (says(calls("measure", {"program": BETTER})), says(block(BETTER)), says(block(other)))
    with serving(*scripts) as server:
        model_proposer = ModelProposer(subject, open_service(KEY, base_url=server.url), ModelSettings())
        chosen = SessionSettings("flat", "single", Budget(2), StopRule(None, None))
        session = open_journal_session(Mortal(), {"text": PROGRAM}, chosen, bound=1e-6, baseline=None, id="s")
        bench = talking.Bench()
        state = run(session, model_proposer.measuring(measurer(session, bench)), bench)
    assert [t["name"] for t in server.requests[0]["tools"]][-1] == "measure"
    said = server.requests[1]["messages"][2]["content"][0]["content"][0]["text"]
    assert "output of measure" in said and "candidate 1: " in said
    assert isinstance(state.tree[1].outcome, TimedOutcome) and state.tree[2].outcome == RepeatedOutcome(1)
    assert state.spend.attempts == 2 and len(state.tree) == 4 and state.spend.output > 0
