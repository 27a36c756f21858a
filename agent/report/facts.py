"""This module turns a session's journal into frozen values: everything that its report shows.

Pure: events in, facts out. Nothing is measured, looked up or guessed here. A journal that says nothing of
the program's work has no roofline, and a winner that was read once has no interval.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from ucutlass.agent.budget import Spend, spend_of_json
from ucutlass.agent.journal import JournalEvent
from ucutlass.agent.outcome import (
    FailedOutcome,
    Outcome,
    RefusedOutcome,
    RejectedOutcome,
    RepeatedOutcome,
    TimedOutcome,
    WrongOutcome,
    words,
)
from ucutlass.agent.report.sanitize import LINES, Excerpt, difference, excerpt, one_line
from ucutlass.agent.session import OUTCOMES, NotASession, SessionState, advance, replay_events
from ucutlass.agent.tree import CandidateNode, Objective, leading
from ucutlass.ir.hardware import device_named
from ucutlass.sol.bounds import compute_rate, data_sheet

Kind: TypeAlias = Literal["confirmed", "read", "wrong", "failed", "refused", "repeated", "rejected"]
"""What became of a candidate: `confirmed` was timed in turns with the baseline and audited, `read` timed
once."""

KINDS: Mapping[Kind, str] = {
    "confirmed": "right, timed against the baseline, audited",
    "read": "right, timed once: not fast enough to be confirmed",
    "wrong": "ran and was wrong",
    "failed": "did not build or run",
    "refused": "refused before it was built",
    "repeated": "the same as one before",
    "rejected": "rejected by the audit",
}


OBJECTIVES: Mapping[Objective, str] = {
    "time": "the fastest",
    "energy-tie": "the one with the least energy of those that are as fast",
}

PAGE, FEWEST = 20_000, 20
"""Lines of all differences together that a page shows, and at least of each: a page stays one that a
browser opens."""


@dataclass(frozen=True, slots=True)
class ReportedCandidate:
    """Describes one node of the tree. `at` is what had been spent when it was judged, `cost` what its own
    judgement took. `share` is the bound's time over its own. `path`: it leads to the winner, or is it."""

    id: int
    parent: int | None
    depth: int
    kind: Kind
    words: str
    why: str
    role: str
    seconds: float | None
    share: float | None
    gain: float | None
    low: float | None
    high: float | None
    joules: float | None
    records: tuple[str, ...]
    advice: str
    opinion: str
    change: Excerpt
    at: Spend
    cost: Spend
    path: bool


@dataclass(frozen=True, slots=True)
class Gain:
    """Describes what the session's winner is worth. `gain` is the baseline's time over its own, between `low`
    and `high` at 95 %: None where it was not timed in turns with the baseline. `over_first` is the time of
    the compiler's own choice over its own, of single readings. `shrinkage` is the share of the speed of the
    search's reading that the confirmation did not find; None where the journal has no reading of each.
    `joules` are of one call; `over` is the fastest candidate where another leads by its energy."""

    candidate: int
    seconds: float
    share: float | None
    gain: float | None
    low: float | None
    high: float | None
    over_first: float | None
    shrinkage: float | None
    joules: float | None
    over: int | None
    readings: int
    """Results that it is the best of."""

    @property
    def sure(self) -> bool:
        """Returns whether it is faster than the baseline at 95 %."""
        return self.low is not None and self.low > 1


@dataclass(frozen=True, slots=True)
class RooflineCeiling:
    """Describes a ceiling of the device: `rate` operations per second, or bytes per second where it
    slopes."""

    name: str
    rate: float
    slopes: bool


@dataclass(frozen=True, slots=True)
class Roofline:
    """`operations` of the compute type `lane` and the compulsory `bytes` of one call, and the device's ceilings."""

    device: str
    lane: str
    operations: float
    bytes: float
    roofs: tuple[RooflineCeiling, ...]

    @property
    def intensity(self) -> float:
        return self.operations / self.bytes


@dataclass(frozen=True, slots=True)
class BudgetLine:
    """Describes one row of the budget. `most` is None where there is no limit."""

    name: str
    spent: float
    most: float | None


@dataclass(frozen=True, slots=True)
class CallFailure:
    """Describes a call to the proposer that ended in an error."""

    call: int
    words: str
    at: str


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """`best[i]` is the least seconds among the first i + 1 candidates. `ended` is None for a session that
    is not over. `calls` are those to the proposer, `lost` those that never got an answer; `messages` are
    what judging had to say of the machine."""

    session: str
    name: str
    file: str
    lane: str
    arch: str
    settings: tuple[tuple[str, str], ...]
    begun: str
    last: str
    ended: str | None
    bound: float
    baseline: float | None
    gain: Gain | None
    roofline: Roofline | None
    candidates: tuple[ReportedCandidate, ...]
    best: tuple[float | None, ...]
    counts: tuple[tuple[Kind, int], ...]
    budget: tuple[BudgetLine, ...]
    spend: Spend
    calls: int
    lost: int
    failures: tuple[CallFailure, ...]
    messages: tuple[str, ...]
    program: Excerpt
    winner: Excerpt | None


