"""Rules on the epilogue: whether it is hidden, what its functions cost, and how it accesses memory."""

from __future__ import annotations

from ucutlass.advice.edits import best, neighbours
from ucutlass.advice.facts import KernelFacts
from ucutlass.advice.finding import Diagnosis, ExpectedRatio, Metric, ScheduleEdit

EXPOSED = 0.15
"""Share of the time from which an exposed epilogue is worth hiding."""

XU_BUSY, TENSOR_LEAST, TENSOR_MOST = 0.60, 0.20, 0.80

SIDE_PATH = 0.10
"""Share of the bytes from which accesses that bypass TMA may matter."""

SECTORS = 1.2
"""Sectors per request relative to the four that a warp's 128 bytes need."""

CONFLICTS = 0.10

SHORT_STALL = 0.10
"""Share of short-scoreboard stalls from which shared memory matters."""


def _pingpong(f: KernelFacts) -> tuple[ScheduleEdit, ...]:
    if f.planned.request.warps != "cooperative":
        return ()
    return best(
        neighbours(f, "tile", "cluster", "split_k", warps="pingpong"),
        neighbours(f, "cluster", "split_k", warps="pingpong", stages=None),
    )


def exposed(f: KernelFacts) -> Diagnosis | None:
    """Checks rule 10. The share is measured against the same kernel without an epilogue where that was
    timed."""
    t = f.timing
    bare = t.bare_seconds if t else None
    share = f.analytic.epilogue_share if t is None or bare is None else max(0.0, 1 - bare / t.seconds)
    if share <= EXPOSED or f.resources.tile is None:
        return None
    edits = _pingpong(f)
    if not edits:
        return None
    return Diagnosis(
        "analytic" if bare is None else "timing",
        (Metric("epilogue's share of a tile", share, "%", ">", EXPOSED),),
        f"the multipliers rest while the epilogue of a tile runs, {share:.0%} of the time; pingpong runs it "
        "under the other warp group's multiplications",
        edits,
    )


def special_functions(f: KernelFacts) -> Diagnosis | None:
    """Checks rule 23."""
    a, c = f.analytic, f.counters
    xu, tensor = (c.xu, c.tensor) if c else (None, None)
    if xu is not None and tensor is not None:
        if xu < XU_BUSY or not TENSOR_LEAST <= tensor <= TENSOR_MOST:
            return None
        evidence = Metric("special-function unit", xu, "%", ">", XU_BUSY)
    elif a.function_share > EXPOSED:
        evidence = Metric("functions' share of a tile", a.function_share, "%", ">", EXPOSED)
    else:
        return None
    edits = _pingpong(f)
    return Diagnosis(
        "counters" if xu is not None else "analytic",
        (evidence,),
        "the functions of the epilogue take as long as a good part of the multiplications",
        edits,
        "a cheaper function (gelu_tanh for gelu) computes something else: change it only where the "
        "program may",
    )


def side_path(f: KernelFacts) -> Diagnosis | None:
    """Checks rule 24: whole tensors of the epilogue that threads move, or move in narrow accesses."""
    a, b, c = f.analytic, f.build, f.counters
    if f.resources.unit != "wgmma":
        return None
    share = a.direct_bytes / f.bound.bytes
    if share <= SIDE_PATH:
        return None
    evidence = [Metric("bytes beside TMA", share, "%", ">", SIDE_PATH)]
    tier = "analytic"
    if b is not None and b.narrow_accesses and b.global_accesses:
        tier = "build"
        narrow = b.narrow_accesses / b.global_accesses
        evidence.append(Metric("global accesses of at most 8 bytes", narrow, "%", ">", 0.5))
    if c is not None and c.load_sectors and c.load_requests:
        ratio = c.load_sectors / c.load_requests / 4
        if ratio > SECTORS:
            tier = "counters"
            evidence.append(Metric("sectors a request over the ideal 4", ratio, "", ">", SECTORS))
    return Diagnosis(
        "counters" if tier == "counters" else "build" if tier == "build" else "analytic",
        tuple(evidence),
        f"{a.direct_bytes / 1e6:.3g} MB of the epilogue's tensors are moved by threads, not by TMA",
        (),
        "give the tensor rows of a multiple of 16 bytes (its contiguous extent), or pad it to that",
    )


def bank_conflicts(f: KernelFacts) -> Diagnosis | None:
    """Checks rule 25. wgmma's own reads do not use the counted path."""
    c = f.counters
    if c is None or c.shared_conflicts is None or not c.shared_wavefronts:
        return None
    share = c.shared_conflicts / c.shared_wavefronts
    felt = (
        c.stall_short_scoreboard is not None
        and c.stall_total
        and (c.stall_short_scoreboard / c.stall_total > SHORT_STALL)
    )
    if share <= CONFLICTS or not felt:
        return None
    swapped = {"pingpong": "cooperative", "cooperative": "pingpong"}.get(f.planned.request.warps or "")
    hope = ExpectedRatio(1 - share, 1.0, "at most the conflicts' own share of shared memory's time")
    edits = neighbours(f, "stages", warps=swapped, max_ratio=1.05, expected=hope) if swapped else ()
    return Diagnosis(
        "counters",
        (Metric("conflicts over wavefronts", share, "%", ">", CONFLICTS),),
        "threads of a warp meet in shared memory's banks"
        + ("; the epilogue's subtile decides how" if f.resources.tile else ""),
        edits,
        "" if edits or f.resources.tile is None else "another tile N changes the epilogue's subtile",
    )
