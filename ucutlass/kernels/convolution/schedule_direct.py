"""How plain threads compute a convolution, without tiles of a product."""

from __future__ import annotations

import math
from dataclasses import replace

from ucutlass.ir.elements import F16, Element
from ucutlass.ir.extents import Fixed
from ucutlass.ir.hardware import Device
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels.access import Reduction
from ucutlass.kernels.addresses import vector_width
from ucutlass.kernels.convolution.cost_register_tile import (
    cheapest_register_tile,
    cheapest_tensor_tile,
    register_tile_seconds,
)
from ucutlass.kernels.convolution.match import ConvolutionPattern
from ucutlass.kernels.convolution.plan import (
    ConvolutionProblem,
    DirectSchedule,
    RegisterTileSchedule,
    Slide,
    across_mode,
    slide,
    unit_dim,
)
from ucutlass.kernels.convolution.plan_depthwise_wgrad import depthwise_wgrad, depthwise_wgrad_schedule
from ucutlass.kernels.convolution.plan_register_tile import (
    channels_at_once,
    columns_of,
    multiplies_by_mma,
    prepared_register_tile,
    register_tile,
    unreduced,
)
from ucutlass.kernels.convolution.planner_algorithm import Algorithm
from ucutlass.kernels.convolution.problem import convolution_problem
from ucutlass.kernels.convolution.rules import MOST_SUMS, repeats
from ucutlass.kernels.convolution.schedule import QUAD
from ucutlass.kernels.convolution.schedule_lines import line_windows, lines_schedule
from ucutlass.kernels.planned import Note
from ucutlass.kernels.refused import Refused

MOST_TAPS, LONG_TAPS, LONG_WIDTH = 7, 11, 4
"""Of a window whose weights a thread of the direct kernel holds in registers; those of a window for which it has at most so
many neighbours."""

FEW_TAPS = 3
"""Of a window: along windows two apart a thread of the direct kernel holds more than four results of so few taps."""

MOST_ITEMS, ITEM_SUMS = 8, 32
"""Lines of results that a thread of the direct kernel computes at most, and the sums that it keeps of all."""

SMALL, SMALL_THREADS = 2048, 64
"""Results an SM of the direct kernel up to which its threads, of such blocks, have two results along a window and wait
once for all loads of a line's taps: twelve images of 7 x 7 to 112 x 112 with 16 to 960 channels, f32 and bf16, took an
H100 2.4 to 4.4 us for 3.4 to 6.0."""

TILE_THREADS, MANY_POSITIONS = 128, 128
"""Threads of a block of register tiles; and positions an SM from which warps multiply by mma.sync: of 26 layers that a seed
drew for an H200, 19 of more took 0.63 of the time so (0.46 to 1.04), and seven of fewer 1.15 (0.93 to 1.49)."""

BUSY_THREADS, LEAST_VECTOR = 800, 8
"""Of the direct kernel an SM, below which a thread has fewer results of channels that lie innermost, and the bytes of
neighbours that it keeps at least."""

FEW_THREADS, LEAST_ROWS = 64, 2
"""Of the direct kernel an SM, below which a thread that stores results one by one has fewer, and the least of these: 232
channels of 7 x 7 took an H200 4.0 us with 8, 2.44 with 4, 2.35 with 2 and 2.63 with 1."""

SEVENTHS, LEAST_BYTES = 7, 4
"""Results along a window of a thread where they divide images of 7, 14 or 28 results and 8 do not, and the bytes of neighbours
that it keeps there at least: of 32 images of 7 x 7 and 1152 channels of f32 an H100 took 8.5 us by 2 x 7 and 12.4 by 4 x 4, of
64 with 256 channels 5.3 by 1 x 7, 9.3 by 2 x 7 and 6.6 by 2 x 4, and of 14 x 14 results of bf16 14.7 by 2 x 7 and 17.1
by 4 x 8."""

ONE_BY_ONE = 4
"""The least results along a window of a thread of one channel: 57 channels of 14 x 14 took an H200 2.93 us with 4 and 3.45
with 2, and of 28 x 28, 64 images, 47 with 4 and 38 with 8."""

LEAST_THREADS = 384
"""Of the direct kernel an SM, below which a thread computes fewer lines."""


