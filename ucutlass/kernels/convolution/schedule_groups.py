"""Convolutions of narrow groups whose neighbours share tiles: their weights are copied with zeros between groups, so that
a tile has the columns of several, and reads the channels of all of them, as if they were of one."""

from __future__ import annotations

from dataclasses import replace

from ucutlass.ir.elements import F32
from ucutlass.ir.hardware import Device
from ucutlass.kernels.convolution.match import ConvolutionPattern
from ucutlass.kernels.convolution.plan import ConvolutionProblem, GroupJoin, Im2colSchedule
from ucutlass.kernels.convolution.problem import convolution_problem
from ucutlass.kernels.convolution.schedule_im2col import BYTES, SHORTEST_ROW, prepared, schedule_of

COLUMNS = (64, 128)
"""Of the groups that share a tile."""


def with_joined_columns(
    pattern: ConvolutionPattern, sizes: tuple[int, ...], aligned: tuple[bool, ...] | None
) -> tuple[ConvolutionProblem, int] | str:
    """The problem whose columns are those of all groups, and the dimension of these; or why there is none."""
    if len(pattern.batch) != 1 or not pattern.n or pattern.dot.compute_type == F32:
        return "neighbouring groups share tiles in one pass, where one name has the groups"
    (name,) = pattern.batch
    group = pattern.position[name]
    together = replace(pattern, n=(name, *pattern.n), batch=())
    for positions in (False, True):
        whole = convolution_problem(together, sizes, aligned, positions=positions)
        if len(whole.n) == 2 and whole.n[0] == group and (positions or not whole.batch):
            return whole, group
    return "groups and their columns do not lie side by side in the result"


def joined_groups(
    pattern: ConvolutionPattern,
    sizes: tuple[int, ...],
    device: Device,
    aligned: tuple[bool, ...] | None,
    only: int | None = None,
) -> tuple[ConvolutionProblem, Im2colSchedule] | str:
    """The problem with neighbouring groups in one tile and its schedule, or why they do not share any. `only`: tiles of so
    many columns."""
    joined = with_joined_columns(pattern, sizes, aligned)
    if isinstance(joined, str):
        return joined
    whole, group = joined
    axes = [i for i, axis in enumerate(whole.b.axes) if axis.extent == group and axis.window is None]
    if len(axes) != 1:
        return "groups are read in windows"
    width = sizes[whole.n[1]]
    for columns in COLUMNS if only is None else (only,):
        if columns % width or columns // width < 2:
            continue
        join = GroupJoin(axes[0], columns // width)
        ready = prepared(replace(whole, b=replace(whole.b, join=join)), sizes)
        if isinstance(ready, str):
            return ready
        problem, how = ready
        channels = sizes[problem.a.axes[how.channel].extent] * problem.a.read.bytes
        if how.group is None or channels % BYTES or channels * join.count % SHORTEST_ROW:
            return "channels of a group are no whole 16 bytes"
        schedule = schedule_of(problem, how, sizes, device)
        return schedule if isinstance(schedule, str) else (problem, schedule)
    return f"groups of {width} columns do not fill a tile together"
