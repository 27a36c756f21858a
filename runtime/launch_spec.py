"""Describes what a compiled kernel's calls take and return: the launcher's view of a typed kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from ucutlass.ir import Kernel, Program, ScalarType, TensorType
from ucutlass.ir.elements import Element
from ucutlass.ir.extents import Extent, Fixed, evaluate

NAMELESS = Fixed(1)
"""The extent of an axis written `1`."""


@dataclass(frozen=True, slots=True)
class SlotAxis:
    """One axis in memory: the positions of its dimensions in `LaunchSpec.dims`, outer first.

    A nameless axis has none and `extent` says its length; otherwise `extent` is not read.
    """

    dims: tuple[int, ...]
    extent: Extent = NAMELESS


@dataclass(frozen=True, slots=True)
class TensorSlot:
    """A dense tensor; the last axis is contiguous. `name` is "" for a single unnamed result."""

    name: str
    elem: Element
    axes: tuple[SlotAxis, ...]


@dataclass(frozen=True, slots=True)
class ScalarSlot:
    """A number that the host passes by value."""

    name: str
    elem: Element


LaunchSlot: TypeAlias = TensorSlot | ScalarSlot


@dataclass(frozen=True, slots=True)
class Requirement:
    """A condition on extents that the program states: its text, and whether it holds for the
    extents by name."""

    text: str
    holds: Callable[[Mapping[str, int]], bool]


@dataclass(frozen=True, slots=True)
class SegmentOffsets:
    """The tensor parameter at place `tensor` cuts the dimension at place `dim` of `dims` into segments."""

    tensor: int
    dim: int


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """What a call must bring and gets. `dims` gives every dimension's name and extent in the order
    of the binary interface's extent array; `device` is the torch device type; `offsets` are those that
    every call looks at before it launches."""

    name: str
    dims: tuple[tuple[str, Extent], ...]
    params: tuple[LaunchSlot, ...]
    results: tuple[TensorSlot, ...]
    requires: tuple[Requirement, ...] = ()
    device: str = "cuda"
    offsets: tuple[SegmentOffsets, ...] = ()


def spec_of(program: Program, requires: Sequence[Requirement] = (), device: str = "cuda") -> LaunchSpec:
    """Returns what a typed program's calls must bring. `requires` are its own conditions, made callable by
    the caller."""
    order = {name: i for i, name in enumerate(program.dims)}

    def tensor(name: str, type_: TensorType) -> TensorSlot:
        return TensorSlot(
            name, type_.elem, tuple(SlotAxis(tuple(order[d] for d in a.dims), a.extent) for a in type_.axes)
        )

    def slot(name: str, type_: TensorType | ScalarType) -> LaunchSlot:
        return tensor(name, type_) if isinstance(type_, TensorType) else ScalarSlot(name, type_.elem)

    return LaunchSpec(
        name=program.name,
        dims=tuple(program.dims.items()),
        params=tuple(slot(p.name, p.type) for p in program.params),
        results=tuple(tensor(name, type_) for name, type_ in results_of(program)),
        requires=tuple(requires),
        device=device,
    )


def results_of(program: Program) -> tuple[tuple[str, TensorType], ...]:
    """Returns each result's name, "" for a single unnamed one, and type."""
    if isinstance(program, Kernel):
        return tuple((r.name, r.type) for r in program.results)
    return tuple((name.removeprefix("return").lstrip(), type_) for name, type_ in program.results)


def shape_of(spec: LaunchSpec, slot: TensorSlot, extents: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape a tensor must have for these extents."""
    sizes = {name: value for (name, _), value in zip(spec.dims, extents, strict=True)}
    return tuple(length_of(spec, axis, sizes) for axis in slot.axes)


def length_of(spec: LaunchSpec, axis: SlotAxis, sizes: Mapping[str, int]) -> int:
    """Returns the number of elements along an axis, given the extents by name."""
    if not axis.dims:
        return evaluate(axis.extent, sizes)
    return math.prod(sizes[spec.dims[d][0]] for d in axis.dims)


def dtype_of(elem: Element) -> torch.dtype:
    """Returns the dtype of tensors of this element, or of their bytes where several lie in one."""
    dtype: torch.dtype = getattr(torch, elem.torch)
    return dtype
