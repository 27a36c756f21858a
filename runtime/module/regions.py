"""Computes which views back to memory, to are followed which elements of a tensor are used.

A bound may count a byte only if every kernel must move it, so what is sliced away, gathered from or
overwritten is not counted, and a view that repeats elements counts each once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ucutlass.runtime.module.count import OperatorCall, convolution_windows, pooled, resolve, touched
from ucutlass.runtime.module.graph import ModuleGraph, OperatorNode, Ref, TensorMeta
from ucutlass.runtime.module.operators import CREATES, VIEWS, is_in


@dataclass(frozen=True, slots=True)
class ElementRegion:
    """Part of the tensor `base`: at most `elements` of those in `box`, which has a half-open interval for
    each dimension of the base. `dims` maps the view's dimensions to the base's, None where a dimension is no
    longer one of those."""

    base: Ref
    elements: int
    box: tuple[tuple[int, int], ...]
    dims: tuple[int | None, ...]


def whole_region(ref: Ref, tensor: TensorMeta) -> ElementRegion:
    box = tuple((0, extent) for extent in tensor.shape)
    return ElementRegion(ref, tensor.elements, box, tuple(range(len(box))))


def regions(graph: ModuleGraph) -> dict[Ref, ElementRegion]:
    """Returns for every tensor of the graph what it shows of the source, or of the operator's result, behind
    it."""
    tensors = graph.tensors()
    visible = {Ref(s.name): whole_region(Ref(s.name), s.tensor) for s in graph.sources}
    for node in graph.nodes:
        refs = [Ref(node.name, i) for i, t in enumerate(node.outputs) if t is not None]
        if is_in(node.op, VIEWS) and node.refs:
            for ref in refs:
                first = node.refs[0]
                visible[ref] = _view(node, ref.index, visible[first], tensors[first], tensors[ref])
        else:
            visible |= {ref: whole_region(ref, tensors[ref]) for ref in refs}
    return visible


def union(parts: Iterable[ElementRegion]) -> int:
    """Returns a lower bound on the elements that the parts of one tensor cover: parts that may overlap
    count
    as the largest."""
    disjoint: list[ElementRegion] = []
    for part in sorted(parts, key=lambda part: -part.elements):
        if all(_disjoint(part, other) for other in disjoint):
            disjoint.append(part)
    return sum(part.elements for part in disjoint)


def _disjoint(a: ElementRegion, b: ElementRegion) -> bool:
    return any(ah <= bl or bh <= al for (al, ah), (bl, bh) in zip(a.box, b.box, strict=True))


# --- views ------------------------------------------------------------------------


def _view(
    node: OperatorNode, index: int, source: ElementRegion, operand: TensorMeta, out: TensorMeta
) -> ElementRegion:
    """Returns the region of a view's result `index`, whose operand is `operand`."""
    region = _view_region(node, index, source, operand, out)
    size = math.prod(high - low for low, high in region.box)
    return replace(region, elements=min(source.elements, out.elements, size))


def _view_region(
    node: OperatorNode, index: int, source: ElementRegion, operand: TensorMeta, out: TensorMeta
) -> ElementRegion:
    a = node.arguments
    dims, rank = list(source.dims), len(source.dims)
    match node.packet.removeprefix("aten."):
        case "slice":
            return _slice(source, a["dim"] % rank, a.get("start"), a.get("step") or 1, out)
        case "select":
            return _select(source, a["dim"] % rank, a["index"])
        case "unbind":
            return _select(source, a["dim"] % rank, index)
        case "split" | "split_with_sizes" | "chunk":
            d = a["dim"] % rank
            before = [t.shape[d] for t in node.outputs[:index] if t is not None]
            return _narrow(source, d, sum(before), sum(before) + out.shape[d])
        case "permute":
            return replace(source, dims=tuple(dims[d] for d in a["dims"]))
        case "transpose":
            first, second = a["dim0"], a["dim1"]
            dims[first], dims[second] = dims[second], dims[first]
            return replace(source, dims=tuple(dims))
        case "t":
            return replace(source, dims=tuple(reversed(dims)))
        case "unsqueeze":
            dims.insert(a["dim"] % (rank + 1), None)
            return replace(source, dims=tuple(dims))
        case "squeeze":
            return replace(source, dims=_squeezed(dims, operand.shape, a.get("dim")))
        case "view" | "reshape" | "_unsafe_view":
            return replace(source, dims=_reshaped(dims, operand.shape, out.shape))
        case "expand":
            fresh = len(out.shape) - rank
            return replace(source, dims=(*[None] * fresh, *dims))
        case "alias" | "detach" | "lift_fresh":
            return source
        case _:
            return replace(source, dims=(None,) * len(out.shape))


def _squeezed(dims: list[int | None], shape: tuple[int, ...], chosen: Any) -> tuple[int | None, ...]:
    squeezed = range(len(shape)) if chosen is None else [chosen] if isinstance(chosen, int) else chosen
    removed = {d % len(shape) for d in squeezed if shape and shape[d] == 1}
    return tuple(dim for d, dim in enumerate(dims) if d not in removed)


def _reshaped(
    dims: list[int | None], before: tuple[int, ...], after: tuple[int, ...]
) -> tuple[int | None, ...]:
    """Leading and trailing dimensions that a reshape leaves alone keep what they show."""
    mapped: list[int | None] = [None] * len(after)
    shorter = min(len(before), len(after))
    for d in range(shorter):
        if before[d] != after[d]:
            break
        mapped[d] = dims[d]
    for d in range(1, shorter + 1):
        if before[-d] != after[-d]:
            break
        mapped[-d] = dims[-d]
    return tuple(mapped)


