"""What a convolution in f32 takes by wgmma, in passes of TF32 or f16, and by the multistage kernel, its copies into
other orders included: the planner chooses among these, and `cost.estimate` reports it.

Fitted to an H100 (f32 layers of KernelBench's problems and of `benchmarks.convolution`), within a fifth of
most times. Other compute types are gathered by TMA wherever it can.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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
        stored_apart = how.phases > 1 and any(isinstance(o, Store) for o in problem.gemm.outputs)
        multiplied *= PRICE.staged if stored_apart else 1.0
    gathered = rows * row / device.sms / device.clock
    over_rows = sum(isinstance(o, Reduction) and not o.of_rows for o in problem.gemm.outputs)
    multiplied += over_rows * m * n * batch * PRICE.reduced / device.sms / device.clock
    return max(multiplied, gathered, _stored(problem, sizes, device)) + copies_seconds(problem, sizes, device)


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
    """Returns the seconds of the launches that copy operands to other orders; those of f16 parts are followed by others
    that mostly do nothing."""
    copied = [o for o in (problem.a, problem.b) if o.pack is not None]
    again = len(copied) * device.launch_floor if problem.passes == "f16x3" else 0.0
    return again + sum(_copy_seconds(o, sizes, device) for o in copied)


def _copy_seconds(operand: OperandAccess, sizes: tuple[int, ...], device: Device) -> float:
    extents = [sizes[axis.extent] for axis in operand.axes]
    last = operand.order[-1]
    padded = math.ceil(extents[last] / operand.pad) * operand.pad
    elements = math.prod(extents) / extents[last] * padded
    written = elements * operand.read.bytes * (2 if operand.split else 1)
    moved = (math.prod(extents) * operand.elem.bytes + written) / (PRICE.reached * device.bandwidth)
    first = merged(operand)
    if not first or padded * operand.read.bytes <= SHORT:
        return device.launch_floor + moved
    length = math.prod(extents[i] for i in first)
    others = math.prod(extents) // length // extents[last]
    tiles = others * math.ceil(padded / TILE[0]) * math.ceil(length / TILE[1])
    return device.launch_floor + max(moved, tiles * PRICE.tile / device.sms / device.clock)


def _stored(problem: ConvolutionProblem, sizes: tuple[int, ...], device: Device) -> float:
    """Returns the seconds in which the results reach memory, if nothing else does."""
    results = math.prod(sizes[d] for names in (problem.m, problem.n, *problem.batch) for d in names)
    stored = [o.access.elem.bytes for o in problem.gemm.outputs if isinstance(o, Store)]
    return results * sum(stored) / (PRICE.reached * device.bandwidth)
