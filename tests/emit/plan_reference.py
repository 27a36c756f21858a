"""Runs a GemmPlan through its entry and computes what it must give, both from the plan alone.

Tensors are torch's, on any device: the entry may be a kernel on a GPU or its emulation on the
host. Strides come from the accesses, evaluated for one choice of extents.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ucutlass.ir.elements import Element
from ucutlass.ir.functions import FUNCTIONS
from ucutlass.kernels.access import Access, Product, Reduction, Store
from ucutlass.kernels.arithmetic import (
    Accumulator,
    Compute,
    CoordinateValue,
    ExtentValue,
    HostScalar,
    LiteralValue,
    LoadSlot,
    Round,
)
from ucutlass.kernels.gemm.plan import GemmPlan, GemmProblem, LaunchParameters

GUARD = 64
"""Elements before and after every tensor that a kernel must leave alone."""

DEFAULT = LaunchParameters()


@dataclass(frozen=True)
class Buffer:
    """A tensor's memory: `flat` holds it and the guards, `strides` are those of the modes."""

    access: Access
    flat: torch.Tensor
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def view(self) -> torch.Tensor:
        """(batch.., m, n, k..) with stride 0 in modes it does not range over."""
        return self.flat.as_strided(self.shape, self.strides, GUARD)

    @property
    def address(self) -> int:
        return self.flat.data_ptr() + GUARD * self.flat.element_size()


def extent(product: Product, sizes: Sequence[int]) -> int:
    return math.prod(sizes[i] for i in product)


def _buffer(problem: GemmProblem, access: Access, sizes: Sequence[int], device: str, fill: str) -> Buffer:
    modes = [*problem.batch, problem.m, problem.n, *(problem.k if access.k else ())]
    strides = [*access.batch, access.m, access.n, *access.k]
    shape = tuple(extent(m, sizes) for m in modes)
    numbers = tuple(0 if s is None else extent(s, sizes) for s in strides)
    count = 1 + sum((n - 1) * s for n, s in zip(shape, numbers, strict=True))
    made = _fill(count + 2 * GUARD, access.elem, fill, access.pointer).to(device)
    return Buffer(access, made, shape, numbers)


def _fill(count: int, elem: Element, fill: str, seed: int) -> torch.Tensor:
    dtype = getattr(torch, elem.torch or "float32")
    generator = torch.Generator().manual_seed(seed)
    if fill == "poison":
        return torch.full((count,), 0x5A, dtype=torch.uint8).repeat_interleave(elem.bytes).view(dtype)
    if elem.kind == "bool":
        return torch.randint(0, 2, (count,), generator=generator).to(dtype)
    if fill == "integers" or elem.kind == "int":
        return torch.randint(-4, 5, (count,), generator=generator).to(torch.float32).to(dtype)
    return torch.randn((count,), generator=generator).to(dtype)


@dataclass(frozen=True)
class Run:
    """One launch: its buffers by pointer, and the results expected in float64."""

    buffers: tuple[Buffer, ...]
    expected: tuple[torch.Tensor, ...]
    code: int


def run(
    entry: Any,
    plan: GemmPlan,
    sizes: Sequence[int],
    launch_parameters: LaunchParameters = DEFAULT,
    scalars: Sequence[float] = (),
    device: str = "cpu",
    fill: str = "integers",
    stream: int = 0,
) -> Run:
    """Calls the entry (a ctypes function) on fresh tensors and gives them with the expected results."""
    problem = plan.problem
    read = [problem.a, problem.b, *problem.inputs]
    accesses = {a.pointer: (a, fill) for a in read}
    accesses |= {o.access.pointer: (o.access, "poison") for o in problem.outputs}
    buffers = [_buffer(problem, access, sizes, device, how) for _, (access, how) in sorted(accesses.items())]
    expected = reference(problem, buffers, sizes, scalars)
    code = call(entry, [b.address for b in buffers], sizes, scalars, launch_parameters, device, stream)
    return Run(tuple(buffers), tuple(expected), code)


def call(
    entry: Any,
    addresses: Sequence[int],
    sizes: Sequence[int],
    scalars: Sequence[float],
    launch_parameters: LaunchParameters,
    device: str,
    stream: int,
) -> int:
    """Asks for the workspace, allocates it, launches."""
    pointers = (ctypes.c_void_p * len(addresses))(*addresses)
    extents = (ctypes.c_int64 * len(sizes))(*sizes)
    numbers = (ctypes.c_double * max(1, len(scalars)))(*scalars)
    chosen = (ctypes.c_int64 * 3)(
        launch_parameters.raster, launch_parameters.swizzle, launch_parameters.splits
    )
    size = ctypes.c_uint64(0)
    code = int(entry(pointers, extents, numbers, chosen, None, ctypes.byref(size), None))
    if code:
        return code
    workspace = torch.full((size.value + 256,), 0xFF, dtype=torch.uint8, device=device)
    address = (workspace.data_ptr() + 255) // 256 * 256
    given = ctypes.c_void_p(address if size.value else None)
    code = int(entry(pointers, extents, numbers, chosen, given, None, ctypes.c_void_p(stream)))
    if device != "cpu":
        torch.cuda.synchronize()
    return code


