"""Operators that move elements: views, slices, concatenation, gathers; and tensors made of coordinates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import prod
from operator import mul as mul_numbers
from types import MappingProxyType
from typing import Any

from ucutlass.grammar.syntax import Expr, Index, IndexItem, Name
from ucutlass.importer.expressions import (
    add,
    affine,
    at,
    binary,
    both,
    expr,
    index,
    mul,
    number,
    operand,
    plus,
    selected_of,
    where,
)
from ucutlass.importer.graph import Axes, Axis
from ucutlass.importer.operators.builder import Arguments, GraphBuilder, ValueRef, axis_number
from ucutlass.importer.operators.pointwise import FLOATS, Rule, cast


def _self(a: Arguments) -> ValueRef:
    ref: ValueRef = a.get("self") or a.get("input")
    return ref


def _same(b: GraphBuilder, a: Arguments) -> ValueRef:
    return _self(a)


def _dropout(b: GraphBuilder, a: Arguments) -> ValueRef:
    if a["train"] and a["p"]:
        raise b.fail("dropout, whose mask is random")
    return _self(a)


def _native_dropout(b: GraphBuilder, a: Arguments) -> tuple[ValueRef | None, ...]:
    if a["train"] and a["p"]:
        raise b.fail("dropout, whose mask is random")
    return a["input"], None


def _reshape(b: GraphBuilder, a: Arguments) -> ValueRef:
    return b.reshape(_self(a), a.result.shape)


def permuted(b: GraphBuilder, x: ValueRef, order: Sequence[int]) -> ValueRef:
    _, axes, extents = b.labels(x)
    if list(order) == sorted(order):
        return x
    return b.view(x, axes, tuple(axes[i] for i in order), extents)


def _permute(b: GraphBuilder, a: Arguments) -> ValueRef:
    rank = len(b.shape(_self(a)))
    return permuted(b, _self(a), [axis_number(d, rank) for d in a["dims"]])


def _transpose(b: GraphBuilder, a: Arguments) -> ValueRef:
    rank = len(b.shape(_self(a)))
    order = list(range(rank))
    i, j = axis_number(a["dim0"], rank), axis_number(a["dim1"], rank)
    order[i], order[j] = order[j], order[i]
    return permuted(b, _self(a), order)


def _t(b: GraphBuilder, a: Arguments) -> ValueRef:
    return permuted(b, _self(a), list(reversed(range(len(b.shape(_self(a)))))))


def _expand(b: GraphBuilder, a: Arguments) -> ValueRef:
    x, shape = _self(a), a.result.shape
    own = b.shape(x)
    labels = tuple(f"_{c}" for c in "abcdefghijkl"[: len(shape)])
    extents = dict(zip(labels, shape, strict=True))
    axes: Axes = tuple((label,) if n != 1 else () for label, n in zip(labels, shape, strict=True))
    inner = axes[len(shape) - len(own) :]
    operand_axes: Axes = tuple(axis if n != 1 else () for axis, n in zip(inner, own, strict=True))
    if own == tuple(shape):
        return x
    return b.view(x, operand_axes, axes, extents)


def _repeat(b: GraphBuilder, a: Arguments) -> ValueRef:
    """`x[A]` repeated R times is `(R A)`."""
    x, times = _self(a), list(a["repeats"])
    own = (1,) * (len(times) - len(b.shape(x))) + b.shape(x)
    wide = b.reshape(x, own)
    _, axes, extents = b.labels(wide)
    outer: list[Axis] = []
    for i, (axis, count) in enumerate(zip(axes, times, strict=True)):
        if count == 1:
            outer.append(axis)
            continue
        extents[f"_r{i}"] = count
        outer.append((f"_r{i}", *axis))
    return b.view(wide, axes, tuple(outer), extents)


def _repeat_interleave(b: GraphBuilder, a: Arguments) -> ValueRef:
    x, count, dim = _self(a), a["repeats"], a.get("dim")
    if dim is None:
        x, dim = b.reshape(x, (prod(b.shape(x)),)), 0
    _, axes, extents = b.labels(x)
    extents["_r"] = count
    at_axis = axis_number(dim, len(axes))
    outer = [(*axis, "_r") if i == at_axis and count != 1 else axis for i, axis in enumerate(axes)]
    return b.view(x, axes, tuple(outer), extents)


# --- reading elsewhere -----------------------------------------------------------


def read_along(
    b: GraphBuilder, x: ValueRef, dim: int, count: int, position: Expr, label: str = "_p"
) -> ValueRef:
    """Adds x with axis `dim` read at `position` of a new label of `count` elements; none where count is 1."""
    _, axes, extents = b.labels(x)
    source = f"_{'abcdefghijkl'[dim]}"
    if not axes[dim]:
        raise b.fail("an axis of one element is read elsewhere")
    extents[label] = count
    axis: Axis = (label,) if count != 1 else ()
    new = tuple(axis if i == dim else own for i, own in enumerate(axes))
    return b.add("index", [(x, axes)], at(operand(0), {source: position}), new, extents, b.element(x))


def _bounds(a: Arguments, size: int) -> tuple[int, int, int]:
    start, end, step = a.get("start"), a.get("end"), a.get("step", 1)
    low, high, _ = slice(start, end).indices(size)
    return low, max(low, high), step


def sliced(b: GraphBuilder, x: ValueRef, dim: int, start: int, count: int, step: int = 1) -> ValueRef:
    """Adds `count` elements of an axis from `start`. An equal part of the axis is told by a name of its
    own."""
    size = b.shape(x)[dim]
    if count == size and start == 0 and (step == 1 or size == 1):
        return x
    if count == 0:
        raise b.fail("a tensor without elements")
    equal = step == 1 and count > 1 and size % count == 0 and start % count == 0
    if equal and x.name not in b.constants:  # a constant may be sliced elsewhere in the same kernel
        labels, axes, extents = b.labels(x)
        label = labels[dim]
        extents |= {"Z": size // count, label: count}
        split = tuple(("Z", label) if i == dim else axis for i, axis in enumerate(axes))
        body = at(operand(0), {"Z": start // count})
        return b.add("index", [(x, split)], body, axes, extents, b.element(x))
    return read_along(b, x, dim, count, affine("_p", step, start) if count != 1 else number(start))


def _slice(b: GraphBuilder, a: Arguments) -> ValueRef:
    x = _self(a)
    dim = axis_number(a.get("dim", 0), len(b.shape(x)))
    low, high, step = _bounds(a, b.shape(x)[dim])
    return sliced(b, x, dim, low, -(-(high - low) // step), step)


def _narrow(b: GraphBuilder, a: Arguments) -> ValueRef:
    x = _self(a)
    return sliced(b, x, axis_number(a["dim"], len(b.shape(x))), a["start"], a["length"])


def _select(b: GraphBuilder, a: Arguments) -> ValueRef:
    x = _self(a)
    dim = axis_number(a["dim"], len(b.shape(x)))
    return selected(b, x, dim, axis_number(a["index"], b.shape(x)[dim]))


def selected(b: GraphBuilder, x: ValueRef, dim: int, place: int) -> ValueRef:
    labels, axes, extents = b.labels(x)
    rest = tuple(axis for i, axis in enumerate(axes) if i != dim)
    if not axes[dim]:
        return b.view(x, axes, rest, extents)
    body = at(operand(0), {labels[dim]: place})
    return b.add("index", [(x, axes)], body, rest, extents, b.element(x))


def _split(b: GraphBuilder, a: Arguments) -> tuple[ValueRef | None, ...]:
    x = _self(a)
    dim = axis_number(a.get("dim", 0), len(b.shape(x)))
    sizes = [t.shape[dim] if len(t.shape) == len(b.shape(x)) else 0 for t in a.results]
    starts = [0, *accumulate(sizes)]
    return tuple(sliced(b, x, dim, s, n) if n else None for s, n in zip(starts, sizes, strict=False))


def _unbind(b: GraphBuilder, a: Arguments) -> tuple[ValueRef | None, ...]:
    x = _self(a)
    dim = axis_number(a.get("dim", 0), len(b.shape(x)))
    return tuple(selected(b, x, dim, i) for i in range(b.shape(x)[dim]))


def _flip(b: GraphBuilder, a: Arguments) -> ValueRef:
    x = _self(a)
    labels, axes, extents = b.labels(x)
    dims = [axis_number(d, len(axes)) for d in a["dims"]]
    items = {labels[d]: binary("-", b.shape(x)[d] - 1, labels[d]) for d in dims if axes[d]}
    # The left name is the tensor's, the right one the value's: two labels of one extent.
    renamed = {labels[d]: f"{labels[d]}r" for d in dims if axes[d]}
    extents |= {new: extents[old] for old, new in renamed.items()}
    body = at(operand(0), {old: binary("-", extents[old] - 1, renamed[old]) for old in items})
    new_axes = tuple(tuple(renamed.get(label, label) for label in axis) for axis in axes)
    return b.add("index", [(x, axes)], body, new_axes, extents, b.element(x))


def _roll(b: GraphBuilder, a: Arguments) -> ValueRef:
    x = _self(a)
    shifts, dims = a["shifts"], a.get("dims") or []
    if not dims:
        flat = b.reshape(x, (prod(b.shape(x)),))
        return b.reshape(_rolled(b, flat, 0, shifts[0]), b.shape(x))
    for shift, dim in zip(shifts, dims, strict=True):
        x = _rolled(b, x, axis_number(dim, len(b.shape(x))), shift)
    return x


def _rolled(b: GraphBuilder, x: ValueRef, dim: int, shift: int) -> ValueRef:
    size = b.shape(x)[dim]
    shift %= size
    if shift == 0:
        return x
    labels, axes, extents = b.labels(x)
    source = labels[dim]
    extents["_p"] = size
    new = tuple(("_p",) if i == dim else axis for i, axis in enumerate(axes))
    near = at(operand(0), {source: affine("_p", 1, -shift)})
    far = at(operand(0), {source: affine("_p", 1, size - shift)})
    body = selected_of(b.element(x), binary(">=", index("_p"), shift), near, far)
    return b.add("index", [(x, axes)], body, new, extents, b.element(x))


def _concatenated(b: GraphBuilder, refs: Sequence[ValueRef], dim: int, element: str) -> ValueRef:
    """Adds `where(index(P) < size, x[M = P], y[N = P - size])`."""
    refs = [r for r in refs if b.shape(r) != (0,)]
    if len(refs) == 1:
        return refs[0]
    sizes = [b.shape(r)[dim] for r in refs]
    rank = len(b.shape(refs[0]))
    shape = list(b.shape(refs[0]))
    labels = [f"_{c}" for c in "abcdefghijkl"[:rank]]
    extents = dict(zip(labels, shape, strict=True)) | {"_p": sum(sizes)}
    operands: list[tuple[ValueRef, Axes]] = []
    parts: list[Expr] = []
    starts = [0, *accumulate(sizes)]
    for i, (ref, size) in enumerate(zip(refs, sizes, strict=True)):
        own = f"_m{i}"
        extents[own] = size
        axes: Axes = tuple(
            ((own,) if size != 1 else ()) if j == dim else ((label,) if extents[label] != 1 else ())
            for j, label in enumerate(labels)
        )
        operands.append((ref, axes))
        parts.append(operand(i) if size == 1 else at(operand(i), {own: affine("_p", 1, -starts[i])}))
    body = _chosen(parts, starts)
    if element == "bool":
        body = binary("!=", _chosen([where(part, 1, 0) for part in parts], starts), 0)
    whole: Axes = tuple(
        ("_p",) if j == dim else ((label,) if extents[label] != 1 else ()) for j, label in enumerate(labels)
    )
    return b.add("index", operands, body, whole, extents, element)


FEW_PARTS = 8
"""Up to so many parts of a concatenation are tried one after another; more are halved, which nests less."""


STORED_PARTS = 4
"""A concatenation that grows, as those of DenseNet, begins with one of so many parts, or of a multiple: the others have
one reader each, which reads the parts where they lie."""


def _chosen(parts: Sequence[Expr], starts: Sequence[int]) -> Expr:
    """Returns the part in which the coordinate of `_p` lies, of parts that begin at `starts`."""
    if len(parts) == 1:
        return parts[0]
    half = 1 if len(parts) <= FEW_PARTS else len(parts) // 2
    before, behind = _chosen(parts[:half], starts[:half]), _chosen(parts[half:], starts[half:])
    return where(binary("<", index("_p"), starts[half]), before, behind)


def _cat(b: GraphBuilder, a: Arguments) -> ValueRef:
    refs = [r for r in a["tensors"] if r is not EMPTY and prod(b.shape(r)) > 0]
    dim = axis_number(a.get("dim", 0), len(a.result.shape))
    names = tuple(r.name for r in refs)
    for count in range((len(refs) - 1) // STORED_PARTS * STORED_PARTS, 1, -STORED_PARTS):
        if (begun := b.joined.get((dim, names[:count]))) is not None:
            refs = [begun, *refs[count:]]
            break
    whole = _concatenated(b, refs, dim, a.result.element)
    b.joined[dim, names] = whole
    return whole


def _stack(b: GraphBuilder, a: Arguments) -> ValueRef:
    dim = axis_number(a.get("dim", 0), len(a.result.shape))
    wide = [b.reshape(r, (*b.shape(r)[:dim], 1, *b.shape(r)[dim:])) for r in a["tensors"]]
    return _concatenated(b, wide, dim, a.result.element)


def _pad(b: GraphBuilder, a: Arguments) -> ValueRef:
    return padded(b, _self(a), list(a["pad"]), float(a.get("value") or 0))


def padded(b: GraphBuilder, x: ValueRef, pads: Sequence[int], value: float) -> ValueRef:
    """Adds x with `pads` elements before and behind its axes, last axis first, as in PyTorch."""
    labels, axes, extents = b.labels(x)
    items: dict[str, Expr] = {}
    inside: list[Expr] = []
    new = list(axes)
    operand_axes = list(axes)
    for k in range(len(pads) // 2):
        dim = len(axes) - 1 - k
        before, after = pads[2 * k], pads[2 * k + 1]
        if before == after == 0:
            continue
        size = b.shape(x)[dim]
        label, place = labels[dim], f"_p{dim}"
        extents[place] = size + before + after
        new[dim] = (place,) if extents[place] != 1 else ()
        if size == 1 and extents[place] > 1 and before >= 0 and after >= 0:
            inside.append(binary("==", index(place), before))
            continue
        operand_axes[dim] = (label,)
        items[label] = affine(place, 1, -before)
        if before > 0:
            inside.append(binary(">=", index(place), before))
        if after > 0:
            inside.append(binary("<", index(place), before + size))
    if not items and not inside:
        return x
    body = at(operand(0), items)
    if inside:
        # An index alone would read a reduction's neutral element outside, where one stands around it.
        outside = bool(value) if b.element(x) == "bool" else value
        body = selected_of(b.element(x), both(*inside), body, outside)
    return b.add("index", [(x, tuple(operand_axes))], body, tuple(new), extents, b.element(x))


def _embedding(b: GraphBuilder, a: Arguments) -> ValueRef:
    table, ids = a["weight"], a["indices"]
    return gathered(b, table, 0, ids)


def gathered(b: GraphBuilder, x: ValueRef, dim: int, ids: ValueRef) -> ValueRef:
    """Adds x with the axis `dim` replaced by the axes of `ids`, read there."""
    labels, axes, extents = b.labels(x)
    id_labels = [f"_i{i}" for i in range(len(b.shape(ids)))]
    extents |= dict(zip(id_labels, b.shape(ids), strict=True))
    id_axes: Axes = tuple((label,) if extents[label] != 1 else () for label in id_labels)
    new = (*axes[:dim], *id_axes, *axes[dim + 1 :])
    if not axes[dim]:
        return b.view(x, axes, new, extents)
    body = at(operand(0), {labels[dim]: operand(1)})
    return b.add("index", [(x, axes), (ids, id_axes)], body, new, extents, b.element(x))


def _index_select(b: GraphBuilder, a: Arguments) -> ValueRef:
    x = _self(a)
    return gathered(b, x, axis_number(a["dim"], len(b.shape(x))), a["index"])


def _index(b: GraphBuilder, a: Arguments) -> ValueRef:
    """Advanced indexing by whole numbers, of which negative ones count from the end."""
    x, indices = _self(a), list(a["indices"])
    used = [(i, r) for i, r in enumerate(indices) if r is not None]
    if any(b.element(r) == "bool" for _, r in used):
        raise b.fail("a mask as an index: the result's shape depends on values")
    used = [(i, _from_start(b, r, b.shape(x)[i])) for i, r in used]
    if len(used) == 1:
        dim, ids = used[0]
        return gathered(b, x, dim, ids)
    labels, axes, extents = b.labels(x)
    shapes = [b.shape(r) for _, r in used]
    rank = max(map(len, shapes))
    whole = tuple(
        max(s[len(s) - rank + j] if len(s) - rank + j >= 0 else 1 for s in shapes) for j in range(rank)
    )
    id_labels = [f"_i{i}" for i in range(rank)]
    extents |= dict(zip(id_labels, whole, strict=True))
    id_axes: Axes = tuple((label,) if n != 1 else () for label, n in zip(id_labels, whole, strict=True))
    dims = [d for d, _ in used]
    adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    rest = [axis for i, axis in enumerate(axes) if i not in dims]
    place = dims[0] if adjacent else 0
    new = (*rest[:place], *id_axes, *rest[place:])
    items: dict[str, Expr] = {}
    operands: list[tuple[ValueRef, Axes]] = [(x, axes)]
    for dim, ids in used:
        if not axes[dim]:
            continue
        own = b.shape(ids)
        own_axes = tuple(
            axis if n != 1 else () for axis, n in zip(id_axes[rank - len(own) :], own, strict=True)
        )
        items[labels[dim]] = operand(len(operands))
        operands.append((ids, own_axes))
    return b.add("index", operands, at(operand(0), items), new, extents, b.element(x))


def _from_start(b: GraphBuilder, ids: ValueRef, size: int) -> ValueRef:
    """Returns positions that count from the start of an axis."""
    if ids.name in b.positions or size == 1:
        return ids
    body = where(binary("<", operand(0), 0), add(operand(0), size), operand(0))
    return b.pointwise(body, [ids], b.element(ids), "ids")


def _gather(b: GraphBuilder, a: Arguments) -> ValueRef:
    x, ids = _self(a), a["index"]
    dim = axis_number(a["dim"], len(b.shape(x)))
    for i, n in enumerate(b.shape(ids)):
        if i != dim:
            x = sliced(b, x, i, 0, n)
    labels, axes, extents = b.labels(x)
    extents["_j"] = b.shape(ids)[dim]
    new = tuple((("_j",) if extents["_j"] != 1 else ()) if i == dim else axis for i, axis in enumerate(axes))
    if not axes[dim]:
        return b.view(x, axes, new, extents)
    body = at(operand(0), {labels[dim]: operand(1)})
    return b.add("index", [(x, axes), (ids, new)], body, new, extents, b.element(x))


def _unfold(b: GraphBuilder, a: Arguments) -> ValueRef:
    x = _self(a)
    labels, axes, extents = b.labels(x)
    dim = axis_number(a["dimension"], len(axes))
    size, step = a["size"], a["step"]
    extents |= {"_p": a.result.shape[dim], "_r": size}
    if step == size and step * extents["_p"] == b.shape(x)[dim]:
        shape = (*b.shape(x)[:dim], extents["_p"], size, *b.shape(x)[dim + 1 :])
        parts = b.reshape(x, shape)
        order = [*range(dim + 1), *range(dim + 2, len(shape)), dim + 1]
        return permuted(b, parts, order)
    if not axes[dim]:
        raise b.fail("windows of an axis of one element")
    place: Expr = affine("_p", step) if extents["_p"] != 1 else number(0)
    position = add(place, "_r") if size != 1 else place
    outer = [axis if i != dim else (("_p",) if extents["_p"] != 1 else ()) for i, axis in enumerate(axes)]
    new = (*outer, ("_r",) if size != 1 else ())
    return b.add("index", [(x, axes)], at(operand(0), {labels[dim]: position}), new, extents, b.element(x))


def _diagonal(b: GraphBuilder, a: Arguments) -> ValueRef:
    x = _self(a)
    i, j = (axis_number(a.get(k, n), len(b.shape(x))) for k, n in (("dim1", 0), ("dim2", 1)))
    return diagonal(b, x, i, j, a.get("offset", 0), a.result.shape[-1])


def diagonal(b: GraphBuilder, x: ValueRef, i: int, j: int, offset: int, count: int) -> ValueRef:
    """Adds `count` elements of two axes from `[0, offset]` on, in an axis behind the others."""
    labels, axes, extents = b.labels(x)
    extents["_p"] = count
    rest = [axis for k, axis in enumerate(axes) if k not in (i, j)]
    items = {labels[d]: affine("_p", 1, max(0, shift)) for d, shift in ((i, -offset), (j, offset)) if axes[d]}
    return b.add("index", [(x, axes)], at(operand(0), items), (*rest, ("_p",)), extents, b.element(x))


def _diag_embed(b: GraphBuilder, a: Arguments) -> ValueRef:
    x, offset = _self(a), a.get("offset", 0)
    rank, size = len(a.result.shape), a.result.shape[axis_number(a["dim1"], len(a.result.shape))]
    if size == 1:
        return b.reshape(x, a.result.shape)
    labels, axes, extents = b.labels(x)
    extents |= {"_i": size, "_j": size}
    place: Expr = operand(0)
    if axes[-1]:
        place = at(operand(0), {labels[-1]: affine("_i", 1, min(0, offset))})
    inside = binary("==", plus(index("_i"), offset), index("_j"))
    body = selected_of(b.element(x), inside, place, False if b.element(x) == "bool" else 0)
    whole = b.add("index", [(x, axes)], body, (*axes[:-1], ("_i",), ("_j",)), extents, b.element(x))
    rows, columns = axis_number(a["dim1"], rank), axis_number(a["dim2"], rank)
    rest = iter(range(rank - 2))
    order = [rank - 2 if i == rows else rank - 1 if i == columns else next(rest) for i in range(rank)]
    return permuted(b, whole, order)


# --- memory ----------------------------------------------------------------------

EMPTY = ValueRef("")
"""What stands for a tensor without elements."""

SKIP_EMPTY = frozenset({"aten.cat.default", "aten.slice_scatter.default"})
"""Operators that leave out what has no elements."""

READ_MEMORY = frozenset({"aten.as_strided.default", "aten.as_strided_copy.default"})
"""Operators whose rules are told where their tensor lies."""

MEMORY = "memory"
"""The argument of those rules: the offset of the tensor in its memory, and its strides."""


def _as_strided(b: GraphBuilder, a: Arguments) -> ValueRef:
    """Another view of the memory of a dense tensor: a reshape and a permutation of it, else an index into it."""
    x, (start, *strides) = _self(a), a[MEMORY]
    shape = b.shape(x)
    order = sorted(range(len(shape)), key=lambda axis: (-strides[axis], shape[axis]))
    stored = permuted(b, x, order)
    if [strides[i] for i in order if shape[i] != 1] != _dense([shape[i] for i in order if shape[i] != 1]):
        raise b.fail("another view of a tensor that is not dense")
    first = a.get("storage_offset")
    first = (start if first is None else first) - start
    size, steps = list(a["size"]), list(a["stride"])
    by_step = sorted((i for i in range(len(size)) if size[i] != 1), key=lambda i: -steps[i])
    if first == 0 and prod(size) == prod(shape):
        ordered = [size[i] for i in by_step]
        if [steps[i] for i in by_step] == _dense(ordered):
            ones = [i for i in range(len(size)) if size[i] == 1]
            parts = b.reshape(stored, (*ordered, *(1 for _ in ones)))
            return permuted(b, parts, [[*by_step, *ones].index(i) for i in range(len(size))])
    return _read_apart(b, stored, first, size, steps)


def _dense(shape: Sequence[int]) -> list[int]:
    """Returns the strides of a dense tensor."""
    return list(accumulate(reversed(shape[1:]), mul_numbers, initial=1))[::-1] if shape else []


def _read_apart(
    b: GraphBuilder, x: ValueRef, first: int, size: Sequence[int], steps: Sequence[int]
) -> ValueRef:
    """Adds elements of a tensor in memory order, at `first` and from there by steps along each axis."""
    whole = prod(b.shape(x))
    last = first + sum((n - 1) * step for n, step in zip(size, steps, strict=True))
    if first < 0 or last >= whole:
        raise b.fail("a view of memory beyond the tensor")
    flat = b.reshape(x, (whole,))
    if whole == 1:
        return b.pointwise(operand(0), [flat], b.element(x), "copy", shape=size)
    labels = [f"_{c}" for c in "bcdefghijkl"[: len(size)]]
    extents = {"_a": whole, **dict(zip(labels, size, strict=True))}
    position: Expr = number(first)
    for label, n, step in zip(labels, size, steps, strict=True):
        if n != 1 and step:
            position = add(position, affine(label, step)) if position != number(0) else affine(label, step)
    axes: Axes = tuple((label,) if n != 1 else () for label, n in zip(labels, size, strict=True))
    return b.add("index", [(flat, (("_a",),))], at(operand(0), {"_a": position}), axes, extents, b.element(x))


def _triangle(upper: bool) -> Rule:
    def rule(b: GraphBuilder, a: Arguments) -> ValueRef:
        x, diagonal = _self(a), a.get("diagonal", 0)
        labels, axes, extents = b.labels(x)
        rows: Expr = index(labels[-2]) if axes[-2] else number(0)
        columns: Expr = index(labels[-1]) if axes[-1] else number(0)
        inside = binary(">=" if upper else "<=", columns, plus(rows, diagonal))
        zero: Expr = expr(0)
        value: Expr = operand(0)
        body = where(inside, value, zero) if b.element(x) != "bool" else binary("and", inside, value)
        return b.add("pointwise", [(x, axes)], body, axes, extents, b.element(x))

    return rule


# --- tensors without operands ----------------------------------------------------


def constant(b: GraphBuilder, value: Any, shape: Sequence[int], element: str) -> ValueRef:
    if isinstance(value, float) and value != value:
        raise b.fail("the language has no NaN")
    literal: Any = bool(value) if element == "bool" else float(value) if element in FLOATS else int(value)
    return b.pointwise(expr(literal), [], element, shape=shape)


def _full(b: GraphBuilder, a: Arguments) -> ValueRef:
    return constant(b, a["fill_value"], a.result.shape, a.result.element)


def _filled(value: float) -> Rule:
    return lambda b, a: constant(b, value, a.result.shape, a.result.element)


def _scalar_tensor(b: GraphBuilder, a: Arguments) -> ValueRef:
    return constant(b, a["s"], (), a.result.element)


def _arange(b: GraphBuilder, a: Arguments) -> ValueRef:
    start, step = a.get("start", 0), a.get("step", 1)
    body: Expr = index("_a") if a.result.shape != (1,) else number(0)
    if step != 1:
        body = mul(body, step)
    if start:
        body = add(body, start)
    extents = {"_a": a.result.shape[0]}
    axes: Axes = (("_a",) if a.result.shape != (1,) else (),)
    coordinates = b.add("constant", [], body, axes, extents, "i64")
    if start >= 0 and step >= 0:
        b.positions.add(coordinates.name)
    return cast(b, coordinates, a.result.element)


def _eye(b: GraphBuilder, a: Arguments) -> ValueRef:
    rows, columns = a.result.shape
    extents = {"_a": rows, "_b": columns}
    body = where(binary("==", index("_a"), index("_b")), 1.0, 0.0)
    return b.add("constant", [], body, (("_a",), ("_b",)), extents, a.result.element)


def _copy(b: GraphBuilder, a: Arguments) -> ValueRef:
    source: ValueRef = a["src"]
    converted = cast(b, source, a.result.element)
    if b.shape(converted) == a.result.shape:
        return converted
    return b.pointwise(Name("x0"), [converted], a.result.element, shape=a.result.shape)


def _slice_scatter(b: GraphBuilder, a: Arguments) -> ValueRef:
    """Where the coordinate is of the slice, the source is read there."""
    x = _self(a)
    source: ValueRef = a["src"]
    if source is EMPTY:
        return x
    dim = axis_number(a.get("dim", 0), len(b.shape(x)))
    low, high, step = _bounds(a, b.shape(x)[dim])
    if high - low == b.shape(x)[dim] and step == 1:
        return source
    if step != 1:
        return _scattered_apart(b, x, source, dim, low, high, step)
    return _scattered(b, x, source, dim, low, high)


def _select_scatter(b: GraphBuilder, a: Arguments) -> ValueRef:
    x, source = _self(a), a["src"]
    dim = axis_number(a["dim"], len(b.shape(x)))
    low = axis_number(a["index"], b.shape(x)[dim])
    wide = b.reshape(source, (*b.shape(source)[:dim], 1, *b.shape(source)[dim:]))
    if b.shape(x)[dim] == 1:
        return wide
    return _scattered(b, x, wide, dim, low, low + 1)


def _scattered(b: GraphBuilder, x: ValueRef, source: ValueRef, dim: int, low: int, high: int) -> ValueRef:
    labels, axes, extents = b.labels(x)
    label = labels[dim]
    if high - low == extents[label]:
        return source
    extents["_m"] = high - low
    source_axes = tuple(
        (("_m",) if high - low != 1 else ()) if i == dim else axis for i, axis in enumerate(axes)
    )
    inside = [binary(">=", index(label), low)] if low else []
    if high < extents[label]:
        inside.append(binary("<", index(label), high))
    read = at(operand(1), {"_m": affine(label, 1, -low)}) if high - low != 1 else operand(1)
    body = selected_of(b.element(x), both(*inside), read, operand(0))
    return b.add("index", [(x, axes), (source, source_axes)], body, axes, extents, b.element(x))


def _scattered_apart(
    b: GraphBuilder, x: ValueRef, source: ValueRef, dim: int, low: int, high: int, step: int
) -> ValueRef:
    """Every `step`-th coordinate reads the source."""
    count = -(-(high - low) // step)
    if count == 1:
        return _scattered(b, x, source, dim, low, low + 1)
    labels, axes, extents = b.labels(x)
    label = labels[dim]
    extents["_m"] = count
    source_axes = tuple(("_m",) if i == dim else axis for i, axis in enumerate(axes))
    inside = [binary("==", binary("%", plus(index(label), -low), step), 0)]
    inside += [binary(">=", index(label), low)] if low else []
    inside += [binary("<", index(label), high)] if high < extents[label] else []
    read = Index(operand(1), (IndexItem(mul(step, "_m"), affine(label, 1, -low)),))
    body = selected_of(b.element(x), both(*inside), read, operand(0))
    return b.add("index", [(x, axes), (source, source_axes)], body, axes, extents, b.element(x))


def _rules() -> dict[str, Rule]:
    reshapes = (
        "view.default",
        "reshape.default",
        "_unsafe_view.default",
        "unsqueeze.default",
        "squeeze.default",
        "squeeze.dim",
        "squeeze.dims",
        "flatten.using_ints",
        "unflatten.int",
        "_reshape_copy.default",
    )
    rules: dict[str, Rule] = {f"aten.{name}": _reshape for name in reshapes}
    same = (
        "alias.default",
        "clone.default",
        "contiguous.default",
        "detach.default",
        "lift_fresh_copy.default",
        "alias_copy.default",
        "detach_.default",
    )
    rules |= {f"aten.{name}": _same for name in same}
    rules |= {f"aten.{n}.default": _filled(1) for n in ("ones", "ones_like", "new_ones")}
    rules |= {f"aten.{n}.default": _filled(0) for n in ("zeros", "zeros_like", "new_zeros")}
    # What lies in an empty tensor is of no matter.
    empty = ("empty.memory_format", "empty_permuted.default", "empty_like.default", "new_empty.default")
    rules |= {f"aten.{n}": _filled(0) for n in (*empty, "empty_strided.default", "new_empty_strided.default")}
    rules |= {f"aten.{n}.default": _full for n in ("full", "full_like", "new_full")}
    rules |= {f"aten.arange.{o}": _arange for o in ("default", "start", "start_step")}
    rules |= {f"aten.eye.{o}": _eye for o in ("default", "m")}
    rules |= {f"aten.{n}": _split for n in ("split.Tensor", "split_with_sizes.default", "chunk.default")}
    return rules | {
        "aten._unsafe_index.Tensor": _index,
        "aten.as_strided.default": _as_strided,
        "aten.as_strided_copy.default": _as_strided,
        "aten.cat.default": _cat,
        "aten.constant_pad_nd.default": _pad,
        "aten.copy.default": _copy,
        "aten.diag_embed.default": _diag_embed,
        "aten.diagonal.default": _diagonal,
        "aten.diagonal_copy.default": _diagonal,
        "aten.dropout.default": _dropout,
        "aten.embedding.default": _embedding,
        "aten.expand.default": _expand,
        "aten.flip.default": _flip,
        "aten.gather.default": _gather,
        "aten.index.Tensor": _index,
        "aten.index_select.default": _index_select,
        "aten.narrow.default": _narrow,
        "aten.native_dropout.default": _native_dropout,
        "aten.permute.default": _permute,
        "aten.repeat.default": _repeat,
        "aten.repeat_interleave.self_int": _repeat_interleave,
        "aten.roll.default": _roll,
        "aten.scalar_tensor.default": _scalar_tensor,
        "aten.select.int": _select,
        "aten.select_scatter.default": _select_scatter,
        "aten.slice.Tensor": _slice,
        "aten.slice_scatter.default": _slice_scatter,
        "aten.stack.default": _stack,
        "aten.t.default": _t,
        "aten.transpose.int": _transpose,
        "aten.tril.default": _triangle(False),
        "aten.triu.default": _triangle(True),
        "aten.unbind.int": _unbind,
        "aten.unfold.default": _unfold,
    }


RULES: Mapping[str, Rule] = MappingProxyType(_rules())
