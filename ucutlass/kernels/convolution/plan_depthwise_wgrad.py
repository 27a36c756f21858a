"""A gradient of a depthwise convolution's weights as plain threads sum it: a result is one tap of a channel, what is
summed are the positions where windows stand, and the images. A thread sums all taps of its channels, so that it reads
an element of the gradient once and one of the input once for each tap along a line.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass

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
    `adjacent`: those of the last one are neighbours in both operands."""

    rows: PositionWindow
    columns: PositionWindow | None
    rows_b: int
    inner: int | None
    channels: tuple[int, ...]
    adjacent: bool

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
    return DepthwiseWgrad(rows, columns, rows_b, inner, channels, adjacent)


def depthwise_wgrad_schedule(
    problem: ConvolutionProblem, how: DepthwiseWgrad, sizes: tuple[int, ...]
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
    lines = math.prod(sizes[d] for d in problem.k) // positions
    while rows > 1 and BUSY_SHARE * lines * math.ceil(positions / rows) * lanes < threads:
        rows //= 2
    return DepthwiseWgradSchedule(width, rows, lanes, threads, how.taps)
