"""The types of advice: metrics, edits that can be pasted, findings, and advice rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ucutlass.advice.facts import KernelFacts, Tier
from ucutlass.ir.schedule import PartialSchedule, Value

Bottleneck: TypeAlias = Literal["multiplications", "memory", "latency", "launch"]
"""What limits the time: the multipliers, bytes from memory, neither (too little in flight), or the launch."""

Group: TypeAlias = Literal["legality", "quantisation", "class", "specific", "tie"]

GROUPS: tuple[Group, ...] = ("legality", "quantisation", "class", "specific", "tie")
"""The order in which findings are shown."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One number beside its threshold. `relation` reads value RELATION threshold, as `<` or `>`; a fraction
    has the unit `%` and is shown as a percentage."""

    name: str
    value: float
    unit: str
    relation: Literal["<", ">", "="]
    threshold: float

    def __str__(self) -> str:
        other = _number(self.threshold, self.unit)
        against = "" if self.relation == "=" else f" ({_WORDS[self.relation]} {other})"
        return f"{self.name} {_number(self.value, self.unit)}{against}"


_WORDS = {"<": "below", ">": "above"}


def _number(value: float, unit: str) -> str:
    if unit == "%":
        return f"{value:.0%}"
    text = f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{text} {unit}".rstrip()


@dataclass(frozen=True, slots=True)
class ExpectedRatio:
    """The range of the new time over the old one. `basis` says where it is from."""

    low: float
    high: float
    basis: str

    def __str__(self) -> str:
        return f"{self.low:.2f} to {self.high:.2f} of the time, {self.basis}"


@dataclass(frozen=True, slots=True)
class ScheduleEdit:
    """A legal change of the schedule. `request` fixes every field, `schedule` is its text, ready to paste
    into a block; `changes` are the fields that differ, with their new values (None: the new kernel has no
    such field). `ratio` is the cost model's ratio of the times. `note` says why the planner
    did not choose it itself, or that the program's schedule excludes it; "" where neither needs a word."""

    request: PartialSchedule
    schedule: str
    changes: Mapping[str, Value | None]
    ratio: float
    expected: ExpectedRatio
    note: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule found: its numbers, what they mean, and what to do. `act` is advice in words that no
    schedule can carry out; `tier` is the highest tier that took part."""

    rule: int
    name: str
    tier: Tier
    evidence: tuple[Metric, ...]
    diagnosis: str
    edits: tuple[ScheduleEdit, ...] = ()
    act: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a rule's check returns: a finding without its rule's number and name."""

    tier: Tier
    evidence: tuple[Metric, ...]
    diagnosis: str
    edits: tuple[ScheduleEdit, ...] = ()
    act: str = ""


Check: TypeAlias = Callable[[KernelFacts], Diagnosis | None]


@dataclass(frozen=True, slots=True)
class AdviceRule:
    """An advice rule. `classes` are the bottlenecks that it belongs to; a rule with all four is universal.
    `tiers` are those that can trigger it. A rule without a `check` is decided before any advice, by the
    legality rules whose codes `legality` lists. `source` says where trigger and range come from, and what
    this project's own measurements changed."""

    number: int
    name: str
    group: Group
    tiers: tuple[Tier, ...]
    classes: frozenset[Bottleneck]
    source: str
    check: Check | None
    legality: tuple[str, ...] = ()