def _select(source: ElementRegion, dim: int, index: int) -> ElementRegion:
    extent = _extent(source, dim)
    at = index if index >= 0 or extent is None else index + extent
    narrowed = _narrow(source, dim, at, at + 1)
    return replace(narrowed, dims=(*source.dims[:dim], *source.dims[dim + 1 :]))


def _slice(source: ElementRegion, dim: int, start: int | None, step: int, out: TensorMeta) -> ElementRegion:
    extent = _extent(source, dim)
    at = start or 0
    if at < 0 and extent is not None:
        at = max(0, at + extent)
    stop = at + (out.shape[dim] - 1) * step + 1 if out.shape[dim] else at
    narrowed = _narrow(source, dim, at, stop)
    dims = narrowed.dims if step == 1 else (*source.dims[:dim], None, *source.dims[dim + 1 :])
    return replace(narrowed, dims=dims)


def _extent(source: ElementRegion, dim: int) -> int | None:
    base = source.dims[dim]
    return None if base is None else source.box[base][1] - source.box[base][0]


def _narrow(source: ElementRegion, dim: int, start: int, stop: int) -> ElementRegion:
    base = source.dims[dim]
    if base is None:
        return source
    low, high = source.box[base]
    box = list(source.box)
    box[base] = (min(low + start, high), min(low + stop, high))
    return replace(source, box=tuple(box))


# --- what an operator reads -------------------------------------------------------

_SCATTERED = ("src", "values", "value")


def scattered(node: OperatorNode, tensors: Mapping[Ref, TensorMeta]) -> int:
    """Returns the elements that an operator of SCATTERS writes over, at most all."""
    total = tensors[Ref(node.name)].elements
    if is_in(node.op, ("aten.fill", "aten.copy")):
        return total
    if is_in(node.op, ("aten.scatter",)):
        index = node.arguments["index"]
        return min(total, tensors[index].elements) if isinstance(index, Ref) else total
    if is_in(node.op, ("aten.index_put",)):
        rows = math.prod(_broadcast(node.arguments["indices"], tensors))
        return min(total, rows * _row(node.arguments["self"], node.arguments["indices"], tensors))
    values = next((node.arguments[n] for n in _SCATTERED if isinstance(node.arguments.get(n), Ref)), None)
    return total if values is None else min(total, tensors[values].elements)


def reads(
    node: OperatorNode, tensors: Mapping[Ref, TensorMeta], visible: Mapping[Ref, ElementRegion]
) -> list[ElementRegion]:
    """Returns the regions that an operator must read, one for each tensor argument; none for a view."""
    if is_in(node.op, VIEWS) or is_in(node.op, CREATES):
        return []
    call = OperatorCall({k: resolve(v, tensors) for k, v in node.arguments.items()}, node.outputs)
    read_regions: list[ElementRegion] = []
    for name, value in node.arguments.items():
        for ref in [value] if isinstance(value, Ref) else _inner(value):
            region, needed = visible[ref], _needed(node, name, call, tensors, ref)
            read_regions.append(replace(region, elements=min(region.elements, needed)))
    return read_regions


def _inner(value: Any) -> list[Ref]:
    return [item for item in value if isinstance(item, Ref)] if isinstance(value, list | tuple) else []


def _needed(
    node: OperatorNode, name: str, call: OperatorCall, tensors: Mapping[Ref, TensorMeta], ref: Ref
) -> int:
    """Returns the elements of one argument that any kernel must read; rows that are gathered may
    all be the
    same one."""
    everything = tensors[ref].elements
    a = node.arguments
    match node.packet.removeprefix("aten."), name:
        case "embedding", "weight":
            return tensors[ref].shape[-1]
        case "index_select", "self":
            return everything // max(1, tensors[ref].shape[int(a["dim"])])
        case "gather", "self":
            return 1
        case "index", "self":
            return _row(ref, a["indices"], tensors)
        case "nll_loss_forward", "self":
            return call.tensor("target").elements
        case "nll_loss_forward", "weight":
            return 1
        case "convolution", "input" if not a["transposed"]:
            x = call.tensor("input").shape
            return x[0] * x[1] * math.prod(touched(*window) for window in convolution_windows(call))
        case ("triu" | "tril") as which, "self":
            *batch, rows, columns = tensors[ref].shape
            return math.prod(batch) * triangle(rows, columns, int(a.get("diagonal", 0)), which == "triu")
        case "copy" | "fill", "self":
            return 0
        case "slice_scatter" | "select_scatter" | "index_put" | "scatter", "self":
            return everything - scattered(node, tensors)
        case "constant_pad_nd" | "upsample_nearest1d" | "upsample_nearest2d" | "upsample_nearest3d", "self":
            return min(everything, call.out.elements)
        case pool, "self" if "_pool" in pool and "adaptive" not in pool:
            return pooled(call)
        case _:
            return everything


def _row(ref: Ref, indices: Any, tensors: Mapping[Ref, TensorMeta]) -> int:
    """Returns the number of elements under one choice of the indexed dimensions."""
    indexed_axes = [i for i, index in enumerate(indices) if index is not None]
    return math.prod(extent for i, extent in enumerate(tensors[ref].shape) if i not in indexed_axes)


def _broadcast(indices: Any, tensors: Mapping[Ref, TensorMeta]) -> tuple[int, ...]:
    shapes = [tensors[index].shape for index in indices if isinstance(index, Ref)]
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(max(extents) for extents in zip(*padded, strict=True))


def triangle(rows: int, columns: int, diagonal: int, upper: bool) -> int:
    """Returns the number of elements on and above (below) a diagonal of a matrix."""
    if upper:
        return sum(min(columns, max(0, columns - (row + diagonal))) for row in range(rows))
    return sum(min(columns, max(0, row + diagonal + 1)) for row in range(rows))
