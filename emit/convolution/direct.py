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
    line_mode,
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
    innermost = schedule.innermost
    modes = max(1, len(problem.batch))
    across = modes - 1 if innermost else across_mode(problem) if schedule.rows > 1 else -1
    stored = _epilogue(problem, schedule, schedule.width > 1)
    return text.render(
        "convolution/direct.cu.j2",
        includes=includes(INCLUDES),
        compute_type="tf32" if problem.compute_type == TF32 else "",
        accumulator="int32_t" if problem.compute_type == S8 else "float",
        width=1 if innermost else schedule.width,
        rows=schedule.rows,
        threads=schedule.threads,
        innermost=innermost,
        axes=len(problem.a.axes),
        across=across,
        contracted=max(1, len(problem.k)),
        contracted_extents=convolution.contracted(problem),
        batch_modes=modes,
        batch=[product(extent) for extent in problem.gemm.batch] or ["1"],
        dims=problem.gemm.dims,
        arithmetic=stored.spell.text,
        coordinates=stored.spell.coordinates,
        inputs=stored.inputs,
        outputs=stored.outputs,
        call=stored.call,
        **_loads(problem, schedule, stored, across),
        **_slides(problem, schedule, across),
    )


def _loads(
    problem: ConvolutionProblem, schedule: DirectSchedule, stored: _Epilogue, across: int
) -> dict[str, object]:
    """How operands are read; `across`: the mode of results that a thread has in several rows, or -1."""
    vector, innermost = schedule.width > 1, schedule.innermost
    strides = tuple("kSame" if innermost else axis_stride(problem, w, vector) for w in (problem.a, problem.b))
    checked = [f"p.{w}.data" for w, how in zip(("a", "b"), strides, strict=True) if how == "kUnit"]
    checked += [f"p.input{s.index}.data" for s in stored.inputs if s.unit]
    checked += [f"p.output{s.index}.data" for s in stored.outputs if s.unit]
    single = bool(schedule.taps) and schedule.width == 1 and not innermost
    if single:
        strides = ("kUnit", "kUnit")  # loads one element without a branch
    return {
        "accesses": tuple(
            _with_steps(problem, operand, access_text, across)
            for operand, access_text in zip(
                (problem.a, problem.b), convolution.accesses(problem), strict=True
            )
        ),
        "stride_a": strides[0],
        "stride_b": strides[1],
        "shared_b": across < 0 or not moves(problem, problem.b, across),
        "unrolled": max(2 if single or not schedule.taps else 1, schedule.ahead),
        "whole": vector and bool(checked),
        "checks": checked,
    }


def _slides(problem: ConvolutionProblem, schedule: DirectSchedule, across: int) -> dict[str, object]:
    """The windows that slide along a thread's rows of results, and along its lines of them. Raises ValueError where
    none does."""
    moving = slide(problem, across) if schedule.taps else None
    lines = slide(problem, line_mode(problem, schedule.innermost)) if schedule.items > 1 else None
    if (schedule.taps and moving is None) or (schedule.items > 1 and lines is None):
        raise ValueError("no window slides along the results")
    wide = schedule.wide and lines is not None
    return {
        "taps": schedule.taps,
        "slide": moving,
        "slide_window": problem.a.windows.index(moving.axis) if moving else 0,
        "tap_extent": problem.k[moving.k] if moving else 0,
        "phase": _phase(problem, moving, schedule.taps),
        "items": schedule.items,
        "item_taps": schedule.item_taps,
        "lines": lines,
        "lines_window": problem.a.windows.index(lines.axis) if lines else 0,
        "line_tap_extent": problem.k[lines.k] if lines else 0,
        "line_phase": _phase(problem, lines, schedule.item_taps),
        "wide": wide,
        "lead": -_first(problem, moving, schedule.taps) % schedule.width if wide and moving else 0,
    }


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
        "sums[item][j]" if schedule.items > 1 and innermost else "sums[j][i]",
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
