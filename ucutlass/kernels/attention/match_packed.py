"""Packed sequences: one token axis of queries and one of keys, cut by offsets that lie on the device.

    own = segment(L, q_starts) == segment(S, k_starts)
    where(own and index(S) - k_starts[P = segment(S, k_starts)] <= .., s, -inf)

The masks that need offsets are taken off the score; what is left needs none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from ucutlass import ir
from ucutlass.ir.elements import I32, I64, Element
from ucutlass.ir.extents import Extent
from ucutlass.ir.traversal import walk
from ucutlass.kernels.attention.match_score import KeyLimit, Start, number_of, window_of, worth
from ucutlass.kernels.gemm.match import pointer


@dataclass(frozen=True, slots=True)
class OffsetsPattern:
    """Offsets of sequences: a parameter of `count` entries, one more than there are sequences."""

    param: int
    pointer: int
    elem: Element
    count: Extent


@dataclass(frozen=True, slots=True)
class PackedPattern:
    """A row of `query` meets the keys of `key` in its own sequence alone, within `limits`."""

    query: str
    key: str
    q: OffsetsPattern
    k: OffsetsPattern
    limits: tuple[KeyLimit, ...]


def packed_of(
    kernel: ir.Kernel, score: ir.Value, queries: tuple[str, ...], keys: tuple[str, ...]
) -> tuple[ir.Value, PackedPattern | None]:
    """The score without the masks that need offsets, and what those say; None where no sequences are told
    apart, or by something else than two segments."""
    masks, inner = _masks(score)
    parts = [part for mask in masks for part in _conjuncts(mask.args[0])]
    operands = next((pair for part in parts if (pair := _own(part, queries, keys)) is not None), None)
    if operands is None:
        return score, None
    sides = tuple(_offsets(kernel, side) for side in operands)
    if sides[0] is None or sides[1] is None:
        return score, None
    pattern = PackedPattern(operands[0].dim, operands[1].dim, sides[0], sides[1], ())
    resolve = _resolver(pattern)
    limits: list[KeyLimit] = []
    rest: list[ir.Value] = []
    for part in parts:
        if _own(part, queries, keys) is not None:
            continue
        read = window_of(part, pattern.query, pattern.key, resolve) if _needs_offsets(part) else None
        if read is None:
            rest.append(part)
        else:
            limits += read
    return _masked(inner, rest, masks[0]), replace(pattern, limits=tuple(limits))


# --- masks -------------------------------------------------------------------------


def _masks(value: ir.Value) -> tuple[list[ir.Apply], ir.Value]:
    """The outer `where(c, e, -inf)` of a score, and the e of the last."""
    masks: list[ir.Apply] = []
    while isinstance(value, ir.Apply) and value.function == "where":
        fill = number_of(value.args[2])
        if fill is None or not _is_minus_infinity(fill):
            break
        masks.append(value)
        value = value.args[1]
    return masks, value


def _is_minus_infinity(fill: object) -> bool:
    try:
        return worth(fill, {}) == -math.inf  # type: ignore[arg-type]
    except KeyError:  # it is made of extents
        return False


def _conjuncts(condition: ir.Value) -> list[ir.Value]:
    if isinstance(condition, ir.Apply) and condition.function == "and":
        return [part for side in condition.args for part in _conjuncts(side)]
    return [condition]


def _masked(value: ir.Value, parts: list[ir.Value], like: ir.Apply) -> ir.Value:
    """The value where all parts hold, -inf elsewhere, one `where` a part."""
    for part in reversed(parts):
        dims = tuple(dict.fromkeys((*part.dims, *value.dims)))
        value = replace(like, args=(part, value, like.args[2]), dims=dims)
    return value


# --- segments ----------------------------------------------------------------------


def _own(
    part: ir.Value, queries: tuple[str, ...], keys: tuple[str, ...]
) -> tuple[ir.Segment, ir.Segment] | None:
    """The segments of a row and of a key that a condition says are one."""
    match part:
        case ir.Apply(function="equal", args=(ir.Segment() as a, ir.Segment() as b)):
            for row, key in ((a, b), (b, a)):
                if row.dim in queries and (key.dim,) == keys:
                    return row, key
    return None


def _offsets(kernel: ir.Kernel, segment: ir.Segment) -> OffsetsPattern | None:
    match segment.offsets:
        case ir.ParamValue(index=index, elem=elem) if elem in (I32, I64):
            type_ = kernel.params[index].type
            assert isinstance(type_, ir.TensorType)
            return OffsetsPattern(index, pointer(kernel, index), elem, type_.axes[0].extent)
    return None


def _needs_offsets(part: ir.Value) -> bool:
    return any(isinstance(node, ir.Segment) for node in walk(part))


def _resolver(pattern: PackedPattern) -> Callable[[ir.Value], Start | None]:
    """What tells `starts[O = segment(T, starts)]`, or of the sequence after: within `own`, a row's segment
    is the key's."""
    sides = {pattern.k.param: "k", pattern.q.param: "q"}

    def start(node: ir.Value) -> Start | None:
        match node:
            case ir.Cast(value=inner, elem=elem) if elem in (I32, I64):
                return start(inner)
            case ir.Gather(value=ir.ParamValue(index=index), ids=ids) if index in sides:
                after = _after(ids)
                return None if after is None else Start(sides[index], after)
        return None

    def _after(ids: ir.Value) -> int | None:
        match ids:
            case ir.Cast(value=inner):
                return _after(inner)
            case ir.Apply(function="add", args=(ir.Segment() as of, ir.Constant(value=1))):
                return 1 if _known(of) else None
            case ir.Segment() as of if _known(of):
                return 0
        return None

    def _known(of: ir.Segment) -> bool:
        match of.offsets:
            case ir.ParamValue(index=index):
                return (of.dim, index) in ((pattern.query, pattern.q.param), (pattern.key, pattern.k.param))
        return False

    return start
