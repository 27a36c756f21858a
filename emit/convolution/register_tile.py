"""Convolutions of few channels by plain threads: each keeps the sums of some positions by some columns in
registers; see `kernels/convolution/plan_register_tile.py`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ucutlass.emit import text
from ucutlass.emit.arithmetic import ArithmeticText, arithmetic, kind_of, taken
from ucutlass.emit.convolution import operands as convolution
from ucutlass.emit.convolution.direct import INCLUDES
from ucutlass.emit.functions import CPP
from ucutlass.emit.gemm.sm80 import includes
from ucutlass.emit.gemm.sm80_epilogue import batch_strides
from ucutlass.emit.text import product
from ucutlass.ir.elements import TF32
from ucutlass.kernels.access import Access, Output, Reduction
from ucutlass.kernels.convolution.plan import ConvolutionProblem, RegisterTileSchedule
from ucutlass.kernels.convolution.plan_register_tile import (
    EXCHANGED,
    MOST_BYTES,
    SHARED_OF_SM,
    register_tile,
    staged_bytes,
    unreduced,
    warp_bytes,
)

MMA_TYPES = {name: f"f32.{name}.{name}.f32" for name in ("f16", "bf16", "tf32")}
"""PTX's types of the products of a compute type."""

FEW_REGISTERS = 112
"""Of a thread's sums and elements, beside which an SM holds 512 threads without spilling."""


@dataclass(frozen=True, slots=True)
class TensorText:
    """An epilogue operand or result: `fixed` is the same at all positions, `unit` adjacent from column to
    column; `op` combines the columns of a reduced result."""

    index: int
    cpp: str
    value: str
    pointer: int
    batch: tuple[str, ...]
    fixed: bool
    unit: bool
    narrow: str
    op: str = ""


@dataclass(frozen=True, slots=True)
class TapText:
    """A window's taps: their place among the contracted dimensions (-1: one tap), coefficient and number as C++."""

    k: int
    step: int
    count: str


def render(problem: ConvolutionProblem, schedule: RegisterTileSchedule) -> str:
    """The code of a plan with a RegisterTileSchedule, for `ucutlass.emit.text.finish`. Raises ValueError for a
    problem that has no such tile, or a reduced result."""
    tile = register_tile(problem)
    if isinstance(tile, str):
        raise ValueError(tile)
    gemm, vector = problem.gemm, schedule.vector
    if reason := unreduced(problem, tile):
        raise ValueError(reason)
    inputs = tuple(_tensor(i, a, CPP[kind_of(a.elem)], tile.column) for i, a in enumerate(gemm.inputs))
    outputs = tuple(
        replace(_tensor(i, o.access, CPP[taken(o)], tile.column), op=_operation(o))
        for i, o in enumerate(gemm.outputs)
    )
    spell = arithmetic(gemm)
    return text.render(
        "convolution/register_tile.cu.j2",
        includes=includes(INCLUDES),
        compute_type="tf32" if problem.compute_type == TF32 else "",
        rows=schedule.rows,
        columns=schedule.columns,
        threads=schedule.threads,
        channels=schedule.channels,
        vector=vector,
        blocks=blocks_held(schedule),
        most_bytes=MOST_BYTES,
        contracted=max(1, len(problem.k)),
        batch_modes=len(problem.batch),
        column_mode=tile.column,
        b_column_stride=_column_stride(problem, tile.column),
        channel=tile.channel,
        taps=tuple(TapText(w.k, w.step, "1" if w.k < 0 else f"e[{problem.k[w.k]}]") for w in tile.windows),
        arithmetic=spell.text,
        coordinates=spell.coordinates,
        accesses=convolution.accesses(problem),
        contracted_extents=convolution.contracted(problem),
        inputs=inputs,
        outputs=outputs,
        staged=staged_bytes(problem, schedule),
        tensor=schedule.tensor,
        together=8 // problem.a.elem.bytes,
        mma_shape="m16n8k16" if problem.a.elem.bytes == 2 else "m16n8k8",
        mma_types=MMA_TYPES.get(problem.compute_type.name, ""),
        shared_of_sm=SHARED_OF_SM,
        exchanged=min(EXCHANGED, schedule.columns),
        warp_bytes=warp_bytes(problem, schedule),
        reduced=any(s.op for s in outputs),
        looped=schedule.whole or any(s.op for s in outputs),
        call=_call(spell, problem, tile.column, inputs, outputs),
        dims=gemm.dims,
        batch=[product(extent) for extent in gemm.batch],
        extents_a=[f"e[{axis.extent}]" for axis in problem.a.axes],
        checks=[f"p.output{s.index}.data" for s in outputs if s.unit and vector > 1],
    )


def blocks_held(schedule: RegisterTileSchedule) -> int:
    """Thread blocks that an SM shall hold, by the registers of a thread's sums and of the elements of A that it
    multiplies and loads."""
    rows = schedule.rows
    if schedule.tensor:
        return max(1, (512 if rows == 1 else 384) // schedule.threads)
    registers = rows * schedule.columns + 2 * rows * (schedule.channels + 1)
    threads = 512 if registers <= FEW_REGISTERS else 256
    return max(1, threads // schedule.threads)


def _column_stride(problem: ConvolutionProblem, column: int) -> str:
    """Elements of B from a column to the next, as C++."""
    innermost = problem.batch[column][-1]
    axis = next(i for i, axis in enumerate(problem.b.axes) if axis.extent == innermost)
    return f"p.b.stride[{axis}]"


def _operation(output: Output) -> str:
    return (
        {"sum": "Add", "max": "Maximum", "min": "Minimum"}[output.op] if isinstance(output, Reduction) else ""
    )


def _tensor(index: int, access: Access, value: str, column: int) -> TensorText:
    cpp = access.elem.cpp
    fixed = all(s is None for i, s in enumerate(access.batch) if i != column)
    narrow = f"cutlass::NumericConverter<{cpp}, float>::convert" if value == "float" != cpp else cpp
    return TensorText(
        index, cpp, value, access.pointer, batch_strides(access), fixed, access.batch[column] == (), narrow
    )


def _call(
    spell: ArithmeticText,
    problem: ConvolutionProblem,
    column: int,
    inputs: tuple[TensorText, ...],
    outputs: tuple[TensorText, ...],
) -> str:
    at = ["int(n + j)" if i == column else f"at[i][{i}]" for i in range(len(problem.batch))]
    return spell.call(
        "p.arithmetic",
        ["0", "0", *(at if spell.coordinates else ["0"] * len(at))],
        "sums[i][q + j]",
        [f"in{slot.index}[j]" for slot in inputs],
        [f"out{slot.index}[j]" for slot in outputs],
    )
