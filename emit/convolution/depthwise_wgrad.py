"""A gradient of a depthwise convolution's weights by multiply-adds: threads sum all taps of their channels over parts of
the positions, a second kernel adds the parts. The template is `convolution/depthwise_wgrad.cu.j2`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ucutlass.emit import text
from ucutlass.emit.arithmetic import arithmetic, kind_of, taken
from ucutlass.emit.convolution import operands as convolution
from ucutlass.emit.convolution.direct import INCLUDES
from ucutlass.emit.functions import CPP
from ucutlass.emit.gemm.sm80 import includes
from ucutlass.emit.gemm.sm80_epilogue import batch_strides
from ucutlass.emit.text import product
from ucutlass.ir.elements import TF32
from ucutlass.kernels.access import Access
from ucutlass.kernels.convolution.plan import ConvolutionProblem, DepthwiseWgradSchedule
from ucutlass.kernels.convolution.plan_depthwise_wgrad import BLOCKS, access_of, copied_together, tile_bytes

STAGED = 8192
"""Sums that a block's warps add through shared memory at a time at most."""


@dataclass(frozen=True, slots=True)
class SlotText:
    """An epilogue operand or result of one element a thread."""

    index: int
    cpp: str
    value: str
    pointer: int
    batch: tuple[str, ...]
    narrow: str


def render(problem: ConvolutionProblem, schedule: DepthwiseWgradSchedule, early_launches: bool) -> str:
    """The code of a plan with a DepthwiseWgradSchedule, for `ucutlass.emit.text.finish`. `early_launches`: the GPU has
    programmatic dependent launch. Raises ValueError for a problem that is no such gradient."""
    how = access_of(problem, schedule)
    gemm = problem.gemm
    inputs = tuple(_slot(i, a, CPP[kind_of(a.elem)]) for i, a in enumerate(gemm.inputs))
    outputs = tuple(_slot(i, o.access, CPP[taken(o)]) for i, o in enumerate(gemm.outputs))
    spell = arithmetic(gemm)
    call = spell.call(
        "p.arithmetic",
        ["0", "0", *(f"int(batch[{i}])" for i in range(len(problem.batch)))],
        "sum",
        [f"in{slot.index}" for slot in inputs],
        [f"out{slot.index}" for slot in outputs],
    )
    outer = tuple(i for i in range(len(problem.k)) if i not in (how.rows.k, how.inner))
    warps, taps = schedule.threads // 32, math.prod(how.taps)
    at_once = max(1, min(taps, STAGED // (warps * schedule.width * schedule.lanes)))
    copy = copied_together(problem, schedule.width * schedule.lanes)
    return text.render(
        "convolution/depthwise_wgrad.cu.j2",
        columns=schedule.columns,
        copy=copy,
        along_b=how.columns_b,
        shared_bytes=max(
            tile_bytes(problem, schedule), 4 * warps * at_once * schedule.width * schedule.lanes
        ),
        includes=includes(INCLUDES),
        compute_type="tf32" if problem.compute_type == TF32 else "",
        width=schedule.width,
        rows=schedule.rows,
        lanes=schedule.lanes,
        threads=schedule.threads,
        taps_at_once=at_once,
        most_blocks=BLOCKS,
        down=how.rows,
        along=how.columns,
        down_window=problem.a.windows.index(how.rows.axis),
        along_window=0 if how.columns is None else problem.a.windows.index(how.columns.axis),
        inner=how.inner,
        down_b=how.rows_b,
        outer=outer,
        channels=how.channels,
        contracted=len(problem.k),
        batch_modes=len(problem.batch),
        arithmetic=spell.text,
        coordinates=spell.coordinates,
        accesses=convolution.accesses(problem),
        contracted_extents=convolution.contracted(problem),
        inputs=inputs,
        outputs=outputs,
        call=call,
        dims=gemm.dims,
        batch=[product(extent) for extent in gemm.batch],
        axes_a=len(problem.a.axes),
        axes_b=len(problem.b.axes),
        early_launches=early_launches,
    )


def _slot(index: int, access: Access, value: str) -> SlotText:
    cpp = access.elem.cpp
    narrow = f"cutlass::NumericConverter<{cpp}, float>::convert" if value == "float" != cpp else cpp
    return SlotText(index, cpp, value, access.pointer, batch_strides(access), narrow)
