"""Convolution without a tile: a thread multiplies and adds for its own results. For depthwise and one-channel
groups, which only memory bounds, for sums of products of mixed elements, and for compute types that no tensor-core
kernel here gathers. The template is `convolution/direct.cu.j2`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ucutlass.emit import text
from ucutlass.emit.arithmetic import ArithmeticText, arithmetic, kind_of, taken
from ucutlass.emit.convolution import operands as convolution
from ucutlass.emit.convolution.operands import AccessText
from ucutlass.emit.functions import CPP
from ucutlass.emit.gemm.sm80 import includes
from ucutlass.emit.gemm.sm80_epilogue import batch_strides
from ucutlass.emit.text import product
from ucutlass.ir.elements import S8, TF32
from ucutlass.ir.extents import Fixed
from ucutlass.kernels.access import Access, Store
from ucutlass.kernels.convolution.plan import (
    ConvolutionProblem,
    DirectSchedule,
    OperandAccess,
    Slide,
    across_mode,
    axis_stride,
    moves,
    slide,
)

INCLUDES = (
    "<algorithm>",
    "<atomic>",
    "<cstdint>",
    "<cstring>",
    "<initializer_list>",
    "<type_traits>",
    "<cuda_runtime.h>",
    "<cuda/std/limits>",
    "cutlass/cutlass.h",
    "cutlass/numeric_types.h",
    "cutlass/numeric_conversion.h",
)


@dataclass(frozen=True, slots=True)
class EpilogueSlot:
    """An epilogue operand or result; `unit`: neighbours are adjacent, and moved together."""

    index: int
    cpp: str
    value: str
    pointer: int
    batch: tuple[str, ...]
    unit: bool
    narrow: str


def render(problem: ConvolutionProblem, schedule: DirectSchedule) -> str:
    """The code of a plan with a DirectSchedule, for `ucutlass.emit.text.finish`. Raises ValueError for a
    reduced result, or where taps slide along nothing."""
    gemm = problem.gemm
    innermost = schedule.innermost
    vector = schedule.width > 1
    modes = max(1, len(problem.batch))
    across = modes - 1 if innermost else across_mode(problem) if schedule.rows > 1 else -1
    stride_a, stride_b = (
        "kSame" if innermost else axis_stride(problem, w, vector) for w in (problem.a, problem.b)
    )
    moving = slide(problem, across) if schedule.taps else None
    single = moving is not None and schedule.width == 1 and not innermost
    lines = slide(problem, modes - 2) if schedule.items > 1 else None
    if (schedule.taps and moving is None) or (schedule.items > 1 and lines is None):
        raise ValueError("no window slides along the results")
    wide = schedule.wide and lines is not None
    checked = [f"p.{w}.data" for w, how in (("a", stride_a), ("b", stride_b)) if how == "kUnit"]
    stored = _epilogue(problem, schedule, vector)
    checked += [f"p.input{s.index}.data" for s in stored.inputs if s.unit]
    checked += [f"p.output{s.index}.data" for s in stored.outputs if s.unit]
    access_texts = tuple(
        _with_steps(problem, operand, access_text, across)
        for operand, access_text in zip((problem.a, problem.b), convolution.accesses(problem), strict=True)
    )
    return text.render(
        "convolution/direct.cu.j2",
        includes=includes(INCLUDES),
        compute_type="tf32" if problem.compute_type == TF32 else "",
        width=1 if innermost else schedule.width,
        rows=schedule.rows,
        threads=schedule.threads,
        taps=schedule.taps,
        innermost=innermost,
        whole=vector and bool(checked),
        slide=moving,
        slide_window=problem.a.windows.index(moving.axis) if moving else 0,
        tap_extent=problem.k[moving.k] if moving else 0,
        items=schedule.items,
        item_taps=schedule.item_taps,
        lines=lines,
        lines_window=problem.a.windows.index(lines.axis) if lines else 0,
        line_tap_extent=problem.k[lines.k] if lines else 0,
        lead=-_first(problem, moving, schedule.taps) % schedule.width if wide and moving else 0,
        phase=_phase(problem, moving, schedule.taps),
        line_phase=_phase(problem, lines, schedule.item_taps),
        wide=wide,
        axes=len(problem.a.axes),
        across=across if across >= 0 else -1,
        contracted=max(1, len(problem.k)),
        batch_modes=modes,
        accumulator="int32_t" if problem.compute_type == S8 else "float",
        arithmetic=stored.spell.text,
        coordinates=stored.spell.coordinates,
        accesses=access_texts,
        contracted_extents=convolution.contracted(problem),
        stride_a="kUnit" if single else stride_a,  # loads one element without a branch
        stride_b="kUnit" if single else stride_b,
        unrolled=max(2 if single or not schedule.taps else 1, schedule.ahead),
        shared_b=across < 0 or not moves(problem, problem.b, across),
        inputs=stored.inputs,
        outputs=stored.outputs,
        call=stored.call,
        dims=gemm.dims,
        batch=[product(extent) for extent in gemm.batch] or ["1"],
        checks=checked,
    )


def _first(problem: ConvolutionProblem, moving: Slide, taps: int) -> int:
    """Returns the lowest position of the first result's window."""
    window = problem.a.axes[moving.axis].window
    assert window is not None and isinstance(window.offset, Fixed)
    return window.offset.value - (moving.tap * (taps - 1) if moving.flipped else 0)


