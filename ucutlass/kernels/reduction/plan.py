"""The plan of the reduction family: element-wise work, reductions over one set of names, scans along one,
windows and gathers, with no dot.

A reduction iterates over *rows*, the names that every result keeps, and *columns*, the names that reductions
consume or a scan runs along; both are modes: runs of names that every tensor stores side by side.
A thread takes vectors of neighbouring elements along one mode. Modes are numbered rows first,
then columns, then the names that windows sum over.

    for each row:
      for phase in 0 .. phases - 1:    every reduction whose argument needs only earlier ones
        for each column: accumulate
      for each column: compute and store the results
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from ucutlass.ir.elements import Element
from ucutlass.ir.extents import Extent, Fixed
from ucutlass.ir.hardware import ARCHES
from ucutlass.kernels.access import Product
from ucutlass.kernels.arithmetic import Compute, ExtentValue, HostScalar, LiteralValue, Round, ScalarKind

# --- where elements lie -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LinearIndex:
    """`sum(c * coordinate of mode) + offset`; in `offset` the dimension "3" is extent 3."""

    terms: tuple[tuple[int, int], ...]
    offset: Extent


@dataclass(frozen=True, slots=True)
class AxisAccess:
    """How one axis of a tensor is addressed: the x with `scale * x == at`, `stride` elements apart.

    `extent` is the axis's, to stay within: no such x, or one outside, is not read. None: `at` is
    inside by construction. `gathered` is the instruction that gives x instead, or None.
    """

    stride: Product
    at: LinearIndex
    scale: int = 1
    extent: Extent | None = None
    gathered: int | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """A tensor's element for the current coordinates; `guards` must hold too, else it is `fill`.

    `align` is the largest power of two of elements, up to 16 bytes, at which a vector along the
    vector mode starts; `span` that at which every vector of the contiguous axis does.
    """

    pointer: int
    elem: Element
    axes: tuple[AxisAccess, ...]
    guards: tuple[AxisAccess, ...]
    fill: float
    align: int
    span: int = 1


# --- what is computed ---------------------------------------------------------------

RowOp: TypeAlias = Literal["sum", "prod", "max", "min", "argmax", "argmin", "logsumexp", "moments"]
"""Reductions over the columns. `logsumexp` keeps the largest and the sum of exponentials about it,
`moments` the mean and the sum of squares about it."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """The element of load `load`."""

    load: int
    kind: ScalarKind


@dataclass(frozen=True, slots=True)
class Point:
    """A coordinate as a number."""

    at: LinearIndex
    kind: ScalarKind


@dataclass(frozen=True, slots=True)
class Inside:
    """Whether positions are within their axes."""

    axes: tuple[AxisAccess, ...]
    kind: ScalarKind = "bool"


@dataclass(frozen=True, slots=True)
class RowReduce:
    """A reduction of `arg` over the columns; `kind` is the argument's."""

    op: RowOp
    arg: int
    kind: ScalarKind


@dataclass(frozen=True, slots=True)
class RowValue:
    """What a reduction gives: `value`, of argmax and argmin the coordinate; of logsumexp its `logarithm`, the
    `largest` and the `total` of exponentials about it; of moments the `mean` and the `squares`."""

    reduction: int
    part: Literal["value", "logarithm", "largest", "total", "mean", "squares"]
    kind: ScalarKind


WindowOp: TypeAlias = Literal["sum", "prod", "max", "min", "argmax", "argmin"]


@dataclass(frozen=True, slots=True)
class RowWindow:
    """`arg` reduced over `modes`, in order, in one thread; `body` lists the instructions that change
    inside. argmax and argmin give the coordinate along the one mode."""

    op: WindowOp
    modes: tuple[int, ...]
    body: tuple[int, ...]
    arg: int
    kind: ScalarKind


@dataclass(frozen=True, slots=True)
class RowScan:
    """The cumulative sum or product of `arg` along the columns."""

    op: Literal["sum", "prod"]
    arg: int
    exclusive: bool
    reverse: bool
    kind: ScalarKind


ReductionInstruction: TypeAlias = (
    Fetch
    | Point
    | Inside
    | RowReduce
    | RowValue
    | RowWindow
    | RowScan
    | HostScalar
    | LiteralValue
    | ExtentValue
    | Compute
    | Round
)


