"""Rules on bytes: the bandwidth limit, excess traffic, the order of tiles, skinny problems."""

from __future__ import annotations

from dataclasses import replace

from ucutlass.advice.edits import best, legal_edits, neighbours, single_change
from ucutlass.advice.facts import KernelFacts, Tier
from ucutlass.advice.finding import Diagnosis, ExpectedRatio, Metric, ScheduleEdit
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels.planned import Planned

SKINNY = 128

BANDWIDTH = 0.70
"""Share of the data sheet's bandwidth that a skinny kernel should reach (NVIDIA/cutlass issue 1139)."""

AT_ROOF = 0.90

EXCESS, EXCESS_ORDER = 1.2, 1.3
"""Bytes from memory over compulsory bytes, for tiles that are too small and for their order."""

_DRAM_FELT = 0.5
"""Share of the time from which DRAM's bytes are worth saving."""

_LOST, _NOISE = 0.75, 1.02
"""Ratio of times that the right order may reach (NVIDIA/cutlass pull request 3373: 8 to 10 % won by it, 25 %
lost by the wrong one), and what it may cost where it does not matter."""

_ORDER = ExpectedRatio(_LOST, _NOISE, "from CUTLASS pull request 3373")

_ROW_FIELDS = ("keep", "threads", "rows", "items", "vector", "cluster", "split_k")
"""What decides how much of a row a kernel without tiles keeps."""

PANELS = 1.15
"""Bytes that a wave of tiles reads in the forced order over those in the other one."""


def skinny(f: KernelFacts) -> Diagnosis | None:
    """Checks rule 12: with few rows (or columns), reading the matrix is all the work."""
    a, resources = f.analytic, f.resources
    few, used = min(resources.rows, resources.columns), f.bound.memory_seconds / f.seconds
    if resources.unit is None or few > SKINNY or f.bound.limit != "memory" or used >= BANDWIDTH:
        return None
    edits = legal_edits(f, PartialSchedule())
    if not edits:
        return None
    return Diagnosis(
        "timing" if f.timing else "analytic",
        (
            Metric("smaller side", few, "", "<", SKINNY + 1),
            Metric("bandwidth used", used, "%", "<", BANDWIDTH),
        ),
        f"a side of {few}: reading the matrix is all the work, and {a.tiles} thread blocks on {a.slots} "
        "slots do not ask for it fast enough",
        edits,
    )


def at_the_roof(f: KernelFacts) -> Diagnosis | None:
    """Checks rule 18: only fewer bytes help."""
    t, c = f.timing, f.counters
    if t is not None and t.copy_bandwidth is not None:
        share = f.bound.bytes / t.seconds / t.copy_bandwidth
        evidence = Metric("of the bandwidth that a copy reaches", share, "%", ">", AT_ROOF)
    elif c is not None and c.dram is not None:
        share = c.dram
        evidence = Metric("of the memory's peak bandwidth", share, "%", ">", AT_ROOF)
    else:
        return None
    if share < AT_ROOF:
        return None
    return Diagnosis(
        "timing" if t is not None and t.copy_bandwidth is not None else "counters",
        (evidence,),
        "memory is at its roof: this kernel is done",
        (),
        "stop tuning; fuse a producer or consumer, use a narrower element, or read less",
    )


def excess(f: KernelFacts) -> Diagnosis | None:
    """Checks rule 19."""
    a, c = f.analytic, f.counters
    counted = c.dram_bytes if c else None
    traffic = a.dram_bytes if counted is None else counted
    ratio = traffic / f.bound.bytes
    if ratio <= EXCESS or (counted is None and a.dram_seconds < _DRAM_FELT * f.seconds):
        return None

    def keep(p: Planned) -> bool:
        return p.estimate.dram_bytes < 0.95 * a.dram_bytes

    if f.resources.tile is None:
        edits, cure = neighbours(f, *_ROW_FIELDS, keep=keep), "rows kept in registers are read once"
    else:
        edits = best(neighbours(f, "tile", keep=keep), neighbours(f, "warps", "tile", "cluster", keep=keep))
        cure = "larger tiles read operands less often"
    if not edits:
        return None
    return Diagnosis(
        "analytic" if counted is None else "counters",
        (Metric("bytes from memory over compulsory", ratio, "", ">", EXCESS),),
        f"{traffic / 1e6:,.0f} MB cross the memory interface for {f.bound.bytes / 1e6:,.0f} MB of tensors: "
        f"{cure}",
        edits,
    )


def order(f: KernelFacts) -> Diagnosis | None:
    """Checks rule 13. Without counters only a raster that was forced against CUTLASS's own choice counts."""
    a, c = f.analytic, f.counters
    resources = f.resources
    outgrown = resources.operand_bytes // resources.batch > f.planned.device.l2
    if resources.tile is None or f.planned.request.raster is None or a.waves < 2 or not outgrown:
        return None
    counted = c.dram_bytes if c else None
    forced = _forced_raster_ratio(f)
    ratio = a.dram_bytes / f.bound.bytes if counted is None else counted / f.bound.bytes
    if forced <= PANELS and (counted is None or ratio <= EXCESS_ORDER):
        return None
    if forced > PANELS:
        source = "from the bytes a wave reads and CUTLASS pull request 3373"
        hope = ExpectedRatio(max(_LOST, 1 / forced), _NOISE, source)
        evidence = [Metric("bytes a wave reads over the other order's", forced, "", ">", PANELS)]
        edits = single_change(f, hope, raster="heuristic")
        why = "the raster runs along the longer side, so a wave of tiles reads more different operands"
    else:
        evidence, edits = [], _wider_swizzles(f)
        why = "neighbouring tiles do not find each other's operands in L2"
    if counted is not None:
        evidence.append(Metric("bytes from memory over compulsory", ratio, "", ">", EXCESS_ORDER))
    tier: Tier = "analytic" if counted is None else "counters"
    return Diagnosis(tier, tuple(evidence), why, edits) if edits else None


def _forced_raster_ratio(f: KernelFacts) -> float:
    """Returns, where the schedule forces a raster, the bytes of operands that a wave of tiles reads in it
    over those in the other one. Along M the tiles of a wave fill columns of the grid, along N rows. Returns 1
    where none is forced."""
    resources, raster = f.resources, f.planned.request.raster
    if resources.tile is None or raster not in ("along_m", "along_n"):
        return 1.0
    (m, n, _), slots = resources.tile, f.analytic.slots
    rows, columns = -(-resources.rows // m), -(-resources.columns // n)
    along_m = min(rows, slots) * m + min(columns, -(-slots // rows)) * n
    along_n = min(columns, slots) * n + min(rows, -(-slots // columns)) * m
    return along_m / along_n if raster == "along_m" else along_n / along_m


def _wider_swizzles(f: KernelFacts) -> tuple[ScheduleEdit, ...]:
    """Returns the next wider swizzles that add no tiles, and the other raster."""
    now = f.planned.request.swizzle or 1
    wider = [e for s in (2, 4, 8) if s > now for e in single_change(f, _ORDER, swizzle=s) if e.ratio <= 1.001]
    other = "along_n" if f.planned.request.raster == "along_m" else "along_m"
    return (*wider[:1], *single_change(f, replace(_ORDER, high=1.25), raster=other))[:2]
