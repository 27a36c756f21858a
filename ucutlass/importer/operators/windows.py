"""Convolutions and pooling: dots and reductions over windows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any

from ucutlass.grammar.syntax import Expr, Index, IndexItem, Name
from ucutlass.importer.expressions import (
    add,
    at,
    binary,
    both,
    call,
    div,
    folded,
    index,
    mul,
    number,
    operand,
    over,
    plus,
    sub,
    substituted,
    template,
    where,
)
from ucutlass.importer.graph import Axes, Axis
from ucutlass.importer.operators.builder import Arguments, GraphBuilder, ValueRef
from ucutlass.importer.operators.pointwise import Rule
from ucutlass.importer.operators.products import exact
from ucutlass.importer.operators.reductions import reduce
from ucutlass.importer.operators.views import constant, gathered, permuted, sliced
from ucutlass.importer.operators.windowed_axes import (
    WindowedAxis,
    extents_of,
    input_axes,
    named_axis,
    per_axis,
    windowed_axes,
)


def convolution(
    b: GraphBuilder,
    x: ValueRef,
    weight: ValueRef,
    bias: ValueRef | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    transposed: bool,
    places: Sequence[int],
    element: str,
) -> ValueRef:
    """Adds a convolution of x[B, C, ..] by weight[K, C, ..], or transposed by weight[C, K, ..]."""
    shape, w = b.shape(x), b.shape(weight)
    batched = len(shape) == len(w)
    spatial = shape[2:] if batched else shape[1:]
    spaces = windowed_axes(spatial, w[2:], places, stride, padding, dilation)
    extents = extents_of(spaces)
    filters = w[1] if transposed else w[0] // groups
    extents |= {"G": groups, "C": shape[1 if batched else 0] // groups, "K": filters}
    if batched:
        extents["B"] = shape[0]
    lead: Axes = (named_axis("B", extents),) if batched else ()
    group = named_axis("G", extents)
    x_axes: Axes = (*lead, (*group, *named_axis("C", extents)), *input_axes(spaces, extents))
    window = tuple(named_axis(s.window, extents) for s in spaces)
    if transposed:
        w_axes: Axes = ((*group, *named_axis("C", extents)), named_axis("K", extents), *window)
        items = tuple(s.transposed() for s in spaces if not s.direct)
    else:
        w_axes = ((*group, *named_axis("K", extents)), named_axis("C", extents), *window)
        items = tuple(IndexItem(Name(s.input), s.position()) for s in spaces if not s.direct)
    axes: Axes = (
        *lead,
        (*group, *named_axis("K", extents)),
        *(named_axis(s.output, extents) for s in spaces),
    )
    read: Expr = Index(operand(0), items) if items else operand(0)
    consumed = [label for label in ("C", *(s.window for s in spaces)) if extents[label] != 1]
    # One channel by another is no product of matrices: cuDNN takes none for it either.
    multiplied = b.compute_type("cudnn", element) if extents["C"] != 1 else element
    body = over("dot", tuple(consumed), exact(multiplied, read), exact(multiplied, operand(1)))
    if transposed and not all(s.reaches for s in spaces):
        nothing = constant(b, 0.0, tuple(prod(extents[n] for n in axis) for axis in axes), element)
        return nothing if bias is None else _with_bias(b, nothing, bias, len(spaces), element)
    y = b.add(
        "dot",
        [(x, x_axes), (weight, w_axes)],
        body,
        axes,
        extents,
        element,
        "product" if bias is not None else "",
    )
    return y if bias is None else _with_bias(b, y, bias, len(spaces), element)


def _with_bias(b: GraphBuilder, y: ValueRef, bias: ValueRef, spaces: int, element: str) -> ValueRef:
    offset = b.reshape(bias, (*b.shape(bias), *(1,) * spaces))
    return b.pointwise(template("x0 + x1"), [y, offset], element)


def _conv(b: GraphBuilder, a: Arguments) -> ValueRef:
    weight = a["weight"]
    w = b.shape(weight)
    padding = a["padding"]
    if isinstance(padding, str):
        if padding == "valid":
            padding = 0
        else:
            dilations = per_axis(a["dilation"], len(w) - 2)
            totals = [d * (k - 1) for d, k in zip(dilations, w[2:], strict=True)]
            padding = [t // 2 for t in totals]
    places = a.result.shape[-(len(w) - 2) :]
    return convolution(
        b,
        a["input"],
        weight,
        a.get("bias"),
        a["stride"],
        padding,
        a["dilation"],
        a["groups"],
        False,
        places,
        a.result.element,
    )


def _convolution(transposed: bool | None) -> Rule:
    """`transposed` None: an argument of the operator says it."""

    def rule(b: GraphBuilder, a: Arguments) -> ValueRef:
        weight = a["weight"]
        places = a.result.shape[-(len(b.shape(weight)) - 2) :]
        return convolution(
            b,
            a["input"],
            weight,
            a.get("bias"),
            a["stride"],
            a["padding"],
            a["dilation"],
            a["groups"],
            bool(a["transposed"]) if transposed is None else transposed,
            places,
            a.result.element,
        )

    return rule


# --- pooling ---------------------------------------------------------------------


def window_axes(
    b: GraphBuilder, x: ValueRef, spaces: Sequence[WindowedAxis]
) -> tuple[Axes, Axes, dict[str, int]]:
    """Returns the axes of a pooling's input and output, and the extents."""
    shape = b.shape(x)
    rank = len(shape) - len(spaces)
    letters = ("B", "C")[-rank:] if rank <= 2 else tuple(f"_{c}" for c in "abcdef"[:rank])
    extents = {**dict(zip(letters, shape, strict=False)), **extents_of(spaces)}
    lead = tuple(named_axis(label, extents) for label in letters)
    x_axes = (*lead, *input_axes(spaces, extents))
    return x_axes, (*lead, *(named_axis(s.output, extents) for s in spaces)), extents


