"""A gradient of weights as Hopper's TMA can gather it: what is summed are the positions where windows stand,
rows of the result are the windows' taps and the channels.

A's axes lie in the order images, space, group, channels, B's images, positions, group, columns. TMA's im2col
mode traverses A's positions for one tap as `im2col` says; of B the same positions are rows one after another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from ucutlass.ir.extents import Extent, Fixed
from ucutlass.kernels.convolution.plan import ConvolutionProblem, OperandAccess
from ucutlass.kernels.convolution.plan_im2col import MOST_STEP


@dataclass(frozen=True, slots=True)
class SpatialAxis:
    """A spatial axis of A, `axis`: the position, dimension `position`, is read with coefficient `step`, the tap
    with `tap` (dimension None: no tap). `folded`: its taps lie beside the channels, so that it has one window for each
    position."""

    axis: int
    position: int
    step: int
    tap_dim: int | None
    tap: int
    offset: Extent
    folded: bool = False

    def extent(self, operand: OperandAccess) -> int:
        """The dimension whose extent TMA takes for the axis: the positions' own where taps are beside channels."""
        return self.position if self.folded else operand.axes[self.axis].extent


@dataclass(frozen=True, slots=True)
class WgradAccess:
    """`space` innermost first. `channel`, `image` and `group` are axes of A (or None), `group_b` and
    `columns` of B, these innermost first. `fold` is the window whose taps lie beside the channels, as it is read from
    the tensor. `positions` are axes of A, outermost first, where they are innermost in both operands.
    `joined`: groups are columns, of which a tile has several, and of its products only those within a group count."""

    channel: int
    space: tuple[SpatialAxis, ...]
    image: int | None
    group: int | None
    group_b: int | None
    columns: tuple[int, ...]
    fold: SpatialAxis | None = None
    positions: tuple[int, ...] = ()
    joined: bool = False

    @property
    def k_major(self) -> bool:
        """Whether positions are innermost in both operands, without windows: then rows are multiplied as they lie."""
        return bool(self.positions)


def wgrad_access(problem: ConvolutionProblem) -> WgradAccess | str:
    """How TMA gathers the problem in the order in which operands are read, or why it cannot."""
    a = problem.a
    batch = {d for run in problem.batch for d in run}
    channel = a.contiguous
    if channel is not None and channel.window is None and channel.extent in problem.k:
        return _k_major_access(problem, batch)
    if channel is None or channel.window is not None or channel.extent not in problem.m:
        return "the channels of A are not innermost and rows of the result"
    rest = list(a.order[:-1])
    group, image = None, None
    joined = joined_groups_of(problem)
    if rest and a.axes[rest[-1]].window is None and a.axes[rest[-1]].extent in batch | joined:
        group = rest.pop()
    if rest and a.axes[rest[0]].window is None:
        image = rest.pop(0)
    if not 1 <= len(rest) <= 3:
        return f"A has {len(rest)} spatial axes, not 1 to 3"
    space: list[SpatialAxis] = []
    fold: SpatialAxis | None = None
    for axis in reversed(rest):
        window = _spatial_axis(problem, axis, batch)
        if isinstance(window, str):
            return window
        if a.fold is not None and a.fold.axis == axis:
            fold = window
            window = SpatialAxis(axis, window.position, 1, None, 0, Fixed(0), True)
        space.append(window)
    summed = [s.position for s in reversed(space)]
    if image is not None:
        summed.insert(0, a.axes[image].extent)
    if set(problem.k) != set(summed) or len(summed) != len(problem.k):
        return "names are summed that are neither images nor positions of windows"
    taps = {s.tap_dim for s in (*space, *([fold] if fold else [])) if s.tap_dim is not None}
    if set(problem.m) != {channel.extent} | (taps - batch):
        return "rows of the result are neither taps nor channels"
    own = {a.axes[group].extent} - joined if group is not None else set()
    if batch - own - taps:
        return "a name of the batch is neither a group nor a tap"
    access = WgradAccess(a.order[-1], tuple(space), image, group, None, (), fold, joined=bool(joined))
    return _columns(problem, access, summed, own)


