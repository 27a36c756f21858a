"""Rows that lie in shared memory while they are reduced and stored: the schedules, and what each is estimated to take."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

from ucutlass.ir.hardware import Arch, clusters_at_a_time
from ucutlass.ir.schedule import FIELDS
from ucutlass.kernels.reduction.cost import VectorRows
from ucutlass.kernels.reduction.plan import ReductionProblem, ReductionSchedule, RowReduce
from ucutlass.kernels.reduction.rules import CLUSTERS, LARGE_CLUSTERS
from ucutlass.kernels.reduction.smem import resident_loads, ring_bytes, ring_limit, ring_loads

GROUPS: tuple[tuple[int, int, int], ...] = (
    (256, 1, 2),
    (256, 1, 4),
    (256, 2, 1),
    (256, 4, 1),
    (512, 1, 1),
    (512, 1, 2),
    (512, 2, 1),
    (1024, 1, 1),
)
"""Threads of a row, rows of a block, and blocks of an SM."""

COPIED = 0.86
"""The part of a data sheet's bandwidth that rows stream at."""

EXCHANGE, LARGE_CLUSTER = 2.7e-6, 0.3e-6
"""Seconds that a row waits for its parts of reductions, and more for each group of threads of an SM that share rows with 15
other blocks."""

LATE_LINE, FAR_LINE = 0.2e-6, 0.4e-6
"""Seconds that a row waits for a line of 1024 vectors that the ring has no room to bring ahead, and for one of a load that all rows
share, from the L2."""

LINE, SHIFTED_LINE = 0.62e-6, 0.22e-6
"""Seconds of an SM for 1024 vectors of 8 elements, and more for each load that all rows share and that begins anywhere in
them."""

EXPONENTIALS, SHARED = 0.25, 0.35
"""The part of LINE that exponentials take beside, and each load but the first that all rows share. All of these were fitted
to 226 schedules of 18 norms and softmaxes on an H200: of those, the cheapest takes 1.01 times as long as the fastest in the
geometric mean, and 1.03 times at most."""


def held_schedules(rows: VectorRows) -> Iterator[ReductionSchedule]:
    """Returns every schedule whose ring holds a row, with the longest ring that fits."""
    problem, vector, straddle = rows.problem, rows.vector, rows.straddle
    if not rows.arch.wgmma or not ring_loads(problem, vector, straddle):
        return
    most = FIELDS["stages"].numbers
    assert most is not None
    shared = bool(resident_loads(problem, vector, straddle))
    for (threads, at_once, blocks), cluster in itertools.product(GROUPS, (*CLUSTERS, *LARGE_CLUSTERS)):
        items = math.ceil(math.ceil(rows.vectors / cluster) / threads)
        schedule = ReductionSchedule(
            vector, threads, at_once, items, "shared", cluster=cluster, blocks=blocks, straddle=straddle
        )
        for tried in (replace(schedule, resident=True), schedule) if shared else (schedule,):
            stages = _longest(problem, tried, rows.arch, most[1])
            if stages >= max(items, 2):
                yield replace(tried, stages=stages)
                break


def _longest(problem: ReductionProblem, s: ReductionSchedule, arch: Arch, most: int) -> int:
    """Returns the lines of the longest ring that fits, 0 where none does."""
    limit = ring_limit(arch, s)
    two, three = (ring_bytes(problem, replace(s, stages=n)) for n in (2, 3))
    return min(most, 2 + (limit - two) // (three - two)) if two <= limit else 0


def held_schedule(rows: VectorRows) -> ReductionSchedule | None:
    """Returns the cheapest of them that employs all SMs, None where there is none."""
    schedules = [s for s in held_schedules(rows) if rows.extent.rows * s.cluster >= rows.device.sms]
    return min(schedules, key=lambda s: held_seconds(rows, s), default=None)


def held_seconds(rows: VectorRows, s: ReductionSchedule) -> float:
    """Returns the estimated time of a launch: as many turns as the rows that an SM's groups of threads take one after
    another, each the root of the squared sum of what memory, a row's own waiting, and the SM take for it."""
    problem, extent, device = rows.problem, rows.extent, rows.device
    groups = s.rows * s.blocks
    at_a_time = (device.sms if s.cluster == 1 else clusters_at_a_time(device, s.cluster)) * groups
    of_row = extent.bytes / extent.rows
    memory = min(at_a_time, extent.rows) * of_row / (COPIED * device.bandwidth)
    width, shared = s.threads / 1024, len(resident_loads(problem, s.vector, s.straddle))
    waiting = EXCHANGE + LATE_LINE * width * max(0, 2 * s.items - s.stages)
    waiting += FAR_LINE * s.items * (0 if s.resident else shared)
    waiting += LARGE_CLUSTER * groups * (s.cluster in LARGE_CLUSTERS)
    exponentials = any(isinstance(i, RowReduce) and i.op == "logsumexp" for i in problem.instructions)
    line = LINE * s.vector / 8 * (1 + EXPONENTIALS * exponentials + SHARED * max(0, shared - 1))
    work = groups * width * s.items * (line + SHIFTED_LINE * shared * s.straddle)
    return math.ceil(extent.rows / at_a_time) * math.hypot(memory, waiting, work)
