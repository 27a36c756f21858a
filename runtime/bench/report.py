"""Reports a measurement: every time with its spread, every ratio with its interval, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ucutlass.runtime.bench.clocks import FLOOR_US
from ucutlass.runtime.bench.outcome import Measurement, TimedCandidate, UntimedCandidate
from ucutlass.runtime.bench.protocol import Protocol, comparable, rounds
from ucutlass.runtime.bench.timing_issues import TimingIssue, trusted
from ucutlass.runtime.statistics import MIN_BLOCKS, Ratio, RatioVerdict, TimeSummary, paired_ratio, verdict


@dataclass(frozen=True, slots=True)
class Versus:
    """The candidate against a baseline. `ratio` is the candidate's time over the baseline's, below 1
    where the candidate is the faster; None with `verdict` where `reason` says why. `accepted` of
    `rounds` could be compared."""

    baseline: str
    ratio: Ratio | None
    verdict: RatioVerdict | None
    reason: str
    accepted: int
    rounds: int


def versus(
    candidate: TimedCandidate, baseline: TimedCandidate, chosen: Protocol, power_capped: bool = False
) -> Versus:
    """'faster' or 'slower' only where the interval excludes 1, over the rounds that are `comparable`."""
    pairs = list(zip(rounds(candidate.blocks), rounds(baseline.blocks), strict=True))
    comparable_rounds = [(a, b) for a, b in pairs if comparable(a, b, chosen, power_capped)]

    def without(reason: str) -> Versus:
        return Versus(baseline.name, None, None, reason, len(comparable_rounds), len(pairs))

    for side in (candidate, baseline):
        if not trusted(side.findings):
            wrong = next(f for f in side.findings if f.level == "trust")
            return without(f"{side.name} cannot be trusted: {wrong.name}")
    if len(comparable_rounds) < MIN_BLOCKS:
        clocks = "" if power_capped else f", SM clocks within {chosen.drift:.0%}"
        spread = chosen.capped_spread if power_capped else chosen.spread
        return without(
            f"{len(comparable_rounds)} of {len(pairs)} rounds were comparable (spread within {spread:.0%}"
            f"{clocks}), {MIN_BLOCKS} are needed"
        )
    if max(candidate.span.median, baseline.span.median) < FLOOR_US:
        return without(f"both are below {FLOOR_US:g} us: launch floor, no ratio")
    ours, theirs = ([b.median for pair in comparable_rounds for b in pair[side]] for side in (0, 1))
    ratio = paired_ratio(ours, theirs, chosen.seed)
    return Versus(
        baseline.name, ratio, verdict(ratio, chosen.resolution), "", len(comparable_rounds), len(pairs)
    )


def against_all(measured: Measurement, chosen: Protocol) -> tuple[Versus, ...]:
    """Returns the first outcome against each other one that has a time; nothing where the first has none."""
    if not measured.outcomes or not isinstance(first := measured.outcomes[0], TimedCandidate):
        return ()
    capped = any(f.name == "power-capped" for f in measured.findings)
    return tuple(
        versus(first, o, chosen, capped) for o in measured.outcomes[1:] if isinstance(o, TimedCandidate)
    )


# --- as JSON -------------------------------------------------------------------------


def to_json(
    measured: Measurement, chosen: Protocol, refused: Sequence[UntimedCandidate] = ()
) -> dict[str, Any]:
    """Returns everything, as JSON values, for a record and for another process; `refused` are baselines that
    could not even be made."""
    return {
        "protocol": asdict(chosen),
        "outcomes": [_outcome(o) for o in (*measured.outcomes, *refused)],
        "versus": [asdict(v) for v in against_all(measured, chosen)],
        "rounds": measured.rounds,
        "seconds": measured.seconds,
        "settled": measured.settled,
        "l2_reset": measured.l2_reset,
        "no_profiler": measured.no_profiler,
        "findings": findings_to_json(measured.findings),
    }


def _outcome(outcome: TimedCandidate | UntimedCandidate) -> dict[str, Any]:
    match outcome:
        case UntimedCandidate(name, stage, words, findings):
            return {"name": name, "failed": stage, "words": words, "findings": findings_to_json(findings)}
        case TimedCandidate():
            return {
                "name": outcome.name,
                "clock": outcome.clock,
                "span": _summary(outcome.span),
                "total": _summary(outcome.total),
                "events": _summary(outcome.events),
                "wall": _summary(outcome.wall),
                "kernels": list(outcome.kernels),
                "launches": outcome.launches,
                "blocks": [asdict(b) for b in outcome.blocks],
                "sm_clock": outcome.sm_clock,
                "trusted": trusted(outcome.findings),
                "findings": findings_to_json(outcome.findings),
            }


def _summary(summary: TimeSummary | None) -> dict[str, Any] | None:
    return None if summary is None else asdict(summary)


def findings_to_json(issues: Sequence[TimingIssue]) -> list[dict[str, str]]:
    return [{"name": f.name, "level": f.level, "message": f.message} for f in issues]
