"""The plan of a convolution: a dot of which at least one operand is read at affine positions.

    D[m, n, batch] = arithmetic(sum over k of A[..] * B[..], operands)

as for a GEMM, where every axis of A and B is either one name's own, or a window: read at the x
with `scale * x == sum of coefficient * coordinate + offset`, 0 where there is none. Strides,
dilations and flips are coefficients, paddings are offsets, which may be computed of extents.

Forward, data gradient, weight gradient and transposed convolutions differ in nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from ucutlass.ir.elements import F32, Element
from ucutlass.ir.extents import Extent, Fixed
from ucutlass.kernels.access import Product
from ucutlass.kernels.gemm.plan import GemmProblem, Sm80Schedule

Passes: TypeAlias = Literal["tensor", "tf32x3", "f16x3", "f16"]
"""One pass of wgmma, or f32 in three of TF32 or of f16, or TF32 in one of f16, which has as many bits of an element."""

IN_F16: tuple[Passes, ...] = ("f16x3", "f16")
"""Those whose operands are copied as f16."""

ONE_PASS: tuple[Passes, ...] = ("tensor", "f16")
"""Those of one product for each of the problem."""


@dataclass(frozen=True, slots=True)
class AxisWindow:
    """How an axis is read: `terms` are (dimension, coefficient), the dimension by position in the
    extent array. In `offset` the dimension "3" is extent 3."""

    scale: int
    terms: tuple[tuple[int, int], ...]
    offset: Extent


@dataclass(frozen=True, slots=True)
class OperandAxisExtent:
    """One axis of an operand in memory: of `extent`, read by the dimension itself where `window`
    is None (then `extent` is that dimension alone)."""

    extent: int
    window: AxisWindow | None = None


@dataclass(frozen=True, slots=True)
class Fold:
    """How a copy has the taps of a window beside its channels: the axis before the last has `length` places there,
    from coordinate `first` of the tensor on, zeros where the tensor has none. A window of the copy is then one row of
    adjacent elements, and windows overlap."""

    axis: int
    first: Extent
    length: Extent


@dataclass(frozen=True, slots=True)
class Stack:
    """How a copy of weights has the remainders of a divided window beside its columns (the sub-pixel convolution of Shi
    et al., 2016): results that lie `scale` apart along `result` are one row, whose `scale` columns read the same
    `length` neighbours of A's axis, from `first` past the row's place on, each with the taps that it reads there and
    zeros for those that it does not. `axis` of the weights has the taps, `tap` is their coefficient, 1 or -1, and
    `offset` the window's from the row's first result on, which lies `shift` before the place: where the taps of two
    remainders begin at one neighbour, they share a shorter window."""

    axis: int
    result: int
    scale: int
    tap: int
    offset: Extent
    first: Extent
    length: Extent
    shift: int = 0


@dataclass(frozen=True, slots=True)
class GroupJoin:
    """How a copy of weights has neighbouring groups beside each other: each row has the channels of `count` groups, its
    own among them, and zeros for the others'. Rows of so many groups share a tile, as if they were of one. `axis` of
    the weights has the groups."""

    axis: int
    count: int


@dataclass(frozen=True, slots=True)
class OperandAccess:
    """An operand of the product: its axes as declared, outermost first, and dense.

    `pack` is the order of axes in the workspace that a kernel before the product copies it to, or
    None where it is read as it lies; there the last axis is padded with zeros to a multiple of
    `pad` elements, and elements are `packed` if that is given; `split` copies each f32 as two, what TF32 or f16 holds
    of it and the rest, the second after the whole of the first; `fold`, `stack`, innermost axis first, and `join` are of the copy too. `align` is the largest power of two
    of elements, at most 16 bytes, that divides the base address, the contiguous axis and every stride
    around it (in the workspace if packed); 1 where no dimension moves along that axis alone. What a
    kernel reads together depends also on which dimension that is: see `copy_width`.
    """

    pointer: int
    elem: Element
    axes: tuple[OperandAxisExtent, ...]
    align: int
    pack: tuple[int, ...] | None = None
    pad: int = 1
    packed: Element | None = None
    split: bool = False
    fold: Fold | None = None
    stack: tuple[Stack, ...] = ()
    join: GroupJoin | None = None

    @property
    def read(self) -> Element:
        """The element as the product reads it."""
        return self.packed or self.elem

    @property
    def order(self) -> tuple[int, ...]:
        """Axes as they lie when the product reads them, outermost first."""
        return self.pack if self.pack is not None else tuple(range(len(self.axes)))

    @property
    def contiguous(self) -> OperandAxisExtent | None:
        """The axis whose neighbours are adjacent; None for a single element."""
        return self.axes[self.order[-1]] if self.axes else None

    @property
    def windows(self) -> tuple[int, ...]:
        """The axes that are windows."""
        return tuple(i for i, axis in enumerate(self.axes) if axis.window is not None)


@dataclass(frozen=True, slots=True)
class ConvolutionProblem:
    """What is computed. `gemm` is the same product seen from its epilogue: modes, operands,
    results and arithmetic; its `a` and `b` only stand for the operands' elements and pointers.

    `m`, `n`, `batch` list the dimensions (by position) that gemm's modes are made of, outermost
    first; `k` the contracted ones, the last innermost.
    """

    gemm: GemmProblem
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    batch: tuple[tuple[int, ...], ...]
    a: OperandAccess
    b: OperandAccess

    @property
    def compute_type(self) -> Element:
        return self.gemm.compute_type

    @property
    def passes(self) -> Passes:
        """How wgmma multiplies: f16 parts are of both operands, TF32 parts are copied of B alone."""
        if self.a.split:
            return "f16x3" if self.compute_type == F32 else "f16"
        return "tf32x3" if self.b.split else "tensor"

    @property
    def stacked(self) -> int:
        """The columns of B's copy for each of the product's."""
        return math.prod(s.scale for s in self.b.stack)

    @property
    def pointers(self) -> int:
        return self.gemm.pointers

    @property
    def scalars(self) -> int:
        return self.gemm.scalars

    def stride(self, operand: OperandAccess, axis: int) -> Product | None:
        """Elements between neighbours along an axis of an operand that is read as it lies."""
        return None if operand.pack is not None else tuple(a.extent for a in operand.axes[axis + 1 :])


@dataclass(frozen=True, slots=True)
class DirectSchedule:
    """Multiply-adds on the results, one thread `width` neighbours and `rows` along the last window: for
    depthwise, where there is no tile to share, and for what no other kernel takes.

    Where `taps` is not 0 the window has exactly so many, and what its positions have in common is read once
    (`slide`). `innermost`: that window lies along the neighbours themselves, which are then the repeats;
    `width` is then `rows`, or 1 where these are stored one by one. Where a second window slides along lines of
    results below one another, of `item_taps` taps, a thread computes `items` lines and reads each line of the
    input once, in vectors where `wide`; without such a window both are 0. The loads of `ahead` steps of the sum,
    each of all taps of a line, are in flight at once.
    """

    width: int
    rows: int
    taps: int = 0
    innermost: bool = False
    threads: int = 128
    items: int = 0
    item_taps: int = 0
    wide: bool = False
    ahead: int = 1


@dataclass(frozen=True, slots=True)
class DepthwiseWgradSchedule:
    """Multiply-adds for a gradient of a depthwise convolution's weights: a thread sums the taps of `width`
    neighbouring channels, `taps` along both windows, over its part of the positions, `rows` of them below one another
    at a time. `lanes` neighbouring threads have neighbouring channels. A second kernel adds the parts. Where `columns` is
    not 0, a thread block copies what so many positions side by side and `rows` below one another read to shared memory
    first."""

    width: int
    rows: int
    lanes: int
    threads: int
    taps: tuple[int, int]
    columns: int = 0


@dataclass(frozen=True, slots=True)
class RegisterTileSchedule:
    """Multiply-adds for convolutions of few channels: a thread has `rows` positions of results, `threads` apart,
    by `columns` of the weights' own, whose weights the block keeps in shared memory; `channels` are multiplied
    at a time. `vector` neighbouring columns are stored together, 1 where they are not adjacent. `whole`: a thread has
    all columns of its positions, one part after another, as it has where results are reduced over them. `tensor`: warps
    multiply by mma.sync, with fragments that lanes gather where A lies, and results change hands through shared memory."""

    rows: int
    columns: int
    threads: int
    channels: int
    vector: int
    whole: bool = False
    tensor: bool = False


@dataclass(frozen=True, slots=True)
class Im2colSchedule:
    """Hopper's: TMA gathers the windows, wgmma multiplies. `tile` is M x N x K in elements, K in parts of
    `part` channels, `groups` the warp groups that share its rows, `blocks` those that an SM shall hold. `fold`:
    the innermost window's taps count as channels. `math` is how f32 is multiplied. `split_k` blocks of a cluster share a tile's sum and add their
    parts through each other's shared memory. `halo`, where it is not 0, are rows beyond the tile's that are gathered with
    them, so that all taps of the innermost window read one run of rows; `stages` are then of B alone. `joined`: neighbouring
    groups share tiles."""

    tile: tuple[int, int, int]
    part: int
    stages: int
    groups: int
    blocks: int
    fold: bool = False
    split_k: int = 1
    math: Passes = "tensor"
    halo: int = 0
    joined: bool = False


@dataclass(frozen=True, slots=True)
class WgradSchedule:
    """Hopper's for gradients of weights: TMA gathers positions of windows, wgmma multiplies over them, mma.sync in
    TF32. `tile` is
    M x N x K in elements, K the positions of a stage, M in blocks of `part` channels of one tap each; the rest
    as in `Im2colSchedule`. `word`: a warp group reads lines of positions that are no whole 16 bytes, so many bytes of a line
    at a time, 0 where TMA does. `math` is how f32 is multiplied."""

    tile: tuple[int, int, int]
    part: int
    stages: int
    groups: int
    blocks: int
    joined: bool = False
    word: int = 0
    math: Passes = "tensor"


ConvolutionSchedule: TypeAlias = (
    Sm80Schedule
    | DirectSchedule
    | DepthwiseWgradSchedule
    | RegisterTileSchedule
    | Im2colSchedule
    | WgradSchedule
)


@dataclass(frozen=True, slots=True)
class ConvolutionPlan:
    """Everything that shapes the emitted source."""

    emitter: ClassVar[str] = "ucutlass.emit.convolution.emitter"
    launch_parameters: ClassVar[tuple[str, ...]] = ("raster", "swizzle", "splits")

    arch: str
    problem: ConvolutionProblem
    schedule: ConvolutionSchedule


# --- how a tile is gathered -----------------------------------------------------------


def unit_dim(operand: OperandAccess) -> int | None:
    """The dimension along which an operand's elements are adjacent and nothing else moves, if any."""
    last = operand.contiguous
    if last is None or last.window is not None:
        return None
    others = [a for i, a in enumerate(operand.axes) if i != operand.order[-1]]
    used = {d for a in others for d in _uses(a)}
    return None if last.extent in used else last.extent


