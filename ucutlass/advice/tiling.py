"""Rules on how the tiles of a result cover the device: waves, clusters, padding, balance."""

from __future__ import annotations

import math

from ucutlass.advice.edits import PAYS, best, neighbours, single_change
from ucutlass.advice.facts import KernelFacts
from ucutlass.advice.finding import Diagnosis, Metric, ScheduleEdit
from ucutlass.ir.hardware import cluster_slots
from ucutlass.kernels.families import resources
from ucutlass.kernels.planned import Planned

BUSY = 0.85
"""Share of the busiest slot's time that the average slot must work."""

FEW_WAVES = 4
"""From this number of waves on, the last wave matters little."""

USEFUL = 0.90
"""Share of the multiplications that must lie inside the result."""

USABLE = 0.95
"""Share of the SMs that clusters must be able to fill."""

BALANCE = 1.2
"""Maximum over mean of the SMs' active cycles."""

LOW = 0.6
"""Below this share of its limit a resource does not decide the time (NVIDIA's rule constants)."""

_BETTER = 0.05


def wave_quantisation(f: KernelFacts) -> Diagnosis | None:
    """Checks rule 4."""
    a = f.analytic
    if f.resources.tile is None or a.quantisation >= BUSY or a.waves >= FEW_WAVES:
        return None
    edits = _fuller(f)
    if not edits:
        return None
    idle = f"the average one of {a.slots} slots works {a.quantisation:.0%} of the busiest one's time"
    return Diagnosis(
        "analytic",
        (Metric("slots busy", a.quantisation, "%", "<", BUSY), Metric("waves", a.waves, "", "<", FEW_WAVES)),
        f"{a.tiles} tiles do not divide over {a.slots} slots: {idle}",
        edits,
    )


def _fuller(f: KernelFacts) -> tuple[ScheduleEdit, ...]:
    def keep(p: Planned) -> bool:
        return p.estimate.quantisation > f.analytic.quantisation + _BETTER

    return best(
        neighbours(f, "tile", "split_k", "cluster", keep=keep),
        neighbours(f, "warps", "tile", "split_k", "cluster", keep=keep),
    )


def idle_clusters(f: KernelFacts) -> Diagnosis | None:
    """Checks rule 5. The counter `clusters_active` is the driver's own maximum for this kernel."""
    a, size = f.analytic, math.prod(f.resources.cluster)
    if size == 1:
        return None
    active = (f.counters.clusters_active if f.counters else None) or None  # the tool writes 0 for "none"
    usable = a.cluster_slots if active is None else active * size
    if usable >= USABLE * a.sms:
        return None
    device = f.planned.device

    def keep(p: Planned) -> bool:
        other = resources(p)
        return other.unit == f.resources.unit and cluster_slots(device, math.prod(other.cluster)) > usable

    pairs = single_change(f, cluster=(2, 1)) if size > 2 else ()
    # Without counters the model is all that says whether pairs pay: larger clusters read an operand less often.
    edits = best(
        neighbours(f, "cluster", keep=keep), tuple(e for e in pairs if active is not None or e.ratio <= PAYS)
    )
    if not edits:
        return None
    return Diagnosis(
        "analytic" if active is None else "counters",
        (Metric("SMs that clusters can fill", usable / a.sms, "%", "<", USABLE),),
        f"clusters of {size} fit only {usable:.0f} of {a.sms} SMs, because each lies within one GPC",
        edits,
    )


def padding(f: KernelFacts) -> Diagnosis | None:
    """Checks rule 22."""
    a = f.analytic
    if a.padding >= USEFUL:
        return None

    def keep(p: Planned) -> bool:
        return p.estimate.padding > a.padding + _BETTER

    if f.resources.tile is None:
        edits = neighbours(f, "columns", keep=keep)
    else:
        edits = best(
            neighbours(f, "tile", "cluster", keep=keep),
            neighbours(f, "warps", "tile", "cluster", "swap", "split_k", keep=keep),
        )
    if not edits:
        return None
    launch_resources = f.resources
    return Diagnosis(
        "analytic",
        (Metric("useful multiplications", a.padding, "%", "<", USEFUL),),
        f"{1 - a.padding:.0%} of the multiplications fall outside the {launch_resources.rows} x {launch_resources.columns} result",
        edits,
    )


def too_little_at_work(f: KernelFacts) -> Diagnosis | None:
    """Checks rule 20: neither limit is near, and there are fewer thread blocks than slots."""
    a = f.analytic
    compute, memory = _shares(f)
    if a.waves >= 1 or compute >= LOW or memory >= LOW:
        return None

    def keep(p: Planned) -> bool:
        return p.estimate.waves > a.waves

    if f.resources.tile is None:
        edits = neighbours(f, "rows", "threads", keep=keep)
    else:
        edits = best(
            neighbours(f, "tile", "split_k", "cluster", keep=keep),
            neighbours(f, "warps", "tile", "split_k", "cluster", "swap", keep=keep),
        )
    if not edits:
        return None
    counted = f.counters is not None and f.counters.sm is not None
    return Diagnosis(
        "counters" if counted else "timing" if f.timing else "analytic",
        (
            Metric("multipliers used", compute, "%", "<", LOW),
            Metric("memory used", memory, "%", "<", LOW),
            Metric("waves", a.waves, "", "<", 1),
        ),
        f"{a.tiles} thread blocks leave most of {a.slots} slots empty, and latency is not hidden",
        edits,
    )


def _shares(f: KernelFacts) -> tuple[float, float]:
    """Returns the shares of the peak rates that multipliers and memory reach, by counters, or else by the
    bound over the time."""
    c = f.counters
    compute = c.tensor if c and c.tensor is not None else f.bound.compute_seconds / f.seconds
    memory = c.dram if c and c.dram is not None else f.bound.memory_seconds / f.seconds
    return compute, memory


def imbalance(f: KernelFacts) -> Diagnosis | None:
    """Checks rule 26 as the hardware counters show it."""
    c = f.counters
    if c is None or c.sm_cycles_most is None or not c.sm_cycles_mean:
        return None
    ratio = c.sm_cycles_most / c.sm_cycles_mean
    if ratio <= BALANCE:
        return None
    edits = _fuller(f)
    if not edits:
        return None
    return Diagnosis(
        "counters",
        (Metric("busiest SM over the mean", ratio, "", ">", BALANCE),),
        "SMs work unequally long: some take more tiles than others",
        edits,
    )
