"""A gradient of a depthwise convolution's weights as plain threads sum it: a result is one tap of a channel, what is
summed are the positions where windows stand, and the images. A thread sums all taps of its channels, so that it reads
an element of the gradient once and one of the input once for each tap along a line.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Set
from dataclasses import dataclass, replace

from ucutlass.ir.hardware import Device
from ucutlass.kernels.access import Reduction
from ucutlass.kernels.convolution.plan import ConvolutionProblem, DepthwiseWgradSchedule, unit_dim

MOST_TAPS, MOST_SUMS = 121, 121
"""Taps of a channel, and sums of a thread."""

FEW_SUMS, LEAST_BYTES = 50, 4
"""Sums up to which a thread has further channels, and bytes of channels that it reads together whatever they are (read
off an H100 with 19 layers; so are the rows of a thread)."""

BLOCKS = 528
"""Thread blocks among which the sums are divided: four of an SM of an H100."""

BUSY_SHARE = 3
"""Of its threads a block keeps a third busy at least, by fewer rows of each (an H200: of 98 and 112 items in 256 threads
one block took 3 to 34 % less than of 28, 56, 196 or 392)."""

LEAST_SUMMED = 32
"""Products of a result from which threads share its sum."""


@dataclass(frozen=True, slots=True)
class PositionWindow:
    """A window of A: axis `axis` is read at `step` times the position, the contracted dimension `k`, and `tap` times
    the tap, result mode `mode`, of which there are `taps`; -1 where it has none."""

    axis: int
    k: int
    mode: int
    step: int
    tap: int
    taps: int


@dataclass(frozen=True, slots=True)
class DepthwiseWgrad:
    """The windows along lines and, where there are two, across them, and the axis of B that the positions of the first
    are. `inner` is the contracted dimension of which neighbouring threads have neighbouring positions: that of the
    second window, or one that lies within the only one, if any. `channels` are the other modes of the result;
    `adjacent`: those of the last one are neighbours in both operands. `columns_b` is as `rows_b`, of the second window."""

    rows: PositionWindow
    columns: PositionWindow | None
    rows_b: int
    inner: int | None
    channels: tuple[int, ...]
    adjacent: bool
    columns_b: int = -1

    @property
    def taps(self) -> tuple[int, int]:
        return self.rows.taps, 1 if self.columns is None else self.columns.taps

    def is_long(self, problem: ConvolutionProblem, sizes: tuple[int, ...]) -> bool:
        """Whether the sum is worth sharing; that of a forward convolution, which has this form too where it has no name
        of images, has fewer products than results."""
        summed = math.prod(sizes[d] for d in problem.k)
        return summed >= max(LEAST_SUMMED, math.prod(self.taps))


def depthwise_wgrad(
    problem: ConvolutionProblem, sizes: tuple[int, ...], fixed: Set[int]
) -> DepthwiseWgrad | str:
    """Returns how threads sum the gradient, or why they do not; `fixed` are the dimensions whose extents the program
    fixes."""
    if problem.gemm.accumulate != "f32" or any(isinstance(o, Reduction) for o in problem.gemm.outputs):
        return "sums are of f32, and no result is reduced"
    if problem.b.windows or len(problem.a.windows) not in (1, 2):
        return "A has one window or two and B none"
    modes = {run[0]: i for i, run in enumerate(problem.batch)}
    windows: list[PositionWindow] = []
    for axis in problem.a.windows:
        window = problem.a.axes[axis].window
        assert window is not None
        summed = [(d, c) for d, c in window.terms if d in problem.k]
        taps = [(d, c) for d, c in window.terms if d in modes and d in fixed]
        if window.scale != 1 or len(summed) != 1 or len(taps) > 1 or len(window.terms) != 1 + len(taps):
            return "a window has one position that is summed and at most one tap, whose number is fixed"
        position, step = summed[0]
        tap_dim, tap = taps[0] if taps else (None, 1)
        if step < 1 or tap < 1:
            return "positions and taps of a window go up"
        mode, count = (-1, 1) if tap_dim is None else (modes[tap_dim], sizes[tap_dim])
        windows.append(PositionWindow(axis, problem.k.index(position), mode, step, tap, count))
    if all(w.mode < 0 for w in windows):
        return "no window has taps"
    rows, columns = windows[0], windows[1] if len(windows) > 1 else None
    count = math.prod(w.taps for w in windows)
    if count > MOST_TAPS:
        return f"{count} taps are more than a thread sums"
    channels = tuple(i for i in modes.values() if i not in [w.mode for w in windows])
    plain = [{axis.extent for axis in o.axes if axis.window is None} for o in (problem.a, problem.b)]
    places = {problem.k[w.k] for w in windows}
    taps_dims = {problem.batch[w.mode][0] for w in windows if w.mode >= 0}
    if places & plain[0] or taps_dims & (plain[0] | plain[1]) or not places <= plain[1]:
        return "positions are axes of B, taps are axes of neither operand"
    if not channels or any(problem.batch[i][0] not in plain[1] for i in channels):
        return "B has a name of the result besides the taps"
    rows_b = next(i for i, axis in enumerate(problem.b.axes) if axis.extent == problem.k[rows.k])
    last = problem.batch[channels[-1]][0]
    adjacent = unit_dim(problem.a) == last and unit_dim(problem.b) == last
    within = [axis.extent for axis in problem.a.axes[rows.axis + 1 :] if axis.extent in problem.k]
    inner = columns.k if columns is not None else problem.k.index(within[-1]) if within else None
    columns_b = -1
    if columns is not None:
        columns_b = next(i for i, axis in enumerate(problem.b.axes) if axis.extent == problem.k[columns.k])
    return DepthwiseWgrad(rows, columns, rows_b, inner, channels, adjacent, columns_b)


def access_of(problem: ConvolutionProblem, schedule: DepthwiseWgradSchedule) -> DepthwiseWgrad:
    """Returns how threads sum the gradient by a schedule. Raises ValueError for a problem that is no such gradient."""
    dims = {d for run in problem.batch for d in run}
    windows = [problem.a.axes[axis].window for axis in problem.a.windows]
    taps = [next((d for d, _ in w.terms if d in dims), None) for w in windows if w is not None]
    sizes = [1] * problem.gemm.dims
    for dim, count in zip(taps, schedule.taps, strict=False):
        if dim is not None:
            sizes[dim] = count
    how = depthwise_wgrad(problem, tuple(sizes), {d for d in taps if d is not None})
    if isinstance(how, str):
        raise ValueError(how)
    return how


def depthwise_wgrad_schedule(
    problem: ConvolutionProblem, how: DepthwiseWgrad, sizes: tuple[int, ...], device: Device
) -> DepthwiseWgradSchedule:
    """Returns the planner's own schedule: vectors of channels that leave registers for all taps' sums, and lanes of a
    warp side by side along channels that few of them waste."""
    taps = math.prod(how.taps)
    width = 1
    if how.adjacent:
        aligned, least = min(problem.a.align, problem.b.align), LEAST_BYTES // problem.a.elem.bytes
        fits = [w for w in (1, 2, 4) if w <= aligned and w * taps <= (MOST_SUMS if w <= least else FEW_SUMS)]
        width = max(1, *fits)
    vectors = math.prod(sizes[problem.batch[i][0]] for i in how.channels) // width
    side_by_side = [n for n in (32, 16, 8, 4, 2, 1) if math.ceil(vectors / n) * n <= 1.15 * vectors]
    lanes = side_by_side[0] if how.adjacent else 1
    rows = 8 if not how.adjacent or how.rows.step == 1 else 4
    positions = sizes[problem.k[how.rows.k]]
    rows = min(rows, 1 << max(0, positions - 1).bit_length())
    threads = 128 if how.adjacent else 256
    few = taps >= TILED_TAPS and width * taps <= FEW_SUMS
    if problem.a.elem.bytes == 2 and few and width * lanes >= TILED_CHANNELS:
        line = DepthwiseWgradSchedule(width, 1, TILED_CHANNELS // width, threads, how.taps)
        if tiled := _cheapest_tile(problem, how, sizes, line, device):
            return tiled
    lines = math.prod(sizes[d] for d in problem.k) // positions
    while rows > 1 and BUSY_SHARE * lines * math.ceil(positions / rows) * lanes < threads:
        rows //= 2
    return DepthwiseWgradSchedule(width, rows, lanes, threads, how.taps)


# --- tiles in shared memory -------------------------------------------------------------

TILED_TAPS, TILED_CHANNELS = 16, 32
"""Taps of 16 bits from which what windows share is read from shared memory, and the channels of a tile. An H200 took 15.5,
31.1 and 18.9 us so for 23.2, 35.5 and 24.6 without (25 taps), and 23.7, 38.9 and 26.2 by tiles of 64 channels; for other
layers 13.5 for 10.5 (nine taps), 218 for 145 (49), 41.9 for 28.5 (tiles of 16 channels)."""

TILE_BYTES = 52 * 1024
"""The most bytes that a tile may take, so that an SM holds four."""

MOST_ROWS, MOST_COLUMNS = 8, 64
"""The most rows and columns that a tile is tried with."""

COPIED = 24.0
"""The instructions in which a thread copies neighbouring channels of a tile once, addresses included. This is an estimate."""

LEAST_BESIDE, TILE_LATENCY = 2, 1500.0
"""How many blocks at least hide each other's latency on an SM, and the clocks in which a tile arrives. Both are estimates."""


