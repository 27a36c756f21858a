"""A convolution of few channels as plain threads multiply it: each holds the sums of some positions by some
columns in registers, reads A where it lies, and finds the weights of its columns in shared memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ucutlass.ir.elements import BF16, F16, F32, TF32
from ucutlass.kernels.access import Reduction
from ucutlass.kernels.convolution.plan import (
    ConvolutionProblem,
    OperandAccess,
    OperandAxisExtent,
    RegisterTileSchedule,
    moves,
)

MOST_TAPS = 32
"""Taps of all windows: a thread has a bit for each of whether its position reads inside the axis."""

MOST_CHANNELS = 4
"""Channels that a thread multiplies at a time."""

MOST_BYTES = 96 * 1024
"""Of shared memory, for the weights of a block's columns."""

WARP, TENSOR_STEP_BYTES = 32, 32
"""Lanes of a warp, and bytes of the products of K that an instruction of it multiplies."""

EXCHANGED = 32
"""Columns at most whose results change hands within a warp at a time."""

SHARED_OF_SM = 227 * 1024
"""Bytes that the blocks of an SM share."""

FARTHEST = 2**31 - 1
"""Elements of A and positions of results: both are counted in 32 bits."""


@dataclass(frozen=True, slots=True)
class WindowTap:
    """A window of A: the place of its taps among the contracted dimensions (-1: none), and the coefficient."""

    k: int
    step: int


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """`column` is the mode of the results that B alone ranges over, of one name or of several that lie beside each other; `channel` the axis of A along the innermost of
    the contracted dimensions, -1 where that is a tap; `windows` are in the order of A's."""

    column: int
    channel: int
    windows: tuple[WindowTap, ...]


def prepared_register_tile(problem: ConvolutionProblem) -> ConvolutionProblem:
    """The problem, whose results are modes of the batch, with the shorter contracted name of both operands innermost."""
    channels = [
        d
        for d in problem.k
        if not any(a.window is not None and d in dict(a.window.terms) for a in problem.a.axes)
    ]
    if not channels:
        return problem
    return replace(problem, k=(*(d for d in problem.k if d != channels[-1]), channels[-1]))


def register_tile(problem: ConvolutionProblem) -> RegisterTile | str:
    """How threads share the problem, or why they cannot."""
    a, b = problem.a, problem.b
    if problem.m or problem.n:
        return "results are no modes of their own"
    if (
        any(w.elem.kind != "float" or w.elem.bytes < 2 for w in (a, b))
        or problem.compute_type.kind != "float"
    ):
        return "operands are no floats of 16 or 32 bits"
    if problem.gemm.accumulate != "f32":
        return f"sums are {problem.gemm.accumulate}"
    columns = [i for i in range(len(problem.batch)) if moves(problem, b, i) and not moves(problem, a, i)]
    if len(columns) != 1 or any(moves(problem, b, i) for i in range(len(problem.batch)) if i not in columns):
        return "the weights do not range over one name of the result alone"
    if any(len(run) > 1 for i, run in enumerate(problem.batch) if i not in columns) or not _beside(
        b, problem.batch[columns[0]]
    ):
        return "the weights' names of the result do not lie beside each other"
    if b.windows or not a.windows:
        return "A has no window, or the weights have"
    windows: list[WindowTap] = []
    for i in a.windows:
        window = a.axes[i].window
        assert window is not None
        taps = [(d, c) for d, c in window.terms if d in problem.k]
        if window.scale != 1 or len(taps) > 1:
            return "a window is not of one tap at every position"
        others = [axis for j, axis in enumerate(a.axes) if j != i]
        if any(_ranges(axis, taps[0][0]) for axis in others if taps):
            return "a tap moves along two axes"
        windows.append(WindowTap(problem.k.index(taps[0][0]), taps[0][1]) if taps else WindowTap(-1, 0))
    innermost = problem.k[-1]
    channel = next((i for i, x in enumerate(a.axes) if x.window is None and x.extent == innermost), -1)
    return RegisterTile(columns[0], channel, tuple(windows))


def _beside(operand: OperandAccess, run: tuple[int, ...]) -> bool:
    """Whether an operand has these names beside each other in their order."""
    names = tuple(axis.extent for axis in operand.axes)
    return any(names[i : i + len(run)] == run for i in range(len(names)))


def columns_of(problem: ConvolutionProblem, tile: RegisterTile, sizes: Sequence[int]) -> int:
    """The columns of a position."""
    return math.prod(sizes[d] for d in problem.batch[tile.column])


def _ranges(axis: OperandAxisExtent, dim: int) -> bool:
    return axis.extent == dim if axis.window is None else dim in dict(axis.window.terms)


def multiplies_by_mma(problem: ConvolutionProblem) -> bool:
    """Whether warps multiply by mma.sync: both operands are as tensor cores take them."""
    element = F32 if problem.compute_type == TF32 else problem.compute_type
    return problem.compute_type in (F16, BF16, TF32) and problem.a.elem == problem.b.elem == element


