"""This module decides, across problems, where the next attempt promises most."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ucutlass.agent.session import SessionState, leading_reading, stop_reason

UNKNOWN = math.log(2.0)
"""Headroom of a result whose bound is not known."""

NOTHING_YET = math.log(10.0)
"""Headroom of a problem for which nothing is right yet."""


CONFIRMING = 3
"""Urgency of a session whose best is to be confirmed."""


def urgency(state: SessionState) -> int:
    """Returns how urgent a session's next step is among those of a run: what is right is confirmed before the next
    problem's first program is judged, while its processes and references are warm, that before anything is improved,
    and what an ended search leaves to do, such as comparing with compiled baselines, comes last."""
    if not len(state.tree):
        return 2
    best = state.tree.best()
    if best is not None and best.id in state.tree.provisional:
        return CONFIRMING
    return 1 if stop_reason(state) is None or leading_reading(state) is not None else 0


def expected_gain(state: SessionState) -> float:
    """Returns what the next attempt may be expected to gain, as a logarithm of speed: the headroom above the
    bound times the share of attempts that were progress, by the rule of succession, (gains + 1) / (attempts +
    2). Infinite where nothing was judged yet."""
    if not len(state.tree):
        return math.inf
    gains, attempts = progress([n.seconds for n in state.tree.nodes], state.settings.stop.progress)
    return headroom(state) * (gains + 1) / (attempts + 2)


def headroom(state: SessionState) -> float:
    best = state.tree.best()
    if best is None or best.seconds is None:
        return NOTHING_YET
    if state.scale.bound <= 0:
        return UNKNOWN
    return math.log(max(1.0, best.seconds / state.scale.bound))


def progress(seconds: Sequence[float | None], share: float) -> tuple[int, int]:
    """Returns how many attempts after the first were faster than the best before by more than `share`, and
    how many there were."""
    gains, best = 0, seconds[0]
    for attempt_seconds in seconds[1:]:
        if attempt_seconds is not None and (best is None or attempt_seconds < best * (1 - share)):
            gains += 1
        if attempt_seconds is not None:
            best = attempt_seconds if best is None else min(best, attempt_seconds)
    return gains, len(seconds) - 1
