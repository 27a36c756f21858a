"""Computes `dot` in float64: products summed over named dimensions.

Integer operands are exact: products of 8-bit integers stay below 2**14, so float64 holds every sum of fewer
than 2**39 of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

from ucutlass.ir import Dims
from ucutlass.reference.indexing import LazyGather, LazyRead, check_coordinates, read
from ucutlass.reference.named_tensor import Named

Operand: TypeAlias = Named | LazyRead | LazyGather

UNROLLED = 1 << 24
"""Most elements of a window that are unrolled at once; larger windows are summed tap by tap."""


def contract(left: Operand, right: Operand, over: Dims, dims: Dims) -> Tensor:
    """Returns the sum over `over` of left * right, with one axis per name of `dims`, in float64."""
    match left, right:
        case LazyGather(), _:
            return _by_group(left, right, over, dims)
        case _, LazyGather():
            return _by_group(right, left, over, dims)
        case LazyRead(), _ if (tap := _tap(left, over)) is not None:
            return _by_tap(left, right, tap, over, dims)
        case _, LazyRead() if (tap := _tap(right, over)) is not None:
            return _by_tap(right, left, tap, over, dims)
    return _dense(realise(left), realise(right), over, dims)


def contract_with_magnitudes(left: Operand, right: Operand, over: Dims, dims: Dims) -> tuple[Tensor, Tensor]:
    """Returns what `contract` does of the operands and of their absolute values, with each window read once."""
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


def magnitude(operand: Operand) -> Operand:
    """Returns the operand's absolute value."""
    match operand:
        case Named(data, dims):
            return Named(data.abs(), dims)
        case LazyRead() | LazyGather():
            return replace(operand, source=operand.source.like(operand.source.data.abs()))


def blocks(left: Operand, right: Operand, over: Dims, length: int) -> Iterator[tuple[Operand, Operand]]:
    """Yields both operands in blocks of at most `length` products along the summed dimensions."""
    dim = max(over, key=lambda d: extent((left, right), d))
    other_dims = tuple(d for d in over if d != dim)
    inner_products = 1
    for d in other_dims:
        inner_products *= extent((left, right), d)
    step = max(1, length // max(inner_products, 1))
    total = extent((left, right), dim)
    for start in range(0, total, step):
        size = min(step, total - start)
        yield narrow(left, dim, start, size), narrow(right, dim, start, size)


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
