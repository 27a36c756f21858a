"""How a gradient of weights runs on Hopper's TMA, with wgmma or in TF32 mma.sync: operands' order, the tile, parts of
the sum."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from types import MappingProxyType

from ucutlass.ir.elements import TF32
from ucutlass.ir.extents import evaluate
from ucutlass.ir.hardware import Device
from ucutlass.kernels.access import Reduction
from ucutlass.kernels.convolution.plan import (
    ConvolutionProblem,
    OperandAccess,
    Passes,
    WgradSchedule,
    unit_dim,
)
from ucutlass.kernels.convolution.plan_wgrad import WgradAccess, joined_groups_of, padded, wgrad_access
from ucutlass.kernels.convolution.schedule_im2col import (
    BYTES,
    F16X3_TILES,
    ROW_BYTES,
    FoldedPlaces,
    clocks,
    fold_of,
    ordered,
    out_of_reach,
    row_clocks,
)
from ucutlass.kernels.convolution.smem import stages_held

WGMMA_TYPES = ("f16", "bf16")
"""Compute types that wgmma takes with the contracted side outside."""

TILES = (
    (256, 128, 2),
    (128, 256, 2),
    (192, 128, 3),
    (128, 192, 2),
    (256, 64, 2),
    (128, 128, 2),
    (128, 64, 2),
    (64, 256, 1),
    (64, 128, 1),
    (64, 64, 1),
)
"""Tiles, M x N, and the warp groups that share them."""

TF32_TILES = ((128, 128, 2), (128, 128, 1), (128, 64, 2), (128, 64, 1), (64, 128, 1), (64, 64, 1))
"""Those that mma.sync multiplies in TF32: a warp has half of the columns."""

BY_WARPS = ((64, 64, 1),)
"""Those that warps fill: what 128 threads load at a time (an H100 took 1.2 to 2 times as long by larger ones)."""

ROW = 128
"""Bytes of a row of a stage's tiles as the stages are counted: positions of a stage are as many elements."""

MOST_BLOCKS = 4
MOST_PARTS = 256
WAVES = 4
"""Parts of the sum are tried that fill the device so often at most."""

LEAST_STEPS = 4
"""Of a part."""

SMALL_TILES = MappingProxyType({64 * 64: 1.4, 64 * 128: 1.28})
"""By the results of a tile smaller than 128 x 128, how much longer it takes where rows are multiplied as they lie (read off an
H200 with nine layers: 1.22 to 1.68, and 1.18 to 1.36; of 128 x 128 0.8 to 1.03)."""


@dataclass(frozen=True, slots=True)
class Finish:
    """What adding parts takes: clocks of the launch, and bytes a clock of all SMs, written and read again
    (estimates: an H200's L2). `alone`: how much longer one, two or three warp groups take that
    have an SM for themselves in one pass (fitted to an H200; in three passes it took no longer)."""

    launch: float = 3000.0
    bytes: float = 2000.0
    alone: tuple[float, ...] = (1.45, 1.2, 1.0)


FINISH = Finish()


@dataclass(frozen=True, slots=True)
class Synchronous:
    """Clocks of an SM where mma.sync multiplies in TF32: multiplications and bytes of shared memory a clock, the share
    of the shorter of both that shows, how much longer fewer than so many warps take, a row that TMA brings, and what a
    launch and a block take besides."""

    rate: float = 400.0
    bytes: float = 128.0
    overlap: float = 0.3
    warps: int = 8
    alone: float = 1.4
    row: float = 2.0
    launch: float = 4400.0
    wave: float = 2500.0


SYNCHRONOUS = Synchronous()

ROW_OF_PARTS = 2.3
"""Clocks in which TMA brings a row of columns of either f16 part; one of channels takes `row_clocks`. By both, prices are
within a fifth of what an H200 took of most of 70 kernels of nine layers."""

REGISTERS, MOST_REGISTERS = 16384, 255
"""Of a quarter of an SM, and of a thread."""

ADDRESSES = 48
"""Registers of a thread beside its sums and fragments where mma.sync multiplies."""


