"""What a convolution in f32 takes by wgmma, in passes of TF32 or f16, and by the multistage kernel, its copies into
other orders included: the planner chooses among these, and `cost.estimate` reports it.

Fitted to an H100 (f32 layers of KernelBench's problems and of `benchmarks.convolution`), within a fifth of
most times. Other compute types are gathered by TMA wherever it can.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ucutlass.ir.hardware import Device
from ucutlass.kernels.access import Reduction, Store
from ucutlass.kernels.convolution.plan import ConvolutionProblem, Im2colSchedule, OperandAccess, merged, sides
from ucutlass.kernels.convolution.plan_im2col import Im2col, im2col
from ucutlass.kernels.convolution.schedule_im2col import channel_run, clocks, extents_of
from ucutlass.kernels.gemm.plan import Sm80Schedule


@dataclass(frozen=True, slots=True)
class PriceModel:
    """Clocks of an SM: `step` of a step of 64 x 64 x 16 in three TF32 passes whose operands are gathered element
    by element, `vectors` where each is copied 16 bytes at a time, times `divided` where a window's position
    is divided; an SM holds `resident` such blocks. `tile` is what a transposed tile takes of an SM;
    `reached` the share of the memory's bandwidth that copies and results reach; `row` is a row that TMA
    gathers, a part of the channels at one tap, with the rows of weights that come with it, `row_f16` both of f16
    parts, `beyond` what each of the channels takes that they lack; `staged` the share that f16 passes take longer where
    the results of a tile are stored apart; `reduced` what a result takes that passes shared memory to be reduced over
    rows."""

    step: float = 1500.0
    vectors: float = 890.0
    divided: float = 1.28
    resident: int = 2
    tile: float = 600.0
    reached: float = 0.75
    row: float = 3.8
    row_f16: float = 6.2
    beyond: float = 1.55
    staged: float = 1.35
    reduced: float = 0.7


PRICE = PriceModel()

STEP = 64 * 64 * 16
TILE = (32, 64)
"""What a block of `convolution/pack.j2` transposes, along the copy's last axis and the tensor's."""

SHORT = 32
"""Bytes of a last axis that one thread copies whole: an H100 copied 32 at 2.0 TB/s, 64 at 1.2."""


def im2col_seconds(
    problem: ConvolutionProblem, schedule: Im2colSchedule, sizes: tuple[int, ...], device: Device
) -> float:
    """Returns the seconds of the kernel of TMA and wgmma with its copies."""
    if schedule.halo:
        return runs_seconds(problem, schedule, sizes, device)
    how = im2col(problem)
    assert isinstance(how, Im2col)
    m, n, batch, steps = extents_of(problem, how, schedule.part, schedule.tile[2], sizes)
    multiplied = clocks(schedule, m, n, batch, steps, device, problem.passes) / device.clock
    tile_m, tile_n, depth = schedule.tile
    rows = math.ceil(m / tile_m) * tile_m * math.ceil(n / tile_n) * batch * steps * (depth // schedule.part)
    row = PRICE.row
    if problem.passes == "f16x3":
        run = channel_run(problem, how, sizes)
        row = PRICE.row_f16 + PRICE.beyond * (schedule.part - run / math.ceil(run / schedule.part))
        stored_apart = (
            how.phases > 1
            and problem.stacked == 1
            and any(isinstance(o, Store) for o in problem.gemm.outputs)
        )
        multiplied *= PRICE.staged if stored_apart else 1.0
    gathered = rows * row / device.sms / device.clock
    over_rows = sum(isinstance(o, Reduction) and not o.of_rows for o in problem.gemm.outputs)
    multiplied += over_rows * m * n * batch * PRICE.reduced / device.sms / device.clock
    return max(multiplied, gathered, _stored(problem, sizes, device)) + copies_seconds(problem, sizes, device)


@dataclass(frozen=True, slots=True)
class RunPrice:
    """Clocks of an SM where taps share rows: `columns` of 64 rows by 16 products of K in three f16 passes, by the tile's
    columns; `step` of a tap beside that, `rows` of 64 rows of a tile. Fitted to an H100 with 38 layers, within a fifth
    of most."""

    columns: Mapping[int, float]
    step: float = 88.0
    rows: float = 2860.0


RUN_PRICE = RunPrice(MappingProxyType({32: 44.0, 64: 98.0, 128: 235.0}))


def tiles_of_runs(problem: ConvolutionProblem, schedule: Im2colSchedule, sizes: tuple[int, ...]) -> int:
    """Returns the tiles of lines that the last tap's positions beyond them belong to."""
    how = im2col(problem)
    assert isinstance(how, Im2col)
    tile_m, tile_n, _ = schedule.tile
    window = how.space[0]
    taps = 1 if window.tap_dim is None else sizes[window.tap_dim]
    along = sizes[window.result]
    m, n, batch, _ = extents_of(problem, how, schedule.part, schedule.part, sizes)
    rows = m / along * (along + abs(window.tap) * (taps - 1))
    return math.ceil(rows / tile_m) * math.ceil(n / tile_n) * batch