def direct(
    pattern: ConvolutionPattern,
    sizes: tuple[int, ...],
    device: Device,
    aligned: tuple[bool, ...] | None,
    request: PartialSchedule,
) -> Algorithm:
    """The kernel of plain threads; where a schedule fixes the neighbours of a thread, it says too how many lines they have."""
    problem_ = convolution_problem(pattern, sizes, aligned, apart=True)
    if any(isinstance(o, Reduction) for o in problem_.gemm.outputs):
        raise Refused(
            "UC0309",
            "the kernel of a depthwise convolution reduces nothing of its result",
            pattern.dot.span,
            "store the convolution's result and reduce it in a second stage",
        )
    width = _width(problem_, sizes, aligned)
    fixed = {i for i, extent in enumerate(pattern.kernel.dims.values()) if isinstance(extent, Fixed)}
    gradient = depthwise_wgrad(problem_, sizes, fixed)
    if not isinstance(gradient, str) and gradient.is_long(problem_, sizes):
        why = "threads share the sum over the positions of windows, and read them once for all taps"
        schedule_ = depthwise_wgrad_schedule(problem_, gradient, sizes, device)
        return Algorithm(problem_, schedule_, 1, (Note("", "direct", why),))
    own = _taps(problem_, len(problem_.batch) - 1, sizes, fixed)
    rows = width if width > 1 else _few_rows(problem_, sizes, device)
    moving = slide(problem_, len(problem_.batch) - 1)
    if own > 0 and moving is not None and moving.repeats(rows):
        item_taps = _taps(problem_, len(problem_.batch) - 2, sizes, fixed)
        wide = item_taps > 0 and width > 1 and _lines_are_aligned(problem_, width, sizes, aligned)
        scaled = moving.scale > 1 and item_taps > 0
        items = _items(problem_, rows, sizes, device) if wide or scaled else min(1, item_taps)
        schedule = DirectSchedule(width, rows, own, True, items=items, item_taps=item_taps, wide=wide)
    else:
        results = math.prod(sizes[d] for run in problem_.batch for d in run)
        moving = slide(problem_, across_mode(problem_))
        slides = repeats(problem_, width)
        taps = _taps(problem_, across_mode(problem_), sizes, fixed) if slides else 0
        width = min(width, LONG_WIDTH) if taps > MOST_TAPS else width
        rows = _rows(problem_, taps, sizes) if slides else 1
        if width == 1 and rows > 1:
            rows = max(ONE_BY_ONE, min(rows, _few_rows(problem_, sizes, device)))
        width, rows = _busy(problem_, width, rows, taps, sizes, device)
        schedule = DirectSchedule(width, rows, taps if rows > 1 else 0)
        if schedule.taps and results < SMALL * device.sms and moving is not None and moving.repeats(2):
            vector = min(width, LEAST_VECTOR // problem_.a.elem.bytes)
            ahead = _ahead(problem_, moving, sizes, fixed)
            schedule = replace(schedule, width=vector, rows=2, threads=SMALL_THREADS, ahead=ahead)
        windows = line_windows(problem_, sizes, fixed) if schedule.taps else None
        if windows is not None:
            schedule = replace(schedule, item_taps=windows.item_taps)
            widest = replace(schedule, width=_width(problem_, sizes, aligned))
            lines = lines_schedule(problem_, windows, widest, sizes, device)
            schedule = schedule if request.vector is not None or lines is None else lines
    why = "one multiply-add for each product: no two results of a tile share both operands"
    return Algorithm(problem_, schedule, 1, (Note("", "direct", why),))


def _ahead(problem: ConvolutionProblem, moving: Slide, sizes: tuple[int, ...], fixed: set[int]) -> int:
    """Steps of the sum beside the taps along a window whose loads a thread issues at once: all of few that the text
    fixes."""
    rest = [d for i, d in enumerate(problem.k) if i != moving.k]
    steps = math.prod(sizes[d] for d in rest)
    return steps if steps <= MOST_TAPS and fixed.issuperset(rest) else 1


def _few_rows(problem: ConvolutionProblem, sizes: tuple[int, ...], device: Device) -> int:
    """Results of a thread that stores them one by one: 8, fewer where threads would be few, of which large windows take
    more."""
    results = math.prod(sizes[d] for run in problem.batch for d in run)
    large = math.prod(sizes[d] for d in problem.k) > MOST_TAPS**2
    threads = (LEAST_THREADS if large else FEW_THREADS) * device.sms
    rows = 8
    while rows > LEAST_ROWS and results < rows * threads:
        rows //= 2
    return rows


def prepared_tile(
    pattern: ConvolutionPattern,
    sizes: tuple[int, ...],
    device: Device,
    aligned: tuple[bool, ...] | None,
    request: PartialSchedule,
) -> Algorithm | str:
    """The kernel whose threads keep sums of some positions by some columns, or why there is none."""
    if request.vector is not None or request.items is not None:
        return "threads that keep several columns have no `vector` or `items`"
    problem_ = prepared_register_tile(convolution_problem(pattern, sizes, aligned, apart=True, beside=True))
    tile = register_tile(problem_)
    if isinstance(tile, str):
        return tile
    if why := unreduced(problem_, tile):
        return why
    columns = columns_of(problem_, tile, sizes)
    stored = [o.access for o in problem_.gemm.outputs if o.access.batch[tile.column] == ()]
    widths = [vector_width(a.elem.bits, aligned is None or aligned[a.pointer], (columns,)) for a in stored]
    vector = min(QUAD, *widths) if widths else 1
    own = RegisterTileSchedule(1, QUAD, TILE_THREADS, channels_at_once(problem_, tile, sizes), vector)
    results = math.prod(sizes[d] for run in problem_.batch for d in run)
    many = results >= MANY_POSITIONS * device.sms * columns
    cheapest = cheapest_tensor_tile if many and multiplies_by_mma(problem_) else cheapest_register_tile
    schedule = cheapest(problem_, tile, own, sizes, device)
    if isinstance(schedule, str):
        return schedule
    unit = "; warps multiply by mma.sync" if schedule.tensor else ""
    why = f"weights lie in shared memory, A is read where it lies; nothing is copied or padded{unit}"
    seconds = register_tile_seconds(problem_, tile, schedule, sizes, device)
    return Algorithm(problem_, schedule, 1, (Note("", "register tile", why),), seconds)


def _items(problem: ConvolutionProblem, rows: int, sizes: tuple[int, ...], device: Device) -> int:
    """Lines of results of a thread: as many as share most of their input (read off an H100: 32 sums a thread, where
    the window moves by one; off an H200: two lines, where it moves by two), nearly divide the lines, and leave threads
    enough for every SM."""
    mode = len(problem.batch) - 2
    moving = slide(problem, mode)
    if moving is None or moving.step > 2:
        return 1
    (dim,) = problem.batch[mode]
    results = math.prod(sizes[d] for run in problem.batch for d in run)
    if moving.step == 2:
        enough = results >= rows * 2 * LEAST_THREADS * device.sms
        return 2 if enough and moving.scale == 1 else 1
    sums = ITEM_SUMS if moving.scale == 1 else MOST_SUMS  # of which not all taps add to each
    for items in range(min(MOST_ITEMS, sums // rows), 1, -1):
        if not moving.repeats(items):
            continue
        divides = math.ceil(sizes[dim] / items) * items <= 1.1 * sizes[dim]
        if divides and results >= rows * items * LEAST_THREADS * device.sms:
            return items
    return min(moving.scale, sums // rows)


def _lines_are_aligned(
    problem: ConvolutionProblem, width: int, sizes: tuple[int, ...], aligned: tuple[bool, ...] | None
) -> bool:
    """Whether vectors of A's lines begin at multiples of `width` elements, at places that the text fixes."""
    a, moving = problem.a, slide(problem, len(problem.batch) - 1)
    if moving is None or moving.axis != len(a.axes) - 1 or moving.step > 2 or width * a.elem.bytes > 16:
        return False
    if moving.scale > 1:
        return False
    axis = a.axes[moving.axis]
    fixed = axis.window is not None and isinstance(axis.window.offset, Fixed)
    return fixed and (aligned is None or aligned[a.pointer]) and sizes[axis.extent] % width == 0


def _rows(problem: ConvolutionProblem, taps: int, sizes: tuple[int, ...]) -> int:
    """Results of a thread along a window: of few taps as many as its registers hold (read off an H200: 8, of
    windows two apart 7; and off an H100: 8 of gradients of such windows), where they divide the results nearly."""
    moving = slide(problem, across_mode(problem))
    if moving is None:
        return 4
    most = FEW_TAPS if moving.step > 1 else LONG_TAPS
    usual = next((rows for rows in (4, 1) if moving.repeats(rows)), 1)
    if not 0 < taps <= most or moving.step > 2:
        return usual
    (dim,) = problem.batch[across_mode(problem)]
    rows = SEVENTHS if moving.step == 2 or (sizes[dim] % SEVENTHS == 0 and sizes[dim] % 8 != 0) else 8
    whole = math.ceil(sizes[dim] / rows) * rows <= 1.15 * sizes[dim]
    return rows if whole and moving.repeats(rows) else usual


def _moves_by_one(problem: ConvolutionProblem) -> bool:
    """Whether windows of neighbouring results are one step apart."""
    moving = slide(problem, across_mode(problem))
    return moving is not None and moving.step == 1


def _busy(
    problem: ConvolutionProblem, width: int, rows: int, taps: int, sizes: tuple[int, ...], device: Device
) -> tuple[int, int]:
    """The neighbours and rows of a thread, fewer where threads would be few: of small windows fewer rows, of others
    fewer neighbours (read off an H100 with eight layers)."""
    enough = BUSY_THREADS * device.sms
    results = math.prod(sizes[d] for run in problem.batch for d in run)
    if rows == SEVENTHS and _moves_by_one(problem):
        least = min(width, max(1, LEAST_BYTES // problem.a.elem.bytes))
        if results >= least * rows * LEAST_THREADS * device.sms:
            while width > least and results < width * 8 * enough:
                width //= 2
            return width, rows
        rows = 8
    if rows < 8 or results >= width * rows * enough:
        return width, rows
    if taps <= FEW_TAPS:
        rows = 4
    wide = width * problem.a.elem.bytes >= 2 * LEAST_VECTOR
    return (width // 2 if wide and results < width * rows * enough else width), rows


def _taps(problem: ConvolutionProblem, mode: int, sizes: tuple[int, ...], fixed: set[int]) -> int:
    """The taps of a window that slides along a result mode, 0 where none does, they are many, or a call
    may bring others."""
    moving = slide(problem, mode)
    if moving is None or max(moving.step, moving.tap) > MOST_TAPS or problem.k[moving.k] not in fixed:
        return 0
    taps = sizes[problem.k[moving.k]]
    return taps if taps <= LONG_TAPS else 0


def taps_of(
    pattern: ConvolutionPattern, problem: ConvolutionProblem, sizes: tuple[int, ...], rows: int
) -> int:
    """The taps that the direct kernel keeps where a thread repeats itself along the window's results."""
    fixed = {i for i, extent in enumerate(pattern.kernel.dims.values()) if isinstance(extent, Fixed)}
    moving = slide(problem, across_mode(problem))
    if moving is None or not moving.repeats(rows):
        return 0
    return _taps(problem, across_mode(problem), sizes, fixed) if rows > 1 else 0


def _width(problem: ConvolutionProblem, sizes: tuple[int, ...], aligned: tuple[bool, ...] | None) -> int:
    """Neighbouring results of a thread, at most 8: 16 bytes of the widest tensor that lies along them. A
    tensor's other strides are multiples of their extent, which is innermost in it."""
    if not problem.batch:
        return 1
    (dim,) = problem.batch[-1]
    touched: list[tuple[int, Element]] = [
        (a.pointer, a.elem)
        for a in (*problem.gemm.inputs, *(o.access for o in problem.gemm.outputs))
        if a.batch[-1] == ()
    ]
    touched += [(w.pointer, w.elem) for w in (problem.a, problem.b) if unit_dim(w) == dim]
    fine = aligned is None or all(aligned[p] for p, _ in touched)
    # A wider operand of the epilogue is read one by one.
    own = {problem.a.pointer, problem.b.pointer, *(o.access.pointer for o in problem.gemm.outputs)}
    most = [F16.bits, *(e.bits for p, e in touched if p in own)]
    return min(vector_width(bits, fine, (sizes[dim],)) for bits in most)
