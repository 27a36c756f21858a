"""Where the seconds of a session's steps go: measured where they are spent, and adding up to the wall time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from click.testing import CliRunner

from tests.optimise.made_up import Mortal
from tests.optimise.test_evaluator import Engine
from ucutlass import spans
from ucutlass.agent.budget import Budget, Spend
from ucutlass.agent.gpu_calls import GpuCalls
from ucutlass.agent.integrity import gather
from ucutlass.agent.integrity.bundle import MissingEvidence
from ucutlass.agent.journal import Journal, JournalEvent
from ucutlass.agent.outcome import Outcome, RefusedOutcome, TimedOutcome
from ucutlass.agent.proposer import Answer
from ucutlass.agent.run import CandidateJudgement, measurer, open_journal_session, run
from ucutlass.agent.session import ProposedProgram, SessionSettings, replay_events
from ucutlass.agent.step_time import OTHER, SessionTime, StepTime, session_time, step_time_of_json, timed_step
from ucutlass.agent.stop import StopRule
from ucutlass.cli import session_times
from ucutlass.cli.sessions import command
from ucutlass.runtime import isolation
from ucutlass.runtime.isolation import STARTS


@dataclass
class Clock:
    """Stands still but where it is told to go on."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def spend(self, name: str, seconds: float) -> None:
        with spans.span(name):
            self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(spans, "clock", made)
    return made


@dataclass
class Bench:
    """Spends 1 s on checking a program, then 10 s on it, of which it waits 4."""

    clock: Clock
    outcomes: Mapping[str, Outcome] = field(default_factory=dict)

    def key(self, text: str, source: str = "") -> str:
        self.clock.spend("front end", 1.0)
        return text

    def judge(self, text: str, source: str = "") -> CandidateJudgement:
        with spans.span("build"):
            self.clock.now += 2.0
            self.clock.spend("cache look-up", 0.5)
        spans.add({"timing": 3.0, "waiting": 4.0})
        self.clock.now += 7.5
        return CandidateJudgement(self.outcomes.get(text, TimedOutcome(1e-5)), Spend(seconds=6.0))


@dataclass
class Proposer:
    clock: Clock
    measure: Any = None

    def propose(self, ask: Any, state: Any, on_spend: Any) -> Answer:
        self.clock.now += 2.0
        if self.measure is not None:
            self.measure(f"measured {ask.call}")
        return Answer([ProposedProgram(f"program {ask.call}", "")])


def worked(sink: Any, clock: Clock, measures: bool = False, **more: Any) -> list[JournalEvent]:
    settings = SessionSettings("flat", budget=Budget(2, **more), stop=StopRule(None, None))
    with timed_step() as opening:
        clock.spend("problem", 5.0)
        clock.now += 1.0
    session = open_journal_session(
        sink, {"text": "own"}, settings, bound=0.0, baseline=None, id="s", time=opening.time()
    )
    bench = Bench(clock, {"own": TimedOutcome(2e-5, 1.0, 0.9, 1.1, records=("r",))})
    proposer = Proposer(clock, measurer(session, bench) if measures else None)
    run(session, proposer, bench)
    return list(sink.events) if isinstance(sink, Mortal) else sink.events("s")


def test_parts_and_the_rest_add_up_to_the_wall_time(clock: Clock) -> None:
    time = session_time(worked(Mortal(), clock))
    assert [step.what for step in time.steps] == [
        "opening",
        "candidate 0",
        "call 0",
        "candidate 1",
        "call 1",
        "candidate 2",
    ]
    for step in time.steps:
        assert step.time is not None
        assert sum(step.time.parts.values()) + step.time.other == pytest.approx(step.time.wall)
    own = time.steps[1].time
    assert own is not None and own.wall == pytest.approx(11.0) and own.other == pytest.approx(0.5)
    assert own.parts == {"check": 1.0, "build": 2.5, "waiting": 4.0, "timing": 3.0}
    assert time.total.wall == pytest.approx(clock.now) == pytest.approx(6 + 3 * 11 + 2 * 2)
    assert time.total.parts["problem"] == 5.0 and time.total.parts["proposer"] == 4.0
    assert (time.first, time.confirmed) == (pytest.approx(17.0), pytest.approx(17.0))
    assert time.attempts == (pytest.approx(30.0), pytest.approx(43.0)), "the problem's own program is none"


def test_a_step_counts_what_its_process_took_to_start(clock: Clock) -> None:
    with timed_step(before=2.0) as step:
        clock.spend("problem", 5.0)
    assert step.time() == StepTime(7.0, {"problem": 5.0, STARTS: 2.0})


def test_a_run_prints_how_long_its_problems_took() -> None:
    times = [SessionTime((), first, 2 * first, tuple(range(n))) for first, n in ((3.0, 41), (5.0, 12))]
    rows = session_times.reached_rows([*times, SessionTime((), None, None)])
    assert rows == [
        ("first time", "2 of 3", "4.000", "5.000"),
        ("confirmed", "2 of 3", "8.000", "10.000"),
        ("40 attempts", "1 of 3", "39.000", "39.000"),
    ]
    assert session_times.reached_rows([SessionTime((), None, None)])[0] == ("first time", "0 of 1", "-", "-")


def test_seconds_are_those_by_the_clock_without_waiting(clock: Clock) -> None:
    spent = replay_events(worked(Mortal(), clock)).spend.seconds
    assert spent == pytest.approx(clock.now - 3 * 4)


