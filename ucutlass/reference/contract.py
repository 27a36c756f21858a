"""Computes `dot` in float64: products summed over named dimensions.

Integer operands are exact: products of 8-bit integers stay below 2**14, so float64 holds every sum of fewer
than 2**39 of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from ucutlass.ir import Dims, Position, extents
from ucutlass.reference.indexing import LazyGather, LazyRead, check_coordinates, read
from ucutlass.reference.named_tensor import Named
from ucutlass.reference.radius import finite

Operand: TypeAlias = Named | LazyRead | LazyGather

UNROLLED = 1 << 26
"""Most elements of a window that are unrolled at once; larger windows are summed tap by tap."""


def contract(left: Operand, right: Operand, over: Dims, dims: Dims) -> Tensor:
    """Returns the sum over `over` of left * right, with one axis per name of `dims`, in float64."""
    left, right = ascending(left, right, over)
    if len(parts := residues(left, right, over, dims)) > 1:
        return joined(parts, (left, right), dims, lambda a, b: (contract(a, b, over, dims),))[0]
    match left, right:
        case LazyGather(), _:
            return _by_group(left, right, over, dims)
        case _, LazyGather():
            return _by_group(right, left, over, dims)
        case LazyRead(), _ if left.numel > UNROLLED:
            return _of_large(left, right, over, dims)
        case _, LazyRead() if right.numel > UNROLLED:
            return _of_large(right, left, over, dims)
    return _dense(realise(left), realise(right), over, dims)


def contract_with_magnitudes(left: Operand, right: Operand, over: Dims, dims: Dims) -> tuple[Tensor, Tensor]:
    """Returns what `contract` does of the operands and of their absolute values, with each window read once."""
    left, right = ascending(left, right, over)
    for window, other in ((left, right), (right, left)):
        if isinstance(window, LazyGather) or isinstance(other, LazyGather):
            break
        if isinstance(window, LazyRead) and (tap := _tap(window, over)) is not None:
            return _taps_with_magnitudes(window, other, tap, over, dims)
    else:
        a, b = realise(left), realise(right)
        return _dense(a, b, over, dims), _dense(a.like(a.data.abs()), b.like(b.data.abs()), over, dims)
    return contract(left, right, over, dims), contract(magnitude(left), magnitude(right), over, dims)


def _taps_with_magnitudes(
    window: LazyRead, other: Operand, dim: str, over: Dims, dims: Dims
) -> tuple[Tensor, Tensor]:
    totals: tuple[Tensor, Tensor] | None = None
    for start in range(len(window.range_of(dim))):
        parts = contract_with_magnitudes(
            narrow(window, dim, start, 1), narrow(other, dim, start, 1), over, dims
        )
        totals = parts if totals is None else (totals[0].add_(parts[0]), totals[1].add_(parts[1]))
    assert totals is not None
    return totals


def realise(operand: Operand) -> Named:
    """Returns the operand as a materialised value."""
    match operand:
        case Named():
            return operand
        case LazyRead():
            return read(operand)
        case LazyGather(source, dim, ids, dims):
            axis = source.dims.index(dim)
            picked = source.data.index_select(axis, ids.data)
            names = source.dims[:axis] + ids.dims + source.dims[axis + 1 :]
            if ids.dims[0] not in source.dims:
                return Named(Named(picked, names).spread(dims), dims)
            raise AssertionError("Grouped is only built where the ids' dimension is new to the source")


def extent(operands: Sequence[Operand], dim: str) -> int:
    """Returns the extent of `dim` in the first operand that has it."""
    for operand in operands:
        match operand:
            case Named(data, dims) if dim in dims:
                return data.shape[dims.index(dim)]
            case LazyRead() if dim in operand.dims:
                return len(operand.range_of(dim))
            case LazyGather(source, _, ids, _):
                for part in (source, ids):
                    if dim in part.dims:
                        return part.data.shape[part.dims.index(dim)]
    return 1


def narrow(operand: Operand, dim: str, start: int, length: int) -> Operand:
    """Returns the operand for a range of coordinates along `dim`, or the operand itself where it lacks
    `dim`."""
    match operand:
        case Named(data, dims):
            return Named(data.narrow(dims.index(dim), start, length), dims) if dim in dims else operand
        case LazyRead():
            if dim not in operand.dims:
                return operand
            return replace(
                operand, narrowed={**operand.narrowed, dim: operand.range_of(dim)[start : start + length]}
            )
        case LazyGather(source, _, ids, _):
            source_slice = narrow(source, dim, start, length) if dim != operand.dim else source
            ids_slice = narrow(ids, dim, start, length)
            assert isinstance(source_slice, Named) and isinstance(ids_slice, Named)
            return replace(operand, source=source_slice, ids=ids_slice)


def taken(operand: Operand, dim: str, at: slice) -> Operand:
    """Returns the operand at some coordinates along `dim`, or the operand itself where it lacks `dim`."""
    match operand:
        case Named(data, dims) if dim in dims:
            axis = dims.index(dim)
            if at.step == -1:
                return Named(data.flip(axis), dims)
            return Named(data[(slice(None),) * axis + (at,)], dims)
        case LazyRead() if dim in operand.dims:
            return replace(operand, narrowed={**operand.narrowed, dim: operand.range_of(dim)[at]})
        case _:
            return operand


def ascending(left: Operand, right: Operand, over: Dims) -> tuple[Operand, Operand]:
    """Returns operands of the same product in which no summed dimension counts a window's coordinates down, as that of a
    transposed convolution does: such a window is no view of its source."""
    for window, other in ((left, right), (right, left)):
        if not isinstance(window, LazyRead) or not isinstance(other, Named):
            continue
        falling = {d for p in window.node.positions for d, f in p.at.terms if f * window.range_of(d).step < 0}
        for d in falling & set(over) - set(window.source.dims):
            left, right = (taken(x, d, slice(None, None, -1)) for x in (left, right))
    return left, right


GAPPED = 1 << 20
"""Elements of a window, from which on a product is summed residue by residue where a scale leaves gaps in the window."""


@dataclass(frozen=True, slots=True)
class Residue:
    """A part of a product's result, `at` these coordinates; None where nothing but zeros is summed."""

    at: tuple[slice, ...]
    operands: tuple[Operand, Operand] | None