def pooled(
    b: GraphBuilder, x: ValueRef, function: str, spaces: Sequence[WindowedAxis], element: str
) -> ValueRef:
    """Adds `function[R, S](x[H = 2*P + R, W = 2*Q + S])`."""
    x_axes, axes, extents = window_axes(b, x, spaces)
    read = at(operand(0), {s.input: s.position() for s in spaces if not s.direct})
    consumed = tuple(s.window for s in spaces if s.width != 1)
    return b.add("window", [(x, x_axes)], over(function, consumed, read), axes, extents, element)


def _max_pool(indices: bool) -> Rule:
    def rule(b: GraphBuilder, a: Arguments) -> ValueRef | tuple[ValueRef | None, ...]:
        x = a["self"]
        count = _spatial_rank(b, a, x)
        stride = a.get("stride") or a["kernel_size"]
        sizes, places = b.shape(x)[-count:], a.results[0].shape[-count:]
        spaces = windowed_axes(
            sizes, per_axis(a["kernel_size"], count), places, stride, a["padding"], a.get("dilation", 1)
        )
        y = pooled(b, x, "max", spaces, a.results[0].element)
        return (y, _positions_of(b, x, y, spaces)) if indices else y

    return rule


def _positions_of(b: GraphBuilder, x: ValueRef, y: ValueRef, spaces: Sequence[WindowedAxis]) -> ValueRef:
    """Adds the first position of each window's largest element, y, in row-major order of the spatial axes."""
    x_axes, axes, extents = window_axes(b, x, spaces)
    read = at(operand(0), {s.input: s.position() for s in spaces if not s.direct})
    largest = binary("or", binary("==", read, operand(1)), binary("!=", read, read))
    inside = [c for s in spaces for c in _inside(s)]
    position = row_major([(_coordinate(s), s.size) for s in spaces])
    body = where(both(largest, *inside), position, prod(s.size for s in spaces))
    consumed = tuple(s.window for s in spaces if s.width != 1)
    if consumed:
        body = over("min", consumed, body)
    return b.add("window", [(x, x_axes), (y, axes)], body, axes, extents, "i64", "positions")


def row_major(coordinates: Sequence[tuple[Expr, int]]) -> Expr:
    """Returns the place in memory order of coordinates along axes of these extents."""
    place: Expr = number(0)
    for coordinate, extent in coordinates:
        place = add(mul(place, extent), coordinate)
    return folded(place)


