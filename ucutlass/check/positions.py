"""Indices that read nothing: outside the tensor, or between its elements, wherever they are evaluated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import gcd

from ucutlass import ir
from ucutlass.check.scope import Reject, combine
from ucutlass.ir import Position, Value
from ucutlass.ir.extents import Combined, Extent, Fixed, Free, bare, never_positive
from ucutlass.ir.traversal import walk


def empty_reads(values: Sequence[Value], dims: Mapping[str, Extent]) -> Iterator[Reject]:
    """A finding UC0224 for each index that never reads an element; `dims` are extents of free ones alone.

    A position that is outside for some coordinates only is padding, and legal.
    """
    for node in walk(*values):
        match node:
            case ir.Read(positions=positions, span=span):
                for position in positions:
                    why = _why(position, dims)
                    if why is not None:
                        yield Reject("UC0224", why, span, _hint(position))
            case ir.Gather(dim=dim, ids=ids, span=span):
                number = _constant(ids)
                if number is not None and _outside(dim, Fixed(number), Fixed(number), 1, dims):
                    what = f"{number} is outside {dim}, whose extent is {bare(dims[dim])}"
                    yield Reject("UC0224", what, span, f"positions along {dim} are 0 to size({dim}) - 1")


def _why(position: Position, dims: Mapping[str, Extent]) -> str | None:
    dim, scale, at = position.dim, position.scale, position.at
    offset = _expanded(at.offset, dims)
    step = gcd(scale, *(factor for _, factor in at.terms))
    if isinstance(offset, Fixed) and offset.value % step:
        return f"{scale}*{dim} is never {_shown(position)}: the one is a multiple of {step}, the other is not"
    low = high = offset
    for name, factor in at.terms:
        last = combine("*", Fixed(factor), combine("-", dims[name], Fixed(1)))
        low, high = (low, combine("+", high, last)) if factor > 0 else (combine("+", low, last), high)
    if _outside(dim, low, high, scale, dims):
        left = dim if scale == 1 else f"{scale}*{dim}"
        where = f"{dim} is {_range(dims[dim])}"
        return f"{left} = {_shown(position)} is outside the tensor at every index: {where}"
    return None


def _outside(dim: str, low: Extent, high: Extent, scale: int, dims: Mapping[str, Extent]) -> bool:
    last = combine("*", Fixed(scale), combine("-", dims[dim], Fixed(1)))
    return never_positive(combine("+", high, Fixed(1))) or never_positive(
        combine("+", combine("-", last, low), Fixed(1))
    )


def _expanded(extent: Extent, dims: Mapping[str, Extent]) -> Extent:
    match extent:
        case Fixed():
            return extent
        case Combined(op, left, right):
            return combine(op, _expanded(left, dims), _expanded(right, dims))
        case _:
            return dims[extent.dim]


def _constant(ids: Value) -> int | None:
    while isinstance(ids, ir.Cast):
        ids = ids.value
    return int(ids.value) if isinstance(ids, ir.Constant) and isinstance(ids.value, int) else None


def _range(extent: Extent) -> str:
    return f"0 to {extent.value - 1}" if isinstance(extent, Fixed) else f"0 to {bare(extent)} - 1"


def _shown(position: Position) -> str:
    """The right side as a person would write it."""
    terms = [(factor, d if abs(factor) == 1 else f"{abs(factor)}*{d}") for d, factor in position.at.terms]
    offset = position.at.offset
    if isinstance(offset, Fixed):
        terms += [(offset.value, str(abs(offset.value)))] if offset.value or not terms else []
    else:
        terms.append((1, bare(_sized(offset))))
    first, *rest = terms
    signed = "".join(f" {'-' if factor < 0 else '+'} {text}" for factor, text in rest)
    return f"{'-' if first[0] < 0 else ''}{first[1]}{signed}"


def _sized(extent: Extent) -> Extent:
    """The extent with `size(D)` for each name, as positions have it."""
    match extent:
        case Free(dim):
            return Free(f"size({dim})")
        case Combined(op, left, right):
            return Combined(op, _sized(left), _sized(right))
        case _:
            return extent


def _hint(position: Position) -> str:
    dim, at = position.dim, position.at
    if not at.terms and isinstance(at.offset, Fixed) and at.offset.value < 0:
        back = -at.offset.value
        return (
            f"Python counts negative positions from the end, here they are outside and read 0: write "
            f"x[{dim} = size({dim}) - {back}] for that element, x[{dim} = {dim} - {back}] for the one "
            f"{back} earlier"
        )
    return f"positions along {dim} are 0 to size({dim}) - 1; what is outside reads 0"
