"""Energy as a tie-break: speed first, then joules; and a machine that has none says so once."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.optimise.made_up import UNPLANNED, Mortal, judged_in_turn
from tests.optimise.test_evaluator import H200, LINEAR, problem, took
from ucutlass.agent import evaluator as evaluator_module
from ucutlass.agent.budget import Budget
from ucutlass.agent.energy import NOT_MEASURED, EnergyMeter, energy_meter_of
from ucutlass.agent.evaluator import GpuEvaluator
from ucutlass.agent.evidence import ConfirmationSettings
from ucutlass.agent.journal import JournalEvent
from ucutlass.agent.outcome import Outcome, RejectedOutcome, TimedOutcome
from ucutlass.agent.proposer import Answer
from ucutlass.agent.report.facts import facts
from ucutlass.agent.report.page import page
from ucutlass.agent.run import CandidateJudgement, open_journal_session, run
from ucutlass.agent.session import ProposedProgram, SessionSettings, SessionState, replay_events
from ucutlass.agent.stop import StopRule
from ucutlass.agent.tree import CandidateTree, Objective
from ucutlass.assembly import BuiltPipeline
from ucutlass.engine.work import TABLE, EngineTask
from ucutlass.runtime import isolation


def timed(microseconds: float, joules: float | None = None, spread: float = 0.01) -> TimedOutcome:
    gain = 20 / microseconds
    return TimedOutcome(
        microseconds * 1e-6, gain, gain * (1 - spread), gain * (1 + spread), joules, records=("r",)
    )


def best(*outcomes: Outcome, objective: Objective = "energy-tie") -> int | None:
    tree = CandidateTree(objective=objective)
    for at, outcome in enumerate(outcomes):
        tree.add(None if at == 0 else 0, str(at), "", "", outcome)
    found = tree.best()
    return None if found is None else found.id


def test_of_equally_fast_candidates_the_one_with_less_energy_leads() -> None:
    made = timed(10.0, 0.5), timed(10.1, 0.4), timed(10.05, 0.45)
    assert best(*made) == 1
    assert best(*made, objective="time") == 0


@pytest.mark.parametrize(
    "other",
    [
        timed(10.5, 0.1, spread=0.2),  # slower by 5 %, however wide its interval
        timed(10.15, 0.1, spread=0.001),  # 1.5 %, and told apart
        TimedOutcome(1.0e-5, joules=0.1),  # read once: nothing is known of its spread
        timed(10.05),  # no energy
        RejectedOutcome("below-sol", "too fast"),
    ],
)
def test_energy_excuses_no_slower_candidate(other: Outcome) -> None:
    assert best(timed(10.0, 0.5, spread=0.001), other) == 0


def test_a_leader_without_energy_gives_way_to_one_that_has_it() -> None:
    assert best(timed(10.0), timed(10.05, 0.3)) == 1
    assert best(timed(10.0), timed(10.05)) == 0


# --- a session -------------------------------------------------------------------

MADE: Mapping[str, Outcome] = {
    "root": timed(20.0, 0.9),
    "fast": timed(10.0, 0.5),
    "frugal": timed(10.05, 0.4),
    "slow": timed(15, 0.1),
}


@dataclass
class Bench:
    messages: tuple[str, ...] = ()

    def key(self, text: str, source: str = "") -> str:
        return text

    def judge(self, text: str, source: str = "") -> CandidateJudgement:
        return CandidateJudgement(MADE[text], messages=self.messages if text == "fast" else ())


class Proposer:
    def propose(self, ask: Any, state: SessionState, on_spend: Any) -> Answer:
        return Answer([ProposedProgram(name, "") for name in list(MADE)[1:]])


def session(objective: Objective, bench: Bench) -> tuple[SessionState, list[JournalEvent]]:
    sink = Mortal()
    chosen = SessionSettings("flat", budget=Budget(3), stop=StopRule(None, None), objective=objective)
    begun = open_journal_session(
        sink, {"text": "root", "program": "p"}, chosen, bound=1e-6, baseline=None, id="s"
    )
    return run(begun, Proposer(), bench), sink.events


def test_the_objective_is_in_the_journal_and_the_report() -> None:
    state, events = session("energy-tie", Bench())
    assert state.tree[state.tree.best().id].text == "frugal"  # type: ignore[union-attr]
    assert replay_events(events).tree.best() == state.tree.best()
    session_facts = facts("s", events)
    assert session_facts.gain is not None and (session_facts.gain.candidate, session_facts.gain.over) == (
        2,
        1,
    )
    assert session_facts.gain.joules == 0.4
    shown = page(session_facts)
    assert "400 mJ a call" in shown and "takes more energy, so this one leads" in shown
    assert "the one with the least energy of those that are as fast" in shown
    state, events = session("time", Bench())
    session_facts = facts("s", events)
    assert session_facts.gain is not None and (session_facts.gain.candidate, session_facts.gain.over) == (
        1,
        None,
    )
    assert "takes more energy" not in page(session_facts)


def test_a_machine_without_energy_is_said_once_and_in_the_report() -> None:
    words = NOT_MEASURED + "no NVML: no library"
    state, events = session("energy-tie", Bench((words,)))
    assert state.messages == [words] == replay_events(events).messages
    assert page(facts("s", events)).count("no NVML: no library") == 1
    again = energy_meter_of(state, "sm90a", 5.0)
    assert again == EnergyMeter("sm90a", 0, 5.0, "no NVML: no library")
    assert again.joules(None, None) == (None, "")  # type: ignore[arg-type]
    assert energy_meter_of(SessionState(), "sm90a", 5.0) is None


# --- measuring -------------------------------------------------------------------


@dataclass
class Engine:
    answer: Any
    asked: list[str] = field(default_factory=list)

    gpus = cpus = 1

    def submit(self, name: str, arguments: Mapping[str, Any], **more: Any) -> EngineTask:
        assert name in TABLE
        self.asked.append(name)
        answer = took(1e-5) if name == "attempt" else self.answer
        future: Future[isolation.CallOutcome] = Future()
        future.set_result(answer if not isinstance(answer, dict) else isolation.Returned(answer, "", 3.0))
        return EngineTask(future, lambda: None)

    def leave(self, near: str) -> None: ...
    def close(self) -> None: ...


def judged(
    answer: Any, monkeypatch: pytest.MonkeyPatch, *seconds: float
) -> tuple[list[CandidateJudgement], Engine]:
    """Candidates that are confirmed with these times, one after the other."""
    monkeypatch.setattr(evaluator_module, "build_program", lambda *a, **k: BuiltPipeline(UNPLANNED, ()))
    engine, times = Engine(answer), iter(seconds)
    live = GpuEvaluator(
        problem(),
        engine,
        ConfirmationSettings("sm90a", H200, None),
        confirmation=lambda *_: TimedOutcome(next(times), records=("a",)),
        meter=EnergyMeter("sm90a", 0),
    )
    live.advisor.depth = "none"
    tiles = [f"{64 * (at + 1)}x64x64" for at in range(len(seconds))]
    texts = [LINEAR.replace("{ return", f"{{ schedule sm90a {{ tile {tile} }} return") for tile in tiles]
    return judged_in_turn(live, *texts), engine


def test_who_is_as_fast_as_the_best_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    found, engine = judged({"energy": {"joules": 0.25}}, monkeypatch, 1e-5, 1.01e-5, 1.03e-5)
    joules = [one.outcome.joules for one in found if isinstance(one.outcome, TimedOutcome)]
    assert joules == [0.25, 0.25, None]
    assert engine.asked == ["attempt", "energy", "attempt", "energy", "attempt"]
    assert [one.spend.gpu_seconds for one in found] == [6.0, 6.0, 3.0]


def test_a_machine_that_cannot_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = {"no_energy": "NVML has no energy counter for this GPU"}
    found, engine = judged(absent, monkeypatch, 1e-5, 0.9e-5)
    assert engine.asked == ["attempt", "energy", "attempt"]
    assert found[0].messages == (NOT_MEASURED + absent["no_energy"],) and found[1].messages == ()


def test_a_measurement_that_is_lost_costs_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    found, engine = judged(isolation.TimedOut(3.0, ""), monkeypatch, 1e-5, 0.9e-5)
    assert engine.asked.count("energy") == 2 and all(isinstance(one.outcome, TimedOutcome) for one in found)
    assert "did not end within 3 s" in found[0].messages[0]