def unreduced(problem: ConvolutionProblem, tile: RegisterTile) -> str:
    """Why the results are not reduced as they have to be, or "": a thread sees all columns of its positions."""
    for output in problem.gemm.outputs:
        if not isinstance(output, Reduction):
            continue
        others = [s for i, s in enumerate(output.access.batch) if i != tile.column]
        if (
            output.access.elem.kind != "float"
            or output.access.batch[tile.column] is not None
            or None in others
        ):
            return "a thread reduces floats over all of its columns alone"
    return ""


def channels_at_once(problem: ConvolutionProblem, tile: RegisterTile, sizes: Sequence[int]) -> int:
    """The channels that are multiplied at a time: the most that divide them all."""
    if tile.channel < 0:
        return 1
    channels = sizes[problem.k[-1]]
    return max(c for c in range(1, MOST_CHANNELS + 1) if channels % c == 0)


def bits(problem: ConvolutionProblem, tile: RegisterTile, sizes: Sequence[int]) -> int:
    """The taps of all windows."""
    return sum(1 if w.k < 0 else sizes[problem.k[w.k]] for w in tile.windows)


def shared_bytes(problem: ConvolutionProblem, schedule: RegisterTileSchedule, sizes: Sequence[int]) -> int:
    """Bytes of the weights of a block's columns, all of them where results are reduced over them, and of 8 for each step of K and one more."""
    k = math.prod(sizes[d] for d in problem.k)
    columns = schedule.columns
    if schedule.whole or any(isinstance(o, Reduction) for o in problem.gemm.outputs):
        tile = register_tile(problem)
        assert isinstance(tile, RegisterTile), tile
        columns *= math.ceil(columns_of(problem, tile, sizes) / columns)
    if schedule.tensor:
        step = TENSOR_STEP_BYTES // problem.a.elem.bytes
        padded = math.ceil(k / step) * step
        warps = schedule.threads // WARP * warp_bytes(problem, schedule)
        return padded * (columns * problem.b.elem.bytes + 8) + max(warps, 4 * padded)
    return 4 * k * columns + 8 * (k // schedule.channels + 1) + staged_bytes(problem, schedule)


def staged_bytes(problem: ConvolutionProblem, schedule: RegisterTileSchedule) -> int:
    """Bytes through which warps store rows of columns together, 16 of them to begin at a multiple of 16; 0 where
    threads store their own."""
    if not is_staged(problem, schedule.vector):
        return 0
    return 16 + schedule.threads * (schedule.columns * problem.gemm.outputs[0].access.elem.bytes + 16)


def warp_bytes(problem: ConvolutionProblem, schedule: RegisterTileSchedule) -> int:
    """Bytes through which the results of a warp that multiplies change hands, and their rows reach memory."""
    exchanged = WARP * 4 * (min(EXCHANGED, schedule.columns) + 4)
    return max(exchanged, staged_bytes(problem, replace(schedule, threads=WARP)) - 16)


def is_staged(problem: ConvolutionProblem, vector: int) -> bool:
    """Whether the warps' results pass shared memory: one result of floats whose columns are adjacent, and operands
    that are the same at all positions."""
    gemm, tile = problem.gemm, register_tile(problem)
    if (
        vector == 1
        or len(gemm.outputs) != 1
        or isinstance(tile, str)
        or isinstance(gemm.outputs[0], Reduction)
    ):
        return False
    stored = gemm.outputs[0].access
    if stored.batch[tile.column] != () or stored.elem.kind != "float" or stored.elem.bytes > 4:
        return False  # results take the place of the sums
    inputs = [[s for i, s in enumerate(a.batch) if i != tile.column] for a in gemm.inputs]
    return all(s is None for strides in inputs for s in strides)


def out_of_bounds(
    problem: ConvolutionProblem, tile: RegisterTile, schedule: RegisterTileSchedule, sizes: Sequence[int]
) -> str | None:
    """Why the extents are too many for the kernel's counters or shared memory."""
    most = MOST_TAPS - schedule.tensor  # one bit is of products beyond the sum
    if (taps := bits(problem, tile, sizes)) > most:
        return f"windows have {taps} taps along their axes, more than {most}"
    if (need := shared_bytes(problem, schedule, sizes)) > MOST_BYTES:
        return f"the weights of {schedule.columns} columns take {need} bytes of shared memory, more than {MOST_BYTES}"
    elements = _elements(problem.a, sizes)
    positions = math.prod(sizes[run[0]] for i, run in enumerate(problem.batch) if i != tile.column)
    if max(elements, positions) > FARTHEST:
        return f"{elements} elements of A and {positions} positions are counted in 32 bits"
    return None


def _elements(operand: OperandAccess, sizes: Sequence[int]) -> int:
    return math.prod(sizes[axis.extent] for axis in operand.axes)
