"""How a convolution runs on Hopper's TMA and wgmma: operands' order, parts of channels, the tile."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from ucutlass.ir.elements import F16, F32, TF32
from ucutlass.ir.extents import Combined, Extent, Fixed, Free, evaluate
from ucutlass.ir.hardware import Device
from ucutlass.ir.schedule import Math
from ucutlass.kernels.access import Reduction, Store
from ucutlass.kernels.arithmetic import Compute
from ucutlass.kernels.convolution.plan import (
    IN_F16,
    ONE_PASS,
    ConvolutionProblem,
    Fold,
    Im2colSchedule,
    OperandAccess,
    Passes,
    Stack,
    WgradSchedule,
    unit_dim,
)
from ucutlass.kernels.convolution.plan_im2col import MOST_AXES, Im2col, Space, im2col
from ucutlass.kernels.convolution.smem import (
    rows_of_tiles,
    stages_beside_runs,
    stages_held,
    storing_registers,
)

WGMMA_TYPES = ("f16", "bf16", "tf32", "f32")
"""Compute types that wgmma multiplies here, f32 in three TF32 passes."""

BYTES = 16
"""Of which TMA's strides are multiples."""

SHORTEST_ROW = 32
"""Bytes of channels that TMA gathers at a time at least; shorter rows take it as long."""

ROW_BYTES = (128, 64, 32)
"""Of channels that TMA gathers at a time."""

FEW_BYTES = 32
"""Bytes of padded channels up to which taps are folded."""

FARTHEST: Mapping[int, tuple[int, int]] = MappingProxyType({1: (32767, 65535), 2: (127, 255), 3: (15, 31)})
"""By spatial axes: bounds of the corners of TMA's box and of a tap's offset (cuTensorMapEncodeIm2col)."""


TILES = (
    (192, 256, 3),
    (192, 128, 3),
    (128, 192, 2),
    (128, 256, 2),
    (128, 128, 2),
    (128, 64, 2),
    (64, 256, 1),
    (64, 128, 1),
    (64, 64, 1),
)
"""Tiles, M x N, and the warp groups that share them."""

SPLIT_TILES = ((192, 64, 3), (128, 128, 2), (128, 64, 2), (64, 128, 1), (64, 64, 1))
"""Those of three TF32 passes: A comes from registers, 64 rows of a warp group."""

F16_TILES = TILES[1:]
"""Those of one f16 pass: a thread stores its sums of one instruction."""

F16X3_TILES = ((128, 128, 2), (192, 64, 3), (128, 64, 2), (64, 128, 1), (64, 64, 1))
"""Those of three f16 passes: a thread has three sums of 64 rows of a warp group."""

NARROW, LEAST_NARROW, MOST_NARROW = 16, 32, 112
"""Of what the columns of a tile are a multiple, and the least and the most of them that make a tile of their own."""

JOINED_ROWS = ((192, 3), (128, 2), (64, 1))
"""Rows of tiles that groups share, and the warp groups that have them."""

RUN_TILES = ((128, 128, 2), (192, 64, 3), (192, 32, 3))
"""Those whose taps along the innermost window share rows, in three f16 passes."""

RUN_SHARE = MappingProxyType({128: 1.0, 64: 1.1, 32: 1.5})
"""What a column of such a tile takes, by its columns."""

MOST_HALO = 32
"""Rows of a run beyond its tile."""

MOST_BLOCKS = 6

TALL_COLUMNS = 64
TALL_TILES = tuple((192, TALL_COLUMNS, 3, blocks) for blocks in range(1, MOST_BLOCKS + 1))
"""Of few columns and short rows: an H100 takes 1.90 ms by them for 8 to 64 channels, 2.20 by 128 rows, 2.51 by 64."""

STACKED = (2, 4, 8)
"""Columns of a copy of weights for each of the product's: a thread, which has two of every eight, has the same remainders
in all of them."""

SPLITS = (1, 2, 4, 8)
"""Blocks of a cluster that share the sum of a tile, where tiles alone leave SMs idle."""


LEAST_SPLIT, MOST_F16_SPLITS, SPLIT_GAIN = 64, 4, 0.75
"""In three f16 passes: channels from which blocks of a cluster share the sum of a tile, their most blocks, and the share
of the clocks that they may take at most (of eight blocks an H100 took longer than of four)."""


