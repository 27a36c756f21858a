"""Which resource decides the time: the roofline's theory first, counters second, theory wins."""

from __future__ import annotations

from dataclasses import dataclass

from ucutlass.advice.facts import KernelFacts
from ucutlass.advice.finding import Bottleneck
from ucutlass.advice.launch import FLOOR
from ucutlass.sol import SpeedOfLight

LOW = 0.6
"""A limit used below this share does not decide (NVIDIA's guided analysis cuts there)."""


@dataclass(frozen=True, slots=True)
class Classification:
    """`reason` says what decided, with numbers; `disagreement` what counters said instead, or ""."""

    bottleneck: Bottleneck
    reason: str
    disagreement: str = ""


def classify(facts: KernelFacts, bound: SpeedOfLight) -> Classification:
    """The class of a kernel. `bound` is the speed of light that it is judged against.

    The floor of a launch first; then, with fewer thread blocks than slots and both limits used below
    60 %, latency; else the roofline's side. Time is measured where it was, else estimated.
    """
    seconds, analytic = facts.seconds, facts.analytic
    timed = "measured" if facts.timing else "estimated"
    floor = facts.planned.device.launch_floor
    compute, memory = bound.compute_seconds / seconds, bound.memory_seconds / seconds
    if floor / seconds > FLOOR:
        reason = f"starting takes about {floor * 1e6:.1f} of {seconds * 1e6:.1f} us {timed}"
        return Classification("launch", reason)
    if max(compute, memory) < LOW and analytic.waves < 1:
        reason = (
            f"multipliers {compute:.0%} and memory {memory:.0%} used of {seconds * 1e6:.1f} us {timed}, and "
            f"{analytic.tiles} thread blocks for {analytic.slots} slots"
        )
        return _with_counters(facts, Classification("latency", reason))
    reason = f"{bound.intensity:.0f} FLOP per byte, the ridge is {bound.ridge:.0f}"
    return _with_counters(facts, Classification(bound.limit, reason))


def _with_counters(facts: KernelFacts, theory: Classification) -> Classification:
    """Theory stands; what the counters would have said is kept."""
    counters = facts.counters
    if counters is None or counters.tensor is None or counters.dram is None:
        return theory
    by_counters: Bottleneck = "latency"
    if max(counters.tensor, counters.dram) >= LOW:
        by_counters = "multiplications" if counters.tensor >= counters.dram else "memory"
    if by_counters == theory.bottleneck:
        return theory
    disagreement = (
        f"the counters (tensor pipe {counters.tensor:.0%}, memory {counters.dram:.0%}) look like {by_counters}; the roofline's "
        "theory is taken"
    )
    return Classification(theory.bottleneck, theory.reason, disagreement)