def arguments(instruction: ReductionInstruction, loads: Sequence[Load]) -> tuple[int, ...]:
    """The instructions that one reads: those of its addresses too."""
    match instruction:
        case Compute(args=args):
            return args
        case Round(arg=arg) | RowReduce(arg=arg) | RowScan(arg=arg) | RowWindow(arg=arg):
            return (arg,)
        case RowValue(reduction=reduction):
            return (reduction,)
        case Fetch(load=load):
            axes = (*loads[load].axes, *loads[load].guards)
            return tuple(a.gathered for a in axes if a.gathered is not None)
        case Inside(axes=axes):
            return tuple(a.gathered for a in axes if a.gathered is not None)
        case _:
            return ()


@dataclass(frozen=True, slots=True)
class ReductionOutput:
    """A result: instruction `value` stored at `axes`. `whole`: one for every column; else one a row."""

    pointer: int
    elem: Element
    axes: tuple[AxisAccess, ...]
    value: int
    whole: bool
    align: int


@dataclass(frozen=True, slots=True)
class ReductionProblem:
    """What is computed, with no schedule in it. `instructions` is in static single assignment; those of a
    window's body stand in the list too, and are computed only there.

    `vector` is the mode along which neighbouring elements lie side by side, None where no mode is. `taps`
    are the extents of windows that the program fixes, 0 for others.
    """

    rows: tuple[Product, ...]
    columns: tuple[Product, ...]
    windows: tuple[Product, ...]
    taps: tuple[int, ...]
    vector: int | None
    loads: tuple[Load, ...]
    instructions: tuple[ReductionInstruction, ...]
    outputs: tuple[ReductionOutput, ...]
    dims: int
    pointers: int
    scalars: int
    compute_type: Element

    @property
    def modes(self) -> tuple[Product, ...]:
        return (*self.rows, *self.columns, *self.windows)

    @property
    def across(self) -> bool:
        """Whether vectors lie along columns; otherwise a thread's vector is neighbouring rows."""
        return self.vector is not None and self.vector >= len(self.rows)


# --- how ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReductionSchedule:
    """`vector` elements are taken at a time. `threads` share a row's columns, `rows` rows (or vectors
    of rows) are a block's. A thread holds `items` vectors at a time: of the columns, or where there are
    none, of the rows.

    `keep`: the whole row lies in registers, or in the lines of a ring in shared memory, read once; otherwise each phase
    reads it again. `splits`
    blocks share a row's columns: then each phase is a launch; or the blocks of a `cluster` do, in one.

    `look_back`: a scan's row is cut into parts that each lie in a block's registers. Blocks take them in order,
    and each finds the prefix of its own by decoupled look-back at the statuses that earlier ones published.

    `transposed`: a block takes a tile of `smem.TILE` elements along the vector mode and `tile` along mode `across`, along which
    these loads lie side by side: they go through shared memory, so many elements in a word of it.

    `straddle`: vectors do not divide a row, and lie at multiples of their bytes in memory (`plan_straddle.py`).

    `ahead`: of rows that are read again, each chunk is loaded while the one before it is reduced.

    `full`: every thread has all its items of every row, so that none is asked for; `dense`: all but the last. `retain`: what
    is read once stays in the L2 longest, so that results leave it while they come.

    `applied`: a value of one load's elements takes their place in registers (`plan_applied.py`).

    `short`: coordinates and offsets of an element-wise kernel have 32 bits.

    `stages`: more than one line of rows, a vector of each thread, lies in a ring in shared memory, which bulk copies
    fill; then blocks stay for the whole launch, and an SM is to hold so many `blocks`. `resident`: their parts of what is
    the same for all rows stay in shared memory too. `grid` of them share a row then, wherever they run, and meet through
    global memory.
    """

    vector: int
    threads: int
    rows: int
    items: int
    keep: Literal["registers", "reread", "shared"]
    splits: int = 1
    across: int = 0
    transposed: tuple[tuple[int, int], ...] = ()
    tile: int = 1
    cluster: int = 1
    full: bool = False
    dense: bool = False
    applied: bool = False
    retain: bool = False
    look_back: bool = False
    stages: int = 1
    blocks: int = 1
    resident: bool = False
    grid: int = 1
    straddle: bool = False
    ahead: bool = False
    short: bool = False

    @property
    def sharers(self) -> int:
        """Blocks that share a row which lies in their registers."""
        return self.cluster * self.grid


