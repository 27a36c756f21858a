"""Selects advice from facts: the class, every rule that applies to it, and at most three findings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any

from ucutlass.advice.classify import Classification, classify
from ucutlass.advice.considered import explained
from ucutlass.advice.facts import KernelFacts, Tier
from ucutlass.advice.finding import GROUPS, AdviceRule, Finding, ScheduleEdit
from ucutlass.advice.rules import BY_NUMBER, NEAR, RULES
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.sol import SpeedOfLight

MOST_FINDINGS = 3


@dataclass(frozen=True, slots=True)
class HitRate:
    """How often a rule's edit made a kernel faster, out of the times that it was tried on a device."""

    tried: int
    faster: int

    def __str__(self) -> str:
        return f"{self.faster} of {self.tried} tries were faster" if self.tried else "no record yet"


NO_RECORD = HitRate(0, 0)


@dataclass(frozen=True, slots=True)
class Advice:
    """`findings` are in reading order; `tiers` are those that have facts. `rates` has the hit rate of each
    shown rule."""

    classified: Classification
    bound: SpeedOfLight
    seconds: float
    findings: tuple[Finding, ...]
    tiers: tuple[Tier, ...]
    rates: Mapping[int, HitRate]


def advise(facts: KernelFacts, rates: Mapping[int, HitRate] | None = None) -> Advice:
    """Runs every rule of the kernel's class; the result is deterministic. `rates` are the ledger's hit rates
    by rule."""
    classification = classify(facts, facts.bound)
    known_rates = rates or {}
    distinct = leading_findings(facts, classification, known_rates)
    noted = iter(explained(facts, [edit for f in distinct for edit in f.edits]))
    shown = tuple(replace(f, edits=tuple(islice(noted, len(f.edits)))) for f in distinct)
    shown_rates = {f.rule: known_rates.get(f.rule, NO_RECORD) for f in shown}
    return Advice(classification, facts.bound, facts.seconds, shown, facts.tiers(), shown_rates)


def leading_findings(
    facts: KernelFacts, classification: Classification, rates: Mapping[int, HitRate]
) -> tuple[Finding, ...]:
    """Returns the findings that are shown, the first first, without notes on their edits."""
    ranked_findings = [
        (rule, f)
        for rule in RULES
        if classification.bottleneck in rule.classes and (f := finding(rule, facts))
    ]
    if not any(f.edits for _, f in ranked_findings) and (near := finding(NEAR, facts)):
        ranked_findings.append((NEAR, near))
    ranked = sorted(ranked_findings, key=lambda pair: _rank(pair[0], pair[1], rates))
    return _distinct(f for _, f in ranked)[:MOST_FINDINGS]


def finding(rule: AdviceRule, facts: KernelFacts) -> Finding | None:
    """Returns what one rule finds for a kernel, whatever its class."""
    verdict = rule.check(facts) if rule.check else None
    if verdict is None:
        return None
    return Finding(
        rule.number, rule.name, verdict.tier, verdict.evidence, verdict.diagnosis, verdict.edits, verdict.act
    )


def _rank(rule: AdviceRule, f: Finding, rates: Mapping[int, HitRate]) -> tuple[int, float, int]:
    """Returns the sort key of a finding: its group, then the largest promised gain weighted by how often the
    rule kept its promise."""
    rate = rates.get(rule.number, NO_RECORD)
    success = (rate.faster + 1) / (rate.tried + 2)
    gain = 1 - min((e.ratio for e in f.edits), default=1.0)
    return GROUPS.index(rule.group), -gain * success, rule.number


def _distinct(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Shows an edit once, under the first finding that has it; a finding all of whose edits are shown already
    is dropped."""
    shown: set[PartialSchedule] = set()
    distinct: list[Finding] = []
    for f in findings:
        fresh: tuple[ScheduleEdit, ...] = tuple(e for e in f.edits if e.request not in shown)
        if f.edits and not fresh:
            continue
        shown |= {e.request for e in fresh}
        distinct.append(replace(f, edits=fresh))
    return tuple(distinct)


def to_json(advice: Advice) -> dict[str, Any]:
    """Returns plain JSON values of everything that is shown."""
    return {
        "class": asdict(advice.classified),
        "bound": {"microseconds": advice.bound.seconds * 1e6, "limit": advice.bound.limit},
        "microseconds": advice.seconds * 1e6,
        "tiers": list(advice.tiers),
        "findings": [_finding_json(f, advice.rates[f.rule]) for f in advice.findings],
    }


def _finding_json(f: Finding, rate: HitRate) -> dict[str, Any]:
    return {
        "rule": f.rule,
        "name": f.name,
        "tier": f.tier,
        "evidence": [asdict(e) | {"words": str(e)} for e in f.evidence],
        "diagnosis": f.diagnosis,
        "act": f.act,
        "edits": [
            {
                "schedule": e.schedule,
                "changes": dict(e.changes),
                "expected": asdict(e.expected),
                "model_ratio": e.ratio,
                "note": e.note,
            }
            for e in f.edits
        ],
        "hit_rate": {"tried": rate.tried, "faster": rate.faster, "words": str(rate)},
        "source": BY_NUMBER[f.rule].source,
    }