def _coordinate(s: WindowedAxis) -> Expr:
    """Returns the value of `s.position()`."""
    terms = [(s.output, s.stride, s.places), (s.window, s.dilation, s.width)]
    places = [mul(index(label), scale) for label, scale, extent in terms if extent != 1]
    total: Expr = number(0)
    for place in places:
        total = add(total, place)
    return folded(plus(total, -s.padding))


def _inside(s: WindowedAxis) -> list[Expr]:
    """Returns the conditions on which `s.position()` is inside of the input, where it may not be."""
    last = (s.places - 1) * s.stride + (s.width - 1) * s.dilation - s.padding
    conditions = [binary(">=", _coordinate(s), 0)] if s.padding else []
    return conditions + ([binary("<", _coordinate(s), s.size)] if last >= s.size else [])


def _spatial_rank(b: GraphBuilder, a: Arguments, x: ValueRef) -> int:
    name = b.origin.operator
    return next((n for n in (1, 2, 3) if f"{n}d" in name), len(b.shape(x)) - 2)


def _avg_pool(b: GraphBuilder, a: Arguments) -> ValueRef:
    x, element = a["self"], a.result.element
    count = _spatial_rank(b, a, x)
    stride = a.get("stride") or a["kernel_size"]
    sizes, places = b.shape(x)[-count:], a.result.shape[-count:]
    spaces = windowed_axes(sizes, per_axis(a["kernel_size"], count), places, stride, a["padding"], 1)
    divisor = a.get("divisor_override")
    if divisor:
        total = pooled(b, x, "sum", spaces, element)
        return b.pointwise(div(operand(0), divisor), [total], element)
    outside = any(_beyond(s) for s in spaces)
    padded = any(s.padding for s in spaces)
    if not outside and (a.get("count_include_pad", True) or not padded):
        return pooled(b, x, "mean", spaces, element)
    total = pooled(b, x, "sum", spaces, element)
    _, axes, extents = window_axes(b, x, spaces)
    counted = element_counts(spaces, bool(a.get("count_include_pad", True)))
    return b.add("pointwise", [(total, axes)], div(operand(0), counted), axes, extents, element)


def element_counts(spaces: Sequence[WindowedAxis], padding: bool) -> Expr:
    """Returns how many elements an average at a place divides by, with the padding or without."""
    whole: Expr | None = None
    for s in spaces:
        factor = _count(s, padding)
        whole = factor if whole is None else mul(whole, factor)
    assert whole is not None
    return folded(whole)


def _beyond(s: WindowedAxis) -> bool:
    """Returns whether the last window passes the padded end, as with ceil_mode."""
    return (s.places - 1) * s.stride + s.width > s.size + 2 * s.padding


def _count(s: WindowedAxis, padding: bool) -> Expr:
    """Returns how many elements an average divides by, along one axis."""
    low, high = (-s.padding, s.size + s.padding) if padding else (0, s.size)
    first = [p * s.stride - s.padding for p in range(s.places)]
    inside = [min(f + s.width, high) - max(f, low) for f in first]
    if len(set(inside)) == 1 or s.places == 1:
        return number(inside[0])
    start = plus(mul(s.stride, index(s.output)) if s.stride != 1 else index(s.output), -s.padding)
    return sub(call("min", plus(start, s.width), high), call("max", start, low))


