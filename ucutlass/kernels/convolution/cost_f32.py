"""What a convolution in f32 or TF32 takes by wgmma, in passes of TF32 or f16, and one in f32 by the multistage kernel, its
copies into other orders included: the planner chooses among these, and `cost.estimate` reports it.

Fitted to an H100 (f32 layers of KernelBench's problems and of `benchmarks.convolution`), within a fifth of
most times. Other compute types are gathered by TMA wherever it can.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ucutlass.ir.elements import TF32
from ucutlass.ir.hardware import Device
from ucutlass.kernels.access import Reduction, Store
from ucutlass.kernels.convolution.plan import (
    IN_F16,
    ConvolutionProblem,
    Im2colSchedule,
    OperandAccess,
    Passes,
    merged,
    sides,
)
from ucutlass.kernels.convolution.plan_im2col import Im2col, im2col, stores_sums
from ucutlass.kernels.convolution.schedule_im2col import channel_run, clocks, does_much, extents_of
from ucutlass.kernels.convolution.smem import PARTS
from ucutlass.kernels.gemm.plan import Sm80Schedule


@dataclass(frozen=True, slots=True)
class PriceModel:
    """Clocks of an SM where nothing else is said."""

    step: float = 1500.0
    """Of a step of 64 x 64 x 16 in three TF32 passes whose operands are gathered element by element."""
    vectors: float = 890.0
    """Of one whose operands are copied 16 bytes at a time."""
    divided: float = 1.28
    """How much longer either takes where a window's position is divided."""
    resident: int = 2
    """Such blocks that an SM holds."""
    tile: float = 600.0
    """Of a transposed tile of a copy."""
    reached: float = 0.75
    """The share of the memory's bandwidth that copies and results reach."""
    row: float = 3.8
    """Of a row that TMA gathers, a part of the channels at one tap, with the rows of weights that come with it."""
    row_f16: float = 6.2
    """Of both of f16 parts."""
    beyond: float = 1.55
    """Of each of the channels that rows of f16 parts lack."""
    staged: float = 1.35
    """How much longer three f16 passes take where the results of a tile are stored apart."""
    reduced: float = 0.7
    """Of a result that passes shared memory to be reduced over rows."""
    early: float = 0.3
    """The share of an empty launch that a copy takes whose end the next launch waits for (an H100: 3 to 6 us less of two
    copies)."""


PRICE = PriceModel()


@dataclass(frozen=True, slots=True)
class OnePassPrice:
    """What one pass of TF32 takes of the prices of its parts. Fitted to an H100 with 28 layers; three in four kernels of others
    that a seed drew took within a fifth of it."""

    multiplied: float = 1.05
    """Of the price of products."""
    copied: float = 1.1
    """Of that of copies as f16."""
    registers: float = 0.8
    """Of the time in which results reach memory, what is felt beside products: of results stored from registers."""
    pairs: float = 0.35
    """The same where remainders are columns and neighbouring pairs are stored."""
    single: float = 1.75
    """The same where these are stored one by one."""
    apart: float = 1.2
    """The same of rows that lie apart."""
    alone: float = 0.9
    """The same of others, with one block on an SM."""
    beside: float = 0.3
    """The same with several."""
    launches: float = 5e-6
    """Seconds of f16 copies besides."""
    much: float = 0.3
    """Clocks of an SM for a result that takes long work, half as many where it is staged."""
    least: int = 128
    """Rows are gathered no faster than so many at a time."""
    weights: float = 0.15
    """The share of a row that a row of weights takes which comes with it."""


ONE_PASS_PRICE = OnePassPrice()

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
    if problem.passes in IN_F16:
        run = channel_run(problem, how, sizes)
        row = (PRICE.row_f16 if problem.passes == "f16x3" else PRICE.row) + PRICE.beyond * (
            schedule.part - run / math.ceil(run / schedule.part)
        )
        stored_apart = (
            how.phases > 1
            and problem.stacked == 1
            and any(isinstance(o, Store) for o in problem.gemm.outputs)
        )
        multiplied *= PRICE.staged if stored_apart and problem.passes == "f16x3" else 1.0
    gathered = rows * row / device.sms / device.clock
    over_rows = sum(isinstance(o, Reduction) and not o.of_rows for o in problem.gemm.outputs)
    multiplied += over_rows * m * n * batch * PRICE.reduced / device.sms / device.clock
    stored, copies = _stored(problem, sizes, device), copies_seconds(problem, sizes, device)
    if problem.compute_type == TF32:
        gathered *= max(1.0, ONE_PASS_PRICE.least / tile_m) * (1 + ONE_PASS_PRICE.weights * tile_n / tile_m)
        spent = max(ONE_PASS_PRICE.multiplied * multiplied, gathered)
        spent += _share_of_stores(problem, how, schedule, sizes) * stored
        return spent + _of_one_pass(problem, copies, sizes, device)
    return max(multiplied, gathered, stored) + copies


