"""A convolution as Hopper's TMA can gather it: A's axes in the order images, space, group, channels, every
spatial axis a window of one result name and at most one tap.

TMA's im2col mode (CUDA driver API, cuTensorMapEncodeIm2col) traverses pixels of a bounding box in steps, all
channels of a part at each, and adds an offset for the tap. Windows with a scale (transposed convolutions,
strided data gradients) split into phases, results whose coordinates leave one remainder, each an ordinary
convolution with every scale-th tap, or, where taps lie apart by what the scale has a divisor in common with,
with more taps in some phases and none in the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ucutlass.ir.elements import F32
from ucutlass.ir.extents import Extent, Fixed, evaluate
from ucutlass.kernels.access import Store
from ucutlass.kernels.convolution.plan import IN_F16, ConvolutionProblem, OperandAccess, Stack

MOST_PHASES = 32
"""Each has a descriptor of 128 bytes among the kernel's parameters."""

MOST_STEP = 8
"""Of TMA's traversal (cuTensorMapEncodeIm2col, elementStrides)."""

MOST_AXES = 5
"""Of a TMA tensor."""

MOST_SPACE = 3
"""Spatial axes that TMA gathers windows of."""


@dataclass(frozen=True, slots=True)
class Space:
    """A spatial axis: the result read with coefficient `step`, the tap with `tap` (dimension None: no
    tap). `axis` is A's. `folded`: its taps lie beside the channels, so that it has one window for each result. `stack`:
    the remainders of its scale are columns, so that it is a window of neighbours with a step of 1."""

    axis: int
    result: int
    step: int
    tap_dim: int | None
    tap: int
    scale: int
    offset: Extent
    folded: bool = False
    stack: Stack | None = None

    def extent(self, operand: OperandAccess) -> int:
        """The dimension whose extent TMA takes for the axis: the results' own where taps are beside channels."""
        return self.result if self.folded else operand.axes[self.axis].extent

    @property
    def shared(self) -> int:
        """The greatest common divisor of the scale and the distance of taps: so many phases share the taps of
        one, and the others of them have none."""
        return math.gcd(self.scale, self.tap) if self.tap_dim is not None else 1

    @property
    def every(self) -> int:
        """The step from a tap of a phase to its next."""
        return self.scale // self.shared

    def results(self, sizes: Sequence[int]) -> int:
        """The windows along the axis: one for all remainders that are columns."""
        if self.stack is None:
            return sizes[self.result]
        return math.ceil((sizes[self.result] + self.stack.shift) / self.stack.scale)

    def taps(self, sizes: Sequence[int]) -> int:
        """The taps of a window of all phases."""
        if self.stack is not None:
            return evaluate(self.stack.length, {str(i): n for i, n in enumerate(sizes)})
        return 1 if self.tap_dim is None else sizes[self.tap_dim]


@dataclass(frozen=True, slots=True)
class Im2col:
    """`space` innermost first. `image` and `group` are axes of A, or None. `columns` are B's axes that
    N is made of, innermost first; `channel_b`, `group_b` axes of B. `across`: B's columns are innermost in
    memory instead of its channels, as wgmma takes elements of 16 bits too. `fold` is the window whose taps lie beside
    the channels, as it is read from the tensor. `flat`: groups and columns of B are one axis of TMA's tensor, which
    has no more than MOST_AXES. `scattered`: images are the innermost of the result's rows, so that neighbours of a tile
    lie apart in it."""

    channel: int
    space: tuple[Space, ...]
    image: int | None
    group: int | None
    channel_b: int
    group_b: int | None
    columns: tuple[int, ...]
    across: bool = False
    fold: Space | None = None
    flat: bool = False
    scattered: bool = False

    @property
    def phases(self) -> int:
        return math.prod(s.scale for s in self.space)

    @property
    def busy_phases(self) -> int:
        """The phases that have taps."""
        return math.prod(s.every for s in self.space)


def im2col(problem: ConvolutionProblem) -> Im2col | str:
    """How TMA gathers the problem in the order in which operands are read, or why it cannot."""
    a, b, batch = problem.a, problem.b, _batch(problem)
    if batch is None:
        return "several names of the batch lie side by side"
    channel = a.contiguous
    if channel is None or channel.window is not None or channel.extent not in problem.k:
        return "the channels of A are not innermost"
    rest = list(a.order[:-1])
    group = None
    joined = {b.axes[b.join.axis].extent} if b.join is not None else set()
    if (
        rest
        and a.axes[rest[-1]].window is None
        and a.axes[rest[-1]].extent in batch | joined
        and _in(b, a.axes[rest[-1]].extent)
    ):
        group = rest.pop()
    image = None
    if rest and a.axes[rest[0]].window is None:
        image = rest.pop(0)
    if not 1 <= len(rest) <= MOST_SPACE:
        return f"A has {len(rest)} spatial axes, not 1 to 3"
    space: list[Space] = []
    fold: Space | None = None
    for axis in reversed(rest):
        window = _space(problem, axis)
        if isinstance(window, str):
            return window
        if a.fold is not None and a.fold.axis == axis:
            fold = window
            window = Space(axis, window.result, 1, None, 0, 1, Fixed(0), True)
        stack = next((s for s in b.stack if s.result == window.result), None)
        if stack is not None:
            window = Space(axis, window.result, 1, window.tap_dim, 1, 1, stack.first, stack=stack)
        space.append(window)
    rows = tuple(s.result for s in reversed(space))
    images = (a.axes[image].extent,) if image is not None and a.axes[image].extent in problem.m else ()
    scattered = (*images, *rows) != problem.m
    if scattered and not (images and _scatters(problem) and (*rows, *images) == problem.m):
        return "rows of the result are not addressed in the order of A's axes"
    own = {a.axes[i].extent for i in (image, group) if i is not None}
    if batch - own:
        return "a name of the batch is no axis of A"
    taps = {s.tap_dim for s in space if s.tap_dim is not None}
    folded = {fold.tap_dim} if fold is not None else set()
    if set(problem.k) != taps | folded | {channel.extent} or len(problem.k) != len(taps | folded) + 1:
        return "names are summed that are neither taps nor channels"
    if math.prod(s.scale for s in space) > MOST_PHASES:
        return f"more than {MOST_PHASES} remainders of the windows' scales"
    access = Im2col(a.order[-1], tuple(space), image, group, -1, None, (), fold=fold, scattered=scattered)
    return _weights(problem, access, taps)


