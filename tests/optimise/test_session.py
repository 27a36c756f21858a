"""Sessions: what is due, and that one which dies anywhere goes on as if nothing had been."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.optimise.made_up import Bench, ConfirmingBench, Killed, Mortal, Proposer, outcome_of
from ucutlass.agent import session as session_module
from ucutlass.agent.budget import Budget
from ucutlass.agent.dialogue import DIALOGUES
from ucutlass.agent.outcome import RejectedOutcome, RepeatedOutcome, TimedOutcome, outcome_to_json
from ucutlass.agent.proposer import Answer, ProposerFailed
from ucutlass.agent.run import (
    CandidateJudgement,
    OptimizationSession,
    open_journal_session,
    record_answer,
    run,
)
from ucutlass.agent.search import SEARCHES
from ucutlass.agent.session import (
    Ask,
    Confirm,
    End,
    Judge,
    NotASession,
    SessionSettings,
    SessionState,
    ask_to_json,
    due,
    replay_events,
)
from ucutlass.agent.stop import StopRule

EVERY = [(s, d) for s in SEARCHES for d in DIALOGUES]


def begun(
    sink: Any, search: Any = "epsilon", dialogue: Any = "single", attempts: int = 25
) -> OptimizationSession:
    chosen = SessionSettings(search, dialogue, Budget(attempts), StopRule(None, None), seed=3)
    return open_journal_session(sink, {"text": "5"}, chosen, bound=1e-6, baseline=None, id="s")


def summary(state: SessionState) -> dict[str, Any]:
    return {
        "nodes": [(n.id, n.parent, n.key, n.text, n.outcome) for n in state.tree.nodes],
        "spend": state.spend,
        "notes": state.notes,
        "ended": state.ended,
        "spent": state.tree.spent,
        "provisional": state.tree.provisional,
        "incomplete": state.incomplete,
        "behind": state.behind,
    }


@pytest.mark.parametrize(("search", "dialogue"), EVERY)
def test_a_session_spends_its_attempts_and_no_more(search: str, dialogue: str) -> None:
    session = begun(Mortal(), search, dialogue)
    state = run(session, Proposer(), Bench())
    assert state.spend.attempts == 25 == len(state.tree) - 1
    assert state.ended == "the budget of 25 attempts is spent"
    assert isinstance(due(state), End)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(EVERY),
    st.dictionaries(st.integers(1, 160), st.sampled_from(["before", "after"])),
    st.booleans(),
    st.booleans(),
)
def test_a_session_that_dies_goes_on_as_if_nothing_had_been(
    how: tuple[str, str], dies: dict[int, str], confirms: bool, incomplete: bool
) -> None:
    def evaluator() -> Bench:
        return ConfirmingBench(incomplete=incomplete) if confirms else Bench()

    whole_bench = evaluator()
    whole = run(begun(Mortal(), *how), Proposer(), whole_bench)
    bench, proposer, sink = evaluator(), Proposer(), Mortal(dies=dict(dies))
    session = begun(sink, *how)
    deaths = 0
    while True:
        try:
            state = run(session, proposer, bench)
            break
        except Killed:
            deaths += 1
            session = OptimizationSession("s", sink, replay_events(sink.events))
    assert summary(state) == summary(whole)
    # What a death cut off before it was written is done again; nothing else is.
    assert sum(bench.judged.values()) <= sum(whole_bench.judged.values()) + deaths
    if isinstance(bench, ConfirmingBench) and isinstance(whole_bench, ConfirmingBench):
        assert sum(bench.confirmed.values()) <= sum(whole_bench.confirmed.values()) + deaths
        best = state.tree.best()
        assert best is None or best.id not in state.tree.provisional | state.incomplete
    assert sum(proposer.asked.values()) <= whole.calls + deaths


def test_what_was_spent_before_a_failure_counts_once() -> None:
    sink = Mortal()
    session = begun(sink)
    proposer = Proposer(fails={2})
    with pytest.raises(ProposerFailed):
        run(session, proposer, Bench())
    again = OptimizationSession("s", sink, replay_events(sink.events))
    assert again.state.failures == ["the service is down; to fix it: try again later"]
    asked = due(again.state)
    assert isinstance(asked, Ask) and asked.repeated and asked.call == 2
    state = run(again, proposer, Bench())
    plain = run(begun(Mortal()), Proposer(), Bench())
    assert state.spend.input == plain.spend.input + 7
    assert summary(state)["nodes"] == summary(plain)["nodes"]


def test_an_answer_without_a_program_is_an_attempt_that_failed() -> None:
    session = begun(Mortal())
    run_one(session)
    ask = due(session.state)
    assert isinstance(ask, Ask)
    session.write("asked", **body_of(ask))
    record_answer(session, ask, Answer(note="I would rather talk"))
    assert due(session.state) == Judge(0, 0, 0, "", "the answer held no program")


def test_the_same_program_is_not_judged_twice() -> None:
    class Same(Proposer):
        def propose(self, ask: Ask, state: SessionState, on_spend: Any) -> Answer:
            from ucutlass.agent.session import ProposedProgram

            return Answer([ProposedProgram("5", ""), ProposedProgram("0" + "5", "")])

    bench = Bench()
    state = run(begun(Mortal(), attempts=4), Same(), bench)
    assert bench.judged == {"5": 1, "05": 1}
    assert [type(n.outcome) for n in state.tree.nodes].count(RepeatedOutcome) == 3


def test_a_proposer_with_nothing_left_ends_the_session() -> None:
    class Empty(Proposer):
        def propose(self, ask: Ask, state: SessionState, on_spend: Any) -> Answer:
            return Answer(exhausted=True)

    for search in SEARCHES:
        state = run(begun(Mortal(), search), Empty(), Bench())
        assert state.ended == "no candidate is left to go on from" and len(state.tree) == 1


def test_a_problem_that_the_audit_rejects_is_not_worked_on() -> None:
    class Strict(Bench):
        def judge(self, text: str, source: str = "") -> Any:
            return CandidateJudgement(RejectedOutcome("flawed-problem", "its result is one number"))

    state = run(begun(Mortal()), Proposer(), Strict())
    assert state.ended == "the problem's own program was rejected (flawed-problem): its result is one number"


def test_steps_of_a_dialogue_read_the_notes_of_those_before() -> None:
    proposer = Proposer()
    run(begun(Mortal(), "mantis", "mantis", attempts=9), proposer, Bench())
    opening = [a.role for a in proposer.asks[:4]]
    assert opening == ["analyse", "nominate", "triage", "implement"]
    assert proposer.asks[3].notes == tuple(f"{r} of call {c}" for c, r in enumerate(opening[:3]))
    assert proposer.asks[0].notes == ()


def test_rules_of_a_session_are_kept_with_it() -> None:
    sink = Mortal()
    begun(sink)
    as_kept = json.loads(json.dumps(dict(sink.events[0].body)))
    assert replay_events(sink.events).settings.budget.attempts == 25
    assert as_kept["settings"]["search"] == "epsilon"


def test_events_that_do_not_follow_are_no_session() -> None:
    sink = Mortal()
    run(begun(sink, attempts=3), Proposer(), Bench())
    with pytest.raises(NotASession, match="does not follow"):
        replay_events([sink.events[0], sink.events[2]])


def test_the_made_up_table_has_every_outcome() -> None:
    assert {type(outcome_of(n)).__name__ for n in range(100)} >= {
        "TimedOutcome",
        "WrongOutcome",
        "FailedOutcome",
        "RejectedOutcome",
    }
    assert isinstance(outcome_of(5), TimedOutcome)


def run_one(session: OptimizationSession) -> None:
    """Judges the problem's own program."""

    class Enough(BaseException):
        pass

    def stop(_: SessionState) -> None:
        raise Enough

    with pytest.raises(Enough):
        run(session, Proposer(), Bench(), stop)