def merged(operand: OperandAccess) -> tuple[int, ...]:
    """The declared axis that is contiguous, and those before it that are its neighbours in the copy too: one axis
    for who copies them. None where the copy has the same axis innermost."""
    order, first = operand.order, len(operand.axes) - 1
    if order[-1] == first:
        return ()
    axes = [first]
    while axes[-1] > 0 and order.index(axes[-1]) > 0 and order[order.index(axes[-1]) - 1] == axes[-1] - 1:
        axes.append(axes[-1] - 1)
    return tuple(axes)


@dataclass(frozen=True, slots=True)
class GatheredOperand:
    """An operand of a tile: `rows` are the dimensions of its rows (those of M for A, of N for B), `summed`
    the contracted ones; both outermost first, as a tile's index is taken apart."""

    access: OperandAccess
    rows: tuple[int, ...]
    summed: tuple[int, ...]

    @property
    def along_k(self) -> bool:
        """Whether neighbouring threads read neighbours along K instead of the rows."""
        last = self.access.contiguous
        return last is None or not any(d in self.rows for d in _uses(last))

    @property
    def copy_width(self) -> int:
        """Elements that one copy moves, at most 16 bytes.

        A tile's neighbours are those along the innermost of the rows or of the contracted dimensions. Where
        another dimension moves along the contiguous axis (an outer one of these, or the batch), neighbours
        of the tile are none in memory, and a step of that dimension leaves the alignment: the width is 1.
        """
        inner = self.summed[-1:] if self.along_k else self.rows[-1:]
        if unit_dim(self.access) not in inner:
            return 1
        return min(self.access.align, 16 // self.access.read.bytes)


def sides(problem: ConvolutionProblem) -> tuple[GatheredOperand, GatheredOperand]:
    """Operands A and B."""
    return GatheredOperand(problem.a, problem.m, problem.k), GatheredOperand(problem.b, problem.n, problem.k)


# --- how a direct kernel steps from result to result ----------------------------------

AxisStride: TypeAlias = Literal["kSame", "kUnit", "kStep"]
"""An operand stays, its elements are adjacent, or each has a place of its own."""


def _uses(axis: OperandAxisExtent) -> dict[int, int]:
    """The dimensions in an axis's position, with their coefficients."""
    return {axis.extent: 1} if axis.window is None else dict(axis.window.terms)


def moves(problem: ConvolutionProblem, operand: OperandAccess, mode: int) -> bool:
    """Whether an operand's address depends on a result mode."""
    return any(d in _uses(axis) for axis in operand.axes for d in problem.batch[mode])


def axis_stride(problem: ConvolutionProblem, operand: OperandAccess, vector: bool) -> AxisStride:
    """How an operand goes on along the last result mode."""
    if not problem.batch:
        return "kSame"
    mode = len(problem.batch) - 1
    if not moves(problem, operand, mode):
        return "kSame"
    (dim,) = problem.batch[mode]
    users = [i for i, axis in enumerate(operand.axes) if dim in _uses(axis)]
    plain = users == [operand.order[-1]] and operand.axes[users[0]].window is None
    return "kUnit" if plain and vector else "kStep"


def _counted(window: AxisWindow) -> bool:
    """Whether the program tells which positions are multiples of the scale."""
    return window.scale == 1 or isinstance(window.offset, Fixed)


def across_mode(problem: ConvolutionProblem) -> int:
    """The result mode along which a thread repeats itself, so that B's factors serve several results: the
    last one but the neighbours' in which A is windowed and B is not read; -1 if there is none."""
    for mode in reversed(range(len(problem.batch) - 1)):
        (dim,) = problem.batch[mode]
        windowed = any(
            a.window is not None and _counted(a.window) and dim in _uses(a) for a in problem.a.axes
        )
        if windowed and not moves(problem, problem.b, mode):
            return mode
    return -1


@dataclass(frozen=True, slots=True)
class Slide:
    """A window that moves over its axis from result to result: axis `axis` of A, read at
    `step` * result + `tap` * tap, or, `flipped`, `tap` * (taps - 1 - tap) after its first position, as gradients
    of operands are. `k` is the tap's place among the contracted dimensions. Positions are those of `AxisWindow`, of
    which only multiples of `scale` are read: with strides a gradient's."""

    axis: int
    step: int
    tap: int
    k: int
    flipped: bool = False
    scale: int = 1

    def repeats(self, results: int) -> bool:
        """Whether windows of results so many apart read the same multiples of the scale."""
        return results * self.step % self.scale == 0


def line_mode(problem: ConvolutionProblem, innermost: bool) -> int:
    """The result mode of lines below one another, of which a thread may have several: the one before the mode along
    which it repeats itself."""
    along = len(problem.batch) - 1 if innermost else across_mode(problem)
    return along - 1 if along > 0 else -1


def slide(problem: ConvolutionProblem, mode: int) -> Slide | None:
    """The window along a result mode, if its positions are read by its taps alone; else None."""
    if mode < 0 or moves(problem, problem.b, mode):
        return None
    (result,) = problem.batch[mode]
    for i, axis in enumerate(problem.a.axes):
        terms = dict(axis.window.terms) if axis.window is not None else {}
        taps = [d for d in terms if d in problem.k]
        if axis.window is None or not _counted(axis.window) or result not in terms or len(taps) != 1:
            continue
        others = [a for j, a in enumerate(problem.a.axes) if j != i]
        moved = any({result, taps[0]} & set(_uses(a)) for a in others)
        plain = all(a.window is None for a in problem.b.axes if taps[0] in _uses(a))
        if not moved and plain and terms[result] > 0 and terms[taps[0]] != 0:
            tap = terms[taps[0]]
            return Slide(i, terms[result], abs(tap), problem.k.index(taps[0]), tap < 0, axis.window.scale)
    return None
