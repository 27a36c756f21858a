"""How the multistage kernel computes a convolution: tiles are gathered by cp.async."""

from __future__ import annotations

import math
from dataclasses import replace

from ucutlass.ir.elements import F32, TF32, Element
from ucutlass.ir.hardware import Device
from ucutlass.kernels.convolution.cost import Extents, measure
from ucutlass.kernels.convolution.cost_f32 import multistage_seconds
from ucutlass.kernels.convolution.plan import (
    ConvolutionProblem,
    GatheredOperand,
    OperandAccess,
    sides,
    unit_dim,
)
from ucutlass.kernels.convolution.planner_algorithm import (
    Algorithm,
    copies_note,
    summed_channel,
    taps_and_results,
)
from ucutlass.kernels.gemm.plan import Math, Sm80Schedule
from ucutlass.kernels.planned import Note

LONG_SUM, MOST_SPLITS = 64, 128
"""Steps of a sum in parts from which a step has 32 products of f32 or TF32 (four gradients of weights on an H100: 4 to 25 % less), and its parts."""

COPY_BYTES = 4
"""The least that cp.async moves."""


def multistage(whole: ConvolutionProblem, sizes: tuple[int, ...], device: Device) -> Algorithm:
    """Returns the multistage kernel of a problem."""
    problem, notes = _gathered(whole, sizes)
    extents = measure(problem, sizes)
    schedule = _multistage(problem, extents, sizes, device)
    splits = _splits(schedule, extents, device)
    seconds = multistage_seconds(problem, schedule, splits, sizes, device)
    return Algorithm(problem, schedule, splits, notes, seconds)


def _gathered(
    problem: ConvolutionProblem, sizes: tuple[int, ...]
) -> tuple[ConvolutionProblem, tuple[Note, ...]]:
    """The problem with operands that cp.async can read: at least 4 bytes at a time, along the rows or along
    the innermost contracted name. Operands of 16 bits that are read one by one, and vectors that lie along
    another name than the innermost one of its rows or of the contracted, are copied to the workspace:
    channels innermost and padded where both have them summed. Without such channels elements of 4 bytes are
    read one by one, those of 2 are widened to f32, whose tf32 products are exact."""
    both = sides(problem)
    crossed = any(s.access.align > 1 and s.copy_width == 1 for s in both)
    narrow = any(s.copy_width * s.access.read.bytes < COPY_BYTES for s in both)
    channel = summed_channel(problem, sizes)
    if channel is not None and (crossed or narrow):
        k = (*(d for d in problem.k if d != channel), channel)
        a, b = (_packed(replace(s, summed=k), channel) for s in both)
        ready = replace(problem, a=a, b=b, k=k)
        return ready, copies_note(ready)
    if not narrow:
        return problem, ()
    a, b = (replace(w, pack=tuple(range(len(w.axes))), packed=F32, align=1) for w in (problem.a, problem.b))
    return replace(problem, a=a, b=b), (
        Note("", "layout", "operands are read one by one: widened to f32 in the workspace first"),
    )


def _packed(side: GatheredOperand, dim: int) -> OperandAccess:
    """The operand with a plain axis innermost and padded to 16 bytes; as it lies where it is so already."""
    operand, pad = side.access, 16 // side.access.elem.bytes
    if unit_dim(operand) == dim and side.copy_width == pad:
        return operand
    axis = next(i for i, a in enumerate(operand.axes) if a.extent == dim and a.window is None)
    order = (*(i for i in range(len(operand.axes)) if i != axis), axis)
    return replace(operand, pack=order, pad=pad, align=pad)


def _multistage(
    problem: ConvolutionProblem, extents: Extents, sizes: tuple[int, ...], device: Device
) -> Sm80Schedule:
    compute_type: Element = TF32 if problem.a.packed else problem.compute_type
    math_: Math = "tf32x3" if compute_type == F32 else "tensor"
    narrow = any(s.copy_width == 1 for s in sides(problem))
    deep = 32 if compute_type.name in ("f16", "bf16") else 16
    small = extents.n <= 64 or narrow or math_ == "tf32x3"
    tiles = [((128, 128, deep), (64, 64), 4)] if not small else []
    tiles += [((128, 64, deep), (64, 32), 4)] if not narrow and math_ == "tensor" else []
    tiles += [((64, 64, deep), (32, 32), 4)]
    for tile, warp, stages in tiles:
        blocks = math.ceil(extents.m / tile[0]) * math.ceil(extents.n / tile[1]) * extents.batch
        if blocks >= device.sms:
            return Sm80Schedule(tile, warp, stages, math_)
    (tile_m, tile_n, depth), warp, stages = tiles[-1]
    taps, results = taps_and_results(problem, sizes)
    long = taps > results and extents.k >= LONG_SUM * depth
    return Sm80Schedule((tile_m, tile_n, 32 if long else depth), warp, stages, math_)


def _splits(schedule: Sm80Schedule, extents: Extents, device: Device) -> int:
    """Parts of K: two waves of blocks where tiles alone leave the device idle, each of 16 tiles at least."""
    m, n, k = schedule.tile
    blocks = math.ceil(extents.m / m) * math.ceil(extents.n / n) * extents.batch
    if blocks >= device.sms:
        return 1
    return max(1, min(2 * device.sms // blocks, math.ceil(extents.k / k) // 16, MOST_SPLITS))