def joined_groups_of(problem: ConvolutionProblem) -> set[int]:
    """The name of groups that are columns, and whose channels A has beside each other."""
    return {axis.extent for axis in problem.a.axes if axis.window is None and axis.extent in problem.n}


def _spatial_axis(problem: ConvolutionProblem, axis: int, batch: set[int]) -> SpatialAxis | str:
    read = problem.a.axes[axis]
    if read.window is None:
        if read.extent not in problem.k:
            return "a spatial axis of A is no position that is summed"
        return SpatialAxis(axis, read.extent, 1, None, 0, Fixed(0))
    summed = [(d, c) for d, c in read.window.terms if d in problem.k]
    taps = [(d, c) for d, c in read.window.terms if d in problem.m or d in batch]
    if len(summed) != 1 or len(taps) > 1 or len(summed) + len(taps) != len(read.window.terms):
        return "a window is not of one position and one tap"
    if read.window.scale != 1 or not 1 <= summed[0][1] <= MOST_STEP:
        return f"TMA reads whole positions in steps of 1 to {MOST_STEP}"
    tap_dim, tap = taps[0] if taps else (None, 0)
    return SpatialAxis(axis, summed[0][0], summed[0][1], tap_dim, tap, read.window.offset)


def _columns(
    problem: ConvolutionProblem, access: WgradAccess, summed: list[int], own: set[int]
) -> WgradAccess | str:
    b = problem.b
    if b.windows:
        return "B has windows"
    order = [b.axes[i].extent for i in b.order]
    if order[: len(summed)] != summed:
        return "B's positions do not lie in the order of A's"
    rest = list(b.order[len(summed) :])
    group_b = None
    if own:
        if not rest or b.axes[rest[0]].extent not in own:
            return "groups of B are not next to its columns"
        group_b = rest.pop(0)
    if [b.axes[i].extent for i in rest] != list(problem.n):
        return "columns of the result are not addressed in the order of B's axes"
    if any(y - x != 1 for x, y in pairwise(b.order.index(i) for i in rest)):
        return "the names of the columns lie apart in B"
    if padded(b) and len(rest) > 1 and not access.joined:  # joined columns have no padding
        return "padded columns of several names are not side by side"
    return replace(access, group_b=group_b, columns=tuple(reversed(rest)))


def padded(operand: OperandAccess) -> bool:
    """Whether the last axis may end in zeros that the tensor has not."""
    return operand.pack is not None and operand.pad > 1


def _k_major_access(problem: ConvolutionProblem, batch: set[int]) -> WgradAccess | str:
    """The access to operands of a 1x1 layer whose positions are innermost: images, group, channels, positions."""
    a, b = problem.a, problem.b
    names = [[operand.axes[i].extent for i in operand.order] for operand in (a, b)]
    if a.windows or b.windows or a.fold is not None:
        return "positions are innermost and read in windows"
    own = [[d for d in side if d not in problem.k] for side in names]
    count = len(own[0])
    if count not in (1, 2) or len(own[1]) != count or set(own[0][:-1]) != batch or own[0][:-1] != own[1][:-1]:
        return "channels and columns are not one name each beside those of the groups"
    rows = list(problem.m) == own[0][-1:] and list(problem.n) == own[1][-1:]
    first = names[0].index(own[0][0])
    summed = [names[0][:first], names[0][first + count :]]
    if not rows or first > 1 or summed != [names[1][:first], names[1][first + count :]]:
        return "positions of both operands do not lie in one order, images outside"
    order_a, order_b = list(a.order), list(b.order)
    return WgradAccess(
        channel=order_a[first + count - 1],
        space=(),
        image=order_a[0] if first else None,
        group=order_a[first] if count > 1 else None,
        group_b=order_b[first] if count > 1 else None,
        columns=(order_b[first + count - 1],),
        positions=tuple(order_a[first + count :]),
    )
