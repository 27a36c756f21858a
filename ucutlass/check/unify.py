"""A callee's dimensions in its caller's terms, by laying buffers on parameters axis by axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ucutlass.check.scope import Reject, combine, describe
from ucutlass.grammar.syntax import Span
from ucutlass.ir import Kernel, MemoryAxis, TensorType
from ucutlass.ir.extents import Combined, Extent, Free, agree, bare

Expand: TypeAlias = Callable[[Extent], Extent]
"""Expresses a caller's extent by free ones and numbers alone (`DimTable.expand`)."""


def unify(
    expected: TensorType, actual: TensorType, what: str, span: Span, sizes: dict[str, Extent], expand: Expand
) -> None:
    """Fits a buffer to a parameter axis by axis, in memory order; `sizes` collects the callee's
    dimensions. Raises Reject UC0501."""
    if expected.elem is not actual.elem:
        raise Reject(
            "UC0501",
            f"{what} is {expected.elem.name}, the buffer {actual.elem.name}",
            span,
            f"store it as {expected.elem.name}",
        )
    if len(expected.axes) != len(actual.axes):
        raise Reject("UC0501", f"{what} has {len(expected.axes)} axes, the buffer {len(actual.axes)}", span)
    for want, have in zip(expected.axes, actual.axes, strict=False):
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
        earlier, extent = expand(sizes.setdefault(dim, extent)), expand(extent)
        if not agree(earlier, extent):
            raise Reject(
                "UC0501",
                f"{dim} of {what} is {bare(earlier)} elsewhere in this call and {bare(extent)} here",
                span,
                hint_if_one(earlier, extent),
            )


def settle(
    callee: Kernel,
    comparisons: Sequence[tuple[str, TensorType, TensorType, Span]],
    sizes: dict[str, Extent],
    expand: Expand,
    call: Span,
) -> None:
    """Fills in extents that no axis gave, then compares every extent that the callee computes, and every axis for
    which `unify` has no name, with the caller's. `comparisons` has of each parameter its name, the expected and
    the actual type, and the argument's span. Raises Reject UC0501."""
    for dim, extent in callee.dims.items():
        sizes.setdefault(dim, substitute(extent, sizes))
    for dim, extent in callee.dims.items():
        here, there = expand(sizes[dim]), expand(substitute(extent, sizes))
        if not agree(here, there):
            raise Reject(
                "UC0501",
                f"{dim} of {callee.name} is {bare(extent)}, {bare(there)} in this call, but its axis gives "
                f"{bare(here)}",
                call,
                hint_if_one(here, there),
            )
    for what, expected, actual, span in comparisons:
        for i, (want, have) in enumerate(zip(expected.axes, actual.axes, strict=True)):
            here, there = expand(have.extent), expand(substitute(want.extent, sizes))
            if not agree(here, there):
                raise Reject(
                    "UC0501",
                    f"axis {i} of {what} is {bare(there)} in this call, the buffer's {bare(here)}",
                    span,
                    hint_if_one(here, there),
                )


def hint_if_one(a: Extent, b: Extent) -> str | None:
    """Two extents that a call of the pipeline brings may be different ones, unless its types say."""
    match a, b:
        case (Free(dim), other) | (other, Free(dim)):
            return f"if they are one, say so in the pipeline's types: {dim}={bare(other)}"
    return None


def substitute(extent: Extent, sizes: dict[str, Extent]) -> Extent:
    """The extent with the names that `sizes` knows replaced by what they are."""
    match extent:
        case Free(dim):
            return sizes.get(dim, extent)
        case Combined(op, left, right):
            return combine(op, substitute(left, sizes), substitute(right, sizes))
        case _:
            return extent