def copied_together(problem: ConvolutionProblem, channels: int) -> int:
    """Returns the neighbouring channels, of so many, that a thread copies together."""
    return math.gcd(problem.a.align, problem.b.align, channels)


def tile_bytes(problem: ConvolutionProblem, schedule: DepthwiseWgradSchedule) -> int:
    """Returns the bytes of shared memory that a tile of both operands takes; 0 where there is none."""
    return _tile_bytes(problem, access_of(problem, schedule), schedule) if schedule.columns else 0


def _tile_bytes(problem: ConvolutionProblem, how: DepthwiseWgrad, schedule: DepthwiseWgradSchedule) -> int:
    places = schedule.rows * schedule.columns + _places_read(how, schedule)
    return places * _channels(schedule) * problem.a.elem.bytes


def tile_columns(
    problem: ConvolutionProblem, sizes: tuple[int, ...], schedule: DepthwiseWgradSchedule, device: Device
) -> int:
    """Returns the columns of the tile that is estimated fastest with what else the schedule has; 0 where there is none."""
    tiles = _tiles(problem, access_of(problem, schedule), sizes, schedule, (schedule.rows,), device)
    return min(tiles, key=lambda t: t[0], default=(0.0, replace(schedule, columns=0)))[1].columns


def _cheapest_tile(
    problem: ConvolutionProblem,
    how: DepthwiseWgrad,
    sizes: tuple[int, ...],
    schedule: DepthwiseWgradSchedule,
    device: Device,
) -> DepthwiseWgradSchedule | None:
    tiles = _tiles(problem, how, sizes, schedule, range(1, MOST_ROWS + 1), device)
    return min(tiles, key=lambda t: t[0])[1] if tiles else None