def reference(
    problem: GemmProblem, buffers: Sequence[Buffer], sizes: Sequence[int], scalars: Sequence[float]
) -> list[torch.Tensor]:
    """The results in float64, each of shape (batch.., m, n) with 1 for reduced modes."""
    batch = len(problem.batch)
    contracted = tuple(range(batch + 2, batch + 2 + len(problem.k)))
    # An operand's view has the other operand's mode too, with stride 0: it goes before the copy is made.
    a = buffers[problem.a.pointer].view.select(batch + 1, 0).to(torch.float64)
    b = buffers[problem.b.pointer].view.select(batch, 0).to(torch.float64)
    if problem.compute_type.name == "tf32":
        a, b = _tf32(a), _tf32(b)
    letters = [*range(batch), batch, batch + 1, *contracted]
    of_a = [i for i in letters if i != batch + 1]
    of_b = [i for i in letters if i != batch]
    dot = torch.einsum(a, of_a, b, of_b, letters[: batch + 2])
    values: list[torch.Tensor] = []
    shape = dot.shape
    for instruction in problem.arithmetic.instructions:
        match instruction:
            case Accumulator():
                value = dot
            case LoadSlot(slot):
                value = buffers[problem.inputs[slot].pointer].view.to(torch.float64)
            case HostScalar(index):
                value = torch.tensor(scalars[index], dtype=torch.float64)
            case LiteralValue(number):
                value = torch.tensor(number, dtype=torch.float64)
            case ExtentValue(product):
                value = torch.tensor(extent(product, sizes), dtype=torch.float64)
            case CoordinateValue(mode, which, inner, outer):
                axis = {"m": batch, "n": batch + 1, "batch": which}[mode]
                line = torch.arange(shape[axis]) // extent(inner, sizes) % extent(outer, sizes)
                value = line.to(torch.float64).reshape([-1 if i == axis else 1 for i in range(batch + 2)])
            case Compute(function, args):
                value = FUNCTIONS[function].reference(*(values[i] for i in args)).to(torch.float64)
            case Round(arg, elem):
                value = values[arg].to(getattr(torch, elem.torch or "float32")).to(torch.float64)
        values.append(value.to(dot.device))
    results = zip(problem.arithmetic.results, problem.outputs, strict=True)
    return [_result(values[i].expand(shape), output) for i, output in results]


def _result(value: torch.Tensor, output: Store | Reduction) -> torch.Tensor:
    if isinstance(output, Store):
        return value
    strides = [*output.access.batch, output.access.m, output.access.n]
    axes = [i for i, s in enumerate(strides) if s is None]
    if not axes:
        return value
    match output.op:
        case "sum":
            return value.sum(axes, keepdim=True)
        case "max":
            return value.amax(axes, keepdim=True)
        case "min":
            return value.amin(axes, keepdim=True)


def _tf32(x: torch.Tensor) -> torch.Tensor:
    bits = x.to(torch.float32).view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32).to(torch.float64)


def worst(run: Run, problem: GemmProblem) -> list[float]:
    """The largest absolute error of each result, as stored; infinite where a guard was hit or
    elements between the result's own were written."""
    results = zip(problem.outputs, run.expected, strict=True)
    return [_worst(run.buffers[output.access.pointer], expected) for output, expected in results]


def _worst(buffer: Buffer, expected: torch.Tensor) -> float:
    strides = buffer.strides[: expected.dim()]
    actual = buffer.flat.as_strided(expected.shape, strides, GUARD).to(torch.float64)
    bits = buffer.flat.view(torch.uint8).reshape(-1, buffer.flat.element_size()).clone()
    places = torch.arange(bits.shape[0], device=bits.device).as_strided(expected.shape, strides, GUARD)
    bits[places.reshape(-1)] = 0x5A
    if bool((bits != 0x5A).any()):
        return math.inf
    wanted = _stored(expected, buffer.flat.dtype)
    same = (actual == wanted) | (actual.isnan() & wanted.isnan())
    return float(
        torch.where(same, torch.zeros_like(actual), (actual - wanted).abs().nan_to_num(math.inf)).max()
    )


def _stored(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What storing makes of it: rounding; integers and 8-bit floats saturate, as in a kernel."""
    if not dtype.is_floating_point and dtype != torch.bool:
        limits = torch.iinfo(dtype)
        value = value.round().clamp(limits.min, limits.max)
    if dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        value = value.clamp(torch.finfo(dtype).min, torch.finfo(dtype).max)
    return value.to(dtype).to(torch.float64)
