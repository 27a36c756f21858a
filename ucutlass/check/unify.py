"""A callee's dimensions in its caller's terms, by laying buffers on parameters axis by axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ucutlass.check.scope import Reject, combine, describe
from ucutlass.extents import Combined, Extent, Free, evaluate
from ucutlass.extents import names as extent_names
from ucutlass.grammar.syntax import Span
from ucutlass.ir import MemoryAxis, TensorType

Expand: TypeAlias = Callable[[Extent], Extent]
"""Expresses a caller's extent by free ones and numbers alone (`DimTable.expand`)."""


def unify(
    wanted: TensorType, given: TensorType, what: str, span: Span, sizes: dict[str, Extent], expand: Expand
) -> None:
    """Fits a buffer to a parameter axis by axis, in memory order; `sizes` collects the callee's
    dimensions. Raises Reject UC0501."""
    if wanted.elem is not given.elem:
        raise Reject(
            "UC0501",
            f"{what} is {wanted.elem.name}, the buffer {given.elem.name}",
            span,
            f"store it as {wanted.elem.name}",
        )
    if len(wanted.axes) != len(given.axes):
        raise Reject("UC0501", f"{what} has {len(wanted.axes)} axes, the buffer {len(given.axes)}", span)
    for want, have in zip(wanted.axes, given.axes, strict=False):
        _axis(want, have, what, span, sizes, expand)


def _axis(
    want: MemoryAxis, have: MemoryAxis, what: str, span: Span, sizes: dict[str, Extent], expand: Expand
) -> None:
    pairs: list[tuple[str, Extent]]
    if len(want.dims) == 1:
        pairs = [(want.dims[0], have.extent)]
    elif len(want.dims) == len(have.dims):
        pairs = [(w, Free(h)) for w, h in zip(want.dims, have.dims, strict=False)]
    elif not want.dims:
        pairs = []
    else:
        unknown = [d for d in want.dims if d not in sizes]
        if len(unknown) > 1:
            raise Reject(
                "UC0501",
                f"the axis {describe(want.dims)} of {what} cannot be split: {' and '.join(unknown)} are "
                "unknown",
                span,
            )
        rest: Extent = have.extent
        for d in want.dims:
            if d in sizes:
                rest = combine("//", rest, sizes[d])
        pairs = [(d, rest) for d in unknown]
    for dim, extent in pairs:
        known, extent = expand(sizes.setdefault(dim, extent)), expand(extent)
        if known != extent and not extent_names(known) and not extent_names(extent):
            raise Reject(
                "UC0501",
                f"{dim} of {what} is {evaluate(known, {})} elsewhere in this call and "
                f"{evaluate(extent, {})} here",
                span,
            )


def substitute(extent: Extent, sizes: dict[str, Extent]) -> Extent:
    """The extent with the names that `sizes` knows replaced by what they are."""
    match extent:
        case Free(dim):
            return sizes.get(dim, extent)
        case Combined(op, left, right):
            return combine(op, substitute(left, sizes), substitute(right, sizes))
        case _:
            return extent
