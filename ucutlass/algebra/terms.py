"""Builds terms for rules: typed, over named dimensions, constants folded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from ucutlass import ir
from ucutlass.algebra.egraph import EGraph
from ucutlass.check import fold
from ucutlass.ir import Value
from ucutlass.ir.elements import BOOL, F32, I64, Element
from ucutlass.ir.extents import Extent, Fixed
from ucutlass.ir.function_facts import EVERYWHERE, Range, facts

LARGEST = 2.0**120
"""Of a folded constant: what is larger is left to run time, where it may be infinite."""


@dataclass(slots=True)
class Terms:
    """`extents` are those of the program's dimensions, and of what called kernels have of their own: a rule may rest on a
    fixed extent, never on one that a call brings. `taken` are names that no dimension may have."""

    graph: EGraph
    extents: dict[str, Extent]
    taken: frozenset[str] = frozenset()
    _own: dict[tuple[str, Extent], str] = field(default_factory=dict)
    _ranges: dict[int, Range] = field(default_factory=dict)

    # --- terms -----------------------------------------------------------------------

    def constant(self, value: float) -> Value:
        return self.graph.add(ir.Constant(float(value), F32))

    def apply(self, function: str, *args: Value) -> Value:
        """Returns a float function of terms."""
        constants = [a.value for a in args if isinstance(a, ir.Constant)]
        if len(constants) == len(args):
            folded = _folded(function, tuple(float(c) for c in constants))
            if folded is not None and abs(folded) < LARGEST:
                return self.constant(folded)
        dims = self.graph.dims(d for a in args for d in a.dims)
        return self.graph.add(ir.Apply(function, args, F32, dims))

    def times(self, a: Value, b: Value) -> Value:
        return self.apply("multiply", a, b)

    def reduce(self, op: ir.ReduceOp, over: Iterable[str], value: Value) -> Value:
        """Returns a reduction of a float value over what it has of some dimensions."""
        dims = self.graph.dims(d for d in over if d in value.dims)
        if not dims:
            return self.cast(value, F32)
        rest = tuple(d for d in value.dims if d not in dims)
        return self.graph.add(ir.Reduce(op, dims, value, F32, rest))

    def dot(self, over: Iterable[str], left: Value, right: Value) -> Value:
        """Returns the f32 product: operands of fewer bits are widened, which is exact."""
        a, b, over = self.cast(left, F32), self.cast(right, F32), self.graph.dims(over)
        dims = tuple(d for d in self.graph.dims((*a.dims, *b.dims)) if d not in over)
        return self.graph.add(ir.Dot(over, a, b, F32, "f32", F32, dims))

    def softmax(self, over: ir.Dims, value: Value, log: bool) -> Value:
        return self.graph.add(ir.Softmax(over, value, log, F32, value.dims))

    def read(self, value: Value, positions: tuple[ir.Position, ...], fill: float) -> Value:
        """Returns a value read at the positions of those of its dimensions that it has."""
        own = tuple(p for p in positions if p.dim in value.dims)
        if not own:
            return value
        gone = {p.dim for p in own}
        fresh = [d for p in own for d, _ in p.at.terms]
        dims = self.graph.dims((*(d for d in value.dims if d not in gone), *fresh))
        return self.graph.add(ir.Read(value, own, fill, value.elem, dims))

    def cast(self, value: Value, elem: Element) -> Value:
        if value.elem is elem:
            return value
        return self.graph.add(ir.Cast(value, elem, value.dims))

    def fit(self, value: Value, like: Value) -> Value:
        """Returns a value in the type of another, repeated along the dimensions that it lacks."""
        value = self.cast(value, like.elem)
        missing = [d for d in like.dims if d not in value.dims]
        if not missing:
            return value
        zero = self.graph.add(ir.Constant(0, I64))
        always: Value | None = None
        for dim in missing:
            here = self.graph.add(ir.Coordinate(dim, I64, (dim,)))
            inside: Value = self.graph.add(ir.Apply("greater_equal", (here, zero), BOOL, (dim,)))
            dims = self.graph.dims((*(always.dims if always is not None else ()), dim))
            always = (
                inside if always is None else self.graph.add(ir.Apply("and", (always, inside), BOOL, dims))
            )
        assert always is not None
        dims = self.graph.dims((*value.dims, *missing))
        return self.graph.add(ir.Apply("where", (always, value, value), value.elem, dims))

    def count(self, dims: Iterable[str]) -> Value | None:
        """Returns the number of coordinates of fixed dimensions; None where a call brings one."""
        numbers = [self.fixed(d) for d in dims]
        constants = [n for n in numbers if n is not None]
        return self.constant(math.prod(constants)) if len(constants) == len(numbers) else None

    def fixed(self, dim: str) -> int | None:
        extent = self.extents[dim]
        return extent.value if isinstance(extent, Fixed) else None

    def own_dimension(self, name: str, extent: Extent) -> str:
        """Returns the dimension that stands for one of called kernels alone: one for all of a name and an extent."""
        if (name, extent) not in self._own:
            free, number = name, 1
            while free in self.extents or free in self.taken:
                number += 1
                free = f"{name}{number}"
            self._own[name, extent] = free
            self.extents[free] = extent
            self.graph.order[free] = len(self.graph.order)
        return self._own[name, extent]

    # --- what a rule looks at --------------------------------------------------------

    def views(self, term: Value) -> Iterator[Value]:
        """Yields the term, and the same with each other way to compute one of its parts."""
        yield term
        for part in ir.children(term):
            for other in self.graph.all_members(part):
                if other is not part:
                    yield self.with_part(term, part, other)

    def with_part(self, term: Value, part: Value, other: Value) -> Value:
        """Returns the equal term that has another term of the class in place of a part."""
        return self.graph.add(ir.with_children(term, lambda child: other if child is part else child))

    def number(self, term: Value) -> float | None:
        """Returns the finite float that a term is."""
        for c in self.graph.members(term, ir.Constant):
            if c.elem.kind != "bool" and math.isfinite(c.value):
                return float(c.value)
        return None

    def constants(self, term: Value) -> ir.Constant | None:
        return next(iter(self.graph.members(term, ir.Constant)), None)

    def range(self, term: Value) -> Range:
        """Returns what a term lies in, as its own functions say."""
        cached = self._ranges.get(id(term))
        if cached is None:
            cached = self._ranges[id(term)] = _range(term, self.range)
        return cached


def _folded(function: str, values: tuple[float, ...]) -> float | None:
    """Returns a function of numbers; None where it is not known here, or not finite."""
    if values[0] == 0.0 and facts(function).keeps_zero:
        return 0.0
    match function, values:
        case "relu", (x,):
            return max(x, 0.0)
        case "clamp" | "hardtanh", (x, low, high):
            return min(max(x, low), high)
        case "sigmoid", (x,) if abs(x) < 500:
            return 1.0 / (1.0 + math.exp(-x))
    folded = fold.fold(function, values, True)
    return float(folded) if folded is not None and math.isfinite(folded) else None


def _range(term: Value, of: Callable[[Value], Range]) -> Range:
    match term:
        case ir.Constant(value=value) if not isinstance(value, bool):
            return float(value), float(value)
        case ir.Softmax(log=log):
            return (-math.inf, 0.0) if log else (0.0, 1.0)
        case ir.Reduce(op="max" | "min" | "mean", value=value):
            return of(value)
        case ir.Reduce(op="var"):
            return 0.0, math.inf
        case ir.Reduce(op="sum", value=value):
            low, high = of(value)
            return (0.0 if low >= 0 else -math.inf), (0.0 if high <= 0 else math.inf)
        case ir.Apply(function="multiply", args=(a, b)) if a is b:
            return 0.0, math.inf
        case ir.Apply(function="add", args=(a, b)):
            # Rounding is monotone: what is not negative, added to a number, is not below it.
            low = max(of(a)[0], of(b)[0]) if min(of(a)[0], of(b)[0]) >= 0 else -math.inf
            high = min(of(a)[1], of(b)[1]) if max(of(a)[1], of(b)[1]) <= 0 else math.inf
            return low, high
        case ir.Apply(function="multiply", args=(a, b)) if min(of(a)[0], of(b)[0]) >= 0:
            return 0.0, math.inf
        case ir.Apply(function="rsqrt", args=(a,)) if of(a)[0] > 0:  # of -0 it is -infinity
            return 0.0, math.inf
        case ir.Apply(function="max", args=(a, b)):
            return max(of(a)[0], of(b)[0]), max(of(a)[1], of(b)[1])
        case ir.Apply(function="min", args=(a, b)):
            return min(of(a)[0], of(b)[0]), min(of(a)[1], of(b)[1])
        case ir.Apply(function="clamp" | "hardtanh", args=(x, low, high)):
            least = min(max(of(x)[0], of(low)[0]), of(high)[0])
            return least, min(max(of(x)[1], of(low)[1]), of(high)[1])
        case ir.Apply(function=function):
            return facts(function).range
        case _:
            return EVERYWHERE


def inside(terms: Terms, positions: Iterable[ir.Position]) -> bool:
    """Returns whether positions are within the fixed extents of what they read, for all coordinates."""
    for position in positions:
        length = terms.fixed(position.dim)
        if length is None or position.scale != 1 or not isinstance(position.at.offset, Fixed):
            return False
        low = high = position.at.offset.value
        for dim, factor in position.at.terms:
            most = terms.fixed(dim)
            if most is None:
                return False
            low += min(0, factor * (most - 1))
            high += max(0, factor * (most - 1))
        if low < 0 or high >= length:
            return False
    return True
