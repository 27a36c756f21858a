"""This module finds where compiled code multiplies or adds in less than its program says.

It reads the PTX of a source that was written by hand. PTX names the element types of every instruction of
tensor cores (PTX ISA 9, "Warp Level Matrix Instructions" and "Asynchronous Warpgroup Level Matrix
Instructions"), and ptxas narrows none of them. Conversions and arithmetic of single threads are not looked at:
code that only moves or unpacks numbers has the same instructions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ucutlass import ir
from ucutlass.agent.integrity.precision import EXPONENT_BITS, PrecisionLoss, holds, kernels, nodes
from ucutlass.ir.compute_types import FP8
from ucutlass.ir.elements import ELEMENTS, Element

_INSTRUCTION = re.compile(r"\b(wgmma\.mma_async|wmma\.mma|mma)((?:\.sp)?(?:::\w+)?\.[\w.:]*)")

_TYPES = frozenset(
    [
        "f64",
        "f32",
        "tf32",
        "bf16",
        "f16",
        "e5m2",
        "e4m3",
        "e3m2",
        "e2m3",
        "e2m1",
        "s32",
        "s8",
        "u8",
        "s4",
        "u4",
        "b1",
        "ue8m0",
        "ue4m3",
    ]
)
"""Element types that an instruction may name."""


@dataclass(frozen=True, slots=True)
class TensorInstruction:
    """One kind of instruction: `operands` are the types that it multiplies, `sums` those that it adds in and
    writes."""

    name: str
    operands: frozenset[str]
    sums: frozenset[str]


def tensor_instructions(ptx: str) -> tuple[TensorInstruction, ...]:
    """Returns the instructions of tensor cores in a PTX text, each kind once, in the order of their names."""
    names = {m[1] + m[2] for m in _INSTRUCTION.finditer(ptx)}
    return tuple(_instruction(name) for name in sorted(names) if set(name.split(".")) & _TYPES)


def _instruction(name: str) -> TensorInstruction:
    types = [part for part in name.split(".") if part in _TYPES]
    if name.startswith("wgmma"):
        return TensorInstruction(name, frozenset(types[1:]), frozenset(types[:1]))
    if len(types) == 2:  # wmma.mma of f16 names the sums alone
        return TensorInstruction(name, frozenset({"f16"}), frozenset(types))
    return TensorInstruction(name, frozenset(types[1:3]), frozenset({types[0], *types[3:4]}))


def machine_losses(program: ir.Program, ptx: str) -> tuple[PrecisionLoss, ...]:
    """Returns every kind of tensor core instruction that is below the compute types of the program's dots, or
    of a program without one, below the widest of its parameters.

    TF32 is below f32: that several passes make up for it cannot be seen in instructions.
    """
    dots = [node for kernel in kernels(program) for node in nodes(kernel) if isinstance(node, ir.Dot)]
    least = _least(program, dots)
    halves = any(dot.accumulate == "f16" for dot in dots)
    losses = []
    for instruction in tensor_instructions(ptx):
        narrow = sorted(name for name in instruction.operands if not _serves(name, least))
        if narrow:
            losses.append(PrecisionLoss("compute type", instruction.name, "+".join(narrow)))
        elif "f16" in instruction.sums and not halves:
            losses.append(PrecisionLoss("accumulation", instruction.name, "f16"))
    return tuple(losses)


def _least(program: ir.Program, dots: Sequence[ir.Dot]) -> tuple[Element, ...]:
    """Returns the compute types of which an instruction has to hold one."""
    if dots:
        types = {dot.compute_type.name: dot.compute_type for dot in dots}
        fp8 = tuple(sorted(FP8, key=lambda e: e.name)) if set(types.values()) & FP8 else ()
        return (*types.values(), *fp8)
    floats = [
        param.type.elem
        for kernel in kernels(program)
        for param in kernel.params
        if param.type.elem.kind == "float"
    ]
    return tuple(sorted(floats, key=lambda e: (e.bits, e.mantissa))[-1:])


def _serves(name: str, least: Sequence[Element]) -> bool:
    elem = ELEMENTS.get(name)
    if elem is None or (elem.kind == "float" and name not in EXPONENT_BITS):
        return False
    return any(holds(elem, other) for other in least)