def _adaptive_avg_pool(b: GraphBuilder, a: Arguments) -> ValueRef:
    x, element = a["self"], a.result.element
    count = _spatial_rank(b, a, x)
    sizes, places = b.shape(x)[-count:], a.result.shape[-count:]
    if all(s % p == 0 for s, p in zip(sizes, places, strict=True)):
        if prod(places) == 1:
            rank = len(b.shape(x))
            return reduce(b, x, "mean", tuple(range(rank - count, rank)), True, element)
        widths = [s // p for s, p in zip(sizes, places, strict=True)]
        return pooled(b, x, "mean", windowed_axes(sizes, widths, places, widths, 0, 1), element)
    y: ValueRef = x
    for axis in range(count):
        y = _adaptive_along(b, y, len(b.shape(x)) - count + axis, places[axis], element)
    return y


def _adaptive_max_pool(b: GraphBuilder, a: Arguments) -> tuple[ValueRef | None, ...]:
    """As the average, with the positions where all windows are equal."""
    x, element = a["self"], a.results[0].element
    count = _spatial_rank(b, a, x)
    sizes, places = b.shape(x)[-count:], a.results[0].shape[-count:]
    if all(s % p == 0 for s, p in zip(sizes, places, strict=True)):
        widths = [s // p for s, p in zip(sizes, places, strict=True)]
        spaces = windowed_axes(sizes, widths, places, widths, 0, 1)
        y = pooled(b, x, "max", spaces, element)
        return y, _positions_of(b, x, y, spaces)
    for axis in range(count):
        x = _adaptive_along(b, x, len(b.shape(x)) - count + axis, places[axis], element, "max")
    return x, None


def _adaptive_along(
    b: GraphBuilder, x: ValueRef, axis: int, places: int, element: str, function: str = "mean"
) -> ValueRef:
    """Adds the mean or the largest of windows whose widths differ: from p * n // places to the ceiling of
    (p + 1) * n / places."""
    labels, axes, extents = b.labels(x)
    size, along = b.shape(x)[axis], labels[axis]
    if size == places:
        return x
    if places == 1:
        return reduce(b, x, function, (axis,), True, element)
    extents["P"] = places
    if size == 1:
        return b.view(x, axes, tuple(("P",) if i == axis else own for i, own in enumerate(axes)), extents)
    start = binary("//", mul(index("P"), size), places)
    end = binary("//", add(mul(add(index("P"), 1), size), places - 1), places)
    inside = both(binary(">=", index(along), start), binary("<", index(along), end))
    new = tuple(("P",) if i == axis else own for i, own in enumerate(axes))
    if function == "max":
        body = over("max", (along,), where(inside, operand(0), float("-inf")))
    else:
        body = div(over("sum", (along,), where(inside, operand(0), 0)), sub(end, start))
    return b.add("reduction", [(x, axes)], body, new, extents, element)


def _upsample_nearest(b: GraphBuilder, a: Arguments) -> ValueRef:
    x: ValueRef = a["self"] if a.get("self") else a["input"]
    element = a.result.element
    count = _spatial_rank(b, a, x)
    sizes, places = b.shape(x)[-count:], a.result.shape[-count:]
    shape = b.shape(x)
    if any(p % s for s, p in zip(sizes, places, strict=True)):
        for axis in range(len(shape) - count, len(shape)):
            step = _scale(a, axis - len(shape), shape[axis], a.result.shape[axis])
            place = call("floor", mul(index("P"), step))
            x = gathered(b, x, axis, _coordinates(b, place, a.result.shape[axis], shape[axis]))
        return x
    labels = [f"_{c}" for c in "abcdefgh"[: len(shape)]]
    extents = dict(zip(labels, shape, strict=True))
    axes: list[Axis] = [(label,) if extents[label] != 1 else () for label in labels]
    outer = list(axes)
    for i in range(count):
        at_axis = len(shape) - count + i
        factor = places[i] // sizes[i]
        if factor != 1:
            extents[f"_r{i}"] = factor
            outer[at_axis] = (*axes[at_axis], f"_r{i}")
    return b.add("view", [(x, tuple(axes))], operand(0), tuple(outer), extents, element)


def _scale(a: Arguments, axis: int, size: int, places: int) -> float:
    """Returns how far the input is read from place to place; `axis` counts from the end."""
    factors = a.get("scale_factors")
    return 1.0 / factors[axis] if factors else size / places


def _coordinates(b: GraphBuilder, place: Expr, places: int, size: int) -> ValueRef:
    """Adds whole coordinates below `size` along the label P."""
    body = call("i64", call("clamp", place, 0, size - 1))
    return b.add("constant", [], body, (("P",),), {"P": places}, "i64", "ids")


def _between(b: GraphBuilder, x: ValueRef, axis: int, place: float) -> ValueRef:
    """Adds what linear interpolation gives at one place of an axis."""
    size, element = b.shape(x)[axis], b.element(x)
    low = min(int(max(place, 0.0)), size - 1)
    share = max(place, 0.0) - low
    near = sliced(b, x, axis, low, 1)
    if share == 0 or low + 1 == size:
        return near
    far = sliced(b, x, axis, low + 1, 1)
    return b.pointwise(add(operand(0), mul(sub(operand(1), operand(0)), share)), [near, far], element)


def _upsample_linear(b: GraphBuilder, a: Arguments) -> ValueRef:
    """Along each axis the two nearest elements, weighted by their distance."""
    x: ValueRef = a["input"] if a.get("input") else a["self"]
    element = a.result.element
    rank = len(b.shape(x))
    for axis in range(2, rank):
        size, places = b.shape(x)[axis], a.result.shape[axis]
        if size == places:
            continue
        if size == 1:
            x = gathered(b, x, axis, _coordinates(b, index("P"), places, size))
            continue
        if places == 1:
            x = _between(b, x, axis, 0.0 if a["align_corners"] else _scale(a, axis - rank, size, 1) / 2 - 0.5)
            continue
        if a["align_corners"]:
            source: Expr = mul(index("P"), (size - 1) / (places - 1))
        else:
            step = _scale(a, axis - rank, size, places)
            source = call("max", sub(mul(add(index("P"), 0.5), step), 0.5), 0)
        low = _coordinates(b, call("floor", source), places, size)
        high = _coordinates(b, add(call("floor", source), 1), places, size)
        share = b.add(
            "constant", [], sub(source, call("floor", source)), (("P",),), {"P": places}, element, "share"
        )
        share = b.reshape(share, (places, *(1,) * (rank - 1 - axis)))
        parts = [gathered(b, x, axis, low), gathered(b, x, axis, high), share]
        x = b.pointwise(template("x0 + (x1 - x0) * x2"), parts, element)
    return x


def _upsample_antialiased(reach: int, weight: str) -> Rule:
    """Returns a rule for resampling by a filter that is as wide as an element of the result: `weight` at the
    distance x0, which is 0 beyond `reach`."""

    def rule(b: GraphBuilder, a: Arguments) -> ValueRef:
        x: ValueRef = a["input"] if a.get("input") else a["self"]
        rank, element = len(b.shape(x)), a.result.element
        for axis in range(2, rank):
            size, places = b.shape(x)[axis], a.result.shape[axis]
            step = _antialiased_step(a, axis - rank, size, places)
            if size == places and step == 1:
                continue
            wide = max(step, 1.0)
            taps = 2 * math.ceil(reach * wide) + 1
            center = mul(add(index("P"), 0.5), step)
            position = add(call("floor", add(sub(center, reach * wide), 0.5)), index("R"))
            distance = call("abs", div(sub(add(position, 0.5), center), wide))
            inside = both(binary(">=", position, 0), binary("<", position, size))
            share = where(inside, substituted(template(weight), {"x0": distance}), 0.0)
            axes, extents = (("P",), ("R",)), {"P": places, "R": taps}
            ids = call("i64", call("clamp", position, 0, size - 1))
            places_of = b.add("constant", [], ids, axes, extents, "i64", "ids")
            shares = b.add("constant", [], share, axes, extents, "f32", "share")
            tail = (1,) * (rank - 1 - axis)
            read = gathered(b, x, axis, places_of)
            product = b.pointwise(
                template("x0 * x1"), [read, b.reshape(shares, (places, taps, *tail))], "f32"
            )
            total = b.reshape(reduce(b, shares, "sum", (1,), False, "f32", "total"), (places, *tail))
            summed = reduce(b, product, "sum", (axis + 1,), False, "f32")
            x = b.pointwise(template("x0 / x1"), [summed, total], element)
        return x

    return rule


def _antialiased_step(a: Arguments, axis: int, size: int, places: int) -> float:
    """Returns how far the input is read from place to place; `axis` counts from the end."""
    if a["align_corners"]:
        return (size - 1) / (places - 1) if places > 1 else 0.0
    factor = a.get("scales_h" if axis == -2 else "scales_w")
    return 1.0 / factor if factor else _scale(a, axis, size, places)


_CUBIC = (
    "where(x0 < 1, (1.5 * x0 - 2.5) * x0 * x0 + 1, where(x0 < 2, ((-0.5 * x0 + 2.5) * x0 - 4) * x0 + 2, 0.0))"
)
"""Keys' kernel with a = -0.5, as PyTorch and Pillow have it for images."""


def _col2im(b: GraphBuilder, a: Arguments) -> ValueRef:
    """Each element is the sum of what windows have at it; windows side by side are another order of axes."""
    x, places, widths = a["self"], tuple(a["output_size"]), tuple(a["kernel_size"])
    stride, padding, dilation = (per_axis(a[name], 2) for name in ("stride", "padding", "dilation"))
    lead, channels = b.shape(x)[:-2], b.shape(x)[-2] // prod(widths)
    columns = zip(places, widths, stride, padding, dilation, strict=True)
    sizes = tuple((n + 2 * p - d * (w - 1) - 1) // s + 1 for n, w, s, p, d in columns)
    parts = b.reshape(x, (*lead, channels, *widths, *sizes))
    if stride == widths and padding == (0, 0) and dilation == (1, 1) and places == _products(sizes, widths):
        rank = len(lead)
        order = [*range(rank + 1), rank + 3, rank + 1, rank + 4, rank + 2]
        return b.reshape(permuted(b, parts, order), a.result.shape)
    spaces = windowed_axes(sizes, widths, places, stride, padding, dilation)
    extents = {**dict(zip(("B", "C"), (*lead, channels) if lead else (1, channels), strict=True))}
    extents |= extents_of(spaces)
    outer = tuple(named_axis(label, extents) for label in ("BC" if lead else "C"))
    windows = tuple(named_axis(s.window, extents) for s in spaces)
    items = tuple(s.transposed() for s in spaces if not s.direct)
    body = over("sum", tuple(s.window for s in spaces if s.width != 1), Index(operand(0), items))
    axes = (*outer, *(named_axis(s.output, extents) for s in spaces))
    if not items or not all(s.reaches for s in spaces):
        raise b.fail("windows that reach no element, or of one element each")
    reads = [(parts, (*outer, *windows, *input_axes(spaces, extents)))]
    return b.add("window", reads, body, axes, extents, a.result.element)


def _products(left: Sequence[int], right: Sequence[int]) -> tuple[int, ...]:
    return tuple(x * y for x, y in zip(left, right, strict=True))


def _rules() -> dict[str, Rule]:
    rules: dict[str, Rule] = {"aten.convolution.default": _convolution(None), "aten.col2im.default": _col2im}
    for n in (1, 2, 3):
        rules |= {f"aten.conv{n}d.{o}": _conv for o in ("default", "padding")}
        rules[f"aten.conv_transpose{n}d.{'default' if n == 1 else 'input'}"] = _convolution(True)
        rules[f"aten.max_pool{n}d.default"] = _max_pool(False)
        rules[f"aten.max_pool{n}d_with_indices.default"] = _max_pool(True)
        rules[f"aten.avg_pool{n}d.default"] = _avg_pool
        rules[f"aten.adaptive_avg_pool{n}d.default"] = _adaptive_avg_pool
        rules[f"aten._adaptive_avg_pool{n}d.default"] = _adaptive_avg_pool
        rules[f"aten.adaptive_max_pool{n}d.default"] = _adaptive_max_pool
        rules |= {f"aten.upsample_nearest{n}d.{o}": _upsample_nearest for o in ("default", "vec")}
    for name, rule in {
        "bilinear2d": _upsample_antialiased(1, "max(1 - x0, 0)"),
        "bicubic2d": _upsample_antialiased(2, _CUBIC),
    }.items():
        rules |= {f"aten._upsample_{name}_aa.{o}": rule for o in ("default", "vec")}
    for name in ("linear1d", "bilinear2d", "trilinear3d"):
        rules |= {f"aten.upsample_{name}.{o}": _upsample_linear for o in ("default", "vec")}
    return rules


RULES: Mapping[str, Rule] = MappingProxyType(_rules())
