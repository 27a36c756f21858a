"""Names the issues that a measurement can find with its own times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

IssueLevel: TypeAlias = Literal["trust", "note"]
"""`trust`: the time must not be believed. `note`: it may be, read with this in mind."""

LEVELS: dict[str, IssueLevel] = {
    "no-kernel": "trust",
    "names-changed": "trust",
    "off-stream": "trust",
    "escaped": "trust",
    "span-beyond-events": "trust",
    "wall-short": "trust",
    "wrong-output": "trust",
    "beyond-bound": "trust",
    "not-cold": "trust",
    "persisting-l2": "trust",
    "unaudited": "note",
    "branches": "note",
    "direct-launch": "note",
    "capture-differs": "note",
    "launch-overhead": "note",
    "event-gaps": "note",
    "launch-floor": "note",
    "clock-unknown": "note",
    "noisy": "note",
    "throttled": "note",
    "power-capped": "note",
    "no-nvml": "note",
    "unsettled": "note",
}
"""Every finding there is."""


@dataclass(frozen=True, slots=True)
class TimingIssue:
    """`message` has the numbers."""

    name: str
    message: str

    @property
    def level(self) -> IssueLevel:
        return LEVELS[self.name]

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


def trusted(findings: tuple[TimingIssue, ...]) -> bool:
    """Returns whether none of them forbids to believe the time."""
    return all(f.level == "note" for f in findings)