@dataclass(frozen=True, slots=True)
class Model:
    """Clocks of an SM, fitted to an H200: of 64 x 64 x 16 multiplied as sustained, more where an
    instruction has 64 columns and shared memory bounds it; from asking TMA for a stage to having it; bytes
    that TMA brings; what a wave of blocks takes besides, for itself and for every result, more where an SM
    holds one block alone, which nothing overlaps; and the launch. Not fitted: what a stage of three TF32
    passes takes besides its products where one warp group alone splits A and adds up, and to add an element of a tile
    that blocks of a cluster share. Fitted to an H100: what these take to meet, and a row of fewer than 128 bytes that
    TMA gathers."""

    multiply: float = 40.0
    narrow: float = 1.3
    latency: float = 1200.0
    bytes: float = 64.0
    wave: float = 1700.0
    result: float = 0.18
    alone: float = 1.25
    launch: float = 4400.0
    cluster: float = 3500.0
    shared: float = 0.2
    splitting: float = 350.0
    row: float = 3.8


MODEL = Model()

ROW_BY_WORDS = MappingProxyType({2: 8.0, 4: 7.5, 8: 6.3})
LOADED = 2000.0
"""Clocks in which warps bring a row of 128 bytes to shared memory, by the bytes that a lane loads at a time, and those until
the loads of a stage have arrived: read off an H100 with six gradients of 1x1 weights, of which one block alone took 22 to
24 us where two that share an SM took 16."""

WIDE_EPILOGUE = 8000.0
"""Clocks more of a tile of 128 columns in three f16 passes whose threads do much for their sums: an H200 takes 2.29 ms by
192 x 64 and 2.63 by 128 x 128 for 64 to 128 channels where they read two tensors (KernelBench's 2/31), 1.32 and 1.51
where they compute `mish` (2/52)."""

SQUARE = 1.12
"""How much longer tiles of 64 x 64 take than their price in three f16 passes, beside those of 192 x 64: 1.06 to 1.22 on an
H200 (nine layers of 32 to 128 channels). Ten drawn layers that take other tiles for it take 0.72 to 0.93 of the time."""

LONG_FUNCTIONS = frozenset(
    [
        "elu",
        "erf",
        "exp",
        "gelu",
        "gelu_tanh",
        "log",
        "log1p",
        "mish",
        "selu",
        "sigmoid",
        "silu",
        "softplus",
        "tanh",
    ]
)
"""Of many instructions each."""


