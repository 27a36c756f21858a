"""Rules on the launch: its host cost, its compute type, its power and its energy."""

from __future__ import annotations

from ucutlass.advice.edits import edit_to, neighbours
from ucutlass.advice.facts import KernelFacts, Tier, analytic
from ucutlass.advice.finding import Diagnosis, ExpectedRatio, Metric
from ucutlass.kernels.planned import Planned

LAUNCH, FLOOR = 0.20, 0.50
"""Share of a call that may lie outside the kernel; share of an estimate that the launch floor may take."""

SLOWED, TENSOR_HOT = 0.95, 0.80

_TIMING: Tier = "timing"
_ANALYTIC: Tier = "analytic"

TIE, LESS_ENERGY = 0.01, 0.02


def launch_bound(f: KernelFacts) -> Diagnosis | None:
    """Checks rule 21. No schedule fixes it."""
    t = f.timing
    if t is not None and t.wall_seconds is not None:
        share = max(0.0, 1 - t.seconds / t.wall_seconds)
        tier, evidence = _TIMING, Metric("of the call outside the kernel", share, "%", ">", LAUNCH)
    else:
        share = f.analytic.floor_share
        tier, evidence = _ANALYTIC, Metric("launch floor over the estimate", share, "%", ">", FLOOR)
    if share <= evidence.threshold:
        return None
    return Diagnosis(
        tier,
        (evidence,),
        "starting the kernel costs as much as a good part of its work",
        (),
        "this is no matter of the schedule: capture launches in a CUDA graph, batch the calls, or fuse more",
    )


def fp8_accumulation(f: KernelFacts) -> Diagnosis | None:
    """Checks rule 17, which informs and is never tuned."""
    compute_type, accumulators = f.planned.plan.problem.compute_type.name, f.resources.accumulators
    if compute_type not in ("e4m3", "e5m2") or f.resources.unit != "wgmma":
        return None
    return Diagnosis(
        "analytic",
        (Metric("accumulators a thread, both sets", accumulators, "", "=", accumulators),),
        f"compute type {compute_type} adds partial sums into a second f32 set, which halves the largest tile",
        (),
        "how fp8 accumulates belongs to the algorithm: it is no launch parameter",
    )


def power_limited(f: KernelFacts) -> Diagnosis | None:
    """Checks rule 28: the clock fell, so the peak is lower than the data sheet's; fewer bytes leave more
    power."""
    t, c = f.timing, f.counters
    if t is None or t.clock is None or not t.start_clock or t.clock >= SLOWED * t.start_clock:
        return None
    tensor = c.tensor if c and c.tensor is not None else f.bound.compute_seconds / t.seconds
    if tensor * t.start_clock / t.clock <= TENSOR_HOT and not t.power_capped:
        return None
    a = f.analytic

    def keep(p: Planned) -> bool:
        new = analytic(p)
        return new.l2_bytes + new.dram_bytes < 0.9 * (a.l2_bytes + a.dram_bytes)

    hope = ExpectedRatio(t.clock / t.start_clock, 1.0, "at most the clock that was lost")
    edits = neighbours(f, "tile", "cluster", keep=keep, max_ratio=1.02, expected=hope)
    return Diagnosis(
        "timing",
        (Metric("clock over the start's", t.clock / t.start_clock, "%", "<", SLOWED),),
        f"power holds the clock at {t.clock / 1e6:.0f} MHz: the roof is that much lower",
        edits,
        "" if edits else "take the measured clock for the roof; no schedule here moves fewer bytes",
    )


def less_energy(f: KernelFacts) -> Diagnosis | None:
    """Checks rule 29: of two equally fast schedules it prefers the one that takes fewer joules."""
    t = f.timing
    if t is None or t.joules is None:
        return None
    equal = [
        (r.joules, r)
        for r in t.rivals
        if r.joules is not None
        and abs(r.seconds / t.seconds - 1) <= TIE
        and r.joules < (1 - LESS_ENERGY) * t.joules
    ]
    if not equal:
        return None
    joules, rival = min(equal, key=lambda pair: pair[0])
    rival_plan = f.plan(rival.request)
    if rival_plan is None:
        return None
    measured = ExpectedRatio(1 - TIE, 1 + TIE, "measured beside this one")
    return Diagnosis(
        "timing",
        (Metric("energy of the other schedule", joules / t.joules, "%", "<", 1 - LESS_ENERGY),),
        f"another schedule takes the same time and {1 - joules / t.joules:.0%} less energy",
        (edit_to(f, rival_plan, measured),),
    )
