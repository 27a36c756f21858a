"""The rule for families whose cost model does not tell schedules apart: the schedules next to the current
one."""

from __future__ import annotations

from itertools import islice

from ucutlass.advice.edits import UNPRICED, edit_to
from ucutlass.advice.facts import KernelFacts
from ucutlass.advice.finding import Diagnosis, Metric
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels.families import candidates

MOST_EDITS = 3

ENOUGH = 0.9
"""Share of the bound's speed from which a kernel gets no advice."""


def schedules_nearby(f: KernelFacts) -> Diagnosis | None:
    """Checks rule 30: the cheapest kernels of another build, those of the fewest changes first."""
    share = f.bound.seconds / f.seconds
    if f.prices or share >= ENOUGH:
        return None
    p = f.planned
    others = (
        edit_to(f, k, UNPRICED)
        for k in candidates(f.pattern, p.sizes, f.arch, p.device, PartialSchedule())
        if k.plan != p.plan
    )
    edits = tuple(islice(others, MOST_EDITS))
    if not edits:
        return None
    return Diagnosis(
        "timing" if f.timing else "analytic",
        (Metric("of the bound's speed", share, "%", "<", ENOUGH),),
        "the bound leaves room, and no rule knows where it went: these schedules are one field away",
        edits,
        "`ucc tune` times many of them and keeps the fastest that is right",
    )