def body_of(ask: Ask) -> dict[str, Any]:
    from ucutlass.agent.session import ask_to_json

    return ask_to_json(ask)


def confirming_state(readings: Sequence[float], best: float, **settings: Any) -> SessionState:
    """A session whose own program was confirmed with `best` seconds, and whose candidates have readings."""
    sink = Mortal()
    chosen = SessionSettings("flat", budget=Budget(9), stop=StopRule(None, None), **settings)
    session = open_journal_session(sink, {"text": "0"}, chosen, bound=0.0, baseline=None)
    for at, seconds in enumerate((best, *readings)):
        if at:
            session.write("asked", **ask_to_json(due(session.state)))  # type: ignore[arg-type]
            program = {"text": str(at), "why": ""}
            session.write("answered", call=at - 1, note="", exhausted=False, programs=[program], spend={})
        judge = session.state.pending[0]
        outcome = outcome_to_json(TimedOutcome(seconds, 1.0, 1.0, 1.0, records=() if at else ("a",)))
        session.write(
            "judged",
            call=judge.call,
            index=judge.index,
            key=str(at),
            outcome=outcome,
            spend={"attempts": int(at > 0)},
            provisional=at > 0,
        )
    return session.state


@pytest.mark.parametrize(
    ("reading", "chosen", "at_once"),
    [
        (0.90, {}, True),
        (0.96, {}, False),
        (1.02, {}, False),
        (0.96, {"objective": "energy-tie"}, True),
        (0.96, {"advice": "profiled"}, True),
        (0.96, {"judge": "model"}, True),
    ],
)
def test_a_small_gain_is_confirmed_at_the_search_s_end(
    reading: float, chosen: dict[str, Any], at_once: bool
) -> None:
    state = confirming_state([reading], 1.0, **chosen)
    assert isinstance(due(state), Confirm if at_once else Ask)
    state.settings = replace(state.settings, budget=Budget(1))
    assert isinstance(due(state), Confirm), "whatever ends the search, its leader is confirmed"
    state.settings = replace(state.settings, budget=Budget(9))
    with pytest.MonkeyPatch.context() as patched:
        nowhere = replace(SEARCHES["flat"], search=lambda *_: None)
        patched.setattr(session_module, "SEARCHES", {"flat": nowhere})
        assert isinstance(due(state), Confirm)
