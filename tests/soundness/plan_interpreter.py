"""A plain interpreter of GemmProblem: flat memory, addresses from strides, no schedule.

Every element is read and written through the accesses of the plan alone, so whatever recognition
made of a program (roles, merged modes, strides, the order of pointers and scalars) must be right
for the numbers to be. Values are float64, int64 or bool; only casts of the program round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ucutlass.ir.elements import F32, I32, TF32
from ucutlass.ir.functions import FUNCTIONS
from ucutlass.kernels.access import Access, Output, Product, Reduction, Store, Stride
from ucutlass.kernels.arithmetic import (
    Accumulator,
    Compute,
    CoordinateValue,
    ExtentValue,
    HostScalar,
    Instruction,
    LiteralValue,
    LoadSlot,
    Round,
    ScalarKind,
)
from ucutlass.kernels.gemm.plan import GemmProblem
from ucutlass.reference.rounding import cast, wrap

KINDS: Mapping[ScalarKind, torch.dtype] = {
    "f32": torch.float64,
    "i32": torch.int64,
    "i64": torch.int64,
    "bool": torch.bool,
}


def extent(product: Product, sizes: Sequence[int]) -> int:
    return math.prod(sizes[i] for i in product)


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """What one output receives: a value for each address, in elements from the tensor's first."""

    output: Output
    addresses: Tensor
    values: Tensor


def addresses(problem: GemmProblem, access: Access, modes: str, sizes: Sequence[int]) -> Tensor:
    """The address of each coordinate: axes are the batch modes, then those of `modes` (of "mnk";
    k stands for all its modes), extent 1 along modes that the access does not range over."""
    axes: list[tuple[Product, Stride]] = list(zip(problem.batch, access.batch, strict=True))
    for mode in modes:
        match mode:
            case "m":
                axes.append((problem.m, access.m))
            case "n":
                axes.append((problem.n, access.n))
            case _:
                axes += zip(problem.k, access.k or (None,) * len(problem.k), strict=True)
    total = torch.zeros((1,) * len(axes), dtype=torch.int64)
    for i, (mode_extent, stride) in enumerate(axes):
        if stride is not None:
            line = torch.arange(extent(mode_extent, sizes)) * extent(stride, sizes)
            total = total + line.reshape([-1 if j == i else 1 for j in range(len(axes))])
    return total


def interpret(
    problem: GemmProblem, sizes: Sequence[int], memory: Sequence[Tensor], scalars: Sequence[float]
) -> list[Written]:
    """The problem's outputs. `memory` holds the input tensors by pointer, each flat.

    Raises IndexError for an address outside its tensor.
    """
    accumulated = _dot(problem, sizes, memory)
    values: list[Tensor] = []
    for instruction in problem.arithmetic.instructions:
        tensor = _step(instruction, problem, sizes, memory, scalars, accumulated, values)
        assert tensor.dtype == KINDS[instruction.kind], instruction
        values.append(tensor)
    shape = [extent(p, sizes) for p in (*problem.batch, problem.m, problem.n)]
    return [
        _write(problem, output, values[i].expand(shape), sizes)
        for output, i in zip(problem.outputs, problem.arithmetic.results, strict=True)
    ]


def _read(memory: Sequence[Tensor], access: Access, at: Tensor) -> Tensor:
    tensor = memory[access.pointer]
    if int(at.max()) >= tensor.numel():
        raise IndexError(f"pointer {access.pointer} is read at {int(at.max())} of {tensor.numel()} elements")
    return tensor[at]


def _dot(problem: GemmProblem, sizes: Sequence[int], memory: Sequence[Tensor]) -> Tensor:
    sides = []
    for access, modes in ((problem.a, "mk"), (problem.b, "nk")):
        at = addresses(problem, access, modes, sizes)
        full = [
            *at.shape[: len(problem.batch)],
            at.shape[len(problem.batch)],
            math.prod(extent(p, sizes) for p in problem.k),
        ]
        at = at.expand([*at.shape[: len(problem.batch) + 1], *(extent(p, sizes) for p in problem.k)])
        value = _read(memory, access, at.reshape(full)).to(torch.float64)
        sides.append(cast(value, TF32) if problem.compute_type == TF32 else value)
    return sides[0] @ sides[1].transpose(-1, -2)


def _step(
    instruction: Instruction,
    problem: GemmProblem,
    sizes: Sequence[int],
    memory: Sequence[Tensor],
    scalars: Sequence[float],
    accumulated: Tensor,
    values: Sequence[Tensor],
) -> Tensor:
    dtype = KINDS[instruction.kind]
    match instruction:
        case Accumulator(kind):
            return _wrapped(accumulated.to(dtype), kind)
        case LoadSlot(slot):
            access = problem.inputs[slot]
            return _read(memory, access, addresses(problem, access, "mn", sizes)).to(dtype)
        case HostScalar(index):
            return torch.tensor(scalars[index], dtype=dtype)
        case LiteralValue(number):
            return torch.tensor(number, dtype=dtype)
        case ExtentValue(product):
            return torch.tensor(extent(product, sizes), dtype=dtype)
        case CoordinateValue(mode, batch, inner, outer):
            modes = (*problem.batch, problem.m, problem.n)
            axis = {"m": len(modes) - 2, "n": len(modes) - 1, "batch": batch}[mode]
            line = torch.arange(extent(modes[axis], sizes))
            line = line // extent(inner, sizes) % extent(outer, sizes)
            return line.reshape([-1 if i == axis else 1 for i in range(len(modes))]).to(dtype)
        case Compute(function, args):
            return _wrapped(_compute(function, [values[i] for i in args]).to(dtype), instruction.kind)
        case Round(arg, elem):
            # Widening an integer to f32 rounds in a kernel; the typed program leaves it exact.
            exact = elem == F32 and values[arg].dtype != torch.float64
            return (values[arg] if exact else cast(values[arg], elem)).to(dtype)


def _wrapped(value: Tensor, kind: ScalarKind) -> Tensor:
    return wrap(value, I32) if kind == "i32" else value


def _compute(function: str, args: Sequence[Tensor]) -> Tensor:
    """The function by the one table; an integer divided by 0 is 0, as `ucutlass.reference` settles."""
    spec = FUNCTIONS[function]
    missing = len(spec.parameters) - len(args)
    defaults = spec.defaults[len(spec.defaults) - missing :]
    args = [*args, *(torch.tensor(d, dtype=torch.float64) for d in defaults)]
    if function in ("floor_divide", "modulo") and args[1].dtype == torch.int64:
        none = args[1] == 0
        return torch.where(none, 0, spec.reference(args[0], torch.where(none, 1, args[1])))
    return spec.reference(*args)


def _write(problem: GemmProblem, output: Output, value: Tensor, sizes: Sequence[int]) -> Written:
    at = addresses(problem, output.access, "mn", sizes)
    match output:
        case Store():
            return Written(output, at.expand(value.shape).reshape(-1), value.reshape(-1))
        case Reduction(op=op):
            axes = [i for i, (a, v) in enumerate(zip(at.shape, value.shape, strict=True)) if a != v]
            if axes:
                value = {
                    "sum": lambda: value.sum(axes, keepdim=True),
                    "max": lambda: value.amax(axes, keepdim=True),
                    "min": lambda: value.amin(axes, keepdim=True),
                }[op]()
            return Written(output, at.reshape(-1), value.reshape(-1))
