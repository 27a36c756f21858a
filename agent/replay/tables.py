"""Searches on recorded tables: a table of measured schedules stands in for compiler, judge and GPU.

The loop, the searches and the proposer are those of a live session (`ucutlass.agent.run`); only the bench
reads a time where a live one measures it.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from ucutlass.agent.budget import Budget
from ucutlass.agent.journal import JournalEvent
from ucutlass.agent.outcome import RefusedOutcome, TimedOutcome
from ucutlass.agent.proposer import Answer, OnSpend
from ucutlass.agent.proposers.schedule_sampling import nominate, nominate_by_distance
from ucutlass.agent.run import CandidateJudgement, OptimizationSession, open_journal_session, run
from ucutlass.agent.search import Name
from ucutlass.agent.session import Ask, Confirm, ProposedProgram, SessionSettings, SessionState
from ucutlass.agent.stop import StopRule
from ucutlass.tune.tables import RecordedTable

CLOSE = 0.95
"""Of the recorded best's speed: what attempts are counted to."""

SEEDS = 20


@dataclass(slots=True)
class MemoryJournal:
    """Holds events in memory, for sessions that need not outlast the process."""

    events: list[JournalEvent] = field(default_factory=list)

    def append(self, session: str, number: int, kind: str, body: Mapping[str, Any]) -> JournalEvent:
        event = JournalEvent(number, kind, body, "")
        self.events.append(event)
        return event


@dataclass(frozen=True, slots=True)
class TableEvaluator:
    """A candidate's text is the number of its group."""

    table: RecordedTable

    def key(self, text: str, source: str = "") -> str | RefusedOutcome:
        return text

    def judge(self, text: str, source: str = "") -> CandidateJudgement:
        return CandidateJudgement(TimedOutcome(self.table.best_of(int(text))))

    def confirm(self, due: Confirm) -> CandidateJudgement:
        return CandidateJudgement(due.first)


Knows: TypeAlias = Literal["ranking", "nothing", "not even the past"]
"""What a proposer knows of a table: the tuner's ranking, or no more than which kernels are neighbours. With
the ranking a search starts at the compiler's choice, without it at a kernel that the seed draws: so the
first says what a session does, the second what the search adds. The last also does not know what was tried:
it proposes again what it proposed, as a model may that sees its parent alone, and each time that costs an
attempt."""


@dataclass(frozen=True, slots=True)
class TableProposer:
    table: RecordedTable
    seed: int
    knows: Knows = "ranking"

    def propose(self, ask: Ask, state: SessionState, on_spend: OnSpend) -> Answer:
        measured: dict[int, float | None] = {int(n.text): n.seconds for n in state.tree.nodes}
        chance = random.Random(f"{self.seed}:{ask.call}:propose")
        parent = int(state.tree[ask.pick.parent].text)
        if self.knows == "not even the past":
            measured = {parent: None}
        draw = nominate if self.knows == "ranking" else nominate_by_distance
        groups = draw(self.table.space, measured, parent, chance, 1)
        programs = [ProposedProgram(str(at), "") for at in groups]
        return Answer(programs, exhausted=not groups)


@dataclass(frozen=True, slots=True)
class SearchTrace:
    """Describes one search on one table. `shares[i]` is the recorded best's time over the best found with i +
    1 candidates, the compiler's own choice the first."""

    shape: str
    search: Name
    seed: int
    shares: tuple[float, ...]

    def to(self, share: float) -> int | None:
        """Returns how many candidates it took until so much of the best was reached; None where it never
        was."""
        return next((i + 1 for i, s in enumerate(self.shares) if s >= share), None)


def recording(
    table: RecordedTable, search: Name, seed: int, knows: Knows = "ranking", attempts: int | None = None
) -> tuple[OptimizationSession, list[JournalEvent]]:
    """Runs a search without stop rules, and returns it with its events: for so many attempts, or until the
    table is empty or nothing is left to go on from."""
    most = len(table.space.groups) - 1
    budget = Budget(most if attempts is None else min(most, attempts))
    settings = SessionSettings(search, "single", budget, StopRule(None, None), seed, 1)
    start, _ = table.space.start
    if knows != "ranking":
        start = random.Random(f"{seed}:start:{table.shape}").randrange(len(table.space.groups))
    journal = MemoryJournal()
    session = open_journal_session(
        journal, {"text": str(start)}, settings, bound=table.space.bound, baseline=None
    )
    run(session, TableProposer(table, seed, knows), TableEvaluator(table))
    return session, journal.events


def course(table: RecordedTable, search: Name, seed: int, knows: Knows = "ranking") -> SearchTrace:
    """Runs a search through all of a table."""
    session, _ = recording(table, search, seed, knows)
    shares = [table.best / s for s in session.state.tree.best_so_far() if s is not None]
    return SearchTrace(table.shape, search, seed, tuple(shares))


@dataclass(frozen=True, slots=True)
class SearchComparison:
    """Describes a search over tables and seeds: candidates to CLOSE of the best, by mean, median, and the
    tenth and ninetieth of a hundred; a course that never came there counts with all of its table."""

    search: Name
    mean: float
    median: float
    low: float
    high: float
    by_seed: tuple[float, ...]
    """The mean over tables, one a seed: what a search's luck amounts to."""


def compare(
    tables: Sequence[RecordedTable],
    searches: Sequence[Name],
    seeds: int = SEEDS,
    knows: Knows = "ranking",
    on_course: Callable[[], None] = lambda: None,
) -> list[SearchComparison]:
    """Runs every search on every table with every seed; `on_course` hears when one is over. Raises ValueError
    without tables."""
    if not tables:
        raise ValueError("there are no tables to search")
    result: list[SearchComparison] = []
    for name in searches:
        rows: list[list[int]] = []
        for seed in range(seeds):
            rows.append([])
            for table in tables:
                rows[-1].append(_count(table, course(table, name, seed, knows)))
                on_course()
        counts = sorted(float(c) for row in rows for c in row)
        result.append(
            SearchComparison(
                name,
                statistics.fmean(counts),
                statistics.median(counts),
                _quantile(counts, 0.1),
                _quantile(counts, 0.9),
                tuple(statistics.fmean(row) for row in rows),
            )
        )
    return result


def _count(table: RecordedTable, trace: SearchTrace) -> int:
    return trace.to(CLOSE) or len(table.space.groups)


def _quantile(values: Sequence[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))]
