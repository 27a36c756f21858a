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
    SHARED_OF_SM,
    TENSOR_STEP_BYTES,
    WARP,
    RegisterTile,
    columns_of,
    is_staged,
    out_of_bounds,
    shared_bytes,
)

SCHEDULERS = 4
"""Warps of which an SM issues an instruction in a clock."""


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
    if schedule.tensor:
        return _tensor_tile_seconds(problem, tile, schedule, sizes, device)
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
    return PRICE.launch + max(seconds, _moved_seconds(problem, positions * columns, sizes, device))


def _moved_seconds(
    problem: ConvolutionProblem, results: int, sizes: tuple[int, ...], device: Device
) -> float:
    """Returns the seconds in which memory brings A and takes the results."""
    stored = sum(o.access.elem.bytes for o in problem.gemm.outputs if isinstance(o, Store))
    moved = results * stored + math.prod(sizes[axis.extent] for axis in problem.a.axes) * problem.a.elem.bytes
    return moved / (PRICE.reached * device.bandwidth)


# --- warps that multiply by mma.sync ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WarpModel:
    """`launch`: seconds of a launch and of the weights' way to shared memory. Clocks of an SM for a warp of 32 positions:
    `narrow` and `load` of an element of A that a lane gathers, of 2 and 4 bytes, `apart` times as many where windows are more than
    a position apart; `narrow_octet` and `octet` of 8 columns of an instruction's products, and `result` of a column. Fitted to
    46 times of eleven layers on an H200, within a fifth of most."""

    launch: float = 5e-6
    narrow: float = 0.3
    load: float = 0.7
    apart: float = 9.4
    narrow_octet: float = 7.8
    octet: float = 11.5
    result: float = 7.3


WARP_PRICE = WarpModel()

OCTET, MOST_OCTETS = 8, 8
"""Columns of an instruction, and the most of these of a tile."""

TENSOR_THREADS, MOST_HELD = (256, 128), 512
"""Of a block, fewer where shared memory holds more of them so; and those that an SM holds by their registers."""


def _tensor_tile_seconds(
    problem: ConvolutionProblem,
    tile: RegisterTile,
    schedule: RegisterTileSchedule,
    sizes: tuple[int, ...],
    device: Device,
) -> float:
    columns, size = columns_of(problem, tile, sizes), problem.a.elem.bytes
    positions = math.prod(sizes[run[0]] for i, run in enumerate(problem.batch) if i != tile.column)
    elements = TENSOR_STEP_BYTES // size
    steps = math.ceil(math.prod(sizes[d] for d in problem.k) / elements)
    narrow, price = size == 2, WARP_PRICE
    moves = [c for axis in problem.a.axes if axis.window for d, c in axis.window.terms if d not in problem.k]
    load = (price.narrow if narrow else price.load) * (price.apart if any(c > 1 for c in moves) else 1.0)
    octet = price.narrow_octet if narrow else price.octet
    warp = steps * (elements * load + schedule.columns / OCTET * octet) + schedule.columns * price.result
    block = schedule.rows * schedule.threads
    blocks = math.ceil(positions / block) * math.ceil(columns / schedule.columns)
    seconds = math.ceil(blocks / device.sms) * block / WARP * warp / device.clock
    return price.launch + max(seconds, _moved_seconds(problem, positions * columns, sizes, device))


def cheapest_tensor_tile(
    problem: ConvolutionProblem,
    tile: RegisterTile,
    own: RegisterTileSchedule,
    sizes: tuple[int, ...],
    device: Device,
) -> RegisterTileSchedule | str:
    """The columns of a warp that take least, or why none fit."""
    octets = math.ceil(columns_of(problem, tile, sizes) / OCTET)
    parts = range(math.ceil(octets / MOST_OCTETS), octets + 1)
    widths = sorted({OCTET * math.ceil(octets / n) for n in parts}, reverse=True)
    schedules = [
        replace(own, columns=width, threads=threads, channels=1, tensor=True)
        for width, threads in itertools.product(widths, TENSOR_THREADS)
    ]
    fitting = [s for s in schedules if out_of_bounds(problem, tile, s, sizes) is None]
    if not fitting:
        return str(out_of_bounds(problem, tile, schedules[-1], sizes))
    best = min(fitting, key=lambda s: _tensor_tile_seconds(problem, tile, s, sizes, device)).columns

    def held(s: RegisterTileSchedule) -> int:
        return s.threads * min(
            MOST_HELD // s.threads, SHARED_OF_SM // (shared_bytes(problem, s, sizes) + 1024)
        )

    return max((s for s in fitting if s.columns == best), key=held)


# --- threads that multiply and add --------------------------------------------------------


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
