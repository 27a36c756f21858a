"""How element-wise kernels run: vectors of a thread, threads, and what is too small for any of it to matter but the launch."""

from __future__ import annotations

import math

from ucutlass.ir.hardware import Device
from ucutlass.kernels.addresses import PACK_BYTES
from ucutlass.kernels.reduction.cost import Extent
from ucutlass.kernels.reduction.plan import (
    Load,
    ReductionOutput,
    ReductionProblem,
    ReductionSchedule,
    compact_modes,
    contiguous_along,
)
from ucutlass.kernels.reduction.plan_straddle import MOST_STRADDLED
from ucutlass.kernels.reduction.rules import power
from ucutlass.kernels.reduction.schedule import moved_bytes

THREADS = 256
"""Threads of a block where nothing asks for more: eight blocks fill an SM."""

HELD = 128
"""Bytes of a row that a thread keeps in registers at most, but in the last of REGISTER_BUDGETS: 32 of its registers,
besides what it computes with."""

FULL_SM = 2048
"""Threads of an SM."""

LEAST_THREADS = 128
"""Threads for each SM below which vectors of an element-wise kernel are shorter: on an H200 a blend of 34,416 bf16 takes 0.76 us
by vectors of 2 and 0.87 by 8, a sum of 27,648 f16 0.75 and 0.81 (`benchmarks.pointwise`)."""

LEAST_STRADDLED = 1024
"""Threads for each SM up to which an element-wise kernel takes the vectors that divide its lines, however short, since a
longer program takes longer than their one wave: on an H200 a GELU of 12,699 f32 takes 0.82 us so, and 1.06 by vectors that
straddle lines, a sum of 13,770 bf16 0.72 and 1.13 (`benchmarks.pointwise`)."""

MOST_PARTS = 2**15
"""Blocks of a line at most, along a side of the grid that has fewer."""

CACHED = 4
"""How many times the bytes of its operands a kernel's results have at least for whose operands it does not wait long."""

_FLIGHT = 4
"""Vectors that a thread of an element-wise kernel has in flight: 64 KiB an SM, about twice what DRAM's
latency asks for."""


def items_of(
    problem: ReductionProblem, extent: Extent, vector: int, device: Device, scattered: bool = False
) -> int:
    """Vectors a thread takes: one where every load is a vector of 16 bytes or one element, as a GELU of 9 M f32 takes 19.5 us so
    on an H200 and 20.7 by 4, a ReLU of 1.26 G 2354 and 2426; more of shorter vectors: a bias over lines of 6 bf16 takes 102 us by
    two of 4 bytes on an H100 and 128 by one; more of what caches have, which waits for the rest of a thread's work: an outer
    product of 10,444 x 40 x 128 bf16 takes 25 us by 4 on an H200 and 32 by one; more where loads are `scattered`: lines of 431
    bf16 in another order take 88 us by 4 and 99 by one (`benchmarks.pointwise`). Few where few threads would be left."""
    along = [x for x in problem.loads if problem.vector in {m for axis in x.axes for m, _ in axis.at.terms}]
    threads = extent.rows // vector
    held = max((x.elem.bytes for x in problem.loads), default=4) * vector * max(1, len(problem.loads))
    most = HELD // max(1, held)
    results = extent.rows * sum(o.elem.bytes for o in problem.outputs)
    cached = bool(problem.loads) and CACHED * (extent.bytes - results) <= results
    whole = all(contiguous_along(x.axes, problem.vector) for x in along)
    if not problem.windows and whole and not cached and not scattered:
        every: list[Load | ReductionOutput] = [*along, *problem.outputs]
        most = PACK_BYTES // (vector * max(x.elem.bytes for x in every))
    most = max(1, min(_FLIGHT, most))
    while most > 1 and threads // most < device.sms * FULL_SM:
        most //= 2
    return most


def lines_of(
    problem: ReductionProblem, rows: int, vectors: int, vector: int, device: Device
) -> ReductionSchedule:
    """Lines of an element-wise problem: a block takes so many vectors of one as its threads have in flight, or several;
    fewer where blocks would not fill the GPU."""
    threads = min(THREADS, power(max(1, vectors)))
    most = max(1, min(_FLIGHT, HELD // moved_bytes(problem, vector)))
    each = max(1, math.ceil(vectors / threads))
    while most > 1 and rows * threads * math.ceil(each / most) < device.sms * FULL_SM:
        most //= 2
    parts = math.ceil(each / most)
    items = math.ceil(each / parts)
    if parts == 1:
        return ReductionSchedule(vector, threads, THREADS // threads, items, "registers")
    return ReductionSchedule(vector, threads, THREADS // threads, items, "reread", min(parts, MOST_PARTS))


def is_short(problem: ReductionProblem, extent: Extent, s: ReductionSchedule) -> bool:
    """Whether coordinates and offsets of an element-wise kernel fit 32 bits, which take half of the instructions: where no
    tensor has more elements than the results."""
    if problem.columns or problem.windows or s.transposed or s.straddle or extent.rows > MOST_STRADDLED:
        return False
    every: list[Load | ReductionOutput] = [*problem.loads, *problem.outputs]
    loose = any(load.guards for load in problem.loads)
    return not loose and all(compact_modes(problem, x.axes) is not None for x in every)