def runs_seconds(
    problem: ConvolutionProblem, schedule: Im2colSchedule, sizes: tuple[int, ...], device: Device
) -> float:
    """Returns the seconds of the kernel whose taps share rows, with its copies."""
    how = im2col(problem)
    assert isinstance(how, Im2col)
    tile_m, tile_n, _ = schedule.tile
    *_, steps = extents_of(problem, how, schedule.part, schedule.part, sizes)
    tiles = tiles_of_runs(problem, schedule, sizes)
    step = schedule.part / 16 * tile_m / 64 * RUN_PRICE.columns[tile_n] + RUN_PRICE.step
    spent = math.ceil(tiles / device.sms) * (steps * step + tile_m / 64 * RUN_PRICE.rows) / device.clock
    return max(spent, _stored(problem, sizes, device)) + copies_seconds(problem, sizes, device)


def multistage_seconds(
    problem: ConvolutionProblem, schedule: Sm80Schedule, splits: int, sizes: tuple[int, ...], device: Device
) -> float:
    """Returns the seconds of the multistage kernel with its copies."""
    m, n, k = (math.prod(sizes[d] for d in names) for names in (problem.m, problem.n, problem.k))
    tile_m, tile_n, tile_k = schedule.tile
    batch = math.prod(sizes[d] for run in problem.batch for d in run)
    blocks = math.ceil(m / tile_m) * math.ceil(n / tile_n) * batch * splits
    waves = math.ceil(blocks / (device.sms * PRICE.resident))
    each = PRICE.vectors if all(4 * side.copy_width == 16 for side in sides(problem)) else PRICE.step
    windows = [axis.window for axis in problem.a.axes if axis.window is not None]
    each *= PRICE.divided if any(window.scale > 1 for window in windows) else 1.0
    steps = math.ceil(k / tile_k / splits) * (tile_m * tile_n * tile_k / STEP)
    # One block alone waits as long as two that share an SM.
    multiplied = PRICE.resident * waves * steps * each / device.clock
    stored = _stored(problem, sizes, device) * (1 if splits == 1 else 2 * splits)
    return 2 * device.launch_floor + multiplied + stored + copies_seconds(problem, sizes, device)


def copies_seconds(problem: ConvolutionProblem, sizes: tuple[int, ...], device: Device) -> float:
    """Returns the seconds of the launches that copy operands to other orders; one copies both in f16 parts, and another
    that mostly does nothing follows it."""
    copied = [o for o in (problem.a, problem.b) if o.pack is not None]
    launches = 2 if problem.passes == "f16x3" else len(copied)
    return launches * device.launch_floor + sum(_copy_seconds(o, sizes, device) for o in copied)


def _copy_seconds(operand: OperandAccess, sizes: tuple[int, ...], device: Device) -> float:
    extents = [sizes[axis.extent] for axis in operand.axes]
    last = operand.order[-1]
    padded = math.ceil(extents[last] / operand.pad) * operand.pad
    elements = math.prod(extents) / extents[last] * padded
    written = elements * operand.read.bytes * (2 if operand.split else 1)
    moved = (math.prod(extents) * operand.elem.bytes + written) / (PRICE.reached * device.bandwidth)
    first = merged(operand)
    if not first or padded * operand.read.bytes <= SHORT:
        return moved
    length = math.prod(extents[i] for i in first)
    others = math.prod(extents) // length // extents[last]
    tiles = others * math.ceil(padded / TILE[0]) * math.ceil(length / TILE[1])
    return max(moved, tiles * PRICE.tile / device.sms / device.clock)


def _stored(problem: ConvolutionProblem, sizes: tuple[int, ...], device: Device) -> float:
    """Returns the seconds in which the results reach memory, if nothing else does."""
    results = math.prod(sizes[d] for names in (problem.m, problem.n, *problem.batch) for d in names)
    stored = [o.access.elem.bytes for o in problem.gemm.outputs if isinstance(o, Store)]
    return results * sum(stored) / (PRICE.reached * device.bandwidth)