def test_a_budget_of_seconds_counts_all_steps(clock: Clock) -> None:
    # 6 s to open it, 7 s for the problem's own program: an answer and a candidate more reach 20.
    state = replay_events(worked(Mortal(), clock, seconds=20.0))
    assert state.ended == "the budget of 20 seconds is spent" and len(state.tree) == 2


def test_a_candidate_that_is_measured_while_a_proposer_answers_counts_once(clock: Clock) -> None:
    time = session_time(worked(Mortal(), clock, measures=True))
    assert time.total.wall == pytest.approx(clock.now)
    call = next(step.time for step in time.steps if step.what == "call 0")
    assert call is not None and call.wall == pytest.approx(2.0) == call.parts["proposer"]


def test_what_another_process_measured_is_added(clock: Clock) -> None:
    engine = Engine([isolation.Returned({}, "", 2.0, parts={"launch": 0.5, "process starts": 1.0})])
    with timed_step() as step:
        GpuCalls(engine, "x", 1.0).call("attempt", {}, limit=1.0)
        clock.now += 2.0
    time = step.time()
    assert time.parts == {"process starts": 1.0, "waiting": 0.0, "launch": 0.5} and time.other == 0.5


@pytest.mark.parametrize(
    "value", [None, 3, {}, {"wall": "1", "parts": {}}, {"wall": float("nan"), "parts": {}}, {"wall": 1.0}]
)
def test_what_is_no_time_is_none(value: Any) -> None:
    assert step_time_of_json(value) is None


def test_a_journal_without_times_is_read_as_before(clock: Clock) -> None:
    events = worked(Mortal(), clock)
    old = [
        JournalEvent(e.number, e.kind, {k: v for k, v in e.body.items() if k != "time"}, e.at) for e in events
    ]
    assert replay_events(old).tree.nodes == replay_events(events).tree.nodes
    time = session_time(old)
    assert time == SessionTime(
        tuple(step.__class__(step.what, step.outcome, None) for step in time.steps), None, None
    )
    assert len(time.steps) == 6 and time.total == StepTime(0.0)


def test_the_command_prints_parts_and_steps(clock: Clock, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.sqlite")
    worked(journal, clock)
    shown = CliRunner().invoke(command, ["--time", "s", "--journal", str(journal.path)])
    rows = [line.split("\t") for line in shown.stdout.splitlines()]
    assert shown.exit_code == 0
    parts = {row[0]: float(row[1]) for row in rows[1 : [r[0] for r in rows].index("wall") + 1]}
    assert sum(parts.values()) - parts["wall"] == pytest.approx(parts["wall"]) == pytest.approx(43.0)
    candidate = next(row for row in rows if row[0] == "candidate 0")
    assert candidate[1] == "11.000" and candidate[-1].startswith("20.00 us")
    told = json.loads(
        CliRunner().invoke(command, ["--time", "s", "--json", "--journal", str(journal.path)]).stdout
    )
    assert told["total"]["wall"] == pytest.approx(43.0)
    assert told["total"]["wall"] == pytest.approx(sum(told["total"]["parts"].values()) + told["total"][OTHER])
    assert told["problems"][""]["first"] == pytest.approx(17.0)
    unknown = CliRunner().invoke(command, ["--time", "zz", "--journal", str(journal.path)])
    assert unknown.exit_code == 2 and "starts with 'zz': `ucc sessions` lists" in unknown.stderr


def test_a_refusal_takes_time_too(clock: Clock) -> None:
    class Refusing(Bench):
        def key(self, text: str, source: str = "") -> Any:
            self.clock.spend("planning", 1.0)
            return RefusedOutcome("no") if text != "own" else text

    sink = Mortal()
    session = open_journal_session(
        sink, {"text": "own"}, SessionSettings("flat", budget=Budget(1)), bound=0.0, baseline=None
    )
    run(session, Proposer(clock), Refusing(clock))
    last = session_time(sink.events).steps[-1]
    assert last.time == StepTime(1.0, {"check": 1.0}) and last.outcome == "refused: no"


@pytest.mark.parametrize(("begins", "share"), [(True, 0.5), (False, 1.0)])
def test_a_probe_that_waits_for_the_gpu_says_so(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, begins: bool, share: float
) -> None:
    """Of the 10 s of a probe 8 are a wait; one that began 5 s before a step needs it has half of that there."""
    half, needed = Event(), Event()

    def probed(*_: Any) -> MissingEvidence:
        clock.now += 5.0
        half.set()
        assert needed.wait(60)
        clock.now += 5.0
        spans.add({"waiting": 8.0})
        return MissingEvidence("nobody was asked")

    monkeypatch.setattr(gather, "probe_reference", probed)
    task = gather.ProbeTask(None, 0, begins=begins)  # type: ignore[arg-type]
    if begins:
        assert half.wait(60)
        monkeypatch.setattr(task, "_ask", lambda ask=task._ask: (needed.set(), ask()))
    else:
        needed.set()
    with timed_step() as step, spans.span("reference"):
        assert task.result() == MissingEvidence("nobody was asked")
    with timed_step() as again:
        task.result()
    assert again.time().wall == 0.0
    parts = step.time().parts
    assert parts["waiting"] == pytest.approx(8.0 * share)
    assert parts["reference"] == pytest.approx(2.0 * share)
