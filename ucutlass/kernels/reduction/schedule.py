"""A reduction's schedule in the fields of a program: what is fixed is kept, the rest follows, rules judge.

The planner's own choice (`planner.py`) is where every request starts from; what it leaves open is filled
here so that a row still fits, and a request that no kernel keeps gets the rule's numbers.
"""

from __future__ import annotations

import itertools
import math

from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels.reduction.plan import ReductionProblem, ReductionSchedule
from ucutlass.kernels.reduction.rules import (
    CLUSTERS,
    LOOK_BACK_ITEMS,
    LOOK_BACK_THREADS,
    MOST_HELD,
    MOST_THREADS,
    SCHEDULE_RULES,
    ReductionCandidate,
    ReductionCase,
    power,
)
from ucutlass.kernels.reduction.smem import TILE
from ucutlass.kernels.rule import broken
from ucutlass.kernels.violation import Violation

HELD_THREADS = 256
"""Threads of a row that lies in shared memory, where no other number is asked for."""


def moved_bytes(problem: ReductionProblem, vector: int) -> int:
    """Bytes of all loads of one vector, where there are no columns to tell what is kept from what is not."""
    return max((x.elem.bytes for x in problem.loads), default=4) * vector * max(1, len(problem.loads))


def request_of(case: ReductionCase, s: ReductionSchedule) -> PartialSchedule:
    """The schedule as fields: those that its kernel has."""
    if not case.problem.columns:
        return PartialSchedule(
            vector=s.vector, rows=s.rows, items=s.items, keep="shared" if s.transposed else "registers"
        )
    clustered = s.keep != "reread" and case.problem.across and case.arch.wgmma and not case.scans
    return PartialSchedule(
        vector=s.vector,
        threads=s.threads,
        rows=s.rows,
        items=s.items,
        keep=s.keep,
        cluster=(1, s.cluster) if clustered else None,
        split_k=s.splits if s.keep == "reread" else s.grid if s.grid > 1 else None,
        stages=s.stages if s.stages > 1 else 2 if s.ahead else None,
        blocks=s.blocks if s.stages > 1 else None,
    )


