"""What an audit says, and which of several findings decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal[
    "gaming", "flawed-problem", "below-sol", "library-only", "unproven", "minor", "ok"
]

PRECEDENCE: tuple[Verdict, ...] = (
    "gaming",
    "flawed-problem",
    "below-sol",
    "library-only",
    "unproven",
    "minor",
    "ok",
)
"""The worst first; the worst finding names the report.

`gaming` is first: a broken seal or a changed lane stays one whatever else holds. `flawed-problem`
stands above `below-sol` and `library-only`: where the problem is at fault, the candidate is not
convicted of what follows from it. `unproven` is the absence of a judgement: evidence is missing or
says that the kernel is wrong. It fails, but it outranks only what passes, so that what the other
evidence shows is still said.
"""

ACCEPTED: frozenset[Verdict] = frozenset({"ok", "minor"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule's objection. `words` hold the numbers; `records` are the ids of the evidence that it
    rests on, empty where it follows from the program's text."""

    rule: str
    verdict: Verdict
    words: str
    records: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, the worst first. `checked` names the rules that ran."""

    verdict: Verdict
    findings: tuple[Finding, ...]
    checked: tuple[str, ...]

    @property
    def accepted(self) -> bool:
        return self.verdict in ACCEPTED


def report(findings: Sequence[Finding], checked: Sequence[str]) -> Report:
    """The verdict of the worst finding; `ok` where there is none."""
    ordered = sorted(findings, key=lambda f: PRECEDENCE.index(f.verdict))
    verdict: Verdict = ordered[0].verdict if ordered else "ok"
    return Report(verdict, tuple(ordered), tuple(checked))
