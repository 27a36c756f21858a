"""Computes which elements of every value the results need, from the results back to the parameters."""

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
from ucutlass.sol.counting import count, numbered
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
from ucutlass.torch_functions import RECURRENCES

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
    | {"sort", "scatter", "scatter_add"}
    | RECURRENCES
)
"""Torch functions whose result depends on every element of their arguments."""


_COUNTING = 25
"""Conditions that could be followed in the time that counting one basic set takes."""


@dataclass(slots=True)
class Demand:
    """The needed elements by node and by buffer.

    With `may`, they include what data may ask for (a may analysis); without, only what every input needs (a
    must analysis). `surely` says which elements no data makes neutral. An element that a mask of data might
    hide is neither counted nor required of the other factor of a product, but the masked value itself is
    required, because the mask depends on it.
    """

    graph: ValueGraph
    may: bool
    masks: Masks
    surely: Masks
    nodes: dict[int, IntegerSet] = field(default_factory=dict)
    sources: dict[int, IntegerSet] = field(default_factory=dict)
    read_whole: set[str] = field(default_factory=set)
    """Buffers that a torch function reads."""
    counted: dict[tuple[IntegerSet, tuple[int, ...]], int] = field(default_factory=dict)

    def of(self, node: Value) -> IntegerSet:
        return self.nodes.get(id(node), EMPTY)

    def count(self, node: Value) -> int:
        """Returns the number of elements of a value that are needed."""
        return self.points(self.of(node), node.dims)

    def points(self, region: IntegerSet, dims: Sequence[str]) -> int:
        """Returns the number of points of a set over `dims`; equal ones are counted once. Raises ShapeError as
        `ValueGraph.spend` does."""
        if region == FULL:
            return self.graph.count(dims)
        key = numbered(region, dims), tuple(self.graph.extents[dim] for dim in dims)
        if key not in self.counted:
            self.graph.spend(_COUNTING * len(region))
            self.counted[key] = count(region, dims, self.graph.extents)
        return self.counted[key]

    def terms(self, node: Dot) -> int:
        """Returns the products of a dot whose sums are needed and neither of whose factors is known to be
        0."""
        extents = self.graph.extents
        factors = intersection(
            self.surely.differs(node.left, 0.0), self.surely.differs(node.right, 0.0), extents
        )
        return self.points(intersection(self.of(node), factors, extents), (*node.dims, *node.over))

    def reduced(self, node: Reduce | Softmax | Scan) -> int:
        """Returns the number of elements that a reduction, softmax or scan takes in."""
        return self.points(self._reduced_set(node, self.surely), node.value.dims)

    # --- from a node to its operands -------------------------------------------------

    def require(self, node: Value, region: IntegerSet) -> None:
        extents = self.graph.extents
        self.nodes[id(node)] = union(self.of(node), region, extents)
        self.graph.follow(self.nodes[id(node)])

    def _project(self, region: IntegerSet, dims: Dims, keep: Dims) -> IntegerSet:
        return project(region, (d for d in dims if d not in keep), self.graph.extents)

    def _factor_demand(self, node: Dot, factor: Value, other: Value) -> IntegerSet:
        """Returns where a factor of a product is needed: not where it is 0, nor where the other factor may be
        0."""
        extents = self.graph.extents
        nonzero = intersection(self.masks.differs(factor, 0.0), self.surely.differs(other, 0.0), extents)
        return intersection(self.of(node), nonzero, extents)

    def _reduced_set(self, node: Reduce | Softmax | Scan, masks: Masks) -> IntegerSet:
        extents, needed = self.graph.extents, self.of(node)
        match node:
            case Reduce(op="var"):
                return needed
            case Reduce(op=op):
                neutral = NEUTRAL[op]
            case Softmax(over=over):
                needed, neutral = project(needed, over, extents), -math.inf
            case Scan(op=op, along=along):
                needed, neutral = self._scanned(node, needed, along), NEUTRAL[op]
        return intersection(needed, masks.differs(node.value, neutral), extents)

    def _scanned(self, node: Scan, needed: IntegerSet, axis: str) -> IntegerSet:
        """Returns every coordinate up to one that is needed (from there on, in reverse)."""
        output = f"{axis}'"
        wide_extents = {**self.graph.extents, output: self.graph.extents[axis]}
        distance = variable(output).plus(variable(axis), -1).times(-1 if node.reverse else 1)
        order = constrained([distance.plus(linear((), 1), -1 if node.exclusive else 0)])
        return project(
            intersection(rename(needed, {axis: output}), order, wide_extents), (output,), wide_extents
        )

    def propagate(self, node: Value) -> None:
        """Requires of a node's operands what the needed elements of the node need."""
        needed, extents = self.of(node), self.graph.extents
        if not needed:
            return
        match node:
            case Apply(function="where", args=(condition, a, b)):
                self.require(condition, self._project(needed, node.dims, condition.dims))
                for truth, arm in ((True, a), (False, b)):
                    region = intersection(needed, self.masks.holds(condition, truth, self.may), extents)
                    self.require(arm, self._project(region, node.dims, arm.dims))
            case Apply(args=args):
                for arg in args:
                    self.require(arg, self._project(needed, node.dims, arg.dims))
            case Cast(value=inner):
                self.require(inner, needed)
            case Dot(left=left, right=right):
                for side, other in ((left, right), (right, left)):
                    region = self._factor_demand(node, side, other)
                    self.require(side, self._project(region, (*node.dims, *node.over), side.dims))
            case Reduce(value=inner) | Softmax(value=inner) | Scan(value=inner):
                self.require(inner, self._reduced_set(node, self.masks))
            case Read(value=inner):
                self.require(inner, image(node, needed, extents))
            case Gather():
                self._gathered(node, needed)
            case Segment(offsets=offsets):
                self.require(offsets, FULL)
            case ParamValue(index=index):
                self._require_buffer(index, needed)
            case _:
                pass

    def _gathered(self, node: Gather, needed: IntegerSet) -> None:
        """Requires at least one coordinate of the gathered dimension, and at most one for each index."""
        extents, value, ids = self.graph.extents, node.value, node.ids
        self.require(ids, self._project(needed, node.dims, ids.dims))
        kept_dims = tuple(d for d in value.dims if d != node.dim)
        index_count = math.prod(extents[d] for d in ids.dims if d not in kept_dims)
        coordinates = min(extents[node.dim], index_count if self.may else 1)
        prefix = constrained([linear([(node.dim, -1)], coordinates - 1)])
        self.require(value, intersection(self._project(needed, node.dims, kept_dims), prefix, extents))

    def _require_buffer(self, index: int, needed: IntegerSet) -> None:
        source = self.graph.sources[index]
        self.sources[index] = union(self.sources.get(index, EMPTY), needed, self.graph.extents)
        match self.graph.buffers.get(source.buffer):
            case KernelBuffer(value=value, type=type_):
                assert isinstance(source.type, TensorType)
                self.require(value, through(needed, source.type, type_, self.graph.extents))
            case TorchBuffer() as opaque:
                self.require_arguments(opaque)
            case None:
                pass

    def require_arguments(self, opaque: TorchBuffer) -> None:
        """Requires all of a torch function's arguments, or nothing where its needs are unknown."""
        for name in opaque.arguments:
            if not isinstance(name, str) or not (self.may or opaque.call.function in GLOBAL_FUNCTIONS):
                continue
            self.read_whole.add(name)
            match self.graph.buffers.get(name):
                case KernelBuffer(value=value):
                    self.require(value, FULL)
                case TorchBuffer() as producer:
                    self.require_arguments(producer)
                case None:
                    pass

    def read_bytes(self) -> dict[str, int]:
        """Returns the needed bytes of each parameter, by name."""
        sizes: dict[str, int] = {}
        for name in self.graph.inputs:
            type_ = self.graph.types[name]
            if not isinstance(type_, TensorType):
                continue
            full_size = self.graph.bytes_of(type_)
            if name in self.read_whole:
                sizes[name] = full_size
                continue
            parts = [
                self._part(index, region, type_, full_size)
                for index, region in self.sources.items()
                if self.graph.sources[index].buffer == name
            ]
            if parts:
                sizes[name] = max(parts)
        return sizes

    def _part(self, index: int, region: IntegerSet, type_: TensorType, full_size: int) -> int:
        """Returns the bytes that a set over one choice of names takes of the parameter."""
        source = self.graph.sources[index].type
        assert isinstance(source, TensorType)
        dims = tuple(d for axis in source.axes for d in axis.dims)
        if region == FULL:
            return full_size
        points = self.points(region, dims)
        return -(-points * type_.elem.bits // 8)


def demand(graph: ValueGraph, may: bool) -> Demand:
    """Returns the elements that the program's results need; all results are needed entirely."""
    masks, nodes = Masks(graph), topological_order(graph)
    surely = masks if may or _conditions_are_text(masks, nodes) else Masks(graph, may=False)
    result = Demand(graph, may, masks, surely)
    for name in graph.results:
        match graph.buffers[name]:
            case KernelBuffer(value=value):
                result.require(value, FULL)
            case TorchBuffer() as opaque:
                result.require_arguments(opaque)
    result.masks.warm(reversed(nodes))
    result.surely.warm(reversed(nodes))
    for node in nodes:
        result.propagate(node)
    return result


def depends_on_data(needed: Demand) -> bool:
    """Returns whether data decides which elements are needed: by the coordinates of a gather, by a condition, or
    within a torch function. Where it does not, `may` makes no difference."""
    nodes = topological_order(needed.graph)
    gathers = any(isinstance(node, Gather) for node in nodes)
    return bool(needed.graph.torch_stages) or gathers or not _conditions_are_text(needed.masks, nodes)


def _conditions_are_text(masks: Masks, nodes: Sequence[Value]) -> bool:
    return all(masks.decides(n.args[0]) for n in nodes if isinstance(n, Apply) and n.function == "where")