def facts(session: str, events: Sequence[JournalEvent]) -> SessionFacts:
    """Returns everything that the events say. Raises NotASession for events that no session wrote, and for
    none."""
    state = replay_events(events)
    if not events:
        raise NotASession("the session has no events")
    opened = events[0].body
    problem: Mapping[str, Any] = opened["problem"]
    candidates = _candidates(events, state)
    file, lane, arch = (one_line(str(problem.get(name, ""))) for name in ("file", "lane", "arch"))
    ended = None if state.ended is None else one_line(state.ended)
    return SessionFacts(
        one_line(session),
        _name(problem),
        file,
        lane,
        arch,
        _settings(state),
        one_line(events[0].at),
        one_line(events[-1].at),
        ended,
        state.scale.bound,
        state.scale.baseline,
        _gain(state),
        _roofline(opened),
        candidates,
        tuple(state.tree.best_so_far()),
        _counts(candidates),
        _budget_lines(state),
        state.spend,
        state.calls,
        int(state.open_ask is not None),
        _failures(events),
        tuple(one_line(w, 600) for w in state.messages),
        excerpt(state.text),
        _winner_text(state),
    )


def winner(state: SessionState) -> CandidateNode | None:
    """Returns the fastest that was confirmed, or by the objective one that is as fast and takes less energy;
    where none was confirmed, the fastest."""
    sure = [n for n in state.tree.leaders(len(state.tree)) if _kind(n.outcome) == "confirmed"]
    return leading(sure[0], sure, state.tree.objective) if sure else state.tree.best()


def _name(problem: Mapping[str, Any]) -> str:
    sizes = problem.get("sizes")
    extents = " ".join(f"{d}={n}" for d, n in sizes.items()) if isinstance(sizes, Mapping) else ""
    return one_line(f"{problem.get('program', 'a program')} {extents}".strip())


def _settings(state: SessionState) -> tuple[tuple[str, str], ...]:
    s, stop = state.settings, state.settings.stop
    near = "never" if stop.eps is None else f"within {stop.eps:.0%} of it"
    idle = "never" if stop.patience is None else f"after {stop.patience} of no more than {stop.progress:.0%}"
    return (
        ("search", s.search),
        ("dialogue", s.dialogue),
        ("seed", str(s.seed)),
        ("the best is", OBJECTIVES[s.objective]),
        ("stops at the bound", near),
        ("stops for idle attempts", idle),
    )


# --- candidates ------------------------------------------------------------------


