"""This module decides when to end the work on a problem: by its budget, the physics, or no progress.

The rules are those of arXiv 2603.29010: A, the best is within (1 + eps) of the bound and faster than the
baseline; B, it is faster than the baseline and `patience` attempts brought nothing. Neither speaks before
something is right, since a problem may take dozens of failures before its first success (arXiv 2606.26453
names one with 43).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ucutlass.agent.budget import Budget, Spend, exhausted


@dataclass(frozen=True, slots=True)
class StopRule:
    """`eps` is None for no rule A, `patience` for no rule B. An attempt is progress where it is faster
    than the best before it by more than `progress`, a share of the time: less is what two readings of one
    kernel differ by."""

    eps: float | None = 0.05
    patience: int | None = 12
    progress: float = 0.01


@dataclass(frozen=True, slots=True)
class SearchStanding:
    """Holds what rules look at. `seconds` of each attempt in order, None for one that is no result; `bound`
    is the least that any program could take, 0 where none is known; `baseline` what it is to beat."""

    seconds: Sequence[float | None]
    bound: float
    baseline: float | None
    spend: Spend


def reason(stop: StopRule, budget: Budget, at: SearchStanding) -> str | None:
    """Returns why to make no further attempt, in words; None to go on."""
    over = exhausted(budget, at.spend)
    if over is not None:
        return over
    right = [s for s in at.seconds if s is not None]
    if not right:
        return None
    best = min(right)
    if at.baseline is not None and best >= at.baseline:
        return None
    if stop.eps is not None and at.bound > 0 and best <= (1 + stop.eps) * at.bound:
        return f"the best is within {stop.eps:.0%} of the bound of {at.bound * 1e6:.2f} us"
    idle = idle_attempts(at.seconds, stop.progress)
    if stop.patience is not None and idle >= stop.patience:
        return f"{idle} attempts brought no more than {stop.progress:.0%}"
    return None


def idle_attempts(seconds: Sequence[float | None], progress: float) -> int:
    """Returns the number of attempts since the last one that was progress; the first result is."""
    best: float | None = None
    last = -1
    for at, attempt_seconds in enumerate(seconds):
        if attempt_seconds is None:
            continue
        if best is None or attempt_seconds < best * (1 - progress):
            last = at
        best = attempt_seconds if best is None else min(best, attempt_seconds)
    return len(seconds) - 1 - last