def resolve(
    case: ReductionCase, own: ReductionSchedule, request: PartialSchedule
) -> ReductionSchedule | tuple[Violation, ...]:
    """The planner's own schedule with what a request fixes, or the rules that are broken."""
    if request.fixed().items() <= request_of(case, own).fixed().items():
        return own
    clusters = CLUSTERS if request.cluster is None and case.arch.wgmma else (own.cluster,)
    # A ring that other fields leave no room for is shorter, and none at last.
    rings = (request.stages,) if request.stages else (own.stages, own.stages // 2, 1)
    first: tuple[Violation, ...] = ()
    for stages, cluster in itertools.product(dict.fromkeys(rings), dict.fromkeys((own.cluster, *clusters))):
        schedule = _filled(case, own, request, cluster, max(1, stages))
        violations = broken(SCHEDULE_RULES, ReductionCandidate(case, schedule, request))
        if not violations:
            return schedule
        if request.stages or stages <= 1:
            first = first or violations
    return first


# --- what follows from what is fixed ------------------------------------------------------


def _filled(
    case: ReductionCase, own: ReductionSchedule, r: PartialSchedule, cluster: int, stages: int
) -> ReductionSchedule:
    vector = r.vector or own.vector
    if not case.problem.columns:
        return _elements(case, own, r, vector)
    splits = r.split_k if isinstance(r.split_k, int) else None
    ahead = r.keep == "reread" and stages == 2 and not case.scans
    ring = r.stages is not None and not ahead
    apart = splits is not None and (splits > 1 or case.scans) and not ring
    grid = splits if splits is not None and ring else 1
    keep = r.keep or ("reread" if apart else "registers" if r.cluster or ring else own.keep)
    if keep == "shared" and (not case.problem.across or case.scans or stages == 1):
        keep = "reread"  # where a program says otherwise, the rules refuse it
    shared = keep != "reread" and case.problem.across and not case.scans
    clustered = r.cluster[1] if r.cluster else cluster if shared else 1
    scanned = keep == "registers" and case.scans
    fill = _look_back if scanned else _across if case.problem.across else _down
    threads, rows, items = fill(case, own, r, vector, keep, clustered * grid)
    chunks = math.ceil(case.line(vector) / (threads * items))
    least = own.splits if keep == own.keep else case.spread(chunks) if own.look_back else 1
    return ReductionSchedule(
        vector,
        threads,
        rows,
        items,
        keep,
        1 if grid > 1 else splits or min(least, chunks),
        cluster=clustered,
        look_back=scanned and chunks > 1,
        stages=1 if ahead else stages,
        blocks=r.blocks or (own.blocks if stages > 1 and (threads, rows) == (own.threads, own.rows) else 1),
        grid=grid,
        straddle=vector > case.widest,
        ahead=ahead,
    )


def _elements(
    case: ReductionCase, own: ReductionSchedule, r: PartialSchedule, vector: int
) -> ReductionSchedule:
    keep = r.keep or ("shared" if own.transposed else "registers")
    rows = r.rows or own.rows
    if keep == "shared" and case.transpose is not None:
        across, loads, tile = case.transpose
        if vector * rows * (r.items or 1) > TILE * tile:
            tile = TILE
        items = r.items or max(1, TILE * tile // vector // rows)
        return ReductionSchedule(vector, r.threads or 1, rows, items, "registers", 1, across, loads, tile)
    items = r.items or (1 if own.transposed else own.items)
    return ReductionSchedule(vector, r.threads or 1, rows, items, "registers", straddle=vector > case.widest)


def _look_back(
    case: ReductionCase, own: ReductionSchedule, r: PartialSchedule, vector: int, keep: str, cluster: int
) -> tuple[int, int, int]:
    """A scan whose row, or a part of it, lies in the registers of a block."""
    line = case.line(vector)
    most = max(1, min(LOOK_BACK_ITEMS, MOST_HELD // 2 // case.kept(vector)))
    if not case.problem.across:
        rows = r.rows or (min(own.rows, max(1, MOST_THREADS // r.threads)) if r.threads else own.rows)
        lines = r.threads or min(own.threads, max(1, MOST_THREADS // rows))
        return lines, rows, r.items or min(most, math.ceil(line / lines))
    threads = r.threads or min(LOOK_BACK_THREADS, power(math.ceil(line / (r.items or most))))
    items = r.items or min(most, math.ceil(line / threads))
    return threads, r.rows or (1 if threads * items < line else max(1, 128 // threads)), items


def _across(
    case: ReductionCase, own: ReductionSchedule, r: PartialSchedule, vector: int, keep: str, cluster: int
) -> tuple[int, int, int]:
    held, share = case.held(vector), math.ceil(case.line(vector) / cluster)
    if keep == "shared":
        threads = r.threads or (own.threads if own.keep == keep else HELD_THREADS)
        return threads, r.rows or (own.rows if own.keep == keep else 1), r.items or math.ceil(share / threads)
    if keep == "registers":
        enough = math.ceil(share / r.items) if r.items else math.ceil(share * held / 64)
        least = 32 if cluster > 1 else min(32, power(share))
        threads = r.threads or min(MOST_THREADS, max(power(enough), least))
        items = r.items or max(1, math.ceil(share / threads))
    else:
        share = math.ceil(share / (r.split_k if isinstance(r.split_k, int) else 1))
        threads = r.threads or (own.threads if own.keep == keep else min(256, power(share)))
        fits = max(1, min(4, MOST_HELD // 2 // held, math.ceil(share / threads)))
        items = r.items or (min(own.items, fits) if own.keep == keep else fits)
    return threads, r.rows or (1 if cluster > 1 else max(1, 128 // threads)), items


def _down(
    case: ReductionCase, own: ReductionSchedule, r: PartialSchedule, vector: int, keep: str, cluster: int
) -> tuple[int, int, int]:
    held, columns = case.held(vector), case.columns
    rows = r.rows or (min(own.rows, max(1, MOST_THREADS // r.threads)) if r.threads else own.rows)
    if keep == "registers":
        enough = math.ceil(columns / r.items) if r.items else math.ceil(columns * held / (MOST_HELD // 2))
        lines = r.threads or max(own.threads if not r.items and not r.rows else 1, power(enough))
        return lines, rows, r.items or max(1, math.ceil(columns / lines))
    lines = r.threads or min(own.threads, max(1, MOST_THREADS // rows))
    part = columns / (r.split_k if isinstance(r.split_k, int) else 1)
    fits = max(1, min(8, MOST_HELD // 2 // held, math.ceil(part / lines)))
    return lines, rows, r.items or (min(own.items, fits) if own.keep == keep else fits)
