"""Classifies which resource limits the time: by the roofline first, by counters second; the roofline wins."""

from __future__ import annotations

from dataclasses import dataclass

from ucutlass.advice.facts import KernelFacts
from ucutlass.advice.finding import Bottleneck
from ucutlass.advice.launch import FLOOR
from ucutlass.sol import SpeedOfLight

LOW = 0.6
"""A limit that is used below this share does not decide (NVIDIA's guided analysis cuts there)."""


@dataclass(frozen=True, slots=True)
class Classification:
    """`reason` says with numbers what decided; `disagreement` says what the counters indicate instead, or is
    ""."""

    bottleneck: Bottleneck
    reason: str
    disagreement: str = ""


def classify(facts: KernelFacts, bound: SpeedOfLight) -> Classification:
    """Returns the class of a kernel. `bound` is the speed of light that it is judged against.

    The launch floor is checked first. With fewer thread blocks than slots and both limits used below 60 %,
    latency decides; else the roofline's side does. The time is the measured one, or else the estimate.
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
    """Keeps the roofline's class and records what the counters indicate where they disagree."""
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
