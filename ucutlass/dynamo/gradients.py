"""What the operators of backward graphs become, for which PyTorch has no decomposition: the gradients of
convolutions and pooling, which read windows as their transposes do, and of short tables that an index reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any

from ucutlass.grammar.syntax import Expr, Index, IndexItem, Name
from ucutlass.importer.expressions import add, binary, div, folded, index, mul, number, operand, over, where
from ucutlass.importer.graph import Axes, Axis, Kind
from ucutlass.importer.operators.builder import Arguments, GraphBuilder, ValueRef
from ucutlass.importer.operators.pointwise import Rule, cast
from ucutlass.importer.operators.products import exact
from ucutlass.importer.operators.reductions import reduce
from ucutlass.importer.operators.torch_stages import at_places, has_few_places
from ucutlass.importer.operators.views import constant
from ucutlass.importer.operators.windowed_axes import (
    WindowedAxis,
    extents_of,
    input_axes,
    named_axis,
    per_axis,
    windowed_axes,
)
from ucutlass.importer.operators.windows import convolution, element_counts, row_major


def _convolution(b: GraphBuilder, a: Arguments) -> tuple[ValueRef | None, ...]:
    """The gradients by the input, the weight and the bias, where they are asked for."""
    gradient, x, weight = a["grad_output"], a["input"], a["weight"]
    transposed = bool(a["transposed"])
    by_input, by_weight, by_bias = a["output_mask"]
    geometry = a["stride"], a["padding"], a["dilation"]
    dx = dw = db = None
    if by_input:
        places, element = b.shape(x)[2:], a.results[0].element
        dx = convolution(b, gradient, weight, None, *geometry, a["groups"], not transposed, places, element)
    if by_weight:
        wide, narrow = (gradient, x) if transposed else (x, gradient)
        dw = _by_weight(b, wide, narrow, b.shape(weight)[2:], geometry, a["groups"], a.results[1].element)
    if by_bias:
        dims = (0, *range(2, len(b.shape(gradient))))
        db = reduce(b, gradient, "sum", dims, False, a.results[2].element, "bias")
    return dx, dw, db


def _by_weight(
    b: GraphBuilder,
    wide: ValueRef,
    narrow: ValueRef,
    widths: Sequence[int],
    geometry: tuple[Any, Any, Any],
    groups: int,
    element: str,
) -> ValueRef:
    """Adds the dot over examples and places of what a window reads of `wide`, [B, C, ..], with `narrow`,
    [B, K, ..], on whose places the windows stand. The result is [K, C of a group, ..]."""
    shape, own = b.shape(wide), b.shape(narrow)
    spaces = windowed_axes(shape[2:], widths, own[2:], *geometry)
    extents = {"B": shape[0], "G": groups, "C": shape[1] // groups, "K": own[1] // groups}
    extents |= extents_of(spaces)
    lead, group = named_axis("B", extents), named_axis("G", extents)
    wide_axes: Axes = (lead, (*group, *named_axis("C", extents)), *input_axes(spaces, extents))
    places = tuple(named_axis(s.output, extents) for s in spaces)
    narrow_axes: Axes = (lead, (*group, *named_axis("K", extents)), *places)
    windows = tuple(named_axis(s.window, extents) for s in spaces)
    axes: Axes = ((*group, *named_axis("K", extents)), named_axis("C", extents), *windows)
    items = tuple(IndexItem(Name(s.input), s.position()) for s in spaces if not s.direct)
    read: Expr = Index(operand(0), items) if items else operand(0)
    consumed = tuple(label for label in ("B", *(s.output for s in spaces)) if extents[label] != 1)
    multiplied = b.compute_type("cudnn", element) if extents["C"] != 1 else element
    body = over("dot", consumed, exact(multiplied, read), exact(multiplied, operand(1)))
    return b.add("dot", [(wide, wide_axes), (narrow, narrow_axes)], body, axes, extents, element)


# --- pooling ---------------------------------------------------------------------


def _pooling_axes(b: GraphBuilder, a: Arguments) -> tuple[WindowedAxis, ...]:
    """Returns the spatial axes of a pooling operator, by its gradient's arguments. Those of an adaptive one are
    parts of equal width."""
    count = next(n for n in (1, 2, 3) if f"{n}d" in b.origin.operator)
    sizes, places = b.shape(a["self"])[-count:], b.shape(a["grad_output"])[-count:]
    if "adaptive" in b.origin.operator:
        if any(size % n for size, n in zip(sizes, places, strict=True)):
            raise b.fail("adaptive pooling by windows of different widths")
        widths = tuple(size // n for size, n in zip(sizes, places, strict=True))
        return windowed_axes(sizes, widths, places, widths, 0, 1)
    widths = per_axis(a["kernel_size"], count)
    stride = a.get("stride") or widths
    return windowed_axes(sizes, widths, places, stride, a["padding"], a.get("dilation", 1))


def _tile(spaces: Sequence[WindowedAxis]) -> bool:
    """Returns whether each element is under exactly one window."""
    return all((s.stride, s.padding) == (s.width, 0) and s.width * s.places == s.size for s in spaces)


def _under_tiles(
    b: GraphBuilder, refs: Sequence[ValueRef], body: Expr, spaces: Sequence[WindowedAxis], element: str
) -> ValueRef:
    """Adds the body, of values by places, at every element: along the axes `(P R)`."""
    lead, extents = _lead(b, refs[0], spaces)
    extents |= extents_of(spaces)
    outputs = tuple(named_axis(s.output, extents) for s in spaces)
    wide = tuple((*own, *_window(s, extents)) for own, s in zip(outputs, spaces, strict=True))
    kind: Kind = "view" if body == operand(0) and element == b.element(refs[0]) else "pointwise"
    return b.add(kind, [(ref, (*lead, *outputs)) for ref in refs], body, (*lead, *wide), extents, element)


def _window(s: WindowedAxis, extents: Mapping[str, int]) -> Axis:
    return () if s.direct else named_axis(s.window, extents)


def _lead(b: GraphBuilder, x: ValueRef, spaces: Sequence[WindowedAxis]) -> tuple[Axes, dict[str, int]]:
    """Returns the axes before the spatial ones, and their extents."""
    shape = b.shape(x)[: -len(spaces)]
    labels = ("B", "C")[-len(shape) :] if len(shape) <= 2 else tuple(f"_{c}" for c in "abcdef"[: len(shape)])
    extents = dict(zip(labels, shape, strict=True))
    return tuple(named_axis(label, extents) for label in labels), extents


def _under_windows(
    b: GraphBuilder,
    refs: Sequence[ValueRef],
    body: Callable[[Sequence[Expr], Sequence[Expr]], Expr],
    spaces: Sequence[WindowedAxis],
    element: str,
) -> ValueRef:
    """Adds the sum, over the windows that lie on an element, of a body of what values by places are there and of
    the element's coordinates."""
    turned = windowed_axes(
        [s.places for s in spaces],
        [s.width for s in spaces],
        [s.size for s in spaces],
        [s.stride for s in spaces],
        [s.padding for s in spaces],
        [s.dilation for s in spaces],
    )
    lead, extents = _lead(b, refs[0], turned)
    extents |= extents_of(turned)
    items = tuple(s.transposed() for s in turned if not s.direct)
    reads = [Index(operand(i), items) if items else operand(i) for i in range(len(refs))]
    coordinates = [index(s.output) if s.places != 1 else number(0) for s in turned]
    consumed = tuple(s.window for s in turned if s.width != 1)
    value = body(reads, coordinates)
    own = (*lead, *input_axes(turned, extents))
    axes = (*lead, *(named_axis(s.output, extents) for s in turned))
    whole = over("sum", consumed, value) if consumed else value
    return b.add("window", [(ref, own) for ref in refs], whole, axes, extents, element)


