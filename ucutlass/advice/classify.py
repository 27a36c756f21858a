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
    seconds, a = facts.seconds, facts.analytic
    timed = "measured" if facts.timing else "estimated"
    floor = facts.planned.device.launch_floor
    compute, memory = bound.compute_seconds / seconds, bound.memory_seconds / seconds
    if floor / seconds > FLOOR:
        words = f"starting takes about {floor * 1e6:.1f} of {seconds * 1e6:.1f} us {timed}"
        return Classification("launch", words)
    if max(compute, memory) < LOW and a.waves < 1:
        words = (
            f"multipliers {compute:.0%} and memory {memory:.0%} used of {seconds * 1e6:.1f} us {timed}, and "
            f"{a.tiles} thread blocks for {a.slots} slots"
        )
        return _with_counters(facts, Classification("latency", words))
    words = f"{bound.intensity:.0f} FLOP per byte, the ridge is {bound.ridge:.0f}"
    return _with_counters(facts, Classification(bound.limit, words))


def _with_counters(facts: KernelFacts, theory: Classification) -> Classification:
    """Theory stands; what the counters would have said is kept."""
    c = facts.counters
    if c is None or c.tensor is None or c.dram is None:
        return theory
    seen: Bottleneck = "latency"
    if max(c.tensor, c.dram) >= LOW:
        seen = "multiplications" if c.tensor >= c.dram else "memory"
    if seen == theory.bottleneck:
        return theory
    words = (
        f"the counters (tensor pipe {c.tensor:.0%}, memory {c.dram:.0%}) look like {seen}; the roofline's "
        "theory is taken"
    )
    return Classification(theory.bottleneck, theory.reason, words)