def _tiles(
    problem: ConvolutionProblem,
    how: DepthwiseWgrad,
    sizes: tuple[int, ...],
    schedule: DepthwiseWgradSchedule,
    rows_tried: Iterable[int],
    device: Device,
) -> list[tuple[float, DepthwiseWgradSchedule]]:
    """Returns the tiles that fit, each with the clocks of the block of the most tiles."""
    together = copied_together(problem, _channels(schedule))
    if how.columns is None or not how.adjacent or len(how.channels) > 1 or problem.a.elem != problem.b.elem:
        return []
    if together % schedule.width or together * problem.a.elem.bytes < LEAST_BYTES:
        return []
    down, along = (sizes[problem.k[w.k]] for w in (how.rows, how.columns))
    images = math.prod(sizes[d] for d in problem.k) // (down * along)
    (channels,) = how.channels
    groups = math.ceil(sizes[problem.batch[channels][0]] / _channels(schedule))
    tiles = []
    for rows, columns in itertools.product(rows_tried, range(1, min(along, MOST_COLUMNS) + 1)):
        tile = replace(schedule, rows=rows, columns=columns)
        if _tile_bytes(problem, how, tile) <= TILE_BYTES:
            count = images * math.ceil(down / rows) * math.ceil(along / columns)
            parts = max(1, min(BLOCKS // groups, count))
            beside = max(LEAST_BESIDE, math.ceil(groups * parts / device.sms))
            each = beside * _instructions(problem, how, tile) + TILE_LATENCY
            tiles.append((math.ceil(count / parts) * each, tile))
    return tiles


def _instructions(
    problem: ConvolutionProblem, how: DepthwiseWgrad, schedule: DepthwiseWgradSchedule
) -> float:
    """Returns the instructions of a thread for a tile: a load, a conversion of each channel, a multiply-add of each product,
    and the copies."""
    taps, (_, across) = math.prod(how.taps), how.taps
    lines = _reach(how.rows, schedule.rows)
    loads = (schedule.rows + lines * across) * (1 + schedule.width)
    products = schedule.rows * taps * schedule.width
    turns = math.ceil(schedule.columns / (schedule.threads // schedule.lanes))
    together = copied_together(problem, _channels(schedule))
    places = schedule.rows * schedule.columns + _places_read(how, schedule)
    copies = math.ceil(places * _channels(schedule) / together / schedule.threads)
    return turns * (loads + products) + COPIED * copies


def _places_read(how: DepthwiseWgrad, schedule: DepthwiseWgradSchedule) -> int:
    """The positions of the input that a tile's windows reach."""
    columns = 1 if how.columns is None else _reach(how.columns, schedule.columns)
    return _reach(how.rows, schedule.rows) * columns


def _reach(window: PositionWindow, positions: int) -> int:
    return (positions - 1) * window.step + (window.taps - 1) * window.tap + 1


def _channels(schedule: DepthwiseWgradSchedule) -> int:
    return schedule.width * schedule.lanes
