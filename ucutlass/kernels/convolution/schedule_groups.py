"""Convolutions of narrow groups whose neighbours share tiles: their weights are copied with zeros between groups, so that
a tile has the columns of several, and reads the channels of all of them, as if they were of one."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from itertools import accumulate
from operator import mul

from ucutlass.ir.elements import F32
from ucutlass.ir.extents import Fixed
from ucutlass.ir.hardware import Device
from ucutlass.kernels.addresses import vector_width
from ucutlass.kernels.convolution.match import ConvolutionPattern
from ucutlass.kernels.convolution.plan import (
    ConvolutionProblem,
    GroupJoin,
    Im2colSchedule,
    OperandAccess,
    unit_dim,
)
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
            fixed = {i for i, extent in enumerate(pattern.kernel.dims.values()) if isinstance(extent, Fixed)}
            a, b = (_aligned_beside(o, group, fixed, sizes, aligned) for o in (whole.a, whole.b))
            return replace(whole, a=a, b=b), group
    return "groups and their columns do not lie side by side in the result"


def _aligned_beside(
    operand: OperandAccess,
    group: int,
    fixed: Set[int],
    sizes: tuple[int, ...],
    aligned: tuple[bool, ...] | None,
) -> OperandAccess:
    """The operand with the alignment of its rows of all groups, where these lie beside each other and the program fixes
    both extents: TMA's strides are multiples of 16 bytes, the channel at which a tile begins need not be."""
    inner = [axis.extent for axis in operand.axes[-2:]]
    if inner != [group, unit_dim(operand)] or not fixed >= set(inner):
        return operand
    strides = list(accumulate((sizes[axis.extent] for axis in reversed(operand.axes)), mul))[1:]
    fine = aligned is None or aligned[operand.pointer]
    return replace(operand, align=vector_width(operand.elem.bits, fine, strides))


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
        copied = problem.a.pack is not None or problem.b.pad > 1
        if how.group is None or (copied and channels % BYTES) or channels * join.count % SHORTEST_ROW:
            return "channels of a group are no whole 16 bytes"
        schedule = schedule_of(problem, how, sizes, device)
        return schedule if isinstance(schedule, str) else (problem, schedule)
    return f"groups of {width} columns do not fill a tile together"