def residues(left: Operand, right: Operand, over: Dims, dims: Dims) -> list[Residue]:
    """Returns the parts of a product whose window has gaps, as that of a strided transposed convolution: results at the
    same residue meet the same taps, and all other taps multiply the zeros between. One part where there is no such
    window, or a small one, or where those zeros meet numbers that are not finite."""
    whole = Residue((slice(None),) * len(dims), (left, right))
    window, other = (left, right) if isinstance(left, LazyRead) else (right, left)
    if not isinstance(window, LazyRead) or not isinstance(other, Named) or window.numel <= GAPPED:
        return [whole]
    terms = [d for p in window.node.positions for d, _ in p.at.terms]
    if window.node.fill != 0 or len(set(terms)) < len(terms) or set(terms) & set(window.source.dims):
        return [whole]
    parts = [whole]
    for position in window.node.positions:
        parts = [split for part in parts for split in _at_residues(part, window, position, over, dims)]
    summed = any(part.operands is not None for part in parts)
    return parts if len(parts) > 1 and summed and finite(other.data) else [whole]


def _at_residues(
    part: Residue, window: LazyRead, position: Position, over: Dims, dims: Dims
) -> Iterator[Residue]:
    """Yields a part for each residue of the one coordinate of the result, if it is one, that a position moves with."""
    scale = position.scale
    free, taps = ([(d, f) for d, f in position.at.terms if d in names] for names in (dims, over))
    if scale == 1 or len(free) != 1 or len(taps) != 1 or len(position.at.terms) != 2:
        yield part
        return
    (d, factor), (tap, tap_factor) = free[0], taps[0]
    coordinates, tap_coordinates = window.range_of(d), window.range_of(tap)
    period, tap_period = (
        scale // math.gcd(f * r.step, scale)
        for f, r in ((factor, coordinates), (tap_factor, tap_coordinates))
    )
    base, axis = extents.evaluate(position.at.offset, window.sizes), dims.index(d)
    for first, x in enumerate(coordinates[:period]):
        at = (*part.at[:axis], slice(first, None, period), *part.at[axis + 1 :])
        taps_of_x = enumerate(base + factor * x + tap_factor * y for y in tap_coordinates[:tap_period])
        met = [n for n, numerator in taps_of_x if numerator % scale == 0]
        if not met or part.operands is None:
            yield Residue(at, None)
            continue
        left, right = (
            taken(taken(operand, d, at[axis]), tap, slice(met[0], None, tap_period))
            for operand in part.operands
        )
        yield Residue(at, (left, right))


def joined(
    parts: Sequence[Residue],
    operands: tuple[Operand, Operand],
    dims: Dims,
    of_part: Callable[[Operand, Operand], tuple[Tensor, ...]],
) -> tuple[Tensor, ...]:
    """Returns the results of `of_part` for a whole product, from those of its parts."""
    shape = [extent(operands, d) for d in dims]
    wholes: tuple[Tensor, ...] = ()
    for part in parts:
        if part.operands is None:
            continue
        values = of_part(*part.operands)
        wholes = wholes or tuple(v.new_zeros(shape) for v in values)
        for whole, value in zip(wholes, values, strict=True):
            whole[part.at] = value
    return wholes


