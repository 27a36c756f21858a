"""Reads at computed positions: affine windows, gathers and segments."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ucutlass.ir import Dims, Position, Read, extents
from ucutlass.ir.neutral import in_element
from ucutlass.reference.errors import CoordinateRangeError, OffsetsError
from ucutlass.reference.named_tensor import Named, coordinates


@dataclass(frozen=True, slots=True, eq=False)
class LazyRead:
    """A `Read` that is not carried out yet. `narrowed` holds the coordinates of the dimensions that have been
    narrowed, so that a convolution is summed tap by tap instead of unrolled in memory."""

    source: Named
    node: Read
    sizes: Mapping[str, int]
    narrowed: Mapping[str, range] = field(default_factory=dict)

    @property
    def dims(self) -> Dims:
        return self.node.dims

    def range_of(self, dim: str) -> range:
        """Returns the coordinates of a dimension."""
        return self.narrowed.get(dim, range(self.sizes[dim]))

    def coordinates_of(self, dim: str) -> Tensor:
        """Returns the coordinates of a dimension as a tensor."""
        own = self.range_of(dim)
        return torch.arange(own.start, own.stop, own.step, dtype=torch.int64, device=self.source.data.device)

    @property
    def numel(self) -> int:
        return math.prod(len(self.range_of(d)) for d in self.dims)


def read(window: LazyRead) -> Named:
    """Returns the value at every position, and `fill` where there is none (the scale does not divide, or the
    position is outside the tensor). Its elements may share memory: nobody may write to it."""
    view = _strided(window)
    return _gathered(window) if view is None else view


MOST_SPREAD = 4
"""Elements of a source with what is read outside of it, for each element that is read, up to which a window is a view."""


def _strided(window: LazyRead) -> Named | None:
    """Returns the window as a view of its source, spread where a scale leaves positions out and padded where it is read
    outside: a gather takes several times as long. None where coordinates count down, or that would take much
    memory."""
    source, node = window.source, window.node
    ranges = {d: window.range_of(d) for d in node.dims}
    positions = {p.dim: p for p in node.positions}
    if not window.numel or not source.data.numel():
        return None
    data, offset = source.data, 0
    for axis, dim in enumerate(source.dims):
        if dim not in positions:
            own = ranges[dim]
            data = data[(slice(None),) * axis + (slice(own.start, own.stop, own.step),)]
    fill = in_element(node.fill, node.elem)
    lows: list[int] = []
    factors: list[tuple[tuple[str, int], ...]] = []
    for axis, dim in enumerate(source.dims):
        position = positions.get(dim)
        if position is None:
            lows.append(0)
            factors.append(((dim, 1),))
            continue
        base = extents.evaluate(position.at.offset, window.sizes)
        low = base + sum(factor * ranges[d][0] for d, factor in position.at.terms)
        terms = tuple((d, f * ranges[d].step) for d, f in position.at.terms if len(ranges[d]) > 1)
        if any(factor < 0 for _, factor in terms):
            return None
        scale = position.scale
        if all(number % scale == 0 for number in (low, *(factor for _, factor in terms))):
            low, terms, scale = low // scale, tuple((d, f // scale) for d, f in terms), 1
        high = low + sum(factor * (len(ranges[d]) - 1) for d, factor in terms)
        length = data.shape[axis]
        if scale == 1 and low >= 0 and high < length:
            lows.append(low)
        elif data.numel() // length * (high - low + 1) > MOST_SPREAD * max(window.numel, data.numel()):
            return None
        else:
            data = _spread(data, axis, low, high, scale, fill)
            lows.append(0)
        factors.append(terms)
    strides = dict.fromkeys(node.dims, 0)
    for stride, low, terms in zip(data.stride(), lows, factors, strict=True):
        offset += low * stride
        for d, factor in terms:
            strides[d] += factor * stride
    shape = [len(ranges[d]) for d in node.dims]
    view = data.as_strided(shape, [strides[d] for d in node.dims], data.storage_offset() + offset)
    return Named(view, node.dims)


def _spread(data: Tensor, axis: int, low: int, high: int, scale: int, fill: float | int | bool) -> Tensor:
    """Returns what positions from `low` to `high` of an axis read: element x at position `scale` times x, and else
    `fill`."""
    shape = list(data.shape)
    shape[axis] = high - low + 1
    out = data.new_full(shape, fill)
    first, last = -(-max(low, 0) // scale), min(high // scale, data.shape[axis] - 1)
    if first <= last:
        at = slice(scale * first - low, scale * last - low + 1, scale)
        out[(slice(None),) * axis + (at,)] = data.narrow(axis, first, last - first + 1)
    return out


def _gathered(window: LazyRead) -> Named:
    """Does what `read` does, by coordinates."""
    source, node = window.source, window.node
    positions = {p.dim: p for p in node.positions}
    indices: list[Tensor] = []
    valid: Tensor | None = None
    for axis, dim in enumerate(source.dims):
        if dim not in positions:
            indices.append(Named(window.coordinates_of(dim), (dim,)).spread(node.dims))
            continue
        index, inside = _locate(positions[dim], source.data.shape[axis], window)
        indices.append(index)
        valid = inside if valid is None else valid & inside
    source_data = source.data
    if (
        valid is not None and not source_data.numel()
    ):  # nothing is inside; one element stands for what is not read
        source_data = source_data.new_zeros([max(n, 1) for n in source_data.shape])
    data = source_data[tuple(indices)] if indices else source_data
    if valid is None:
        return Named(data, node.dims)
    fill = torch.tensor(in_element(node.fill, node.elem), dtype=data.dtype, device=data.device)
    return Named(torch.where(valid, data, fill), node.dims)


def _locate(position: Position, extent: int, window: LazyRead) -> tuple[Tensor, Tensor]:
    """Returns clamped coordinates and where they exist, both spread over the read's dimensions."""
    dims = window.node.dims
    base = extents.evaluate(position.at.offset, window.sizes)
    numerator = torch.full((1,) * len(dims), base, dtype=torch.int64, device=window.source.data.device)
    for dim, factor in position.at.terms:
        numerator = numerator + factor * Named(window.coordinates_of(dim), (dim,)).spread(dims)
    coordinate = numerator.div(position.scale, rounding_mode="floor")
    inside = (coordinate * position.scale == numerator) & (coordinate >= 0) & (coordinate < extent)
    return coordinate.clamp(0, max(extent - 1, 0)), inside