def _average(b: GraphBuilder, a: Arguments) -> ValueRef:
    """Each window hands its gradient to its elements in equal shares."""
    spaces, gradient, element = _pooling_axes(b, a), a["grad_output"], a.result.element
    divisor = a.get("divisor_override")
    count = number(divisor) if divisor else element_counts(spaces, bool(a.get("count_include_pad", True)))
    lead, extents = _lead(b, gradient, spaces)
    axes = (*lead, *(named_axis(s.output, {**extents, **extents_of(spaces)}) for s in spaces))
    extents |= extents_of(spaces)
    share = b.add("pointwise", [(gradient, axes)], div(operand(0), count), axes, extents, element, "share")
    if _tile(spaces):
        return _under_tiles(b, [share], operand(0), spaces, element)
    return _under_windows(b, [share], lambda reads, _: reads[0], spaces, element)


def _largest(b: GraphBuilder, a: Arguments) -> ValueRef:
    """Each window hands its gradient to the element whose position was saved."""
    spaces, element = _pooling_axes(b, a), a.result.element
    refs, sizes = [a["indices"], a["grad_output"]], [s.size for s in spaces]
    if _tile(spaces):
        position = row_major([(_tile_coordinate(s), s.size) for s in spaces])
        body = where(binary("==", operand(0), position), operand(1), 0.0)
        return _under_tiles(b, refs, body, spaces, element)

    def chosen(reads: Sequence[Expr], coordinates: Sequence[Expr]) -> Expr:
        position = row_major(list(zip(coordinates, sizes, strict=True)))
        return where(binary("==", reads[0], position), reads[1], 0.0)

    return _under_windows(b, refs, chosen, spaces, element)


def _tile_coordinate(s: WindowedAxis) -> Expr:
    terms = [(s.output, s.width, s.places), (s.window, 1, 1 if s.direct else s.width)]
    total: Expr = number(0)
    for label, scale, extent in terms:
        if extent != 1:
            total = add(total, mul(index(label), scale))
    return folded(total)


def _embedding(b: GraphBuilder, a: Arguments) -> ValueRef:
    """The gradient of a short table: each of its rows adds the gradients of the places that read it."""
    width, rows = a.result.shape[1], a["num_weights"]
    count = prod(b.shape(a["indices"]))
    flat = b.reshape(cast(b, a["indices"], "i64"), (count, 1))
    ids = b.pointwise(operand(0), [flat], "i64", "ids", shape=(count, width))
    table = constant(b, 0.0, (rows, width), a.result.element)
    if a["scale_grad_by_freq"] or not has_few_places(b, table, 0, ids):
        raise b.fail("a sum into rows that an index names, which torch computes")
    values = b.reshape(a["grad_output"], (count, width))
    if a["padding_idx"] >= 0:
        unpadded = where(binary("==", operand(0), a["padding_idx"]), 0.0, operand(1))
        values = b.pointwise(unpadded, [ids, values], a.result.element)
    return at_places(b, table, 0, ids, values)


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "aten.convolution_backward.default": _convolution,
        "aten.embedding_dense_backward.default": _embedding,
        **{f"aten.avg_pool{n}d_backward.default": _average for n in (2, 3)},
        **{f"aten._adaptive_avg_pool{n}d_backward.default": _average for n in (2, 3)},
        **{f"aten.max_pool{n}d_with_indices_backward.default": _largest for n in (2, 3)},
        **{f"aten.adaptive_max_pool{n}d_backward.default": _largest for n in (2, 3)},
    }
)
"""By the overload's name."""
