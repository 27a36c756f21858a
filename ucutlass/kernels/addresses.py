"""How named tensors lie in memory: strides as products of extents, runs of names that merge."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ucutlass import ir
from ucutlass.grammar.syntax import Span
from ucutlass.ir.elements import Element
from ucutlass.ir.extents import Fixed
from ucutlass.kernels.access import Access, Product, Stride
from ucutlass.kernels.refused import Refused


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor as the problem's names see it: `order` lists them outermost first. Where the tensor is read at one
    coordinate of some axes, these are "" there, `axes` has the names of all axes' extents, and `start` the coordinates by
    axis; else both are empty."""

    pointer: int
    elem: Element
    order: tuple[str, ...]
    axes: tuple[str, ...] = ()
    start: tuple[tuple[int, int], ...] = ()

    def inside(self, axis: int) -> tuple[str, ...]:
        """Returns the names of the extents of which the product is the stride of an axis."""
        return (self.axes or self.order)[axis + 1 :]


def operand(
    type_: ir.TensorType,
    pointer: int,
    span: Span,
    rename: Mapping[str, str] = {},
    coordinates: Mapping[str, int] = {},
) -> Operand:
    """Returns a tensor under other names, read at these coordinates. Raises as `all_named`."""
    all_named(type_, span)
    names = tuple(rename.get(d, d) for d in type_.dims)
    if not coordinates:
        return Operand(pointer, type_.elem, names)
    order = tuple("" if d in coordinates else name for d, name in zip(type_.dims, names, strict=True))
    start = tuple((i, coordinates[d]) for i, d in enumerate(type_.dims) if d in coordinates)
    return Operand(pointer, type_.elem, order, type_.dims, start)


def all_named(type_: ir.TensorType, span: Span) -> None:
    """Raises Refused UC0220 for a nameless axis longer than 1: no expression can index it."""
    for axis in type_.axes:
        if not axis.dims and axis.extent != Fixed(1):
            raise Refused(
                "UC0220",
                "a nameless axis longer than 1 cannot take part in an expression",
                span,
                "give the axis a name",
            )


def runs(names: Sequence[str], tensors: Iterable[Operand]) -> tuple[tuple[str, ...], ...]:
    """Splits names (one role) into the longest runs that every tensor stores as one axis.

    Two neighbours merge where each tensor has both, one right inside the other, or neither.
    """
    tensors = tuple(tensors)
    order = _common_order(names, tensors)
    merged: list[list[str]] = []
    for name in order:
        if merged and all(_adjacent(merged[-1][-1], name, t.order) for t in tensors):
            merged[-1].append(name)
        else:
            merged.append([name])
    return tuple(tuple(run) for run in merged)


def _common_order(names: Sequence[str], tensors: tuple[Operand, ...]) -> list[str]:
    for tensor in tensors:
        if set(names) <= set(tensor.order):
            return [n for n in tensor.order if n in names]
    return list(names)


def _adjacent(outer: str, inner: str, order: tuple[str, ...]) -> bool:
    if outer in order and inner in order:
        return order.index(inner) == order.index(outer) + 1
    return outer not in order and inner not in order


@dataclass(frozen=True, slots=True)
class Sizes:
    """Concrete extents by position; `position` maps a dimension to its place in the array."""

    position: Mapping[str, int]
    values: tuple[int, ...]

    def product(self, names: Iterable[str]) -> Product:
        return tuple(self.position[n] for n in names)

    def number(self, product: Product) -> int:
        return math.prod(self.values[i] for i in product)

    def stride(self, run: tuple[str, ...], tensor: Operand) -> Stride:
        """Elements between neighbours along a merged run; None where the tensor lacks it."""
        if not run or run[-1] not in tensor.order:
            return None
        return self.product(tensor.inside(tensor.order.index(run[-1])))

    def start(self, tensor: Operand) -> tuple[tuple[int, Product], ...]:
        """Elements before the first that is read: a sum of coordinates times strides."""
        return tuple((at, self.product(tensor.inside(axis))) for axis, at in tensor.start if at)


@dataclass(frozen=True, slots=True)
class MergedModes:
    """The problem's modes, each a run of names; `k` and `batch` may have several."""

    m: tuple[str, ...]
    n: tuple[str, ...]
    k: tuple[tuple[str, ...], ...]
    batch: tuple[tuple[str, ...], ...]


def access(tensor: Operand, modes: MergedModes, sizes: Sizes, aligned: bool) -> Access:
    """A tensor's strides by mode and its alignment for these sizes.

    `aligned`: the base address is a multiple of 16 bytes.
    """
    k = tuple(sizes.stride(run, tensor) for run in modes.k)
    access_ = Access(
        tensor.pointer,
        tensor.elem,
        sizes.stride(modes.m, tensor),
        sizes.stride(modes.n, tensor),
        k if any(s is not None for s in k) else (),
        tuple(sizes.stride(run, tensor) for run in modes.batch),
        1,
        sizes.start(tensor),
    )
    return replace(access_, align=_alignment(access_, modes, sizes, aligned))


def _alignment(a: Access, modes: MergedModes, sizes: Sizes, aligned: bool) -> int:
    """`vector_width` along the contiguous mode; 1 without a contiguous m, n or k."""
    runs_ = {"m": modes.m, "n": modes.n, "k": modes.k[-1] if modes.k else ()}
    contiguous = a.contiguous
    if contiguous is None:
        return 1
    strides = [s for s in (a.m, a.n, *a.k, *a.batch) if s is not None and s != ()]
    steps = [*map(sizes.number, (sizes.product(runs_[contiguous]), *strides))]
    starts = [at * sizes.number(stride) for at, stride in a.start]
    return vector_width(a.elem.bits, aligned, steps + starts)


PACK_BYTES = 16
"""Bytes of the widest load, store and cp.async of a thread, and of TMA's alignment."""


def vector_width(bits: int, aligned: bool, steps: Iterable[int], most: int = PACK_BYTES) -> int:
    """Elements, a power of two, that one access to a tensor may move.

    `bits` are an element's, `most` the bytes of the access at most. `steps` are all numbers of elements by
    which the address moves: the extent along which vectors lie, the stride of every other coordinate, and
    whatever constant is added. `aligned`: the base is a multiple of 16 bytes; else the width is 1.
    """
    divisor = math.gcd(*steps)
    width = max(1, 8 * most // bits) if aligned else 1
    while divisor % width:
        width //= 2
    return width