@dataclass(frozen=True, slots=True)
class ReductionPlan:
    """Everything that shapes the emitted source."""

    emitter: ClassVar[str] = "ucutlass.emit.reduction.emitter"
    launch_parameters: ClassVar[tuple[str, ...]] = ()

    arch: str
    problem: ReductionProblem
    schedule: ReductionSchedule

    @property
    def peels(self) -> bool:
        """Whether threads take the elements at the ends of rows, where no vector lies, one by one."""
        return self.schedule.straddle and bool(self.problem.columns)

    @property
    def flat(self) -> bool:
        """Whether vectors are of an element-wise kernel's results as they lie in memory, across all modes."""
        return self.schedule.straddle and is_flat(self.problem)

    @property
    def overlaps(self) -> bool:
        """Whether a launch begins while the one before ends, for which it waits before it reads or writes: most of what a
        small kernel takes is its launch. None of those that a memset precedes, or whose blocks stay for the launch."""
        s = self.schedule
        return ARCHES[self.arch].wgmma and s.sharers == 1 and s.stages == 1 and not s.look_back

    @property
    def shares(self) -> bool:
        """Whether blocks share a row that does not fill the registers of all: each has as many vectors of it."""
        return self.schedule.sharers > 1 and not self.schedule.full


HELD_AT_ONCE = 4
"""Vectors that a thread takes at a time of a row that lies in shared memory."""

EARLY_THREADS = 256
"""Threads of a row from which its own result's loads are under way while it is reduced: a cross entropy of rows of 16384
bf16 takes 174 us for 196 so on an H100, one of 1024 71 for 69 (`benchmarks.rows`)."""


def early(plan: ReductionPlan) -> bool:
    """Whether what a row's own result reads is loaded while the row is reduced."""
    problem, s = plan.problem, plan.schedule
    in_registers = problem.across and s.keep == "registers" and s.splits == 1 and not s.look_back
    return s.stages > 1 or (bool(problem.columns) and in_registers and s.threads >= EARLY_THREADS)


def phase_of(problem: ReductionProblem) -> tuple[int, ...]:
    """By instruction: how many reductions over columns must be known one after another before it; of a
    reduction itself, before its argument is."""
    phases_of: list[int] = []
    for instruction in problem.instructions:
        below = max((phases_of[a] for a in arguments(instruction, problem.loads)), default=0)
        phases_of.append(below + 1 if isinstance(instruction, RowValue) else below)
    return tuple(phases_of)


def reductions(problem: ReductionProblem) -> tuple[int, ...]:
    """The reductions over columns that a result needs."""
    reached: set[int] = set()
    stack = [o.value for o in problem.outputs]
    while stack:
        i = stack.pop()
        if i not in reached:
            reached.add(i)
            instruction = problem.instructions[i]
            stack += arguments(instruction, problem.loads)
            if isinstance(instruction, RowWindow):
                stack += [
                    a for b in instruction.body for a in arguments(problem.instructions[b], problem.loads)
                ]
    return tuple(sorted(i for i in reached if isinstance(problem.instructions[i], RowReduce)))


def scans_of(problem: ReductionProblem) -> tuple[tuple[int, RowScan], ...]:
    """The scans, by instruction."""
    return tuple((i, s) for i, s in enumerate(problem.instructions) if isinstance(s, RowScan))


def phases(problem: ReductionProblem) -> int:
    """Passes over the columns before the results can be computed."""
    phase = phase_of(problem)
    return max((phase[i] + 1 for i in reductions(problem)), default=0)


def is_flat(problem: ReductionProblem) -> bool:
    """Whether vectors that no mode's extent divides run across all modes: of an element-wise problem without windows."""
    return not problem.columns and not problem.windows


def compact_modes(problem: ReductionProblem, axes: Sequence[AxisAccess]) -> tuple[int, ...] | None:
    """Returns the modes, innermost first, along which a tensor's elements lie in memory without gaps; None where others
    move it, or there are gaps."""
    inner: Product = ()
    modes: list[int] = []
    for axis in sorted(axes, key=lambda axis: len(axis.stride)):
        mode = axis.at.terms[0][0] if axis.at.terms else -1
        plain = AxisAccess(axis.stride, LinearIndex(((mode, 1),), Fixed(0)))
        if axis != plain or mode >= len(problem.rows) or sorted(axis.stride) != sorted(inner):
            return None
        modes.append(mode)
        inner = (*inner, *problem.rows[mode])
    return tuple(modes)


def lies_flat(problem: ReductionProblem, axes: Sequence[AxisAccess]) -> bool:
    """Whether elements lie in memory in the order of rows, without gaps."""
    return compact_modes(problem, axes) == tuple(reversed(range(len(problem.rows))))


def contiguous_along(axes: Sequence[AxisAccess], mode: int | None) -> bool:
    """Whether elements are contiguous along a mode, from a whole vector on: it moves the axis of stride 1
    alone, one to one."""
    moved = [a for a in axes if any(m == mode for m, _ in a.at.terms)]
    return mode is not None and moved == [AxisAccess((), LinearIndex(((mode, 1),), Fixed(0)))]
