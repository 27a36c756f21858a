"""Which elements of every value the results need, from the results back to the parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ucutlass.ir import (
    Apply,
    Cast,
    Dims,
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
)
from ucutlass.sol.counting import count
from ucutlass.sol.graph import KernelBuffer, TorchBuffer, ValueGraph, topological_order
from ucutlass.sol.integer_sets import (
    EMPTY,
    FULL,
    IntegerSet,
    constrained,
    intersection,
    linear,
    project,
    rename,
    union,
    variable,
)
from ucutlass.sol.masks import Masks, image, through

NEUTRAL: Mapping[str, float] = {
    "sum": 0.0,
    "mean": 0.0,
    "prod": 1.0,
    "max": -math.inf,
    "argmax": -math.inf,
    "logsumexp": -math.inf,
    "min": math.inf,
    "argmin": math.inf,
    "cumsum": 0.0,
    "cumprod": 1.0,
}
"""Elements of this value change nothing in a reduction or scan; `var` has none."""

GLOBAL_FUNCTIONS = frozenset(
    {"argsort", "cumprod", "cumsum", "flip", "inverse", "log_softmax", "matmul", "relu", "roll", "softmax"}
    | {"sort"}
)
"""Torch functions whose result hangs on every element of their arguments."""


_COUNTING = 25
"""Conditions that are followed in the time in which a piece is counted."""


@dataclass(slots=True)
class Demand:
    """Regions by node and by buffer. `may`: with what data may ask for, else what it must. `surely` says
    what no data makes neutral: what a mask of data might spare is not counted, and not asked of the other
    factor of a product, but the masked value is needed, or nobody would know the mask."""

    graph: ValueGraph
    may: bool
    masks: Masks
    surely: Masks
    nodes: dict[int, IntegerSet] = field(default_factory=dict)
    sources: dict[int, IntegerSet] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)
    """Buffers that a torch function reads."""
    counted: dict[tuple[IntegerSet, tuple[str, ...]], int] = field(default_factory=dict)

    def of(self, node: Value) -> IntegerSet:
        return self.nodes.get(id(node), EMPTY)

    def count(self, node: Value) -> int:
        """Elements of a value that are needed."""
        return self.points(self.of(node), node.dims)

    def points(self, region: IntegerSet, dims: Sequence[str]) -> int:
        """Points of a region over `dims`, each counted once. Raises ShapeError as `Graph.spend`."""
        if region == FULL:
            return self.graph.count(dims)
        key = region, tuple(dims)
        if key not in self.counted:
            self.graph.spend(_COUNTING * len(region))
            self.counted[key] = count(region, dims, self.graph.extents)
        return self.counted[key]

    def terms(self, node: Dot) -> int:
        """Products of a dot whose sums are needed and neither of whose factors is known to be 0."""
        extents = self.graph.extents
        factors = intersection(
            self.surely.differs(node.left, 0.0), self.surely.differs(node.right, 0.0), extents
        )
        return self.points(intersection(self.of(node), factors, extents), (*node.dims, *node.over))

    def reduced(self, node: Reduce | Softmax | Scan) -> int:
        """Elements of its value that a reduction, softmax or scan takes in."""
        return self.points(self._taken(node, self.surely), node.value.dims)

    # --- from a node to its operands -------------------------------------------------

    def _need(self, node: Value, region: IntegerSet) -> None:
        extents = self.graph.extents
        self.nodes[id(node)] = union(self.of(node), region, extents)
        self.graph.follow(self.nodes[id(node)])

    def _project(self, region: IntegerSet, dims: Dims, keep: Dims) -> IntegerSet:
        return project(region, (d for d in dims if d not in keep), self.graph.extents)

    def _factor(self, node: Dot, one: Value, other: Value) -> IntegerSet:
        """Where a factor of a product is needed: not where it is 0, nor where the other may be."""
        extents = self.graph.extents
        both_ = intersection(self.masks.differs(one, 0.0), self.surely.differs(other, 0.0), extents)
        return intersection(self.of(node), both_, extents)

    def _taken(self, node: Reduce | Softmax | Scan, masks: Masks) -> IntegerSet:
        extents, needed = self.graph.extents, self.of(node)
        match node:
            case Reduce(op="var"):
                return needed
            case Reduce(op=op):
                kept = NEUTRAL[op]
            case Softmax(over=over):
                needed, kept = project(needed, over, extents), -math.inf
            case Scan(op=op, along=along):
                needed, kept = self._scanned(node, needed, along), NEUTRAL[op]
        return intersection(needed, masks.differs(node.value, kept), extents)

    def _scanned(self, node: Scan, needed: IntegerSet, along: str) -> IntegerSet:
        """Every coordinate up to one that is needed (from there on, in reverse)."""
        last = f"{along}'"
        wide = {**self.graph.extents, last: self.graph.extents[along]}
        ahead = variable(last).plus(variable(along), -1).times(-1 if node.reverse else 1)
        order = constrained([ahead.plus(linear((), 1), -1 if node.exclusive else 0)])
        return project(intersection(rename(needed, {along: last}), order, wide), (last,), wide)

    def spread(self, node: Value) -> None:
        """What the needed part of a node needs of its operands."""
        needed, extents = self.of(node), self.graph.extents
        if not needed:
            return
        match node:
            case Apply(function="where", args=(condition, a, b)):
                self._need(condition, self._project(needed, node.dims, condition.dims))
                for wanted, arm in ((True, a), (False, b)):
                    region = intersection(needed, self.masks.holds(condition, wanted, self.may), extents)
                    self._need(arm, self._project(region, node.dims, arm.dims))
            case Apply(args=args):
                for arg in args:
                    self._need(arg, self._project(needed, node.dims, arg.dims))
            case Cast(value=inner):
                self._need(inner, needed)
            case Dot(left=left, right=right):
                for side, other in ((left, right), (right, left)):
                    region = self._factor(node, side, other)
                    self._need(side, self._project(region, (*node.dims, *node.over), side.dims))
            case Reduce(value=inner) | Softmax(value=inner) | Scan(value=inner):
                self._need(inner, self._taken(node, self.masks))
            case Read(value=inner):
                self._need(inner, image(node, needed, extents))
            case Gather():
                self._gathered(node, needed)
            case Segment(offsets=offsets):
                self._need(offsets, FULL)
            case ParamValue(index=index):
                self._from(index, needed)
            case _:
                pass

    def _gathered(self, node: Gather, needed: IntegerSet) -> None:
        """Of the gathered dimension, one coordinate at least; at most one for each index."""
        extents, value, ids = self.graph.extents, node.value, node.ids
        self._need(ids, self._project(needed, node.dims, ids.dims))
        kept = tuple(d for d in value.dims if d != node.dim)
        fresh = math.prod(extents[d] for d in ids.dims if d not in kept)
        most = min(extents[node.dim], fresh if self.may else 1)
        first = constrained([linear([(node.dim, -1)], most - 1)])
        self._need(value, intersection(self._project(needed, node.dims, kept), first, extents))

    def _from(self, index: int, needed: IntegerSet) -> None:
        source = self.graph.sources[index]
        self.sources[index] = union(self.sources.get(index, EMPTY), needed, self.graph.extents)
        match self.graph.buffers.get(source.buffer):
            case KernelBuffer(value=value, type=kind):
                assert isinstance(source.type, TensorType)
                self._need(value, through(needed, source.type, kind, self.graph.extents))
            case TorchBuffer() as opaque:
                self.torch(opaque)
            case None:
                pass

    def torch(self, opaque: TorchBuffer) -> None:
        """A torch function's arguments: all of them, or unknown."""
        for name in opaque.arguments:
            if not isinstance(name, str) or not (self.may or opaque.call.function in GLOBAL_FUNCTIONS):
                continue
            self.whole.add(name)
            match self.graph.buffers.get(name):
                case KernelBuffer(value=value):
                    self._need(value, FULL)
                case TorchBuffer() as before:
                    self.torch(before)
                case None:
                    pass

    def read_bytes(self) -> dict[str, int]:
        """Bytes of each parameter that are needed, by name."""
        found: dict[str, int] = {}
        for name in self.graph.inputs:
            kind = self.graph.types[name]
            if not isinstance(kind, TensorType):
                continue
            whole = self.graph.bytes_of(kind)
            if name in self.whole:
                found[name] = whole
                continue
            parts = [
                self._part(index, region, kind, whole)
                for index, region in self.sources.items()
                if self.graph.sources[index].buffer == name
            ]
            if parts:
                found[name] = max(parts)
        return found

    def _part(self, index: int, region: IntegerSet, kind: TensorType, whole: int) -> int:
        """Of the whole, the share that a region through one set of names takes."""
        source = self.graph.sources[index].type
        assert isinstance(source, TensorType)
        dims = tuple(d for axis in source.axes for d in axis.dims)
        if region == FULL:
            return whole
        points = self.points(region, dims)
        return -(-points * kind.elem.bits // 8)


def demand(graph: ValueGraph, may: bool) -> Demand:
    """What the program's results need; all of them are needed whole."""
    masks = Masks(graph)
    found = Demand(graph, may, masks, masks if may else Masks(graph, may=False))
    for name in graph.results:
        match graph.buffers[name]:
            case KernelBuffer(value=value):
                found._need(value, FULL)
            case TorchBuffer() as opaque:
                found.torch(opaque)
    nodes = topological_order(graph)
    found.masks.warm(reversed(nodes))
    found.surely.warm(reversed(nodes))
    for node in nodes:
        found.spread(node)
    return found
