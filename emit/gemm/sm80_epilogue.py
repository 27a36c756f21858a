"""What the templates of the multistage GEMM and of the matrix-vector product share: the
problem's parameters, and the epilogue that takes accumulators from shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ucutlass.emit.arithmetic import ArithmeticText, kind_of, taken
from ucutlass.emit.functions import CPP
from ucutlass.emit.text import product
from ucutlass.kernels.access import Access, Output, Reduction, Store, Stride
from ucutlass.kernels.gemm.plan import GemmProblem

ContiguousMode = Literal["m", "n"]


@dataclass(frozen=True, slots=True)
class EpilogueLayout:
    """Neighbouring threads take neighbouring elements along `contiguous_mode`, `width` each."""

    contiguous_mode: ContiguousMode
    width: int


@dataclass(frozen=True, slots=True)
class EpilogueArgument:
    """An epilogue operand or result as the templates read it; strides are C++ expressions.

    `value` is the C++ type in the arithmetic, `axis_stride` how neighbours lie, `vector` how many of
    them one access moves. The rest is a reduction's: `op`, what it keeps (`keep_m`, `keep_n`,
    bits of `batch_mask`), extents kept and parts to combine, `bytes` of a staged value, and
    `offset`, where its stage begins, in bytes for every staged element.
    """

    index: int
    cpp: str
    value: str
    pointer: int
    m: str
    n: str
    batch: tuple[str, ...]
    axis_stride: str
    vector: int
    stored: bool = True
    op: str = ""
    keep_m: bool = True
    keep_n: bool = True
    batch_mask: int = 0
    kept_batches: str = "1"
    kept: str = "1"
    parts: str = "1"
    bytes: int = 0
    offset: int = 0


def stride(value: Stride) -> str:
    """A stride as C++ over the entry's extent array; "0" for a mode not ranged over."""
    return "0" if value is None else product(value)


def batch_strides(access: Access) -> tuple[str, ...]:
    """One for every batch mode; a problem without any has one of extent 1."""
    return tuple(stride(s) for s in access.batch) or ("0",)


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix operand as the templates read it; strides are C++ expressions."""

    cpp: str
    pointer: int
    row: str
    k: tuple[str, ...]
    batch: tuple[str, ...]


def matrix(access: Access, row: Stride) -> Matrix:
    """A matrix operand whose rows lie `row` apart: along M for A, along N for B."""
    strides = tuple(stride(s) for s in access.k)
    return Matrix(access.elem.cpp, access.pointer, stride(row), strides, batch_strides(access))


def layout(problem: GemmProblem) -> EpilogueLayout:
    """Along M if the first tensor over both modes, results first, is contiguous there; else N.

    The width is what 16 bytes of the widest-aligned result hold, at most 8 elements.
    """
    accesses = [output.access for output in problem.outputs] + list(problem.inputs)
    full = (a.contiguous for a in accesses if a.shape == "full")
    contiguous_mode: ContiguousMode = next((mode for mode in full if mode in ("m", "n")), "n")
    stored = (o.access for o in problem.outputs if isinstance(o, Store))
    widths = [min(a.align, 16 // a.elem.bytes, 8) for a in stored if a.contiguous == contiguous_mode]
    return EpilogueLayout(contiguous_mode, max(widths, default=1))


def slots(problem: GemmProblem, how: EpilogueLayout) -> tuple[EpilogueArgument, ...]:
    """The epilogue's operands."""
    return tuple(_slot(i, access, how) for i, access in enumerate(problem.inputs))


def reductions(problem: GemmProblem) -> tuple[EpilogueArgument, ...]:
    """The results that are reductions."""
    return tuple(slot for slot in results(problem, layout(problem)) if not slot.stored)


def results(problem: GemmProblem, how: EpilogueLayout) -> tuple[EpilogueArgument, ...]:
    """The epilogue's results; every reduction's stage lies behind those of the ones before."""
    arguments: list[EpilogueArgument] = []
    offset = 4
    for i, output in enumerate(problem.outputs):
        arguments.append(_result(i, output, how, offset))
        offset += arguments[-1].bytes
    return tuple(arguments)


ROW = "int(first_m) + m"
"""A row's coordinate as C++, where a tile's rows are neighbours."""


