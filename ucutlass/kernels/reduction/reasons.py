"""Why a sweep runs as it does, in words for `ucc explain`."""

from __future__ import annotations

import math

from ucutlass.kernels.planned import Note
from ucutlass.kernels.reduction.plan import (
    ReductionProblem,
    ReductionSchedule,
    RowReduce,
    ScanAlong,
    phases,
    scans_of,
)


def notes(
    problem: ReductionProblem, s: ReductionSchedule, rows: int, columns: int, passes: int, widest: int
) -> tuple[Note, ...]:
    """Of a schedule, for these extents; `passes` are those over the loads, `widest` is the vector that
    extents and types allow."""
    where = "none" if problem.vector is None else "columns" if problem.across else "rows"
    why = f"{'the widest' if s.vector == widest else f'of {widest}'} that extents and types allow"
    reasons = [Note("", f"vectors of {s.vector}", f"along the {where}, {why}")]
    if any(isinstance(i, RowReduce | ScanAlong) for i in problem.instructions):
        text = (
            "every element is read once and kept in registers"
            if s.keep == "registers"
            else f"a row's {columns} columns do not fit registers: each of {passes} passes reads it"
        )
        reasons.append(Note("", f"{s.threads} threads a {'part' if s.chained else 'row'}", text))
    if s.cluster > 1:
        reasons.append(
            Note("", f"a cluster of {s.cluster} blocks a row", "one block's registers do not hold it")
        )
    if s.chained:
        part = s.threads * s.items * (s.vector if problem.across else 1)
        why = f"{rows} rows alone do not fill the GPU; a block waits for what earlier ones sum to"
        reasons.append(Note("", f"{math.ceil(columns / part)} blocks a row, in one pass", why))
    if s.splits > 1:
        why = f"{rows} rows alone do not fill the GPU"
        if scans_of(problem):
            why += "; the parts are read for their totals first, then scanned"
            why += ", since what is scanned needs the whole row before" if phases(problem) else ""
        reasons.append(Note("", f"{s.splits} blocks a row", why))
    return tuple(reasons)
