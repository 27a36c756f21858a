"""A session as a live one writes it, of a recorded table, with every outcome that there is.

python -m tests.optimise.sample_session JOURNAL
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ucutlass import frontend
from ucutlass.agent.budget import Budget, Spend
from ucutlass.agent.journal import Journal
from ucutlass.agent.outcome import (
    FailedOutcome,
    Outcome,
    RefusedOutcome,
    RejectedOutcome,
    TimedOutcome,
    WrongOutcome,
)
from ucutlass.agent.proposer import Answer, OnSpend, ProposerFailed
from ucutlass.agent.proposers.schedule_sampling import nominate_by_distance
from ucutlass.agent.run import CandidateJudgement, EventSink, OptimizationSession, open_journal_session, run
from ucutlass.agent.session import Ask, ProposedProgram, SessionSettings, SessionState
from ucutlass.agent.stop import StopRule
from ucutlass.ir.hardware import DEVICES
from ucutlass.ir.schedule import show
from ucutlass.sol.bounds import bounds
from ucutlass.sol.report import row
from ucutlass.tune.tables import RecordedTable, read

DATA = Path(__file__).parents[2] / "benchmarks" / "data" / "h200_bf16.json"
SIZES = {"M": 4096, "N": 4096, "K": 4096}
PLAIN = "kernel product(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] {\n  return dot[K](x, w)\n"


@cache
def table(shape: str = "square 4096") -> RecordedTable:
    return next(t for t in read(DATA) if t.shape == shape)


def text_of(made: RecordedTable, group: int) -> str:
    return f"{PLAIN}\n  schedule sm90a {{\n    {show(made.space.groups[group].request)}\n  }}\n}}\n"


@dataclass
class Bench:
    """Reads times from the table; some programs fail, by their number."""

    table: RecordedTable
    by_text: Mapping[str, int]
    best: float = float("inf")

    def key(self, text: str, source: str = "") -> str | RefusedOutcome:
        known = self.by_text.get(text)
        return str(known) if known is not None else RefusedOutcome("it has no program product", ("UC0001",))

    def judge(self, text: str, source: str = "") -> CandidateJudgement:
        at = self.by_text[text]
        return CandidateJudgement(self._outcome(at), Spend(gpu_seconds=1.5 + at % 3, seconds=4.0 + at % 7))

    def _outcome(self, at: int) -> Outcome:
        chance = random.Random(at)
        seconds = self.table.best_of(at)
        match at % 11:
            case 3:
                return FailedOutcome("build", "ptxas: the kernel needs 264 registers a thread of 255")
            case 7:
                return WrongOutcome("out[3, 17] is 0.52, the reference 0.49 +- 0.01")
            case 9:
                return RejectedOutcome("below-sol", "0.9 of the bound: no kernel is that fast", (digest(at),))
        if seconds > 1.03 * self.best:
            return TimedOutcome(seconds)
        self.best = min(self.best, seconds)
        gain = BASELINE / seconds
        advice = "tensor cores wait 12 % of the time for shared memory: try stages 5"
        return TimedOutcome(
            seconds,
            gain,
            gain * 0.985,
            gain * 1.012,
            0.14 * seconds / self.table.best,
            (digest(at), digest(at + 1000)),
            advice,
            seconds * (1 - chance.uniform(0, 0.02)),
        )


BASELINE = 2.4e-4


def digest(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


@dataclass
class Proposer:
    """Neighbours of the parent, with words and tokens as a model would spend them. `fails` is a call that
    fails when it is first made."""

    table: RecordedTable
    numbers: Mapping[str, int]
    fails: set[int] = field(default_factory=lambda: {4})

    def propose(self, ask: Ask, state: SessionState, on_spend: OnSpend) -> Answer:
        chance = random.Random(ask.call)
        if ask.call in self.fails:
            self.fails.remove(ask.call)
            on_spend(Spend(input=800, dollars=0.002))
            raise ProposerFailed("the service answered 529 four times (overloaded)", "resume the session")
        spend = Spend(input=900, cached=11_000, written=400, output=chance.randint(300, 2000), dollars=0.021)
        if ask.role not in ("implement", "code", "debug"):
            return Answer(note=f"{ask.role}: a larger tile along N, then stages to fit", spend=spend)
        if chance.random() < 0.08:
            return Answer([ProposedProgram("Here is why I would rather not.", "")], spend=spend)
        seen = {self.numbers[n.text]: n.seconds for n in state.tree.nodes if n.text in self.numbers}
        parent = self.numbers.get(state.tree[ask.pick.parent].text, 0)
        if chance.random() < 0.08:
            return Answer([ProposedProgram(state.tree[0].text, "the compiler's choice again")], spend=spend)
        numbers = nominate_by_distance(self.table.space, seen, parent, chance, 1)
        why = "fix what broke" if ask.pick.repair else "another tile, since the last wave is half empty"
        programs = [ProposedProgram(text_of(self.table, at), why) for at in numbers]
        return Answer(programs, spend=spend, exhausted=not numbers)


PROBLEM = {"file": "product.ucu", "program": "product", "sizes": SIZES, "arch": "sm90a", "lane": "bf16"}


@cache
def sol() -> dict[str, Any]:
    program = frontend.kernel(frontend.read_text(PLAIN + "}\n"))
    return row(bounds(program, SIZES, DEVICES["H200"]))


def begun(
    sink: EventSink, id: str = "5e551011", **settings: Any
) -> tuple[OptimizationSession, Proposer, Bench]:
    recorded_table = table()
    numbers = {text_of(recorded_table, at): at for at in range(len(recorded_table.space.groups))}
    given = {"search": "epsilon", "dialogue": "stark", "budget": Budget(40, dollars=2.0)} | settings
    chosen = SessionSettings(**given, stop=StopRule(None, None), seed=5)
    start = text_of(recorded_table, 30)
    session = open_journal_session(
        sink, {"text": start, **PROBLEM}, chosen, bound=sol()["seconds"], baseline=BASELINE, id=id, sol=sol()
    )
    return session, Proposer(recorded_table, numbers), Bench(recorded_table, numbers)


def recorded(sink: EventSink, **settings: Any) -> OptimizationSession:
    """A whole session with one failed call."""
    session, proposer, bench = begun(sink, **settings)
    while session.state.ended is None:
        try:
            run(session, proposer, bench)
        except ProposerFailed:
            continue
    return session


if __name__ == "__main__":
    print(recorded(Journal.open(Path(sys.argv[1]))).id)
