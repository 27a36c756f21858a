"""Advice for kernels of families without a cost model of their tiles: the class of what limits the time, and
the schedules next to the current one.

The rules of `ucutlass.advice.rules` read a GEMM's tiles, waves and stages; for other kernels only the bound,
the measured time, and the neighbours in their schedule space are known.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ucutlass.advice.classify import LOW, Classification
from ucutlass.advice.facts import TIERS, BuildFacts, Counters, KernelFacts, Tier, TimingFacts
from ucutlass.advice.finding import Bottleneck, ExpectedRatio, Finding, Metric, ScheduleEdit
from ucutlass.advice.launch import FLOOR
from ucutlass.advice.rules import NEAR
from ucutlass.advice.select import NO_RECORD, Advice, HitRate, advise
from ucutlass.ir.schedule import differing, show
from ucutlass.kernels.planned import Planned
from ucutlass.sol import SpeedOfLight
from ucutlass.sol.bounds import TimeBounds

MOST_EDITS = 3

ENOUGH = 0.9
"""Share of the bound's speed from which a kernel gets no advice."""

HOPED = ExpectedRatio(0.8, 1.25, "no model prices this field: measure it")


@dataclass(frozen=True, slots=True)
class FamilyFacts:
    """What is known of a kernel. `neighbours` returns its schedule space, the kernel's own neighbours
    first."""

    planned: Planned
    bound: SpeedOfLight
    neighbours: Callable[[], Iterable[Planned]]
    build: BuildFacts | None = None
    timing: TimingFacts | None = None
    counters: Counters | None = None

    @property
    def seconds(self) -> float:
        """The measured time, or else the estimate."""
        return self.timing.seconds if self.timing else self.planned.seconds

    def tiers(self) -> tuple[Tier, ...]:
        """Returns the tiers that have facts."""
        by_tier = (self.planned, self.build, self.timing, self.counters)
        return tuple(t for t, k in zip(TIERS, by_tier, strict=True) if k is not None)


def speed_of(bounds: TimeBounds) -> SpeedOfLight:
    """Returns a program's fused bound in the form that advice reads."""
    memory = max((t.seconds for t in bounds.fused.limits if t.name == "memory"), default=0.0)
    other = max((t.seconds for t in bounds.fused.limits if t.name != "memory"), default=0.0)
    least = bounds.least
    return SpeedOfLight(
        max(memory, other),
        "memory" if memory >= other else "multiplications",
        round(bounds.intensity * least.bytes),
        least.bytes,
        other,
        memory,
        bounds.intensity,
        bounds.ridge,
        bounds.compute_type,
    )


def advise_kernel(facts: KernelFacts | FamilyFacts, rates: Mapping[int, HitRate] | None = None) -> Advice:
    """Returns the advice for a kernel of any family; `rates` are the ledger's hit rates by rule."""
    if isinstance(facts, KernelFacts):
        return advise(facts, rates)
    classification, hit_rate = _classified(facts), (rates or {}).get(NEAR.number, NO_RECORD)
    share = facts.bound.seconds / facts.seconds if facts.seconds else 0.0
    edits = _neighbour_edits(facts) if share < ENOUGH else ()
    shown = (_finding(facts, share, edits),) if edits else ()
    return Advice(classification, facts.bound, facts.seconds, shown, facts.tiers(), {NEAR.number: hit_rate})


def _classified(f: FamilyFacts) -> Classification:
    timed = "measured" if f.timing else "estimated"
    floor, bound = f.planned.device.launch_floor, f.bound
    if floor / f.seconds > FLOOR:
        reason = f"starting takes about {floor * 1e6:.1f} of {f.seconds * 1e6:.1f} us {timed}"
        return Classification("launch", reason)
    used = max(bound.compute_seconds, bound.memory_seconds) / f.seconds
    if f.timing is not None and used < LOW:
        reason = (
            f"the busier of multipliers and memory is used {used:.0%} of {f.seconds * 1e6:.1f} us {timed}"
        )
        return Classification("latency", reason)
    limit: Bottleneck = bound.limit
    return Classification(limit, f"{bound.intensity:.0f} FLOP per byte, the ridge is {bound.ridge:.0f}")


def _neighbour_edits(f: FamilyFacts) -> tuple[ScheduleEdit, ...]:
    """Returns the first neighbours that are another build, those with the best estimate first where the
    family has one."""
    others = itertools.islice((k for k in f.neighbours() if k.plan != f.planned.plan), 4 * MOST_EDITS)
    ranked = sorted(others, key=lambda k: k.seconds)[:MOST_EDITS]
    return tuple(
        ScheduleEdit(
            k.request,
            show(k.request),
            differing(f.planned.request, k.request),
            k.seconds / f.planned.seconds,
            HOPED,
        )
        for k in ranked
    )


def _finding(f: FamilyFacts, share: float, edits: tuple[ScheduleEdit, ...]) -> Finding:
    tier: Tier = "timing" if f.timing else "analytic"
    evidence = Metric("of the bound's speed", share, "%", "<", ENOUGH)
    diagnosis = "the bound leaves room, and no rule knows where it went: these schedules are one field away"
    act = "`ucc tune` times many of them and keeps the fastest that is right"
    return Finding(NEAR.number, NEAR.name, tier, (evidence,), diagnosis, edits, act)
