"""Fresh random arguments for a program: every seed and distribution gives others.

Coordinates of gathers, offsets of segments and scalars get valid values of their own kind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from ucutlass.elements import Element
from ucutlass.ir import (
    Cast,
    Dot,
    Gather,
    Kernel,
    ParamValue,
    Pipeline,
    Program,
    Read,
    ScalarType,
    Segment,
    TensorType,
    Value,
    children,
)
from ucutlass.reference.accumulation import ACCUMULATORS
from ucutlass.reference.binding import shape_of
from ucutlass.reference.interpreter import Argument
from ucutlass.reference.rounding import FORMATS, RANGES, outer_dtype, store
from ucutlass.shapes import complete

Distribution: TypeAlias = Literal["normal", "uniform", "integer", "positive", "zeros", "one_hot", "wide"]
"""`normal`: variance 1. `uniform`: -1 to 1. `integer`: small whole numbers, sparse where needed, whose
dots no accumulator rounds, so that the bound is 0 and results must be equal bit by bit.
`positive`: 4 to 8, sums without cancellation. `one_hot`: a single 1 in each row of the last axis.
`wide`: normal times powers of two from 2**-8 to 2**8, as far as the element reaches."""

DISTRIBUTIONS: tuple[Distribution, ...] = (
    "normal", "uniform", "integer", "positive", "zeros", "one_hot", "wide",
)


@dataclass(frozen=True, slots=True)
class Role:
    """What the program does with a parameter. `below`: its values are coordinates along that
    dimension; `offsets_of`: it cuts that dimension into segments; `exact`: it meets a dot whose
    accumulator adds integers up to this exactly; `over`: that dot's summed dimensions."""

    below: str | None = None
    offsets_of: str | None = None
    exact: float = math.inf
    over: tuple[str, ...] = ()


def generate(
    program: Program,
    sizes: Mapping[str, int],
    distribution: Distribution = "normal",
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    scalars: Mapping[str, float] | None = None,
) -> list[Argument]:
    """One argument per parameter. `sizes` gives the free dimensions by name; scalars are 0.5 or 1
    unless `scalars` names them. The same seed gives the same numbers on every device.

    Raises ShapeError where `sizes` does not fit the program.
    """
    full = dict(zip(program.dims, complete(program, sizes), strict=True))
    roles = roles_of(program)
    random = torch.Generator().manual_seed(seed)
    out: list[Argument] = []
    for decl in program.params:
        match decl.type:
            case ScalarType(elem):
                number = (scalars or {}).get(decl.name, 0.5 if elem.kind == "float" else 1)
                out.append(number if elem.kind == "float" else int(number))
            case TensorType():
                made = _tensor(decl.type, roles.get(decl.name, Role()), full, distribution, random)
                out.append(made.to(device))
    return out


# --- roles ---------------------------------------------------------------------------


def roles_of(program: Program) -> dict[str, Role]:
    """By parameter name; parameters without one are plain numbers."""
    match program:
        case Kernel():
            return _kernel_roles(program)
        case Pipeline():
            found: dict[str, Role] = {}
            for stage in program.stages:
                if isinstance(stage.call, Kernel):
                    inner = _kernel_roles(stage.call)
                    pairs = zip(stage.call.params, stage.arguments, strict=True)
                    found |= {a: inner[p.name] for p, a in pairs if isinstance(a, str) and p.name in inner}
            return found


def _kernel_roles(kernel: Kernel) -> dict[str, Role]:
    found: dict[str, Role] = {}
    seen: set[Value] = set()

    def mark(value: Value, role: Role) -> None:
        while isinstance(value, (Cast, Read)) or (isinstance(value, Gather) and role.over):
            value = value.value
        if isinstance(value, ParamValue):
            found[kernel.params[value.index].name] = role

    def visit(node: Value) -> None:
        if node in seen:
            return
        seen.add(node)
        match node:
            case Gather(dim=dim, ids=ids):
                mark(ids, Role(below=dim))
            case Segment(dim=dim, offsets=offsets):
                mark(offsets, Role(offsets_of=dim))
            case Dot(lane=lane, accumulate=accumulate, over=over, left=left, right=right):
                known = ACCUMULATORS.get((lane.name, accumulate))
                for side in (left, right):
                    mark(side, Role(exact=known.exact if known else math.inf, over=over))
        for child in children(node):
            visit(child)

    for result in kernel.results:
        visit(result.value)
    return found


# --- numbers -------------------------------------------------------------------------