def prepared(
    problem: ConvolutionProblem, sizes: tuple[int, ...], by_rows: bool = False
) -> tuple[ConvolutionProblem, Im2col] | str:
    """The problem with operands in an order that TMA gathers, or why there is none. `by_rows`: axes of A that are
    copied to another order go into that of the result's rows, those without taps among windows too."""
    if problem.compute_type.name not in WGMMA_TYPES or problem.gemm.accumulate != "f32":
        return f"compute type {problem.compute_type.name} accumulated in {problem.gemm.accumulate} is not multiplied by wgmma here"
    channel = _channel(problem, sizes)
    if channel is None:
        return "no name is summed that is an axis of both operands and in no window"
    copied = problem.compute_type == F32 or problem.passes == "f16"
    size = problem.a.read.bytes
    few = copied and size * sizes[channel] < SHORTEST_ROW
    a = ordered(problem.a, _order_a(problem, channel, by_rows), unit_dim(problem.a) == channel and not few)
    b = problem.b
    if copied:
        b = replace(ordered(b, _order_b(problem, channel), False), split=True)
    elif b.join is not None:
        b = ordered(b, _order_b(problem, channel), False)
        if a.pack is None and sizes[channel] % b.pad:
            b = replace(b, pad=1)  # whole 16 bytes of several groups
    elif not _reads_across(problem):
        b = ordered(b, _order_b(problem, channel), unit_dim(b) == channel)
    if few:  # zeros beside them cost less than the multistage kernel
        a, b = (replace(operand, pad=SHORTEST_ROW // size) for operand in (a, b))
    k = (*(d for d in problem.k if d != channel), channel)
    ready = replace(problem, a=a, b=b, k=k)
    how = im2col(ready)
    if isinstance(how, str):
        return how
    if problem.passes in IN_F16 and how.group is None and not few:
        # TMA takes several times as long for a row that ends beyond the channels.
        part = _part_of_f16(sizes[channel], problem.passes)
        if sizes[channel] % part:
            ready = replace(ready, a=replace(a, pad=part), b=replace(b, pad=part))
    elif (
        not copied
        and how.group is None
        and a.pack is not None
        and size * sizes[channel] > SHORTEST_ROW - BYTES
    ):
        ready = replace(ready, a=replace(a, pad=_whole_rows(sizes[channel], size)))
    reductions = [o for o in problem.gemm.outputs if isinstance(o, Reduction)]
    alone = len(reductions) == len(problem.gemm.outputs) and all(o.of_rows for o in reductions)
    if how.phases > 1 and reductions and not alone:
        return "rows that lie apart are reduced over columns alone, and not stored beside it"
    return too_far(ready, how, sizes) or (ready, how)


def _whole_rows(channels: int, size: int) -> int:
    """Of what a copy's channels are made a multiple, so that all of TMA's rows of them are whole and few: of 18 to 72
    channels an H100 took 83 to 88 % of the time that it took with rows that end beyond them."""
    rows = [row // size for row in ROW_BYTES]
    return min(rows, key=lambda r: (math.ceil(channels / r), math.ceil(channels / r) * r))


def in_f16_parts(problem: ConvolutionProblem) -> ConvolutionProblem:
    """The f32 problem with operands that are copied as two f16 each, for three passes of f16, or the one of TF32 as one."""
    a, b = (replace(operand, packed=F16, split=True) for operand in (problem.a, problem.b))
    return replace(problem, a=a, b=b)


def in_parts(problem: ConvolutionProblem, math_: Math | None) -> ConvolutionProblem | str:
    """The problem as `math` has wgmma multiply it, or why it does not."""
    if math_ is None:
        return problem
    f32, tf32 = problem.compute_type == F32, problem.compute_type == TF32
    if not (f32 and math_ in ("tf32x3", "f16x3")) and not (tf32 and math_ == "f16"):
        return "`math` of TMA and wgmma is tf32x3 or f16x3 of f32, and f16 of TF32"
    return problem if math_ == "tf32x3" else in_f16_parts(problem)


def folded(
    problem: ConvolutionProblem, sizes: tuple[int, ...], by_rows: bool = False
) -> tuple[ConvolutionProblem, Im2col] | str:
    """As `prepared`, but the taps of the innermost window lie beside the channels in the copies of both operands, so
    that K has no padded channels for each tap, and a window of a row of taps is one row of TMA's."""
    unfolded = prepared(problem, sizes, by_rows)
    if isinstance(unfolded, str):
        return unfolded
    ready, how = unfolded
    window = how.space[0]
    if how.group is not None or window.tap_dim is None or window.tap != 1 or window.scale != 1:
        return "the innermost window has no taps side by side"
    places = FoldedPlaces(window.axis, window.result, window.tap_dim, window.step, window.offset)
    size = problem.a.read.bytes
    channels = sizes[ready.a.axes[how.channel].extent]
    folds = fold_of(places, channels, size)
    if isinstance(folds, str):
        return folds
    a_fold, pad, whole = folds
    tap = Free(str(window.tap_dim))
    a_order = _order_a(ready, ready.a.axes[how.channel].extent, by_rows)
    a = replace(problem.a, pack=a_order, pad=pad, align=pad, fold=a_fold)
    tap_axis = next(i for i, axis in enumerate(problem.b.axes) if axis.extent == window.tap_dim)
    order = _order_b(ready, ready.a.axes[how.channel].extent)
    order = (*(i for i in order[:-1] if i != tap_axis), tap_axis, order[-1])
    fold = Fold(tap_axis, Fixed(0), _rounded(tap, whole))
    b = replace(problem.b, pack=order, pad=pad, align=pad, split=ready.b.split, fold=fold)
    ready = replace(ready, a=a, b=b)
    folded_how = im2col(ready)
    if isinstance(folded_how, str):
        return folded_how
    return too_far(ready, folded_how, sizes) or (ready, folded_how)


@dataclass(frozen=True, slots=True)
class FoldedPlaces:
    """A window whose taps are to lie beside the channels: the axis, the dimensions of where it stands and of its taps,
    the step from window to window, and the offset of the first."""

    axis: int
    stands: int
    tap_dim: int
    step: int
    offset: Extent


def fold_of(window: FoldedPlaces, channels: int, size: int) -> tuple[Fold, int, int] | str:
    """Returns the copy's fold, the channels that each tap has there, and of how many of these a row is a multiple; or
    why channels of `size` bytes are not folded."""
    # Windows begin at multiples of 16 bytes.
    unit = BYTES // math.gcd(BYTES, window.step * size)
    pad = max(unit, min(4, 1 << (channels - 1).bit_length()))
    padded = -(-channels // pad) * pad
    if padded * size > FEW_BYTES:
        return f"{channels} channels are no few"
    whole = BYTES // math.gcd(BYTES, padded * size)
    last = Combined("*", Combined("-", Free(str(window.stands)), Fixed(1)), Fixed(window.step))
    length = _rounded(Combined("+", last, Free(str(window.tap_dim))), whole)
    return Fold(window.axis, window.offset, length), pad, whole


def stacked(
    problem: ConvolutionProblem, sizes: tuple[int, ...], axes: int, shortest: bool = False
) -> tuple[ConvolutionProblem, Im2col] | str:
    """As `prepared`, but the remainders of the innermost `axes` divided windows lie beside the columns in the copy of B, so
    that a tile has all results between neighbours of A's, and neighbouring results are stored together. `shortest`:
    rows begin where their windows are shortest, and no results are aligned pairs."""
    phased = prepared(problem, sizes)
    if isinstance(phased, str):
        return phased
    ready, how = phased
    windows = [s for s in how.space if s.scale > 1][:axes]
    if len(windows) < axes or any(abs(s.tap) != 1 for s in windows):
        return "taps of divided windows are no neighbours"
    if problem.passes not in IN_F16 or how.group is not None:
        return "remainders are columns of f16 passes without groups alone"
    if not all(isinstance(o, Store) and o.access.contiguous == "m" for o in problem.gemm.outputs):
        return "results are not stored with neighbouring positions adjacent"
    stack = tuple(_shortest(ready, s, sizes) if shortest else _stack(ready, s) for s in windows)
    if shortest and problem.passes != "f16x3":
        return "rows begin before the first result in three passes alone"
    if shortest and not any(s.shift for s in stack):
        return "windows are as short where rows begin with the first result"
    channel = ready.a.axes[how.channel].extent
    b = replace(ready.b, pack=_order_b(ready, channel, columns_last=True), stack=stack)
    ready = replace(ready, b=b)
    if ready.stacked not in STACKED:
        return f"{ready.stacked} columns for each of the product's are not 2, 4 or 8"
    stacked_how = im2col(ready)
    if isinstance(stacked_how, str):
        return stacked_how
    return too_far(ready, stacked_how, sizes) or (ready, stacked_how)


def _shortest(problem: ConvolutionProblem, window: Space, sizes: tuple[int, ...]) -> Stack:
    """The window's remainders as columns, from the first result on that makes the window shortest: four taps of a scale
    of 2 that begin at 1 read two neighbours in place of three."""
    extents = {str(i): n for i, n in enumerate(sizes)}
    ways = [_stack(problem, window, shift) for shift in range(window.scale)]
    return min(ways, key=lambda stack: (evaluate(stack.length, extents), stack.shift))


def _stack(problem: ConvolutionProblem, window: Space, shift: int = 0) -> Stack:
    """The window's remainders as columns. Position x of A's axis serves result scale * i - shift + a with tap r where
    scale * (x - i) is a - shift + tap * r + offset."""
    scale, taps = window.scale, Free(str(window.tap_dim))
    reach = Combined("-", taps, Fixed(1))
    offset = Combined("-", window.offset, Fixed(shift)) if shift else window.offset
    lowest = offset if window.tap > 0 else Combined("-", offset, reach)
    highest = Combined("+", offset, Fixed(scale - 1))
    if window.tap > 0:
        highest = Combined("+", highest, reach)
    first = Combined("//", Combined("+", lowest, Fixed(scale - 1)), Fixed(scale))
    last = Combined("//", highest, Fixed(scale))
    length = Combined("+", Combined("-", last, first), Fixed(1))
    axis = next(i for i, axis in enumerate(problem.b.axes) if axis.extent == window.tap_dim)
    return Stack(axis, window.result, scale, window.tap, offset, first, length, shift)


def _rounded(extent: Extent, whole: int) -> Extent:
    if whole == 1:
        return extent
    return Combined("*", Combined("//", Combined("+", extent, Fixed(whole - 1)), Fixed(whole)), Fixed(whole))


def channel_run(problem: ConvolutionProblem, how: Im2col, sizes: tuple[int, ...]) -> int:
    """The channels of a tap with their padding, of all taps of a folded window."""
    channels = sizes[problem.a.axes[how.channel].extent]
    padded = -(-channels // problem.a.pad) * problem.a.pad
    if problem.b.join is not None:
        return padded * problem.b.join.count
    if how.fold is None or how.fold.tap_dim is None:
        return padded
    return padded * sizes[how.fold.tap_dim]


def _channel(problem: ConvolutionProblem, sizes: tuple[int, ...]) -> int | None:
    def plain(operand: OperandAccess, dim: int) -> bool:
        windowed = any(dim == d for a in operand.axes if a.window for d, _ in a.window.terms)
        return sum(a.extent == dim and a.window is None for a in operand.axes) == 1 and not windowed

    channels = [d for d in problem.k if plain(problem.a, d) and plain(problem.b, d)]
    return max(channels, key=lambda d: sizes[d], default=None)


def _order_a(problem: ConvolutionProblem, channel: int, by_rows: bool) -> tuple[int, ...]:
    """Images, windows, groups, channels; other plain axes stay between, or, `by_rows`, where they have to move,
    axes of rows go into the order of the result's."""
    axes = problem.a.axes
    batch = {d for run in problem.batch for d in run}
    if problem.b.join is not None:
        batch.add(problem.b.axes[problem.b.join.axis].extent)
    row = {d: i for i, d in enumerate(problem.m)}
    shared = {a.extent for a in problem.b.axes if a.window is None}

    def rank(i: int) -> int:
        axis = axes[i]
        if axis.window is not None:
            return 1
        return 3 if axis.extent == channel else 2 if axis.extent in batch & shared else 0

    if all(
        rank(i) <= rank(j) or {rank(i), rank(j)} <= {0, 1}
        for i in range(len(axes))
        for j in range(i + 1, len(axes))
    ):
        return tuple(range(len(axes)))

    def place(i: int) -> tuple[int, int]:
        window = axes[i].window
        names = (axes[i].extent,) if window is None else [d for d, _ in window.terms]
        # One that is no row is that of the images, in the batch.
        return max(rank(i), 1), max((row.get(d, -1) for d in names), default=-1)

    return tuple(sorted(range(len(axes)), key=place if by_rows else rank))


def _order_b(problem: ConvolutionProblem, channel: int, columns_last: bool = False) -> tuple[int, ...]:
    """As it lies but for the channels; columns together, in the order of the result's, `columns_last` just before the
    channels."""
    axes = problem.b.axes
    columns = [i for i, a in enumerate(axes) if a.extent in problem.n]
    others = [i for i, a in enumerate(axes) if i not in columns and a.extent != channel]
    if len(others) + 2 > MOST_AXES:  # groups beside their columns, so that both are one axis of TMA's
        batch = {d for run in problem.batch for d in run}
        others.sort(key=lambda i: axes[i].extent in batch)
    (last,) = [i for i, a in enumerate(axes) if a.extent == channel and a.window is None]
    together = columns == list(range(columns[0], columns[-1] + 1)) if columns else True
    if (
        not columns_last
        and last == len(axes) - 1
        and together
        and [axes[i].extent for i in columns] == list(problem.n)
    ):
        return tuple(range(len(axes)))
    return (*others, *sorted(columns, key=lambda i: problem.n.index(axes[i].extent)), last)


def _reads_across(problem: ConvolutionProblem) -> bool:
    """Whether B is read as it lies with its columns innermost."""
    b, width = problem.b, BYTES // problem.b.elem.bytes
    columns = [i for i, a in enumerate(b.axes) if a.extent in problem.n]
    last = list(range(len(b.axes) - len(columns), len(b.axes)))
    innermost = bool(columns) and columns == last and [b.axes[i].extent for i in columns] == list(problem.n)
    return innermost and b.elem.bytes == 2 and unit_dim(b) is not None and b.align == width


def ordered(operand: OperandAccess, order: tuple[int, ...], adjacent: bool) -> OperandAccess:
    """The operand in this order, as it lies where TMA reads it so; `adjacent`: neighbours of the innermost
    axis there are neighbours in memory."""
    width = BYTES // operand.read.bytes
    if (
        adjacent
        and operand.packed is None
        and order == tuple(range(len(operand.axes)))
        and operand.align == width
    ):
        return operand
    return replace(operand, pack=order, pad=width, align=width)


def too_far(problem: ConvolutionProblem, how: Im2col, sizes: tuple[int, ...]) -> str | None:
    """Why windows reach farther than TMA's box does, by the formulas of `convolution/im2col.cu.j2`."""
    by_name = {str(i): n for i, n in enumerate(sizes)}
    for s in how.space:
        taps, results = s.taps(sizes), s.results(sizes)
        offset, axis_extent = evaluate(s.offset, by_name), sizes[s.extent(problem.a)]
        for a in range(min(s.scale, results)):
            first = next((t for t in range(s.scale) if (a + s.tap * t + offset) % s.scale == 0), 0)
            divisible = (a + s.tap * first + offset) % s.scale == 0
            count = -(-(taps - first) // s.every) if divisible and first < taps else 0
            if count == 0:
                continue
            begin = (a + s.tap * first + offset) // s.scale
            length = abs(s.tap) // s.shared * (count - 1)
            lower = begin - (length if s.tap < 0 else 0)
            own = -(-(results - a) // s.scale)
            upper = lower + (own - 1) * s.step - (axis_extent - 1)
            if why := out_of_reach(len(how.space), lower, upper, length):
                return why
    return None


def out_of_reach(space: int, lower: int, upper: int, length: int) -> str | None:
    """Why TMA's box over so many spatial axes does not take windows of this length that begin at `lower` and
    end `upper` beyond their axis."""
    far, most = FARTHEST[space]
    if all(-far - 1 <= x <= far for x in (lower, upper)) and length <= most:
        return None
    return f"windows begin at {lower} and end {upper} beyond their axis: TMA reaches {far}"


def schedule_of(
    problem: ConvolutionProblem,
    how: Im2col,
    sizes: tuple[int, ...],
    device: Device,
    price: Callable[[Im2colSchedule], float] | None = None,
) -> Im2colSchedule | str:
    """The tile that fills the device best, or the one of the least `price`; or why no part of the channels fits."""
    part = _part(problem, how, sizes)
    if isinstance(part, str):
        return part
    passes, depth = problem.passes, 128 // problem.a.read.bytes
    m, n, batch, stages = extents_of(problem, how, part, depth, sizes)
    fold = how.fold is not None or problem.stacked > 1
    slides = _has_more_results(how, sizes)
    priced: list[tuple[float, int, int, int, Im2colSchedule]] = []
    for split_k, (tile_m, tile_n, groups, blocks) in itertools.product(
        _splits(problem, how, sizes), _tiles(problem, how, n, sizes)
    ):
        count = math.ceil(m / tile_m) * math.ceil(n / tile_n) * batch * split_k
        storing = storing_registers(problem, how, split_k)
        held = stages_held(tile_m, tile_n, groups, blocks, -(-stages // split_k), device, passes, storing)
        if held == 0 or (split_k > 1 and count > device.sms):
            continue
        tile, joined = (tile_m, tile_n, depth), problem.b.join is not None
        s = Im2colSchedule(tile, part, held, groups, blocks, fold, split_k, passes, joined=joined)
        if price is not None:
            # Where rows decide, wider tiles take as long by their price, and longer for zeros.
            priced.append((price(s), tile_n, 0, len(priced), s))
            continue
        spent = _schedule_clocks(s, m, n, batch, stages, device)
        if passes == "f16x3" and tile_m == tile_n == 64:
            spent *= SQUARE
        if passes == "f16x3" and tile_n == 128 and not fold and does_much(problem):
            spent += WIDE_EPILOGUE * math.ceil(count / device.sms)
        # So do tiles of fewer rows. Prices of gradients of weights, which are compared with those of others, stay.
        order = (tile_n, -tile_m) if slides else (0, 0)
        priced.append((spent, *order, len(priced), s))
    best = min(priced)
    whole = min(p for p in priced if p[-1].split_k == 1)
    return best[-1] if passes == "tensor" or best[0] <= SPLIT_GAIN * whole[0] else whole[-1]


def _part(problem: ConvolutionProblem, how: Im2col, sizes: tuple[int, ...]) -> int | str:
    """The channels of a row that TMA gathers, or why none fit."""
    size, padded = problem.a.read.bytes, channel_run(problem, how, sizes)
    if padded * size < SHORTEST_ROW and how.fold is None:
        channels = sizes[problem.a.axes[how.channel].extent]
        return f"{channels} channels fill half of TMA's shortest row, which takes it as long as a whole one"
    parts = [row // size for row in ROW_BYTES]
    if how.group is not None:
        parts = [p for p in parts if padded % p == 0]
        if not parts:
            return f"groups of {padded} channels are no whole rows of 32 bytes"
    if problem.passes in IN_F16 and how.fold is None and how.group is None:
        return _part_of_f16(padded, problem.passes)
    if how.fold is None and (size == 2 or problem.passes == "tensor"):
        return min(parts, key=lambda p: (row_clocks(padded, p, problem.passes), -(-padded // p) * p))
    least = min(-(-padded // p) * p for p in parts)
    return next(p for p in parts if -(-padded // p) * p <= 1.15 * least)


def _tiles(
    problem: ConvolutionProblem, how: Im2col, n: int, sizes: tuple[int, ...]
) -> tuple[tuple[int, int, int, int], ...]:
    """Rows and columns of the tiles that are tried, groups of warps, and blocks of an SM."""
    if (join := problem.b.join) is not None:
        columns = join.count * sizes[problem.b.axes[how.columns[0]].extent]
        return tuple((m, columns, g, b) for m, g in JOINED_ROWS for b in range(1, MOST_BLOCKS + 1))
    plain = not how.across and how.group is None and problem.stacked == 1
    narrow = _narrow_tiles(n) if problem.passes in ONE_PASS and plain else ()
    tall = TALL_TILES if plain and n <= TALL_COLUMNS and has_short_rows(problem, how, sizes) else ()
    return _candidates(problem.passes) + narrow + tall


def has_short_rows(problem: ConvolutionProblem, how: Im2col, sizes: tuple[int, ...]) -> bool:
    """Whether TMA gathers its shortest rows for products in TF32, of few channels: their number decides, and tiles are
    chosen by price. A gradient of weights has few images, and groups have tiles of their own."""
    row = channel_run(problem, how, sizes) * problem.a.read.bytes
    in_tf32 = problem.compute_type == TF32 and problem.passes == "tensor"
    return in_tf32 and row <= SHORTEST_ROW and how.group is None and _has_more_results(how, sizes)


def _has_more_results(how: Im2col, sizes: tuple[int, ...]) -> bool:
    """Whether windows stand at more places than they have taps: those of a gradient of weights have more taps."""
    taps = math.prod(s.taps(sizes) for s in how.space)
    return taps <= math.prod(s.results(sizes) for s in how.space)


def _splits(problem: ConvolutionProblem, how: Im2col, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The parts of K that are tried."""
    passes, fold = problem.passes, how.fold is not None or problem.stacked > 1
    long = channel_run(problem, how, sizes) >= LEAST_SPLIT
    shared = passes == "tensor" or (passes in IN_F16 and long and not fold)
    if not shared or any(isinstance(o, Reduction) for o in problem.gemm.outputs):
        return (1,)
    most = MOST_F16_SPLITS if passes in IN_F16 else max(SPLITS)
    return tuple(n for n in SPLITS if n <= most)


def does_much(problem: ConvolutionProblem) -> bool:
    """Returns whether threads store sums whose rows are neighbours in memory, and read two tensors for them or
    compute a long function."""
    gemm = problem.gemm
    stored = all(isinstance(o, Store) and o.access.contiguous == "m" for o in gemm.outputs)
    functions = {i.function for i in gemm.arithmetic.instructions if isinstance(i, Compute)}
    much = len(gemm.inputs) > 1 or bool(functions & LONG_FUNCTIONS)
    return stored and much


def schedule_of_runs(
    problem: ConvolutionProblem, how: Im2col, sizes: tuple[int, ...], device: Device
) -> Im2colSchedule | str:
    """The tile whose taps along the innermost window share runs of rows, or why they do not."""
    window = how.space[0]
    stored = all(isinstance(o, Store) and o.access.contiguous == "m" for o in problem.gemm.outputs)
    lies_apart = how.phases > 1 or how.scattered or how.fold is not None
    if problem.passes not in IN_F16 or lies_apart or not stored:
        return "rows are shared in f16 passes, of results whose rows are neighbours in memory"
    if window.tap_dim is None or window.step != 1:
        return "the innermost window has no taps one step apart"
    halo = -(-abs(window.tap) * (sizes[window.tap_dim] - 1) // 8) * 8
    if not 0 < halo <= MOST_HALO:
        return f"the innermost window is {halo} rows long, not 8 to {MOST_HALO}"
    channels = channel_run(problem, how, sizes)
    parts = [p for p in (64, 32, 16) if how.group is None or channels % p == 0]
    if not parts:
        return f"groups of {channels} channels are no whole rows of 32 bytes"
    part = min(parts, key=lambda p: (-(-channels // p) * (p + 4), -p))  # a step waits for barriers besides
    taps = math.prod(_taps(s, sizes) for s in how.space)
    steps = taps * -(-channels // part)
    n = math.prod(sizes[d] for d in problem.n)
    priced = [
        (math.ceil(n / tile_n) * tile_n * RUN_SHARE[tile_n], held, tile_m, tile_n, groups)
        for tile_m, tile_n, groups in RUN_TILES
        if (held := stages_beside_runs(tile_m, tile_n, groups, part, halo, steps, device, problem.passes))
    ]
    if not priced:
        return "no tile of shared rows fits"
    _, held, tile_m, tile_n, groups = min(priced)
    return Im2colSchedule((tile_m, tile_n, part), part, held, groups, 1, math=problem.passes, halo=halo)


def _schedule_clocks(s: Im2colSchedule, m: float, n: int, batch: int, steps: int, device: Device) -> float:
    """As `clocks`, but at least what the busiest SM waits for rows of fewer than 128 bytes."""
    priced = clocks(s, m, n, batch, steps, device, s.math)
    (tile_m, tile_n, depth), passes = s.tile, s.math
    if s.part == depth or passes != "tensor":
        return priced
    blocks = math.ceil(m / tile_m) * math.ceil(n / tile_n) * batch * s.split_k
    rows = math.ceil(blocks / device.sms) * math.ceil(steps / s.split_k) * tile_m * (depth // s.part)
    return max(priced, MODEL.launch + rows * MODEL.row)


def _part_of_f16(channels: int, passes: Passes) -> int:
    """Channels of a row of TMA's of f16 parts, whose copies are padded to whole rows: of the least clocks in which an
    H100 brought the parts of both operands or multiplied them, 128 x 128 to a tile; others have to gain a tenth by
    their padding. Rows of 32 bytes are for what fills no more: 48 channels in three of them took a half more than that."""

    def clocks_of(part: int) -> tuple[float, int]:
        rows = -(-channels // part)
        multiplied = 0.36 if passes == "f16x3" else 0.12
        brought = 8.2 if passes == "f16x3" else 4.1
        return max(brought * rows, multiplied * rows * part) * (1.1 if channels % part else 1.0), -part

    return min((64, 32), key=clocks_of) if channels > 16 else 16


def row_clocks(channels: int, part: int, passes: Passes) -> float:
    """Clocks in which TMA brings a row of a tile with all its channels, read off an H100 in bf16: rows that end beyond
    the channels take longer. In three passes, those in which both parts are brought or multiplied with 128 columns."""
    whole, rest = divmod(channels, part)
    brought = 2.0 * whole + (5.0 if rest else 0.0)
    if passes in ONE_PASS:
        return brought
    multiplied = 3 * 2 * 4 * MODEL.multiply / 64**2 * (whole + (rest > 0)) * part
    return max(2 * brought, multiplied)


def extents_of(
    problem: ConvolutionProblem, how: Im2col, part: int, depth: int, sizes: tuple[int, ...]
) -> tuple[float, int, int, int]:
    """Rows of a phase, columns, products of phases that have taps, and stages of so deep a tile in parts of so many
    channels."""
    steps = math.prod(_taps(s, sizes) for s in how.space) * -(-channel_run(problem, how, sizes) // part)
    stacked = {s.result: s.results(sizes) for s in how.space}
    m = math.prod(stacked.get(d, sizes[d]) for d in problem.m) / how.phases
    n = math.prod(sizes[d] for d in problem.n) * problem.stacked
    batch = math.prod(sizes[d] for run in problem.batch for d in run) * how.busy_phases
    return m, n, batch, -(-steps // (depth // part))


def _taps(space: Space, sizes: tuple[int, ...]) -> int:
    """Taps of a window that one phase has at most."""
    return -(-space.taps(sizes) // space.every)


def _candidates(passes: Passes) -> tuple[tuple[int, int, int, int], ...]:
    tiles = {"tensor": TILES, "tf32x3": SPLIT_TILES, "f16x3": F16X3_TILES, "f16": F16_TILES}[passes]
    return tuple((m, n, g, b) for m, n, g in tiles for b in range(1, MOST_BLOCKS + 1))


def _narrow_tiles(columns: int) -> tuple[tuple[int, int, int, int], ...]:
    """Tiles of all columns, where these are few and no whole 64."""
    own = -(-columns // NARROW) * NARROW
    if not LEAST_NARROW <= own <= MOST_NARROW or own % 64 == 0:
        return ()
    return tuple((m, own, g, b) for m, g in JOINED_ROWS for b in range(1, MOST_BLOCKS + 1))


def clocks(
    s: Im2colSchedule | WgradSchedule,
    m: float,
    n: int,
    batch: int,
    steps: int,
    device: Device,
    passes: Passes = "tensor",
    word: int = 0,
) -> float:
    """Clocks of the SM with the most blocks, by `MODEL`; f32 is multiplied in three passes. `word`: warps fill the stages,
    so many bytes of a row at a time."""
    (tile_m, tile_n, _), held = s.tile, s.stages
    parts = s.split_k if isinstance(s, Im2colSchedule) else 1
    blocks = math.ceil(m / tile_m) * math.ceil(n / tile_n) * batch * parts
    most = math.ceil(blocks / device.sms)
    concurrent = min(s.blocks, most)
    waves = math.ceil(most / concurrent)
    # Up to 64 columns shared memory bounds it, which A's rows are read from as well.
    wide = tile_n / 64 if tile_n > 64 else MODEL.narrow * (1 + tile_n / 64) / 2
    multiply = tile_m / 64 * wide * 4 * MODEL.multiply
    if passes not in ONE_PASS:
        multiply = 3 * multiply + (MODEL.splitting if s.groups * concurrent == 1 else 0.0)
    brought = rows_of_tiles(tile_m, tile_n, passes) * 128 / MODEL.bytes
    waited = MODEL.latency / (concurrent * max(held - 1.5, 0.5))
    if word:
        brought = max((tile_m + tile_n) * ROW_BY_WORDS[word], LOADED / concurrent)
    # Where two of them are near each other, both are felt.
    step = math.sqrt(math.sqrt(multiply**4 + brought**4 + waited**4))
    own = MODEL.wave + MODEL.result * tile_m * tile_n * concurrent
    own *= MODEL.alone if concurrent == 1 and waves > 1 else 1.0
    own += MODEL.cluster + MODEL.shared * tile_m * tile_n if parts > 1 else 0.0
    return MODEL.launch + most * math.ceil(steps / parts) * step + waves * own
