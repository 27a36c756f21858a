"""This module replays stop rules on recorded sessions: what they would have saved, and what they would have
cost.

As arXiv 2603.29010 evaluates its scheduler: a session that ran its whole budget is cut where the rule would
have ended it. Retention is the geometric mean of the speed-ups at the cuts over that of the whole sessions;
savings are in attempts and in tokens; the efficiency gain of a policy is retention over the share of the
tokens that it spent.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ucutlass.agent.budget import NOTHING, Budget, Spend
from ucutlass.agent.journal import JournalEvent
from ucutlass.agent.session import OUTCOMES, SessionState, advance, replay_events
from ucutlass.agent.stop import SearchStanding, StopRule, reason


@dataclass(frozen=True, slots=True)
class RecordedSession:
    """Describes a session that ran on: seconds of each attempt in order, the problem's own program first
    (None: no result), and what had been spent when each was judged. `ended` is why it ended, None where it
    did not."""

    problem: str
    seconds: tuple[float | None, ...]
    spends: tuple[Spend, ...]
    bound: float
    baseline: float | None
    ended: str | None = None


class NothingRecorded(ValueError):
    """Raised where no session has a result to be compared with."""


def recorded_session(problem: str, events: Sequence[JournalEvent]) -> RecordedSession:
    """Returns the recording of a session from its events. Raises NotASession, and NothingRecorded where
    nothing was judged."""
    last = replay_events(events)
    state = SessionState()
    spends: list[Spend] = []
    for event in events:
        advance(state, event)  # a state changes in place: its values are taken as they pass
        if event.kind in OUTCOMES:
            spends.append(state.spend)
    if not spends:
        raise NothingRecorded(f"{problem}: nothing was judged")
    seconds = tuple(n.seconds for n in last.tree.nodes)
    return RecordedSession(problem, seconds, tuple(spends), last.scale.bound, last.scale.baseline, last.ended)


def attempts_until_stop(session: RecordedSession, stop: StopRule) -> int:
    """Returns how many attempts the rule lets a session make, the problem's own program counted."""
    for count in range(1, len(session.seconds)):
        standing = SearchStanding(session.seconds[:count], session.bound, session.baseline, NOTHING)
        if reason(stop, Budget(None), standing) is not None:
            return count
    return len(session.seconds)


@dataclass(frozen=True, slots=True)
class RuleSavings:
    """Describes a rule over sessions. `attempts` and `tokens` are shares saved (tokens None where none were
    spent), `retained` the geometric mean of speed-ups over that of the whole sessions, `least` the least of
    one session, `gain` the efficiency gain in tokens, or in attempts where there were none."""

    stop: StopRule
    sessions: int
    attempts: float
    tokens: float | None
    retained: float
    least: float
    gain: float


def rule_savings(sessions: Sequence[RecordedSession], stop: StopRule) -> RuleSavings:
    """Sessions in which nothing was right are left out of what is retained, and counted in what is saved.
    Raises NothingRecorded where there is none else."""
    cuts = [attempts_until_stop(s, stop) for s in sessions]
    retained_shares = [
        _retained_share(s, c) for s, c in zip(sessions, cuts, strict=True) if _best(s.seconds) is not None
    ]
    if not retained_shares:
        raise NothingRecorded("no session has a result")
    attempts_made, all_made = sum(cuts), sum(len(s.seconds) for s in sessions)
    spent = sum(s.spends[c - 1].tokens for s, c in zip(sessions, cuts, strict=True))
    all_tokens = sum(s.spends[-1].tokens for s in sessions)
    retained = math.exp(statistics.fmean(math.log(k) for k in retained_shares))
    share = spent / all_tokens if all_tokens else attempts_made / all_made
    return RuleSavings(
        stop,
        len(sessions),
        1 - attempts_made / all_made,
        1 - spent / all_tokens if all_tokens else None,
        retained,
        min(retained_shares),
        retained / share,
    )


def _retained_share(session: RecordedSession, attempts: int) -> float:
    """Returns the whole session's best time over that at the cut. A rule never cuts before something is
    right."""
    full_best, there = _best(session.seconds), _best(session.seconds[:attempts])
    assert full_best is not None and there is not None
    return full_best / there


def _best(seconds: Sequence[float | None]) -> float | None:
    return min((s for s in seconds if s is not None), default=None)


EPS = (None, 0.05, 0.10, 0.25, 0.50, 1.00, 2.50)
PATIENCE = (None, 4, 8, 12, 16, 24)
"""The grid of rules; the paper's best points lie at eps 0.25 to 2.50 and patience 12 to 16."""


def grid(sessions: Sequence[RecordedSession]) -> list[RuleSavings]:
    """Returns every rule of the grid, the largest efficiency gain first."""
    rules = [rule_savings(sessions, StopRule(eps, patience)) for eps in EPS for patience in PATIENCE]
    return sorted(rules, key=lambda s: -s.gain)


ENOUGH = 0.95
"""Of the whole sessions' speed-up: what a rule is to retain (arXiv 2603.29010)."""


def best_first(rules: Sequence[RuleSavings]) -> list[RuleSavings]:
    """Returns the rules that retain ENOUGH before all others, then by what they gain: the most efficient rule
    of all is to give up at once."""
    return sorted(rules, key=lambda s: (s.retained < ENOUGH, -s.gain, -s.retained))
