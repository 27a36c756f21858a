"""This module reads typed evidence out of records: it is the one place that knows the fields of `ucc bench`
and `ucc verify`.

A field that is not there, or not of its type, makes the evidence `MissingEvidence`, with words that say what was
looked for: what has no evidence counts as failed. Read are

- of a bench record: `protocol.regime`; `result.outcomes[0]`, the candidate, with `span.median` in
  microseconds, `sm_clock` in Hz or null, and `findings`, or with `failed`, `words` and `findings`; and
  `result.findings` of the whole measurement (`runtime/bench/report.py`);
- of a verify record: `result.ok`, `result.failures`, of every entry of `result.cases` its `name`, `ok`,
  `worst`, `rms`, `varies`, `reference_varies`, `kind`, `distribution` and `sizes`, `outcome` where it has
  one, and of every entry of
  `result.left_out` its `what` (`runtime/verify/evidence.py`);
- of an audit record: `result.verdict`;
- of all: `subject.source`, `subject.binary`, `harness`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ucutlass.agent.integrity.bundle import (
    ArtefactDigests,
    AuditedAncestor,
    BenchEvidence,
    ClockFinding,
    MissingEvidence,
    StoppedBench,
    VerifiedCase,
    VerifyEvidence,
)
from ucutlass.agent.integrity.verdict import PRECEDENCE
from ucutlass.runtime.distributions import MEANINGS
from ucutlass.runtime.evidence import Record


def artefact_of(record: Record) -> ArtefactDigests:
    return ArtefactDigests(record.subject.source, record.subject.binary, record.harness)


def timing_of(record: Record) -> BenchEvidence | StoppedBench | MissingEvidence:
    """Returns what a bench record says of its candidate."""
    match {**record.protocol, **record.result}:
        case {"regime": "cold" | "warm" as regime, "outcomes": [dict(first), *_], "findings": list(general)}:
            pass
        case _:
            return _lacks(record, "a regime, a first outcome and findings")
    match first:
        case {"failed": str(stage), "words": str(words), "findings": list(own)}:
            clock_findings = _clock_findings([*own, *general])
            if clock_findings is not None:
                return StoppedBench(record.id, artefact_of(record), stage, words, clock_findings)
        case {"span": {"median": span}, "sm_clock": clock, "findings": list(own)}:
            clock_findings = _clock_findings([*own, *general])
            if clock_findings is not None and _positive(span) and (clock is None or _positive(clock)):
                return BenchEvidence(
                    record.id, artefact_of(record), span * 1e-6, regime, clock, clock_findings
                )
    return _lacks(record, "a positive span, an SM clock and findings with names")


def proof_of(record: Record) -> VerifyEvidence | MissingEvidence:
    """Returns what a verify record says."""
    match record.result:
        case {"ok": bool(ok), "failures": list(failures), "cases": list(cases)}:
            read = [_case(c) for c in cases]
            readable = [c for c in read if c is not None]
            if len(readable) == len(read) and all(isinstance(f, str) for f in failures):
                untried = _untried(record, cases)
                return VerifyEvidence(
                    record.id, artefact_of(record), ok, tuple(readable), tuple(failures), untried
                )
    return _lacks(record, "a verdict, failures and cases with their errors")


def _untried(record: Record, cases: Sequence[Any]) -> tuple[str, ...]:
    """Returns the distributions that the record's own extents were not verified with, and no reason given: a
    suite that `--distribution` or `--cases` cut short is no proof."""
    named: set[str] = set()
    for case in cases:
        match case:
            case {"kind": "values", "distribution": str(name), "sizes": dict(sizes)}:
                if sizes.items() <= dict(record.subject.sizes).items():
                    named.add(name)
    match record.result:
        case {"left_out": list(left)}:
            named |= {str(omission.get("what")) for omission in left if isinstance(omission, dict)}
    return tuple(name for name in MEANINGS if name not in named)


def ancestor_of(record: Record) -> AuditedAncestor | MissingEvidence:
    """Returns what an audit record says."""
    verdict: Any = record.result.get("verdict")
    if record.kind == "audit" and verdict in PRECEDENCE:
        return AuditedAncestor(record.id, verdict)
    return _lacks(record, "the verdict of an audit")


def _lacks(record: Record, what: str) -> MissingEvidence:
    return MissingEvidence(
        f"the {record.kind} record {record.id[:12]} lacks {what}: it counts as no evidence"
    )


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _clock_findings(entries: Sequence[Any]) -> tuple[ClockFinding, ...] | None:
    result: list[ClockFinding] = []
    for entry in entries:
        match entry:
            case {"name": str(name), "message": str(message)}:
                result.append(ClockFinding(name, message))
            case _:
                return None
    return tuple(result)


def _case(entry: Any) -> VerifiedCase | None:
    match entry:
        case {
            "name": str(name),
            "ok": bool(ok),
            "worst": worst,
            "rms": rms,
            "varies": bool(varies),
            "reference_varies": bool(reference),
        }:
            try:
                largest, mean = _number(worst), _number(rms)
            except ValueError:
                return None
            open_ = ok and entry.get("outcome") == "undecided"
            return VerifiedCase(name, ok, largest or 0.0, mean, varies, reference, open_)
        case _:
            return None


def _number(value: Any) -> float | None:
    """Returns a number as `plain` of runtime/verify/evidence.py writes it, None for null. Raises
    ValueError."""
    match value:
        case None:
            return None
        case "inf":
            return math.inf
        case int() | float() if not isinstance(value, bool):
            return float(value)
        case _:
            raise ValueError(f"{value!r} is no number")