def _scatters(problem: ConvolutionProblem) -> bool:
    """Whether rows of a tile may lie apart in the result: in f32, whose gradients of weights with channels innermost no other
    kernel of wgmma takes."""
    return problem.compute_type == F32 and all(isinstance(o, Store) for o in problem.gemm.outputs)


def stores_sums(problem: ConvolutionProblem, access: Im2col, split_k: int) -> bool:
    """Whether results are stored from registers: those of f16 passes whose rows are neighbours in memory. Of rows that lie
    apart, sectors would be written in parts."""
    adjacent = all(isinstance(o, Store) and o.access.contiguous == "m" for o in problem.gemm.outputs)
    together = not access.scattered and (access.phases == 1 or problem.stacked > 1)
    return problem.passes in IN_F16 and adjacent and together and split_k == 1


def _batch(problem: ConvolutionProblem) -> set[int] | None:
    if any(len(run) != 1 for run in problem.batch):
        return None
    return {run[0] for run in problem.batch}


def _in(operand: OperandAccess, dim: int) -> bool:
    return any(axis.window is None and axis.extent == dim for axis in operand.axes)


def _space(problem: ConvolutionProblem, axis: int) -> Space | str:
    read = problem.a.axes[axis]
    if read.window is None:
        if read.extent not in problem.m:
            return "a spatial axis of A is no row of the result"
        return Space(axis, read.extent, 1, None, 0, 1, Fixed(0))
    results = [(d, c) for d, c in read.window.terms if d in problem.m]
    taps = [(d, c) for d, c in read.window.terms if d in problem.k]
    if len(results) != 1 or len(taps) > 1 or len(results) + len(taps) != len(read.window.terms):
        return "a window is not of one result name and one tap"
    (result, step), scale = results[0], read.window.scale
    tap_dim, tap = taps[0] if taps else (None, 0)
    if not 1 <= step <= MOST_STEP or (scale > 1 and step != 1):
        return f"TMA goes in steps of 1 to {MOST_STEP}, and of 1 where positions are divided"
    if scale > 1 and not taps:
        return "a divided position has no taps"
    return Space(axis, result, step, tap_dim, tap, scale, read.window.offset)


def _weights(problem: ConvolutionProblem, access: Im2col, taps: set[int]) -> Im2col | str:
    a, b = problem.a, problem.b
    channel = a.axes[access.channel].extent
    if b.windows or b.contiguous is None:
        return "B has windows"
    across = b.contiguous.extent in problem.n and b.read.bytes == 2
    if b.contiguous.extent != channel and not across:
        return "neither channels nor columns of B are innermost"
    others = list(b.order) if across else list(b.order[:-1])
    if across:
        others = [i for i in others if b.axes[i].extent != channel]
    if b.fold is not None:
        others.remove(b.fold.axis)
    group = (
        None
        if access.group is None or b.join is not None
        else next(i for i in others if b.axes[i].extent == a.axes[access.group].extent)
    )
    columns = [i for i in reversed(others) if b.axes[i].extent in problem.n]
    if [b.axes[i].extent for i in reversed(columns)] != list(problem.n):
        return "columns of the result are not addressed in the order of B's axes"
    columns_at = [b.order.index(i) for i in columns]
    (channel_b,) = [i for i, axis in enumerate(b.axes) if axis.extent == channel]
    if any(x - y != 1 for x, y in pairwise(columns_at)):
        return "the names of the columns lie apart in B"
    roles = taps | set(problem.n) | ({b.axes[group].extent} if group is not None else set())
    if any(b.axes[i].extent not in roles for i in others):
        return "B has an axis that is neither a tap, a column nor a group"
    axes = len(others) - len(columns) + 2
    flat = axes > MOST_AXES and group is not None and b.order.index(group) == columns_at[-1] - 1
    if axes - flat > MOST_AXES:
        return f"B has more than {MOST_AXES} axes"
    return replace(
        access, channel_b=channel_b, group_b=group, columns=tuple(columns), across=across, flat=flat
    )