def _candidates(events: Sequence[JournalEvent], state: SessionState) -> tuple[ReportedCandidate, ...]:
    best = winner(state)
    path = {n.id for n in state.tree.path(best.id)} if best else set()
    roles = {e.body["call"]: e.body["roles"][e.body["step"]] for e in events if e.kind == "asked"}
    after = _after(events)
    lines = max(FEWEST, min(LINES, PAGE // max(1, len(after))))
    depths: list[int] = []
    result: list[ReportedCandidate] = []
    for node, (at, cost, call) in zip(state.tree.nodes, after, strict=True):
        depths.append(0 if node.parent is None else depths[node.parent] + 1)
        role = roles.get(call, "the problem") if call is not None else "the problem"
        result.append(_candidate(state, node, depths[-1], role, at, cost, node.id in path, lines))
    return tuple(result)


def _after(events: Sequence[JournalEvent]) -> list[tuple[Spend, Spend, int | None]]:
    """Returns for each candidate what had been spent once it was judged, what its judgement took, and the
    call that proposed it. States change in place, so values are taken as they pass."""
    state = SessionState()
    result: list[tuple[Spend, Spend, int | None]] = []
    for event in events:
        advance(state, event)
        if event.kind in OUTCOMES:
            result.append((state.spend, spend_of_json(event.body["spend"]), event.body["call"]))
        elif event.kind == "confirmed":
            at, cost, call = result[event.body["node"]]
            result[event.body["node"]] = (at, cost + spend_of_json(event.body["spend"]), call)
    return result


def _candidate(
    state: SessionState,
    node: CandidateNode,
    depth: int,
    role: str,
    at: Spend,
    cost: Spend,
    path: bool,
    lines: int,
) -> ReportedCandidate:
    timed = node.outcome if isinstance(node.outcome, TimedOutcome) else None
    parent = "" if node.parent is None else _told_apart(state.tree[node.parent], node)
    records = node.outcome.records if isinstance(node.outcome, TimedOutcome | RejectedOutcome) else ()
    text = node.source or node.text
    change = difference(parent, text, lines) if parent else excerpt(text, lines)
    return ReportedCandidate(
        node.id,
        node.parent,
        depth,
        _kind(node.outcome),
        one_line(words(node.outcome), 600),
        one_line(_source_words(state, node) + node.why, 400),
        role,
        node.seconds,
        _share(state.scale.bound, node.seconds),
        timed.gain if timed else None,
        timed.low if timed else None,
        timed.high if timed else None,
        timed.joules if timed else None,
        tuple(one_line(r, 80) for r in records),
        one_line(timed.advice, 2000) if timed else "",
        _opinion(state, node),
        change,
        at,
        cost,
        path,
    )


def _source_words(state: SessionState, node: CandidateNode) -> str:
    """Returns that a candidate is a source, and whose program it stands for; "" for a program."""
    return f"a source for the program of candidate {state.tree.stands_for(node.id)}: " if node.source else ""


def _told_apart(parent: CandidateNode, node: CandidateNode) -> str:
    """Returns what a candidate is shown beside: a source beside its parent's, "" where that has none."""
    return parent.source if node.source else parent.text


def _opinion(state: SessionState, node: CandidateNode) -> str:
    """Returns what a model said of it, and that it is no verdict."""
    opinion = state.opinions.get(node.id)
    if opinion is None:
        return ""
    words = f"{opinion.label}: {opinion.words}" if opinion.label else f"no opinion: {opinion.fault}"
    return one_line(f"{opinion.model}, which decides nothing: {words}", 1000)


def _kind(outcome: Outcome) -> Kind:
    match outcome:
        case RefusedOutcome():
            return "refused"
        case RepeatedOutcome():
            return "repeated"
        case FailedOutcome():
            return "failed"
        case WrongOutcome():
            return "wrong"
        case RejectedOutcome():
            return "rejected"
        case TimedOutcome():
            return "read" if outcome.gain is None and not outcome.records else "confirmed"


def _share(bound: float, seconds: float | None) -> float | None:
    return bound / seconds if seconds and bound > 0 else None


def _counts(candidates: Sequence[ReportedCandidate]) -> tuple[tuple[Kind, int], ...]:
    counted = Counter(c.kind for c in candidates)
    return tuple((kind, counted[kind]) for kind in KINDS if counted[kind])


def _winner_text(state: SessionState) -> Excerpt | None:
    best = winner(state)
    if best is None:
        return None
    return excerpt(f"{best.text}\n{best.source}" if best.source else best.text)


# --- what was gained -------------------------------------------------------------


def _gain(state: SessionState) -> Gain | None:
    best = winner(state)
    if best is None or not isinstance(best.outcome, TimedOutcome):
        return None
    outcome, first = best.outcome, state.tree[0].seconds
    shrinkage = None if outcome.first is None else 1 - outcome.first / outcome.seconds
    readings = sum(n.seconds is not None for n in state.tree.nodes)
    return Gain(
        best.id,
        outcome.seconds,
        _share(state.scale.bound, outcome.seconds),
        outcome.gain,
        outcome.low,
        outcome.high,
        first / outcome.seconds if first else None,
        shrinkage,
        outcome.joules,
        _over(state, best),
        readings,
    )


def _over(state: SessionState, best: CandidateNode) -> int | None:
    sure = [n for n in state.tree.leaders(len(state.tree)) if _kind(n.outcome) == "confirmed"]
    return sure[0].id if sure and sure[0].id != best.id else None


# --- the roofline ----------------------------------------------------------------


def _roofline(opened: Mapping[str, Any]) -> Roofline | None:
    """Returns the roofline from the `sol` that a session was opened with, as `ucutlass.sol.report.row` writes
    it; None where there is none, or where the program has no operations of a compute type."""
    sol = opened.get("sol") or opened["problem"].get("sol")
    try:
        lane, moved = str(sol["lane"]), float(sol["work"]["bytes"])
        operations = float(sol["intensity"]) * moved
        device = device_named(str(sol["device"]))
    except (KeyError, TypeError, ValueError):
        return None
    if device is None or not (0 < operations < math.inf and 0 < moved < math.inf):
        return None
    rates = data_sheet(device)
    name, rate = compute_rate(lane, rates.flops)
    roofs = (RooflineCeiling("DRAM", rates.memory, True), RooflineCeiling(name, rate, False))
    return Roofline(device.name, lane, operations, moved, roofs)


# --- what was spent --------------------------------------------------------------


def _budget_lines(state: SessionState) -> tuple[BudgetLine, ...]:
    spend, most = state.spend, state.settings.budget
    return (
        BudgetLine("attempts", spend.attempts, most.attempts),
        BudgetLine("tokens", spend.tokens, most.tokens),
        BudgetLine("dollars", spend.dollars, most.dollars),
        BudgetLine("seconds of GPU", spend.gpu_seconds, most.gpu_seconds),
        BudgetLine("seconds of work", spend.seconds, most.seconds),
    )


def _failures(events: Sequence[JournalEvent]) -> tuple[CallFailure, ...]:
    failed = [e for e in events if e.kind == "failed"]
    return tuple(CallFailure(e.body["call"], one_line(e.body["words"], 600), one_line(e.at)) for e in failed)