def magnitude(operand: Operand) -> Operand:
    """Returns the operand's absolute value."""
    match operand:
        case Named(data, dims):
            return Named(data.abs(), dims)
        case LazyRead() | LazyGather():
            return replace(operand, source=operand.source.like(operand.source.data.abs()))


def blocks(left: Operand, right: Operand, over: Dims, length: int) -> Iterator[tuple[Operand, Operand]]:
    """Yields both operands in blocks of at most `length` products along the summed dimensions."""
    dim, total, step = _cut(left, right, over, length)
    for start in range(0, total, step):
        size = min(step, total - start)
        yield narrow(left, dim, start, size), narrow(right, dim, start, size)


def block_count(left: Operand, right: Operand, over: Dims, length: int) -> int:
    """Returns how many pairs `blocks` yields."""
    _, total, step = _cut(left, right, over, length)
    return -(-total // step)


def _cut(left: Operand, right: Operand, over: Dims, length: int) -> tuple[str, int, int]:
    """Returns the summed dimension along which blocks are cut, its extent, and that of a block."""
    dim = max(over, key=lambda d: extent((left, right), d))
    inner_products = math.prod(extent((left, right), d) for d in over if d != dim)
    return dim, extent((left, right), dim), max(1, length // max(inner_products, 1))


def _dense(left: Named, right: Named, over: Dims, dims: Dims) -> Tensor:
    names = list(dict.fromkeys((*left.dims, *right.dims, *over)))
    number = {name: i for i, name in enumerate(names)}
    operands = (left.data.to(torch.float64), right.data.to(torch.float64))
    out: Tensor = torch.einsum(
        operands[0],
        [number[d] for d in left.dims],
        operands[1],
        [number[d] for d in right.dims],
        [number[d] for d in dims],
    )
    return out


def _tap(window: LazyRead, over: Dims) -> str | None:
    """Returns a summed dimension that the window slides over, if unrolling it would take much memory."""
    if window.numel <= UNROLLED:
        return None
    sliding_dims = {d for p in window.node.positions for d, _ in p.at.terms}
    return next((d for d in over if d in sliding_dims and len(window.range_of(d)) > 1), None)


def _of_large(window: LazyRead, other: Operand, over: Dims, dims: Dims) -> Tensor:
    """Sums a slice of the result at a time, of a window that is unrolled for each, or tap by tap where the result has no
    dimension of the window's."""
    free = [d for d in dims if d in window.dims]
    dim = max(free, key=lambda d: len(window.range_of(d)), default=None)
    if dim is None or len(window.range_of(dim)) == 1:
        tap = _tap(window, over)
        return (
            _dense(realise(window), realise(other), over, dims)
            if tap is None
            else _by_tap(window, other, tap, over, dims)
        )
    extent_ = len(window.range_of(dim))
    step = max(1, extent_ * UNROLLED // window.numel)
    total: Tensor | None = None
    for start in range(0, extent_, step):
        size = min(step, extent_ - start)
        part = contract(narrow(window, dim, start, size), narrow(other, dim, start, size), over, dims)
        if total is None:
            total = part.new_empty([extent((window, other), d) for d in dims])
        total.narrow(dims.index(dim), start, size).copy_(part)
    assert total is not None
    return total


def _by_tap(window: LazyRead, other: Operand, dim: str, over: Dims, dims: Dims) -> Tensor:
    total: Tensor | None = None
    for start in range(len(window.range_of(dim))):
        part = contract(narrow(window, dim, start, 1), narrow(other, dim, start, 1), over, dims)
        total = part if total is None else total.add_(part)
    assert total is not None
    return total


def _by_group(grouped: LazyGather, other: Operand, over: Dims, dims: Dims) -> Tensor:
    """Multiplies each group's rows by that group's slice of the source."""
    (row,) = grouped.ids.dims
    check_coordinates(grouped.source, grouped.dim, grouped.ids)
    other_value = realise(other)
    shape = [extent((other_value, grouped), d) for d in dims]
    out = torch.zeros(shape, dtype=torch.float64, device=other_value.data.device)
    axis = grouped.source.dims.index(grouped.dim)
    rest = tuple(d for d in grouped.source.dims if d != grouped.dim)
    for group in torch.unique(grouped.ids.data).tolist():
        rows = (grouped.ids.data == group).nonzero().reshape(-1)
        group_operand = other_value
        if row in other_value.dims:
            group_operand = Named(
                other_value.data.index_select(other_value.dims.index(row), rows), other_value.dims
            )
        weights = Named(grouped.source.data.select(axis, group), rest)
        row_axis = dims.index(row)
        if row in other_value.dims:
            out.index_copy_(row_axis, rows, contract(group_operand, weights, over, dims))
        else:
            shared = contract(group_operand, weights, over, tuple(d for d in dims if d != row))
            out.index_copy_(row_axis, rows, shared.unsqueeze(row_axis).repeat_interleave(len(rows), row_axis))
    return out
