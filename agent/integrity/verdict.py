"""This module says which verdicts an audit gives, and which of several findings decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

AuditVerdict: TypeAlias = Literal[
    "gaming", "flawed-problem", "below-sol", "library-only", "unproven", "minor", "ok"
]

PRECEDENCE: tuple[AuditVerdict, ...] = (
    "gaming",
    "flawed-problem",
    "below-sol",
    "library-only",
    "unproven",
    "minor",
    "ok",
)
"""The worst first; the worst finding names the report.

`gaming` is first: a broken seal or a changed compute type stays one whatever else holds. `flawed-problem`
stands above `below-sol` and `library-only`: where the problem is at fault, the candidate is not
convicted of what follows from it. `unproven` is the absence of a judgement: evidence is missing or
says that the kernel is wrong. It fails, but it outranks only what passes, so that what the other
evidence shows is still said.
"""

ACCEPTED: frozenset[AuditVerdict] = frozenset({"ok", "minor"})


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """Describes one rule's objection. `words` hold the numbers; `records` are the ids of the evidence that it
    rests on, empty where it follows from the program's text."""

    rule: str
    verdict: AuditVerdict
    words: str
    records: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AuditReport:
    """Describes all findings, the worst first. `checked` names the rules that ran."""

    verdict: AuditVerdict
    findings: tuple[AuditFinding, ...]
    checked: tuple[str, ...]

    @property
    def accepted(self) -> bool:
        return self.verdict in ACCEPTED


def report(findings: Sequence[AuditFinding], checked: Sequence[str]) -> AuditReport:
    """Returns the verdict of the worst finding; `ok` where there is none."""
    ordered = sorted(findings, key=lambda f: PRECEDENCE.index(f.verdict))
    verdict: AuditVerdict = ordered[0].verdict if ordered else "ok"
    return AuditReport(verdict, tuple(ordered), tuple(checked))
