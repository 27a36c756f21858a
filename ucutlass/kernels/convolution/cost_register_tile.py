"""What a convolution takes whose threads keep sums of positions by columns: the instructions of each step of K, and
the bytes of what is read and stored."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from ucutlass.ir.hardware import Device
from ucutlass.kernels.access import Store
from ucutlass.kernels.convolution.plan import ConvolutionProblem, RegisterTileSchedule
from ucutlass.kernels.convolution.plan_register_tile import (
    RegisterTile,
    columns_of,
    is_staged,
    out_of_bounds,
    shared_bytes,
)

WARP, SCHEDULERS = 32, 4
"""Threads of a warp, and warps of which an SM issues an instruction in a clock."""


@dataclass(frozen=True, slots=True)
class InstructionModel:
    """`launch`: seconds of a launch, in which weights come to shared memory and nothing else runs. `issued`: the share
    of clocks in which a scheduler issues; `load` is the instructions of an element of A, `position` of a position in
    each step and `step` of the step itself; `thread` of a thread, `weight` of a weight that it brings to shared memory,
    `result` of a result, `staged` of one that passes shared memory, `vector` and `narrow_vector` of one of adjacent
    columns that does not, of 4 and 2 bytes; `reached` the share of the memory's bandwidth that results reach. Fitted
    to 26 times of five stems on an H100, within a sixth of most; `vector` and `narrow_vector` to older ones."""

    launch: float = 7e-6
    issued: float = 0.88
    load: float = 7.2
    position: float = 12.4
    step: float = 4.0
    thread: float = 360.0
    weight: float = 10.0
    result: float = 38.0
    staged: float = 29.0
    vector: float = 110.0
    narrow_vector: float = 50.0
    reached: float = 0.75


PRICE = InstructionModel()

TILES = tuple((rows, columns) for rows, columns in itertools.product((1, 2, 4, 8), (4, 8, 16, 32)))
"""Positions and columns of a thread that are tried."""

MOST_SUMS = 128

MOST_WHOLE_BYTES, WAVES = 40 * 1024, 6
"""Of the weights of all columns, and blocks of positions an SM, from which a thread has all columns."""

FEW_SUMMED, FEW_SUMS, FEW_COLUMNS = 72, 64, 16
"""Products of a result up to which a thread that has all columns keeps so many sums at a time (an H100: 6 % less than
with twice as many at 27 products, 1 % less at 72), since the blocks beside it hide its loads and stores; and one whose
results of 16 bits are adjacent, of so many columns at most (an H200: 8 and 11 % less)."""


def register_tile_seconds(
    problem: ConvolutionProblem,
    tile: RegisterTile,
    schedule: RegisterTileSchedule,
    sizes: tuple[int, ...],
    device: Device,
) -> float:
    """Returns the seconds of the kernel, which needs no copies."""
    columns = columns_of(problem, tile, sizes)
    positions = math.prod(sizes[run[0]] for i, run in enumerate(problem.batch) if i != tile.column)
    k = math.prod(sizes[d] for d in problem.k)
    rows, width, channels = schedule.rows, schedule.columns, schedule.channels
    if schedule.whole:  # a narrow part of all columns takes no more than a wide one
        width = max(width, min(columns, MOST_SUMS // rows))
    blocks = math.ceil(positions / (rows * schedule.threads)) * math.ceil(columns / width)
    step = channels * rows * width + channels * width / 4 + PRICE.step
    step += PRICE.load * channels * rows + PRICE.position * rows
    wide = max(o.access.elem.bytes for o in problem.gemm.outputs) > 2
    result = PRICE.result if schedule.vector == 1 else PRICE.vector if wide else PRICE.narrow_vector
    result = PRICE.staged if is_staged(problem, schedule.vector) else result
    thread = (
        PRICE.thread
        + k / channels * step
        + PRICE.weight * k * width / schedule.threads
        + result * rows * width
    )
    busiest = math.ceil(blocks / device.sms)
    warps = busiest * schedule.threads / WARP
    # Few warps do not hide each other's latencies.
    issued = PRICE.issued * min(1.0, warps / (2 * SCHEDULERS))
    seconds = warps * thread / SCHEDULERS / issued / device.clock
    stored = sum(o.access.elem.bytes for o in problem.gemm.outputs if isinstance(o, Store))
    moved = positions * columns * stored
    moved += math.prod(sizes[axis.extent] for axis in problem.a.axes) * problem.a.elem.bytes
    return PRICE.launch + max(seconds, moved / (PRICE.reached * device.bandwidth))


def cheapest_register_tile(
    problem: ConvolutionProblem,
    tile: RegisterTile,
    own: RegisterTileSchedule,
    sizes: tuple[int, ...],
    device: Device,
) -> RegisterTileSchedule | str:
    """The positions and columns of a thread that take least, or why none fit."""
    columns = math.ceil(columns_of(problem, tile, sizes) / 4) * 4
    few = math.prod(sizes[d] for d in problem.k) <= FEW_SUMMED
    narrow = own.vector > 1 and all(o.access.elem.bytes <= 2 for o in problem.gemm.outputs)
    most, widest = (FEW_SUMS, FEW_COLUMNS) if few and narrow else (MOST_SUMS, columns)
    schedules = [
        replace(own, rows=rows, columns=width, vector=min(own.vector, width))
        for rows, width in TILES
        if rows * width <= most and width <= widest and width < columns + 4
    ]
    fitting = [s for s in schedules if out_of_bounds(problem, tile, s, sizes) is None]
    if not fitting:
        return str(out_of_bounds(problem, tile, schedules[0], sizes))
    best = min(fitting, key=lambda s: register_tile_seconds(problem, tile, s, sizes, device))
    width = max(4, min(best.columns, FEW_SUMS // best.rows)) if few else best.columns
    whole = replace(best, columns=width, vector=min(best.vector, width), whole=True)
    blocks = math.prod(sizes[run[0]] for i, run in enumerate(problem.batch) if i != tile.column)
    blocks //= best.rows * best.threads
    fits = columns > best.columns and shared_bytes(problem, whole, sizes) <= MOST_WHOLE_BYTES
    return whole if fits and blocks >= WAVES * device.sms else best