def values(
    problem: GemmProblem, how: EpilogueLayout, spell: ArithmeticText, row: str = ROW
) -> Mapping[str, object]:
    """The templates' variables that describe the problem and the epilogue. `row` is the coordinate of a row
    as C++."""
    inputs, outputs = slots(problem, how), results(problem, how)
    step_m, step_n = (" + i", "") if how.contiguous_mode == "m" else ("", " + i")
    coordinates = [f"{row}{step_m}", f"int(tile.n) + n{step_n}"]
    coordinates += [f"int(batch[{i}])" for i in range(len(problem.batch))]
    call = spell.call(
        "p.arithmetic",
        coordinates if spell.coordinates else ["0"] * len(coordinates),
        "sums[i]",
        [f"in{slot.index}[i]" for slot in inputs],
        [f"out{slot.index}[i]" for slot in outputs],
    )
    return {
        "contiguous_mode": how.contiguous_mode,
        "width": how.width,
        "contracted": len(problem.k),
        "batch_modes": max(1, len(problem.batch)),
        "arithmetic": spell.text,
        "coordinates": spell.coordinates,
        "call": call,
        "inputs": inputs,
        "outputs": outputs,
        "reads": bool(inputs),
        "stores": any(slot.stored for slot in outputs),
        "reductions": [slot for slot in outputs if not slot.stored],
        "m": product(problem.m),
        "n": product(problem.n),
        "k": [product(extent) for extent in problem.k],
        "batch": [product(extent) for extent in problem.batch] or ["1"],
        "dims": problem.dims,
        "checks": _checks(problem),
    }


def _slot(index: int, access: Access, how: EpilogueLayout) -> EpilogueArgument:
    step = access.n if how.contiguous_mode == "n" else access.m
    kind = (
        "kBroadcast" if step is None else "kUnit" if access.contiguous == how.contiguous_mode else "kStride"
    )
    return EpilogueArgument(
        index=index,
        cpp=access.elem.cpp,
        value=CPP[kind_of(access.elem)],
        pointer=access.pointer,
        m=stride(access.m),
        n=stride(access.n),
        batch=batch_strides(access),
        axis_stride=kind,
        vector=min(access.align, 16 // access.elem.bytes, how.width) if kind == "kUnit" else 1,
    )


def _result(index: int, output: Output, how: EpilogueLayout, offset: int) -> EpilogueArgument:
    access = output.access
    slot = _slot(index, access, how)
    match output:
        case Store():
            return slot
        case Reduction(op):
            keep_m, keep_n = access.m is not None, access.n is not None
            kept_batch = [i for i, s in enumerate(access.batch) if s is not None]
            parts = {
                (True, True): "1",
                (True, False): "tiles_n",
                (False, True): "row_parts",
                (False, False): "row_parts * tiles_n",
            }[keep_m, keep_n]
            kind = taken(output)
            value = "int32_t" if kind == "bool" else CPP[kind]
            extents = [extent for extent, keep in (("p.m", keep_m), ("p.n", keep_n)) if keep]
            return replace(
                slot,
                value=value,
                vector=1,
                stored=False,
                op={"sum": "Add", "max": "Maximum", "min": "Minimum"}[op],
                keep_m=keep_m,
                keep_n=keep_n,
                batch_mask=sum(1 << i for i in kept_batch),
                kept_batches=" * ".join(f"p.batch[{i}]" for i in kept_batch) or "1",
                kept=" * ".join(extents) or "1",
                parts=parts,
                bytes=0 if keep_m and keep_n else 8 if value == "int64_t" else 4,
                offset=offset,
            )


def _checks(problem: GemmProblem) -> list[Mapping[str, object]]:
    """Alignments that the code relies on and the entry checks."""
    named = [("p.a", problem.a), ("p.b", problem.b)]
    named += [(f"p.input{i}", access) for i, access in enumerate(problem.inputs)]
    named += [(f"p.output{i}", output.access) for i, output in enumerate(problem.outputs)]
    return [
        {"data": f"{name}.data", "align": access.align, "strides": _other_strides(access)}
        for name, access in named
        if access.align > 1 and access.contiguous
    ]


def _other_strides(access: Access) -> list[str]:
    """Every stride but the unit one of the contiguous mode."""
    unit = access.contiguous
    strides: list[Stride] = [*access.batch, *(access.k if unit != "k" else access.k[:-1])]
    strides += [s for name, s in (("m", access.m), ("n", access.n)) if name != unit]
    return [product(s) for s in strides if s is not None]