@dataclass(frozen=True, slots=True)
class RunPrice:
    """Clocks of an SM where taps share rows: `columns` of 64 rows by 16 products of K in all f16 passes, by the columns of
    tiles that were measured; `step` of a tap beside that, `rows` of 64 rows of a tile. Fitted to an H100 with 38 layers,
    within a fifth of most."""

    columns: Mapping[int, float]
    step: float = 88.0
    rows: float = 2860.0

    def clocks(self, columns: int) -> float:
        """Returns what 64 rows of a tile of so many columns take for 16 products of K, a share of the next wider tile's
        where its own were not measured."""
        wider = next((c for c in sorted(self.columns) if c >= columns), max(self.columns))
        return self.columns[wider] * columns / wider


RUN_PRICES: Mapping[Passes, RunPrice] = MappingProxyType(
    {
        "f16x3": RunPrice(MappingProxyType({32: 44.0, 64: 98.0, 128: 235.0})),
        "f16": RunPrice(MappingProxyType({32: 10.0, 64: 25.0, 128: 77.0}), step=210.0, rows=2400.0),
    }
)


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
    price = RUN_PRICES[problem.passes]
    step = schedule.part / 16 * tile_m / 64 * price.clocks(tile_n) + price.step
    spent = math.ceil(tiles / device.sms) * (steps * step + tile_m / 64 * price.rows) / device.clock
    stored, copies = _stored(problem, sizes, device), copies_seconds(problem, sizes, device)
    if problem.passes == "f16":
        return spent + ONE_PASS_PRICE.registers * stored + _of_one_pass(problem, copies, sizes, device)
    return max(spent, stored) + copies


def _share_of_stores(
    problem: ConvolutionProblem, how: Im2col, schedule: Im2colSchedule, sizes: tuple[int, ...]
) -> float:
    """Returns the share of the time in which results reach memory that one pass takes besides its products."""
    price = ONE_PASS_PRICE
    if stores_sums(problem, how, schedule.split_k):
        if problem.stacked == 1:
            return price.registers
        stack = how.space[0].stack
        paired = (
            stack is not None
            and stack.scale % 2 == 0
            and stack.shift % 2 == 0
            and sizes[stack.result] % 2 == 0
        )
        return price.pairs if paired else price.single
    return price.apart if how.phases > 1 else price.alone if schedule.blocks == 1 else price.beside


def _of_one_pass(problem: ConvolutionProblem, copies: float, sizes: tuple[int, ...], device: Device) -> float:
    """Returns the seconds of the copies and of the results' long work."""
    work = long_work_seconds(problem, sizes, device)
    if problem.passes == "tensor":
        return copies + work / 2
    return ONE_PASS_PRICE.copied * copies + ONE_PASS_PRICE.launches + work


def long_work_seconds(problem: ConvolutionProblem, sizes: tuple[int, ...], device: Device) -> float:
    """Returns the seconds in which threads compute long functions of the results, where nothing else hides them."""
    results = math.prod(sizes[d] for names in (problem.m, problem.n, *problem.batch) for d in names)
    much = ONE_PASS_PRICE.much if does_much(problem) else 0.0
    return much * results / device.sms / device.clock


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


def copies_seconds(
    problem: ConvolutionProblem, sizes: tuple[int, ...], device: Device, early: bool = False
) -> float:
    """Returns the seconds of the launches that copy operands to other orders; one copies both in f16 parts, and another
    that mostly does nothing follows it. `early`: the launch behind each is priced as one that begins before it has ended;
    other kernels' prices were fitted with whole launches."""
    parts = PARTS[problem.passes]
    copied = [(o, n) for o, n in zip((problem.a, problem.b), parts, strict=True) if o.pack is not None]
    launches = 2.0 if problem.passes in IN_F16 else len(copied) * (PRICE.early if early else 1.0)
    return launches * device.launch_floor + sum(_copy_seconds(o, parts, sizes, device) for o, parts in copied)


def _copy_seconds(operand: OperandAccess, parts: int, sizes: tuple[int, ...], device: Device) -> float:
    extents = [sizes[axis.extent] for axis in operand.axes]
    last = operand.order[-1]
    padded = math.ceil(extents[last] / operand.pad) * operand.pad
    elements = math.prod(extents) / extents[last] * padded
    written = elements * operand.read.bytes * parts
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
