"""This module has the triage of MANTIS (arXiv 2603.29010): hypotheses in the order of their return on
investment, computed from the nominations' numbers, never asked of a model."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ucutlass.agent.proposer import Answer
from ucutlass.agent.proposers.answer import Hypothesis, Nominations, nominations
from ucutlass.agent.search.mantis import HYPOTHESES
from ucutlass.agent.session import SessionState

FAR = 5.0
"""The gap to the bound beyond which ambition is rewarded more than in proportion."""


def roi(hypothesis: Hypothesis, gap: float | None) -> float:
    """Returns S ** (1 + max(0, log10(g / 5))) / (R_impl * R_perf); `gap` is the best time over the bound,
    None where either is not known, which counts as near."""
    power = 1.0 if gap is None or gap <= 0 else 1 + max(0.0, math.log10(gap / FAR))
    return float(hypothesis.speedup**power / (hypothesis.build_risk * hypothesis.speed_risk))


def gap(state: SessionState) -> float | None:
    """Returns the gap of the fastest result so far."""
    best = state.tree.best()
    if best is None or best.seconds is None or state.scale.bound <= 0:
        return None
    return best.seconds / state.scale.bound


def ranked(hypotheses: Sequence[Hypothesis], gap: float | None) -> list[Hypothesis]:
    """Returns the hypotheses, the best first; of equals the earlier."""
    return sorted(hypotheses, key=lambda h: -roi(h, gap))


_MARK = "hypothesis "


def words(nominated: Nominations, gap: float | None) -> str:
    """Returns the note of a triage: what `due_hypothesis` reads again."""
    lines = [f"gap to the bound: {'unknown' if gap is None else f'{gap:.3g}'}"]
    for rank, h in enumerate(ranked(nominated.hypotheses, gap), 1):
        change = " ".join(h.change.split())
        numbers = f"S {h.speedup:g}, R_impl {h.build_risk:g}, R_perf {h.speed_risk:g}"
        lines.append(f"{_MARK}{rank} (ROI {roi(h, gap):.3g}: {numbers}): {change}")
    lines += [f"not read: {' '.join(fault.split())}" for fault in nominated.faults]
    return "\n".join(lines)


def triage_answer(state: SessionState) -> Answer:
    """Returns the answer of the role, for every proposer; costs nothing."""
    nominated = next((n.text for n in reversed(state.notes) if n.role == "nominate"), "")
    return Answer(note=words(nominations(nominated), gap(state)))


def due_hypothesis(triage: str, hypothesis: int) -> str | None:
    """Returns the hypothesis that is due: of each iteration the first is its first ranked, and so on. None
    where the triage has none."""
    lines = [line for line in triage.splitlines() if line.startswith(_MARK)]
    return lines[hypothesis % HYPOTHESES % len(lines)] if lines else None
