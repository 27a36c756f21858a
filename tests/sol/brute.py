"""Demand element by element, without regions: the judge of `ucutlass.sol.demand` on tiny extents."""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from ucutlass.ir import (
    Apply,
    Cast,
    Constant,
    Coordinate,
    Dot,
    Gather,
    ParamValue,
    Read,
    Reduce,
    Scan,
    Segment,
    Softmax,
    TensorType,
    Value,
    extents,
)
from ucutlass.sol.demand import NEUTRAL
from ucutlass.sol.graph import KernelBuffer, ValueGraph

Point = Mapping[str, int]

EXACT = {
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "floor_divide": operator.floordiv,
    "modulo": operator.mod,
    "negate": operator.neg,
    "not": operator.not_,
}

KEEPS_ZERO = ("divide", "relu", "abs", "silu", "gelu", "tanh")


class Brute:
    """`elements` of every node that are needed, `products` of dots, `taken` by reductions."""

    def __init__(self, graph: ValueGraph, may: bool) -> None:
        self.graph, self.may = graph, may
        self.elements: dict[int, set[tuple[int, ...]]] = defaultdict(set)
        self.products: dict[int, set[tuple[int, ...]]] = defaultdict(set)
        self.taken: dict[int, set[tuple[int, ...]]] = defaultdict(set)
        self.read: dict[str, set[tuple[int, ...]]] = defaultdict(set)
        for name in graph.results:
            made = graph.buffers[name]
            assert isinstance(made, KernelBuffer)
            for point in self.points(made.value.dims):
                self.need(made.value, point)

    def points(self, dims: tuple[str, ...], at: Point = {}) -> Iterator[dict[str, int]]:  # noqa: B006
        for values in product(*(range(self.graph.extents[d]) for d in dims)):
            yield {**at, **dict(zip(dims, values, strict=True))}

    def need(self, node: Value, at: Point) -> None:
        key = tuple(at[d] for d in node.dims)
        if key in self.elements[id(node)]:
            return
        self.elements[id(node)].add(key)
        at = dict(zip(node.dims, key, strict=True))
        match node:
            case Apply(function="where", args=(condition, a, b)):
                self.need(condition, at)
                known = self.known(condition, at)
                if known is None and self.may:
                    self.need(a, at), self.need(b, at)
                elif known is not None:
                    self.need(a if known else b, at)
            case Apply(args=args):
                for arg in args:
                    self.need(arg, at)
            case Cast(value=inner):
                self.need(inner, at)
            case Dot(over=over, left=left, right=right):
                for full in self.points(over, at):
                    if self.sure(left, full, 0) and self.sure(right, full, 0):
                        self.products[id(node)].add(tuple(full[d] for d in (*node.dims, *over)))
                    for one, other in ((left, right), (right, left)):
                        if self.known(one, full) != 0 and self.sure(other, full, 0):
                            self.need(one, full)
            case Reduce(op=op, over=over):
                self.take(node, self.points(over, at), NEUTRAL.get(op))
            case Softmax(over=over):
                self.take(node, self.points(over, at), -math.inf)
            case Scan(op=op, along=along):
                here = at[along]
                row = (p for p in self.points((along,), at) if self.before(node, p[along], here))
                self.take(node, row, NEUTRAL[op])
            case Read(value=inner):
                found = self.place(node, at)
                if found is not None:
                    self.need(inner, found)
            case Gather():
                self.gather(node, at)
            case Segment(offsets=offsets):
                for point in self.points(offsets.dims):
                    self.need(offsets, point)
            case ParamValue(index=index):
                self.stored(index, at)

    def before(self, node: Scan, coordinate: int, here: int) -> bool:
        ahead = coordinate - here if node.reverse else here - coordinate
        return ahead > 0 if node.exclusive else ahead >= 0

    def take(self, node: Any, row: Iterator[dict[str, int]], neutral: float | None) -> None:
        for point in row:
            if neutral is None or self.known(node.value, point) != neutral:
                self.need(node.value, point)
            if neutral is None or self.sure(node.value, point, neutral):
                self.taken[id(node)].add(tuple(point[d] for d in node.value.dims))

    def place(self, node: Read, at: Point) -> dict[str, int] | None:
        values = dict(at)
        for p in node.positions:
            place = extents.evaluate(p.at.offset, {}) + sum(c * at[d] for d, c in p.at.terms)
            x, rest = divmod(place, p.scale)
            if rest or not 0 <= x < self.graph.extents[p.dim]:
                return None
            values[p.dim] = x
        return values

    def gather(self, node: Gather, at: Point) -> None:
        """The first coordinate stands for the one that must be read, the first ones for the most."""
        self.need(node.ids, at)
        kept = [d for d in node.value.dims if d != node.dim]
        fresh = math.prod(self.graph.extents[d] for d in node.ids.dims if d not in kept)
        for coordinate in range(min(self.graph.extents[node.dim], fresh) if self.may else 1):
            self.need(node.value, {**at, node.dim: coordinate})

    def stored(self, index: int, at: Point) -> None:
        source = self.graph.sources[index]
        made = self.graph.buffers.get(source.buffer)
        if isinstance(made, KernelBuffer):
            assert isinstance(source.type, TensorType)
            self.need(made.value, self.moved(source.type, made.type, at))
        elif source.buffer:
            self.read[source.buffer].add(tuple(at.values()))

    def moved(self, old: TensorType, new: TensorType, at: Point) -> dict[str, int]:
        values: dict[str, int] = {}
        for before, after in zip(old.axes, new.axes, strict=True):
            flat = 0
            for d in before.dims:
                flat = flat * self.graph.extents[d] + at[d]
            for d in reversed(after.dims):
                flat, values[d] = divmod(flat, self.graph.extents[d])
        return values

    def sure(self, node: Value, at: Point, neutral: float) -> bool:
        """Whether no mask of data could make the value neutral; with `may` they make nothing so."""
        if self.may:
            return bool(self.known(node, at) != neutral)
        match node:
            case Constant(value=value):
                return bool(value != neutral)
            case Apply(function="where", args=(condition, a, b)):
                truth = self.known(condition, at)
                arms = (a, b) if truth is None else (a,) if truth else (b,)
                return all(self.sure(arm, at, neutral) for arm in arms)
            case Apply(function="multiply", args=args) if neutral == 0:
                return all(self.sure(a, at, 0) for a in args)
            case Apply(function="add", args=args) if neutral == -math.inf:
                return all(self.sure(a, at, neutral) for a in args)
            case Apply(function=word, args=args) if neutral == 0 and word in KEEPS_ZERO:
                return self.sure(args[0], at, 0)
            case Apply(function="exp", args=(a,)) if neutral == 0:
                return self.sure(a, at, -math.inf)
            case Cast(value=inner):
                return self.sure(inner, at, neutral)
            case Softmax(value=inner, log=False) if neutral == 0:
                return self.sure(inner, at, -math.inf)
            case Read(value=inner, fill=fill) if fill == neutral:
                found = self.place(node, at)
                return found is not None and self.sure(inner, found, neutral)
            case ParamValue(index=index):
                source = self.graph.sources[index]
                made = self.graph.buffers.get(source.buffer)
                if isinstance(made, KernelBuffer) and isinstance(source.type, TensorType):
                    return self.sure(made.value, self.moved(source.type, made.type, at), neutral)
        return True

    # --- values that the text alone gives ---------------------------------------------

    def known(self, node: Value, at: Point) -> Any:
        """The value at a point, None where data decides."""
        match node:
            case Constant(value=value):
                return value
            case Coordinate(dim=dim):
                return at[dim]
            case Apply(function="where", args=(condition, a, b)):
                truth = self.known(condition, at)
                if truth is not None:
                    return self.known(a if truth else b, at)
                one, two = self.known(a, at), self.known(b, at)
                return one if one == two else None
            case Apply(function="and" | "or" as word, args=args):
                parts = [self.known(a, at) for a in args]
                decided = word == "or"
                return decided if decided in parts else None if None in parts else not decided
            case Apply(function=word, args=args):
                return self.applied(word, [self.known(a, at) for a in args])
            case Cast(value=inner):
                return self.known(inner, at)
            case Softmax(value=inner, log=False):
                return 0 if self.known(inner, at) == -math.inf else None
            case Read(value=inner, fill=fill):
                found = self.place(node, at)
                return fill if found is None else self.known(inner, found)
            case ParamValue(index=index):
                source = self.graph.sources[index]
                made = self.graph.buffers.get(source.buffer)
                if isinstance(made, KernelBuffer) and isinstance(source.type, TensorType):
                    return self.known(made.value, self.moved(source.type, made.type, at))
        return None

    def applied(self, word: str, args: list[Any]) -> Any:
        if word == "multiply" and 0 in args:
            return 0
        if word == "add" and -math.inf in args:
            return -math.inf
        if word in ("relu", "abs", "silu", "gelu", "tanh") and args[0] == 0:
            return 0
        if word == "divide" and args[0] == 0:
            return 0
        if word == "exp" and args[0] == -math.inf:
            return 0
        return EXACT[word](*args) if word in EXACT and None not in args else None