def _phase(problem: ConvolutionProblem, moving: Slide | None, taps: int) -> int:
    """Returns the remainder of that position by the window's scale."""
    return 0 if moving is None or moving.scale == 1 else _first(problem, moving, taps) % moving.scale


@dataclass(frozen=True, slots=True)
class _Epilogue:
    """The arithmetic of a result, its operands and results, and its call as C++."""

    spell: ArithmeticText
    inputs: tuple[EpilogueSlot, ...]
    outputs: tuple[EpilogueSlot, ...]
    call: str


def _epilogue(problem: ConvolutionProblem, schedule: DirectSchedule, vector: bool) -> _Epilogue:
    gemm, innermost = problem.gemm, schedule.innermost
    stores = [o for o in gemm.outputs if isinstance(o, Store)]
    if len(stores) < len(gemm.outputs):
        raise ValueError("the direct kernel reduces nothing")
    inputs = tuple(
        _slot(i, a, CPP[kind_of(a.elem)], vector and schedule.width * a.elem.bytes <= 16)
        for i, a in enumerate(gemm.inputs)
    )
    outputs = tuple(_slot(i, o.access, CPP[taken(o)], vector) for i, o in enumerate(stores))
    batch = [f"int(batch[{i}])" for i in range(len(problem.batch))]
    if batch and not innermost:
        batch[-1] += " + i"
    spell = arithmetic(gemm)
    call = spell.call(
        "p.arithmetic",
        ["0", "0", *batch],
        "sums[item][j]" if schedule.items > 1 else "sums[j][i]",
        [f"in{slot.index}[i]" for slot in inputs],
        [f"out{slot.index}[{'j' if innermost else 'i'}]" for slot in outputs],
    )
    return _Epilogue(spell, inputs, outputs, call)


def _slot(index: int, access: Access, value: str, vector: bool) -> EpilogueSlot:
    unit = vector and bool(access.batch) and access.batch[-1] == ()
    cpp = access.elem.cpp
    wide = value in ("float",) and cpp != "float"
    narrow = f"cutlass::NumericConverter<{cpp}, float>::convert" if wide else cpp
    return EpilogueSlot(index, cpp, value, access.pointer, batch_strides(access), unit, narrow)


def _with_steps(
    problem: ConvolutionProblem, operand: OperandAccess, text: AccessText, across: int
) -> AccessText:
    """Returns the access with the parts of a step along neighbouring results and of one across them."""
    number = {axis: i for i, axis in enumerate(operand.windows)}

    def step(mode: int) -> tuple[str, ...]:
        if not problem.batch or mode < 0:
            return ()
        return convolution.sums(operand, dict.fromkeys(problem.batch[mode], "1"), number)

    steps: Mapping[str, Sequence[str]] = {"along": step(len(problem.batch) - 1), "across": step(across)}
    column = [part for part in text.parts if part[0] == "column"]
    return replace(
        text,
        parts=(*column, ("along", 0), ("across", 0)),
        sums={**text.sums, **{k: tuple(v) for k, v in steps.items()}},
    )