def prepared_wgrad(
    problem: ConvolutionProblem, sizes: tuple[int, ...]
) -> tuple[ConvolutionProblem, WgradAccess] | str:
    """The problem with operands in an order that TMA gathers, or why there is none."""
    multiplied = problem.compute_type.name in (*WGMMA_TYPES, TF32.name) or problem.passes == "f16x3"
    if not multiplied or problem.gemm.accumulate != "f32":
        return f"compute type {problem.compute_type.name} accumulated in {problem.gemm.accumulate} is not multiplied by wgmma here"
    if any(isinstance(o, Reduction) for o in problem.gemm.outputs):
        return "rows that lie apart are not reduced"
    batch = {d for run in problem.batch for d in run} | joined_groups_of(problem)
    channels = [a.extent for a in problem.a.axes if a.window is None and a.extent in problem.m]
    if len(channels) != 1:
        return "rows of the result have not one name of channels"
    a = _ordered(problem.a, _order_a(problem, channels[0], batch))
    summed = [d for i in a.order for d in _summed(problem, i)]
    b = _ordered(problem.b, _order_b(problem, summed, batch))
    joined = joined_groups_of(problem)
    ready = replace(problem, a=_side_by_side(a, joined, sizes), b=_side_by_side(b, joined, sizes))
    how = wgrad_access(ready)
    if isinstance(how, str):
        return how
    # A forward convolution of few channels has this form too: its taps are summed.
    stand = math.prod(sizes[s.position] for s in how.space)
    if stand < math.prod(sizes[s.tap_dim] for s in how.space if s.tap_dim is not None):
        return "fewer positions are summed than windows have taps"
    return _too_far(ready, how, sizes) or (ready, how)


