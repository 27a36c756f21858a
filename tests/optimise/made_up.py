"""A made-up problem: programs are words, a table says what becomes of them, and everything is counted."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from ucutlass.agent.budget import Spend
from ucutlass.agent.journal import JournalEvent
from ucutlass.agent.outcome import (
    FailedOutcome,
    Outcome,
    RefusedOutcome,
    RejectedOutcome,
    TimedOutcome,
    WrongOutcome,
)
from ucutlass.agent.proposer import Answer, OnSpend, ProposerFailed
from ucutlass.agent.run import CandidateEvaluator, CandidateJudgement
from ucutlass.agent.session import LEADS, Ask, Confirm, ProposedProgram, SessionState

UNPLANNED: Any = SimpleNamespace(sizes=(), orders={}, stages=())
"""Stands for a pipeline's plan where nothing is built."""


class Killed(BaseException):
    """Stands for kill -9: nothing catches it."""


@dataclass
class Bench:
    """A program is a number; its outcome is drawn by it, so the same program always has the same."""

    judged: Counter[str] = field(default_factory=Counter)

    def key(self, text: str, source: str = "") -> str | RefusedOutcome:
        return text if text.isdigit() else RefusedOutcome("a program is a number", ("UC0001",))

    def judge(self, text: str, source: str = "") -> CandidateJudgement:
        self.judged[text] += 1
        return CandidateJudgement(outcome_of(int(text)), Spend(gpu_seconds=0.5, seconds=1.0))


@dataclass
class ConfirmingBench(Bench):
    """Its times are readings; a confirmation finds some of them wrong, and others a little slower."""

    confirmed: Counter[str] = field(default_factory=Counter)
    incomplete: bool = False

    def judge(self, text: str, source: str = "") -> CandidateJudgement:
        judged = super().judge(text, source)
        return replace(judged, provisional=isinstance(judged.outcome, TimedOutcome))

    def confirm(self, due: Confirm) -> CandidateJudgement:
        self.confirmed[f"{due.text} {'whole' if due.complete else 'first'}"] += 1
        chance = random.Random(f"confirm {due.text}")
        if due.incumbent and not due.complete and chance.random() < 0.3:
            return CandidateJudgement(due.first, Spend(seconds=1.0), behind=True)
        outcome: Outcome = WrongOutcome("an element of another draw")
        if chance.random() < 0.8 or due.complete:
            seconds = due.first.seconds * chance.uniform(1.0, 1.02)
            outcome = TimedOutcome(seconds, 2.0, records=("r",), first=due.first.seconds)
        incomplete = self.incomplete and not due.complete
        return CandidateJudgement(outcome, Spend(gpu_seconds=1.0, seconds=2.0), incomplete=incomplete)


def judged_in_turn(live: CandidateEvaluator, *texts: str) -> list[CandidateJudgement]:
    """Judges programs one after the other as a session does that confirms at once who would lead."""
    best: float | None = None
    judgements = []
    for text in texts:
        assert isinstance(live.key(text), str)
        judged = live.judge(text)
        first = judged.outcome
        leads = isinstance(first, TimedOutcome) and (best is None or first.seconds <= LEADS * best)
        if judged.provisional and leads:
            assert isinstance(first, TimedOutcome)
            confirmed = live.confirm(Confirm(0, text, first, best))
            judged = replace(confirmed, spend=judged.spend + confirmed.spend)
            if isinstance(judged.outcome, TimedOutcome):
                best = min(judged.outcome.seconds, best or judged.outcome.seconds)
        judgements.append(judged)
    return judgements


def outcome_of(number: int) -> Outcome:
    chance = random.Random(number)
    match chance.randrange(8):
        case 0:
            return FailedOutcome("build", "the compiler refused it")
        case 1:
            return WrongOutcome("element (0, 0)")
        case 2:
            return RejectedOutcome("below-sol", "faster than light")
        case _:
            return TimedOutcome(chance.uniform(1e-5, 1e-4), gain=1.0)


@dataclass
class Proposer:
    """Proposes by chance seeded by the call, as a model's recorded traffic would: asked again, it answers
    the same. `fails` are calls that fail when they are first made, after they have cost something."""

    fails: set[int] = field(default_factory=set)
    asked: Counter[int] = field(default_factory=Counter)
    asks: list[Ask] = field(default_factory=list)

    def propose(self, ask: Ask, state: SessionState, on_spend: OnSpend) -> Answer:
        self.asked[ask.call] += 1
        self.asks.append(ask)
        if ask.call in self.fails:
            self.fails.remove(ask.call)
            on_spend(Spend(input=7))
            raise ProposerFailed("the service is down", "try again later")
        chance = random.Random(f"propose {ask.call}")
        if ask.role in ("plan", "analyse", "nominate", "triage", "summarise"):
            return Answer(note=f"{ask.role} of call {ask.call}", spend=Spend(input=100, output=10))
        kinds = chance.randrange(12)
        programs = [
            ProposedProgram(str(chance.randrange(400)), "by chance") for _ in range(chance.randint(1, 3))
        ]
        if kinds == 0:
            programs = []
        if kinds == 1:
            programs = [ProposedProgram("prose, no program", "")]
        return Answer(programs, spend=Spend(input=100, cached=900, output=50, dollars=0.01))


@dataclass
class Mortal:
    """A journal that dies at some events: before they are written, or right after."""

    events: list[JournalEvent] = field(default_factory=list)
    dies: dict[int, str] = field(default_factory=dict)

    def append(self, session: str, number: int, kind: str, body: Mapping[str, Any]) -> JournalEvent:
        when = self.dies.pop(number, "")
        if when == "before":
            raise Killed
        assert number == len(self.events)
        event = JournalEvent(number, kind, body, "")
        self.events.append(event)
        if when == "after":
            raise Killed
        return event