@dataclass(frozen=True, slots=True, eq=False)
class LazyGather:
    """`w[E = ids]` with one-dimensional ids, not carried out yet: a dot takes it group by group."""

    source: Named
    dim: str
    ids: Named
    dims: Dims


def gather(source: Named, dim: str, ids: Named, dims: Dims) -> Named:
    """Returns the element at coordinate `ids` along `dim`. Raises CoordinateRangeError."""
    check_coordinates(source, dim, ids)
    indices = [
        ids.spread(dims) if d == dim else Named(coordinates(n, source.data.device), (d,)).spread(dims)
        for d, n in zip(source.dims, source.data.shape, strict=True)
    ]
    return Named(source.data[tuple(indices)], dims)


def check_coordinates(source: Named, dim: str, ids: Named) -> None:
    """Raises CoordinateRangeError where a coordinate lies outside `dim`."""
    extent = source.data.shape[source.dims.index(dim)]
    if ids.data.numel() == 0:
        return
    low, high = int(ids.data.min()), int(ids.data.max())
    if low < 0 or high >= extent:
        raise CoordinateRangeError(
            f"a gather along {dim} (extent {extent}) reads coordinates {low}..{high}; "
            f"they must lie in 0..{extent - 1}"
        )


def segment(dim: str, extent: int, offsets: Named) -> Named:
    """Returns the group of each coordinate of `dim`. Raises OffsetsError unless the offsets rise from 0 to
    the extent; equal neighbours make an empty group."""
    boundaries = offsets.data.reshape(-1)
    decreases = (boundaries[1:] < boundaries[:-1]).nonzero()
    if decreases.numel():
        entry = int(decreases[0])
        raise OffsetsError(
            f"segment offsets fall from {int(boundaries[entry])} to {int(boundaries[entry + 1])} at entry {entry + 1}; "
            "they must not decrease"
        )
    if boundaries.numel() <= 1 or int(boundaries[0]) != 0 or int(boundaries[-1]) != extent:
        ends = f"{int(boundaries[0])}..{int(boundaries[-1])}" if boundaries.numel() else "nothing"
        raise OffsetsError(f"segment offsets span {ends}; they must run from 0 to {dim} = {extent}")
    rows = coordinates(extent, boundaries.device)
    return Named(torch.bucketize(rows, boundaries[1:].contiguous(), right=True), (dim,))