def prepared_k_major(
    problem: ConvolutionProblem, sizes: tuple[int, ...], aligned: tuple[bool, ...] | None
) -> list[tuple[ConvolutionProblem, WgradAccess, int]] | str:
    """The problem of a 1x1 layer whose positions are innermost in the ways to read it: by TMA as it lies, or, where its lines
    are no whole 16 bytes, as all of TMA's strides are, by TMA from a copy, and as it lies by warps with the bytes that
    these load at a time; or why there is none."""
    if problem.compute_type.name not in (*WGMMA_TYPES, TF32.name) or problem.gemm.accumulate != "f32":
        return f"compute type {problem.compute_type.name} accumulated in {problem.gemm.accumulate} is not multiplied by wgmma here"
    if any(isinstance(o, Reduction) for o in problem.gemm.outputs):
        return "results are reduced"
    how = wgrad_access(problem)
    if isinstance(how, str) or not how.k_major:
        return how if isinstance(how, str) else "positions are not innermost"
    width = BYTES // problem.a.read.bytes
    both = (problem.a, problem.b)
    if _positions(problem, how, sizes) % width == 0 and all(w.align > 1 for w in both):
        return [(problem, how, 0)]
    word = problem.a.read.bytes
    if aligned is None or all(aligned[w.pointer] for w in both):
        word *= min(8 // word, math.gcd(width, _positions(problem, how, sizes)))
    a, b = (replace(w, pack=tuple(range(len(w.axes))), pad=width, align=width) for w in both)
    return [(problem, how, word), (replace(problem, a=a, b=b), how, 0)]


def _positions(problem: ConvolutionProblem, how: WgradAccess, sizes: tuple[int, ...]) -> int:
    """Positions of an image as they are read, with a copy's padding."""
    extents = [sizes[problem.a.axes[i].extent] for i in how.positions]
    return math.prod(extents[:-1]) * math.ceil(extents[-1] / problem.a.pad) * problem.a.pad


def folded_wgrad(
    problem: ConvolutionProblem, sizes: tuple[int, ...]
) -> tuple[ConvolutionProblem, WgradAccess] | str:
    """As `prepared_wgrad`, but the taps of the innermost window lie beside the channels in A's copy, so that rows of
    the result have no padded channels for each tap."""
    unfolded = prepared_wgrad(problem, sizes)
    if isinstance(unfolded, str):
        return unfolded
    ready, how = unfolded
    window = how.space[0]
    tap = window.tap_dim
    if how.group is not None or tap is None or window.tap != 1 or tap not in problem.m:
        return "the innermost window has no taps side by side"
    places = FoldedPlaces(window.axis, window.position, tap, window.step, window.offset)
    folds = fold_of(places, sizes[ready.a.axes[how.channel].extent], problem.a.read.bytes)
    if isinstance(folds, str):
        return folds
    fold, pad, _ = folds
    a = replace(problem.a, pack=ready.a.order, pad=pad, align=pad, fold=fold)
    folded = replace(ready, a=a)
    folded_how = wgrad_access(folded)
    if isinstance(folded_how, str):
        return folded_how
    return _too_far(folded, folded_how, sizes) or (folded, folded_how)


def tap_run(problem: ConvolutionProblem, how: WgradAccess, sizes: tuple[int, ...]) -> int:
    """The rows of one of A's windows: its channels, or those of all taps of a folded window with their padding."""
    channels = sizes[problem.a.axes[how.channel].extent]
    if how.fold is None or how.fold.tap_dim is None:
        return channels
    return math.ceil(channels / problem.a.pad) * problem.a.pad * sizes[how.fold.tap_dim]


def _summed(problem: ConvolutionProblem, axis: int) -> list[int]:
    """The summed names in the position of one of A's axes."""
    read = problem.a.axes[axis]
    names = [read.extent] if read.window is None else [d for d, _ in read.window.terms]
    return [d for d in names if d in problem.k]


def _order_a(problem: ConvolutionProblem, channel: int, batch: set[int]) -> tuple[int, ...]:
    """As it lies, but plain summed names before windows, then groups, then channels."""
    axes = problem.a.axes

    def rank(i: int) -> int:
        if axes[i].window is not None:
            return 1
        return 3 if axes[i].extent == channel else 2 if axes[i].extent in batch else 0

    order = sorted(range(len(axes)), key=lambda i: 2 * rank(i) if rank(i) > 1 else 1)
    if order and rank(order[0]) == 1 and any(rank(i) == 0 for i in order):
        order = sorted(range(len(axes)), key=rank)
    return tuple(order)


def _order_b(problem: ConvolutionProblem, summed: list[int], batch: set[int]) -> tuple[int, ...]:
    """Summed names in A's order, groups, columns in the result's order."""
    axes = problem.b.axes

    def rank(i: int) -> tuple[int, int]:
        d = axes[i].extent
        if axes[i].window is None and d in summed:
            return 0, summed.index(d)
        if d in batch:
            return 1, 0
        return 2, problem.n.index(d) if d in problem.n else 0

    return tuple(sorted(range(len(axes)), key=rank))


def _ordered(operand: OperandAccess, order: tuple[int, ...]) -> OperandAccess:
    last = operand.axes[order[-1]]
    return ordered(operand, order, last.window is None and unit_dim(operand) == last.extent)


def _side_by_side(operand: OperandAccess, joined: set[int], sizes: tuple[int, ...]) -> OperandAccess:
    """The operand with a copy that pads the channels of no group, where TMA reads those of all groups as one row of whole
    16 bytes."""
    if operand.pack is None or len(operand.axes) < 2:
        return operand
    group, own = (operand.axes[i].extent for i in operand.order[-2:])
    whole = sizes[group] * sizes[own] * operand.read.bytes % BYTES == 0 and not operand.split
    return replace(operand, pad=1) if group in joined and whole else operand


def _too_far(problem: ConvolutionProblem, how: WgradAccess, sizes: tuple[int, ...]) -> str | None:
    """Why windows reach farther than TMA's box does, by the formulas of `convolution/wgrad.cu.j2`."""
    by_name = {str(i): n for i, n in enumerate(sizes)}
    for s in how.space:
        taps = 1 if s.tap_dim is None else sizes[s.tap_dim]
        lower = evaluate(s.offset, by_name) - (abs(s.tap) * (taps - 1) if s.tap < 0 else 0)
        upper = lower + (sizes[s.position] - 1) * s.step - (sizes[s.extent(problem.a)] - 1)
        if why := out_of_reach(len(how.space), lower, upper, abs(s.tap) * (taps - 1)):
            return why
    return None


def wgrad_schedule(
    problem: ConvolutionProblem, how: WgradAccess, sizes: tuple[int, ...], device: Device, word: int = 0
) -> tuple[float, int, WgradSchedule] | None:
    """The clocks of the tile and the parts of the sum that fill the device best, with these; None where groups do not
    fill a tile together."""
    channels, size = tap_run(problem, how, sizes), problem.a.read.bytes
    depth, parts = ROW // size, [row // size for row in ROW_BYTES]
    synchronous = problem.compute_type == TF32 and not how.k_major
    if how.k_major:
        parts = [depth]
    elif not synchronous:
        least = min(math.ceil(channels / p) * p for p in parts)
        parts = [next(p for p in parts if math.ceil(channels / p) * p <= 1.15 * least)]
    if how.joined:
        parts = [depth]
    taps = math.prod(sizes[s.tap_dim] for s in how.space if s.tap_dim in problem.m and s.tap_dim is not None)
    n = math.prod(sizes[d] for d in problem.n)
    batch = math.prod(sizes[d] for run in problem.batch for d in run)
    steps = math.ceil(math.prod(sizes[d] for d in problem.k) / depth)
    if how.k_major:
        images = 1 if how.image is None else sizes[problem.a.axes[how.image].extent]
        steps = images * math.ceil(_positions(problem, how, sizes) / depth)
    candidates: list[tuple[float, int, WgradSchedule]] = []
    passes = problem.passes
    tiles_tried = TF32_TILES if synchronous else BY_WARPS if word else _tiles_of(passes)
    for part, (tile_m, tile_n, groups) in itertools.product(parts, tiles_tried):
        if how.joined:
            width = sizes[problem.b.axes[how.columns[0]].extent]
            whole = not padded(problem.a) and not padded(problem.b)
            if not whole or tile_n % width or tile_n // width < 2 or (tile_n // width * channels) % part:
                continue
        run = channels * (tile_n // width) if how.joined else channels
        rows = channels if how.k_major else taps * math.ceil(run / part) * part
        for blocks in range(1, MOST_BLOCKS + 1):
            held = stages_held(
                tile_m, tile_n, groups, blocks, steps, device, passes, producers=4 if word else 1
            )
            if held == 0 or (synchronous and not _fragments_fit(tile_m, tile_n, groups, blocks)):
                continue
            tile = (tile_m, tile_n, depth)
            schedule = WgradSchedule(tile, part, held, groups, blocks, how.joined, word, passes)
            tiles = math.ceil(rows / tile_m) * math.ceil(n / tile_n) * batch
            for splits in _splits(tiles, blocks, steps, device):
                steps_each = math.ceil(steps / splits)
                if synchronous:
                    time = _synchronous_clocks(schedule, channels, tiles * splits, steps_each, device)
                else:
                    time = clocks(schedule, rows, n, batch * splits, steps_each, device, passes, word)
                    if passes == "f16x3":
                        time = max(time, _row_clocks(schedule, channels, tiles * splits, steps_each, device))
                    alone = min(blocks, math.ceil(tiles * splits / device.sms)) == 1
                    if word == 0 and passes == "tensor" and alone:
                        time *= FINISH.alone[groups - 1]
                    time *= SMALL_TILES.get(tile_m * tile_n, 1.0) if how.k_major and word == 0 else 1.0
                if splits > 1:
                    moved = 8.0 * splits * tiles * tile_m * tile_n
                    time += FINISH.launch + moved / FINISH.bytes
                candidates.append((time, splits, schedule))
    return min(candidates, key=lambda f: f[:2], default=None)


def _tiles_of(passes: Passes) -> tuple[tuple[int, int, int], ...]:
    return F16X3_TILES if passes == "f16x3" else TILES


def _fragments_fit(tile_m: int, tile_n: int, groups: int, blocks: int) -> bool:
    """Whether registers hold a thread's sums, fragments and addresses: each quarter of an SM has its own."""
    registers = tile_m * tile_n // (128 * groups) + tile_m // groups // 8 + tile_n // 8 + ADDRESSES
    warps = math.ceil((4 * groups + 1) * blocks / 4)
    return warps * 32 * registers <= REGISTERS and registers <= MOST_REGISTERS


def _synchronous_clocks(
    schedule: WgradSchedule, channels: int, blocks: int, steps: int, device: Device
) -> float:
    """Clocks of the SM with the most blocks where mma.sync multiplies: of a step it multiplies, reads fragments beside
    what TMA brings, or waits for TMA's rows."""
    (tile_m, tile_n, depth), part, groups = schedule.tile, schedule.part, schedule.groups
    most = math.ceil(blocks / device.sms)
    concurrent = min(schedule.blocks, most)
    multiplied = tile_m * tile_n * depth / SYNCHRONOUS.rate
    read = 4 * groups * depth * (tile_m / (2 * groups) + tile_n / 2) * 4 / SYNCHRONOUS.bytes
    moved = read + depth * (tile_m + tile_n) * 4 / SYNCHRONOUS.bytes
    step = max(multiplied, moved) + SYNCHRONOUS.overlap * min(multiplied, moved)
    if 4 * groups * concurrent < SYNCHRONOUS.warps:
        step *= SYNCHRONOUS.alone
    row = row_clocks(channels, part, "tensor") / math.ceil(channels / part)
    brought = depth * (tile_m / part * row + tile_n * 4 / ROW * SYNCHRONOUS.row)
    return SYNCHRONOUS.launch + most * (steps * max(step, brought) + SYNCHRONOUS.wave)


def _row_clocks(schedule: WgradSchedule, channels: int, blocks: int, steps: int, device: Device) -> float:
    """Clocks in which TMA brings the rows of both f16 parts to the SM of the most blocks."""
    tile_m, tile_n, depth = schedule.tile
    row = row_clocks(channels, schedule.part, "tensor") / math.ceil(channels / schedule.part)
    rows = tile_m / schedule.part * row + tile_n * 2 / ROW * ROW_OF_PARTS
    return FINISH.launch + math.ceil(blocks / device.sms) * steps * 2 * depth * rows


def _splits(tiles: int, blocks: int, steps: int, device: Device) -> list[int]:
    """Parts of the sum that are worth trying."""
    most = max(1, min(MOST_PARTS, steps // LEAST_STEPS))
    filled = (wave * device.sms * held // tiles for wave in range(1, WAVES + 1) for held in (1, blocks))
    return sorted({s for s in (1, *filled, most) if 1 <= s <= most})
