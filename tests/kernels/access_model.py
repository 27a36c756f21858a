"""Which addresses a convolution's planned loads and stores take, by the loops of their templates:
`convolution/load.j2` (tiles gathered by cp.async), `convolution/direct.cu.j2`, the epilogue of `gemm/sm80_epilogue.j2`, and
the tensors that TMA is told of. Every access is checked where drawn coordinates put it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random

from ucutlass.emit.convolution import im2col as conv_sm90
from ucutlass.emit.convolution import operands as convolution
from ucutlass.emit.convolution import wgrad as conv_wgrad
from ucutlass.emit.gemm import sm80_epilogue as epilogue
from ucutlass.ir.extents import evaluate
from ucutlass.kernels.access import Access, Product, Stride
from ucutlass.kernels.convolution.plan import (
    ConvolutionPlan,
    ConvolutionProblem,
    DepthwiseWgradSchedule,
    DirectSchedule,
    GatheredOperand,
    Im2colSchedule,
    OperandAccess,
    RegisterTileSchedule,
    across_mode,
    axis_stride,
    sides,
    slide,
    unit_dim,
)
from ucutlass.kernels.convolution.plan_depthwise_wgrad import copied_together
from ucutlass.kernels.convolution.plan_im2col import Im2col, im2col
from ucutlass.kernels.convolution.plan_register_tile import RegisterTile, register_tile
from ucutlass.kernels.convolution.plan_wgrad import WgradAccess, wgrad_access
from ucutlass.kernels.gemm.plan import Sm80Schedule

MOST = 200
"""Places of one access that are looked at."""

Coordinates = Mapping[int, int]
"""By dimension."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A plan with the extents and base addresses of a call: pointer i begins at a multiple of 16 bytes where
    `aligned[i]`, else one element behind one."""

    plan: ConvolutionPlan
    sizes: tuple[int, ...]
    aligned: tuple[bool, ...]

    def count(self, dims: Product) -> int:
        return math.prod(self.sizes[d] for d in dims)

    def base(self, pointer: int) -> int:
        return 0 if self.aligned[pointer] else 1


def wrong_accesses(launch: Launch, draw: Random) -> Iterator[str]:
    """What is wrong with the accesses of a plan; each is a sentence with its numbers."""
    problem = launch.plan.problem
    match launch.plan.schedule:
        case Sm80Schedule():
            for name, side in zip("AB", sides(problem), strict=True):
                yield from _gathered(launch, name, side, draw)
            yield from _tile(launch, epilogue.layout(convolution.epilogue_gemm(problem)), draw)
        case DirectSchedule() as schedule:
            yield from _direct(launch, schedule, draw)
        case DepthwiseWgradSchedule() as schedule:
            yield from _depthwise_wgrad(launch, schedule, draw)
        case RegisterTileSchedule() as schedule:
            yield from _register_tile(launch, schedule)
        case Im2colSchedule():
            yield from _boxes(launch)
            yield from _tile(launch, _windows_layout(problem), draw)
        case _:
            yield from _boxes(launch)
            yield from _tile(launch, _wgrad_layout(problem), draw)


# --- where an operand's element lies ------------------------------------------------------


def place(launch: Launch, operand: OperandAccess, at: Coordinates) -> int | None:
    """The element's number as the product reads it, from a multiple of 16 bytes on; None outside."""
    by_name = {str(i): n for i, n in enumerate(launch.sizes)}
    offset, stride = 0, 1
    for position, i in enumerate(reversed(operand.order)):
        axis = operand.axes[i]
        extent = lies = launch.sizes[axis.extent]
        if position == 0:
            lies = extent = -(-extent // operand.pad) * operand.pad
        if axis.window is None:
            x = at[axis.extent]
        else:
            scaled = sum(c * at[d] for d, c in axis.window.terms) + evaluate(axis.window.offset, by_name)
            if scaled % axis.window.scale:
                return None
            x = scaled // axis.window.scale
        if not 0 <= x < extent:
            return None
        offset += x * stride
        stride *= lies
    return offset + (launch.base(operand.pointer) if operand.pack is None else 0)


def unravel(index: int, extents: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Coordinates of a row-major index over (dimension, extent)."""
    found = {}
    for dim, extent in reversed(extents):
        found[dim] = index % extent
        index //= extent
    return found


def _together(what: str, width: int, bytes_: int, addresses: Sequence[int | None]) -> Iterator[str]:
    """Neighbours that one access moves must lie side by side, all inside or none, from an aligned address."""
    first = addresses[0]
    if list(addresses) != [None if first is None else first + i for i in range(width)]:
        yield f"{what}: {width} elements are moved together that lie at {list(addresses)}"
    if first is not None and first % width:
        yield f"{what}: {width * bytes_} bytes at element {first}"


def _gathered(launch: Launch, name: str, side: GatheredOperand, draw: Random) -> Iterator[str]:
    problem, width = launch.plan.problem, side.copy_width
    if width == 1:
        return
    rows = [(d, launch.sizes[d]) for d in side.rows]
    summed = [(d, launch.sizes[d]) for d in side.summed]
    padded = [w for w in (problem.a, problem.b) if w.contiguous and w.contiguous.extent == side.summed[-1]]
    pad = max((w.pad for w in padded), default=1)
    summed[-1] = (summed[-1][0], -(-summed[-1][1] // pad) * pad)
    batch = [(d, launch.sizes[d]) for run in problem.batch for d in run]
    lengths = [math.prod(n for _, n in part) for part in (batch, rows, summed)]
    steps = (1, 1, width) if side.along_k else (1, width, 1)
    for b, m, k in _sample(lengths, steps, draw):
        found = []
        for i in range(width):
            row, column = (m, k + i) if side.along_k else (m + i, k)
            at = unravel(b, batch) | unravel(row, rows) | unravel(column, summed)
            found.append(place(launch, side.access, at))
        yield from _together(f"operand {name}", width, side.access.read.bytes, found)


def _sample(lengths: Sequence[int], steps: Sequence[int], draw: Random) -> Iterator[tuple[int, ...]]:
    """Where an access begins along each index: all places, or some of them drawn."""
    ranges = [range(0, length, step) for length, step in zip(lengths, steps, strict=True)]
    if math.prod(map(len, ranges)) <= MOST:
        return product(*ranges)
    return (tuple(r[draw.randrange(len(r))] for r in ranges) for _ in range(MOST))


# --- the direct kernel ----------------------------------------------------------------


def _direct(launch: Launch, schedule: DirectSchedule, draw: Random) -> Iterator[str]:
    problem = launch.plan.problem
    modes = [run[0] for run in problem.batch]
    if schedule.width == 1 or not modes:
        return
    width = schedule.rows if schedule.innermost else schedule.width
    batch, summed = ([(d, launch.sizes[d]) for d in dims] for dims in (modes, problem.k))
    across = across_mode(problem) if schedule.rows > 1 and not schedule.innermost else -1
    moving = slide(problem, across) if schedule.taps else None
    lengths = [math.prod(n for _, n in part) for part in (batch, summed)]
    for b, k in _sample(lengths, (1, 1), draw):
        at = unravel(b, batch)
        at[modes[-1]] -= at[modes[-1]] % width
        if moving is not None and at[modes[across]] % schedule.rows:
            continue
        for name, operand in (("A", problem.a), ("B", problem.b)):
            if schedule.innermost or axis_stride(problem, operand, True) != "kUnit":
                continue
            here = [{**at, **unravel(k, summed), modes[-1]: at[modes[-1]] + i} for i in range(width)]
            numbers = [place(launch, operand, x) for x in here]
            yield from _together(f"operand {name}", width, operand.read.bytes, numbers)
        for name, access in _epilogue_accesses(problem):
            stored = name.startswith("result")
            unit = access.batch[-1] == () and (stored or width * access.elem.bytes <= 16)
            if unit and (stored or not schedule.innermost):
                starts = [_address(launch, access, 0, 0, [at[d] for d in modes])]
                yield from _together(name, width, access.elem.bytes, [starts[0] + i for i in range(width)])


def _depthwise_wgrad(launch: Launch, schedule: DepthwiseWgradSchedule, draw: Random) -> Iterator[str]:
    """A thread reads neighbouring channels of both operands together."""
    problem, width = launch.plan.problem, schedule.width
    if schedule.columns:
        width = copied_together(problem, schedule.width * schedule.lanes)
    last = unit_dim(problem.b)
    if width == 1 or last is None:
        return
    batch, summed = (
        [(d, launch.sizes[d]) for d in dims] for dims in ([run[0] for run in problem.batch], problem.k)
    )
    for b, k in _sample([math.prod(n for _, n in part) for part in (batch, summed)], (1, 1), draw):
        at = {**unravel(b, batch), **unravel(k, summed)}
        at[last] -= at[last] % width
        for name, operand in (("A", problem.a), ("B", problem.b)):
            numbers = [place(launch, operand, {**at, last: at[last] + i}) for i in range(width)]
            yield from _together(f"operand {name}", width, operand.read.bytes, numbers)


# --- tiles' epilogues -----------------------------------------------------------------


def _epilogue_accesses(problem: ConvolutionProblem) -> Iterator[tuple[str, Access]]:
    yield from ((f"input {i}", a) for i, a in enumerate(problem.gemm.inputs))
    yield from ((f"result {i}", o.access) for i, o in enumerate(problem.gemm.outputs))


def _address(launch: Launch, access: Access, m: int, n: int, batch: Sequence[int]) -> int:
    def step(stride: Stride) -> int:
        return 0 if stride is None else launch.count(stride)

    own = sum(c * step(s) for c, s in zip(batch, access.batch, strict=True))
    return launch.base(access.pointer) + own + m * step(access.m) + n * step(access.n)


def _tile(launch: Launch, layout: epilogue.EpilogueLayout, draw: Random) -> Iterator[str]:
    """Vectors along rows or columns, where all `layout.width` neighbours are inside."""
    gemm = launch.plan.problem.gemm
    slots = (*epilogue.slots(gemm, layout), *epilogue.results(gemm, layout))
    m, n = launch.count(gemm.m), launch.count(gemm.n)
    batch = [launch.count(run) for run in gemm.batch]
    for (name, access), slot in zip(_epilogue_accesses(launch.plan.problem), slots, strict=True):
        if slot.vector == 1:
            continue
        steps = (layout.width, 1) if layout.contiguous_mode == "m" else (1, layout.width)
        for row, column, *b in _sample((m, n, *batch), (*steps, *(1 for _ in batch)), draw):
            length, first = (m, row) if layout.contiguous_mode == "m" else (n, column)
            if first + layout.width > length:
                continue
            for i in range(0, layout.width, slot.vector):
                here = (row + i, column) if layout.contiguous_mode == "m" else (row, column + i)
                address = _address(launch, access, *here, b)
                if address % slot.vector:
                    yield f"{name}: {slot.vector * access.elem.bytes} bytes at element {address}"


def _windows_layout(problem: ConvolutionProblem) -> epilogue.EpilogueLayout:
    how = im2col(problem)
    assert isinstance(how, Im2col)
    return conv_sm90.layout_of(convolution.epilogue_gemm(problem), how)


def _wgrad_layout(problem: ConvolutionProblem) -> epilogue.EpilogueLayout:
    how = wgrad_access(problem)
    assert isinstance(how, WgradAccess)
    return conv_wgrad.layout_of(problem, convolution.epilogue_gemm(problem), how)


# --- TMA ------------------------------------------------------------------------------


def _register_tile(launch: Launch, schedule: RegisterTileSchedule) -> Iterator[str]:
    """Neighbouring columns are stored together where they are adjacent, whole vectors of aligned ones."""
    problem = launch.plan.problem
    tile = register_tile(problem)
    assert isinstance(tile, RegisterTile), tile
    columns = launch.sizes[problem.batch[tile.column][0]]
    for output in problem.gemm.outputs:
        access = output.access
        if schedule.vector == 1 or access.batch[tile.column] != ():
            continue
        strides = [launch.count(s) for i, s in enumerate(access.batch) if s is not None and i != tile.column]
        if launch.base(access.pointer) or any(n % schedule.vector for n in (columns, *strides)):
            yield f"result {access.pointer}: {schedule.vector} of {columns} columns, {strides} apart"
        if schedule.columns % schedule.vector or schedule.vector * access.elem.bytes > 16:
            yield f"result {access.pointer}: {schedule.columns} columns a thread in {schedule.vector}"


def _boxes(launch: Launch) -> Iterator[str]:
    """TMA takes addresses and strides of whole 16 bytes."""
    for name, operand in (("A", launch.plan.problem.a), ("B", launch.plan.problem.b)):
        if operand.pack is None and launch.base(operand.pointer):
            yield f"operand {name}: TMA reads it as it lies from an address that is not aligned"
        inner = launch.sizes[operand.axes[operand.order[-1]].extent]
        row = -(-inner // operand.pad) * operand.pad * operand.read.bytes
        if len(operand.order) > 1 and row % 16:
            yield f"operand {name}: TMA's rows are {row} bytes apart"
