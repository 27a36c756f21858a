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

MOST_TAPS, MOST_SUMS = 64, 100
"""Taps of a channel, and sums of a thread."""

FEW_SUMS, LEAST_BYTES = 50, 4
"""Sums up to which a thread has further channels, and bytes of channels that it reads together whatever they are (read
off an H100 with 19 layers; so are the rows of a thread)."""

BLOCKS = 528
"""Thread blocks among which the sums are divided: four of an SM of an H100."""

LEAST_SUMMED = 256
"""Products of a result from which threads share its sum."""


@dataclass(frozen=True, slots=True)
class PositionWindow:
    """A window of A: axis `axis` is read at `step` times the position, the contracted dimension `k`, and `tap` times
    the tap, result mode `mode`, of which there are `taps`."""

    axis: int
    k: int
    mode: int
    step: int
    tap: int
    taps: int


@dataclass(frozen=True, slots=True)
class DepthwiseWgrad:
    """The windows along lines and across them, and the axes of B that their positions are. `channels` are the other
    modes of the result; `adjacent`: those of the last one are neighbours in both operands."""

    rows: PositionWindow
    columns: PositionWindow
    rows_b: int
    channels: tuple[int, ...]
    adjacent: bool


def depthwise_wgrad(
    problem: ConvolutionProblem, sizes: tuple[int, ...], fixed: Set[int]
) -> DepthwiseWgrad | str:
    """Returns how threads sum the gradient, or why they do not; `fixed` are the dimensions whose extents the program
    fixes."""
    if problem.gemm.accumulate != "f32" or any(isinstance(o, Reduction) for o in problem.gemm.outputs):
        return "sums are of f32, and no result is reduced"
    if problem.b.windows or len(problem.a.windows) != 2:
        return "A has two windows and B none"
    modes = {run[0]: i for i, run in enumerate(problem.batch)}
    windows: list[PositionWindow] = []
    for axis in problem.a.windows:
        window = problem.a.axes[axis].window
        assert window is not None
        summed = [(d, c) for d, c in window.terms if d in problem.k]
        taps = [(d, c) for d, c in window.terms if d in modes and d in fixed]
        if window.scale != 1 or len(window.terms) != 2 or len(summed) != 1 or len(taps) != 1:
            return "a window has one position that is summed and one tap whose number is fixed"
        (position, step), (tap_dim, tap) = summed[0], taps[0]
        if step < 1 or tap < 1:
            return "positions and taps of a window go up"
        windows.append(
            PositionWindow(axis, problem.k.index(position), modes[tap_dim], step, tap, sizes[tap_dim])
        )
    rows, columns = windows
    if rows.taps * columns.taps > MOST_TAPS:
        return f"{rows.taps * columns.taps} taps are more than a thread sums"
    channels = tuple(i for i in modes.values() if i not in (rows.mode, columns.mode))
    plain = [{axis.extent for axis in o.axes if axis.window is None} for o in (problem.a, problem.b)]
    places = {problem.k[w.k] for w in windows}
    taps_dims = {problem.batch[w.mode][0] for w in windows}
    if places & plain[0] or taps_dims & (plain[0] | plain[1]) or not places <= plain[1]:
        return "positions are axes of B, taps are axes of neither operand"
    if not channels or any(problem.batch[i][0] not in plain[1] for i in channels):
        return "B has a name of the result besides the taps"
    rows_b = next(i for i, axis in enumerate(problem.b.axes) if axis.extent == problem.k[rows.k])
    last = problem.batch[channels[-1]][0]
    adjacent = unit_dim(problem.a) == last and unit_dim(problem.b) == last
    return DepthwiseWgrad(rows, columns, rows_b, channels, adjacent)


def depthwise_wgrad_schedule(
    problem: ConvolutionProblem, how: DepthwiseWgrad, sizes: tuple[int, ...]
) -> DepthwiseWgradSchedule:
    """Returns the planner's own schedule: vectors of channels that leave registers for all taps' sums, and lanes of a
    warp side by side along channels that few of them waste."""
    taps = how.rows.taps * how.columns.taps
    width = 1
    if how.adjacent:
        aligned, least = min(problem.a.align, problem.b.align), LEAST_BYTES // problem.a.elem.bytes
        fits = [w for w in (1, 2, 4) if w <= aligned and w * taps <= (MOST_SUMS if w <= least else FEW_SUMS)]
        width = max(1, *fits)
    vectors = math.prod(sizes[problem.batch[i][0]] for i in how.channels) // width
    side_by_side = [n for n in (32, 16, 8, 4, 2, 1) if math.ceil(vectors / n) * n <= 1.15 * vectors]
    lanes = side_by_side[0] if how.adjacent else 1
    rows = 8 if not how.adjacent or how.rows.step == 1 else 4
    rows = min(rows, 1 << max(0, sizes[problem.k[how.rows.k]] - 1).bit_length())
    threads = 128 if how.adjacent else 256
    return DepthwiseWgradSchedule(width, rows, lanes, threads, (how.rows.taps, how.columns.taps))