def _tensor(
    kind: TensorType,
    role: Role,
    sizes: Mapping[str, int],
    distribution: Distribution,
    random: torch.Generator,
) -> Tensor:
    shape = shape_of(kind, sizes)
    dtype = outer_dtype(kind.elem)
    if role.below is not None:
        return torch.randint(0, sizes[role.below], shape, generator=random).to(dtype)
    if role.offsets_of is not None:
        return _offsets(shape, sizes[role.offsets_of], random).to(dtype)
    match kind.elem.kind:
        case "bool":
            return torch.randint(0, 2, shape, generator=random).bool()
        case "int":
            return _integers(kind.elem, shape, distribution, random).to(dtype)
        case "float" if distribution == "integer":
            return store(_exact(kind, role, sizes, random), kind.elem)
        case "float":
            return store(_floats(kind.elem, shape, distribution, random), kind.elem)


def _offsets(shape: Sequence[int], extent: int, random: torch.Generator) -> Tensor:
    """Rising from 0 to the extent; empty and uneven groups occur."""
    count = math.prod(shape)
    inner = torch.randint(0, extent + 1, (max(count - 2, 0),), generator=random).sort().values
    return torch.cat((torch.tensor([0]), inner, torch.tensor([extent])))[:count].reshape(tuple(shape))


def _integers(
    elem: Element, shape: Sequence[int], distribution: Distribution, random: torch.Generator
) -> Tensor:
    low, high = RANGES[elem.name]
    low, high = max(low, -1000), min(high, 1000)
    match distribution:
        case "zeros":
            return torch.zeros(tuple(shape), dtype=torch.int64)
        case "one_hot":
            return _one_hot(shape, random).to(torch.int64)
        case "positive":
            return torch.randint(high // 2, high + 1, tuple(shape), generator=random)
        case _:
            return torch.randint(low, high + 1, tuple(shape), generator=random)


def _floats(
    elem: Element, shape: Sequence[int], distribution: Distribution, random: torch.Generator
) -> Tensor:
    size = tuple(shape)
    match distribution:
        case "normal":
            return torch.randn(size, generator=random, dtype=torch.float64)
        case "uniform":
            return torch.rand(size, generator=random, dtype=torch.float64) * 2 - 1
        case "positive":
            return torch.rand(size, generator=random, dtype=torch.float64) * 4 + 4
        case "one_hot":
            return _one_hot(shape, random)
        case "wide":
            reach = min(8, -FORMATS[elem.name].smallest // 2) if elem.name in FORMATS else 8
            powers = torch.randint(-reach, reach + 1, size, generator=random).to(torch.float64)
            return torch.randn(size, generator=random, dtype=torch.float64) * 2.0**powers
        case _:
            return torch.zeros(size, dtype=torch.float64)


def _one_hot(shape: Sequence[int], random: torch.Generator) -> Tensor:
    out = torch.zeros(tuple(shape), dtype=torch.float64)
    if not shape or not out.numel():
        return out + 1
    rows = out.reshape(-1, shape[-1])
    rows[torch.arange(len(rows)), torch.randint(0, shape[-1], (len(rows),), generator=random)] = 1.0
    return out


def _exact(kind: TensorType, role: Role, sizes: Mapping[str, int], random: torch.Generator) -> Tensor:
    """Whole numbers of at most 4 whose dot cannot reach the accumulator's limit: smaller ones for
    long dots, then zeros along the summed dimensions."""
    shape = shape_of(kind, sizes)
    steps = math.prod(sizes[d] for d in role.over)
    room = role.exact / max(steps, 1)
    largest = max(1, min(4, math.isqrt(int(room)))) if math.isfinite(room) else 4
    values = torch.randint(-largest, largest + 1, tuple(shape), generator=random).to(torch.float64)
    if room >= 1:
        return values
    named = [sizes[d] for d in kind.dims]
    return (values.reshape(named or [1]) * _thinned(kind, role, sizes, room, random)).reshape(tuple(shape))


def _thinned(
    kind: TensorType, role: Role, sizes: Mapping[str, int], room: float, random: torch.Generator
) -> Tensor:
    """1 for as many coordinates of the longest summed dimension as there is room for, else 0."""
    longest = max(role.over, key=lambda d: sizes[d])
    keep = max(1, int(sizes[longest] * room))
    mask = torch.zeros(sizes[longest], dtype=torch.float64)
    mask[torch.randperm(sizes[longest], generator=random)[:keep]] = 1.0
    return mask.reshape([-1 if d == longest else 1 for d in kind.dims])
