"""Derives from the text alone where a condition holds, and where a value differs from a neutral one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ucutlass.ir import (
    Apply,
    Cast,
    Constant,
    Coordinate,
    ParamValue,
    Position,
    Read,
    Softmax,
    TensorType,
    Value,
)
from ucutlass.ir.extents import Fixed
from ucutlass.ir.function_facts import facts
from ucutlass.sol.graph import KernelBuffer, ValueGraph
from ucutlass.sol.integer_sets import (
    EMPTY,
    FULL,
    IntegerSet,
    LinearExpr,
    constrained,
    intersection,
    linear,
    project,
    rename,
    union,
    variable,
)

_NEGATED: Mapping[str, str] = {
    "less": "greater_equal",
    "less_equal": "greater",
    "greater": "less_equal",
    "greater_equal": "less",
    "equal": "not_equal",
    "not_equal": "equal",
}

_NEUTRALS = (0.0, 1.0, -math.inf, math.inf)

_FAR = 2**50
"""Coordinates and their multiples beyond this are not followed."""


@dataclass(slots=True)
class Masks:
    """Sets of points of one graph's values, each over the value's own dimensions.

    With `deep`, masks are followed through operators and buffers; without, only windows that an operator
    reads directly. With `may`, a mask of data hides nothing; without, it hides whatever it could.
    """

    graph: ValueGraph
    deep: bool = True
    may: bool = True
    nonneutral: dict[tuple[int, float], IntegerSet] = field(default_factory=dict)
    conditions: dict[tuple[int, bool, bool], IntegerSet] = field(default_factory=dict)
    positions: dict[int, tuple[LinearExpr, IntegerSet] | None] = field(default_factory=dict)

    def warm(self, nodes: Iterable[Value]) -> None:
        """Evaluates nodes that come after their operands, so that no later query recurses deeply."""
        for node in nodes:
            for neutral in _NEUTRALS:
                self.differs(node, neutral)

    def holds(self, condition: Value, truth: bool, may: bool) -> IntegerSet:
        """Returns where a condition is true (or false, by `truth`): with `may` wherever data could make it
        so, else only where the text does."""
        key = id(condition), truth, may
        if key not in self.conditions:
            self.conditions[key] = self._holds(condition, truth, may)
            self.graph.follow(self.conditions[key])
        return self.conditions[key]

    def decides(self, condition: Value) -> bool:
        """Returns whether the text alone says where a condition holds."""
        return all(self.holds(condition, t, True) == self.holds(condition, t, False) for t in (True, False))

    def _holds(self, condition: Value, truth: bool, may: bool) -> IntegerSet:
        unknown = FULL if may else EMPTY
        match condition:
            case Constant(value=value):
                return FULL if bool(value) == truth else EMPTY
            case Apply(function="not", args=(inner,)):
                return self.holds(inner, not truth, may)
            case Apply(function="and" | "or" as operator, args=(a, b)):
                combine = intersection if (operator == "and") == truth else union
                return combine(self.holds(a, truth, may), self.holds(b, truth, may), self.graph.extents)
            case Apply(function=operator, args=(a, b)) if operator in _NEGATED:
                compared = self._compared(operator if truth else _NEGATED[operator], a, b)
                return unknown if compared is None else compared
            case _:
                return unknown

    def _compared(self, operator: str, a: Value, b: Value) -> IntegerSet | None:
        left, right = self.affine(a), self.affine(b)
        if left is None or right is None:
            return None
        (x, rx), (y, ry) = left, right
        difference, reverse = y.plus(x, -1), x.plus(y, -1)
        unit = linear((), 1)
        less, greater = constrained([difference.plus(unit, -1)]), constrained([reverse.plus(unit, -1)])
        comparisons: Mapping[str, Callable[[], IntegerSet]] = {
            "less": lambda: less,
            "greater": lambda: greater,
            "less_equal": lambda: constrained([difference]),
            "greater_equal": lambda: constrained([reverse]),
            "equal": lambda: constrained(equal=[difference]),
            "not_equal": lambda: (*less, *greater),
        }
        # The quotients that `//` and `%` stand for are coordinates that exist: hidden again.
        domain = intersection(rx, ry, self._with_quotients(rx, ry))
        region = intersection(comparisons[operator](), domain, self._with_quotients(rx, ry))
        return project(region, _quotients(region), self._with_quotients(region))

    def _with_quotients(self, *regions: IntegerSet) -> Mapping[str, int]:
        names = {q for r in regions for q in _quotients(r)}
        return {**self.graph.extents, **{q: int(q.rpartition("/")[2]) for q in names}}

    def affine(self, value: Value) -> tuple[LinearExpr, IntegerSet] | None:
        """Returns an integer value as a linear expression of coordinates, and the conditions that define the
        quotients in it; None where it is not linear or depends on data."""
        if id(value) not in self.positions:
            expression = self._affine(value)
            if (
                expression is not None
                and max(map(abs, expression[0].span(self._with_quotients(expression[1])))) > _FAR
            ):
                expression = None
            self.positions[id(value)] = expression
        return self.positions[id(value)]

    def _affine(self, value: Value) -> tuple[LinearExpr, IntegerSet] | None:
        match value:
            case Constant(value=number) if not isinstance(number, bool) and math.isfinite(number):
                return (linear((), int(number)), FULL) if float(number).is_integer() else None
            case Coordinate(dim=dim):
                return variable(dim), FULL
            case Cast(value=inner) if value.elem.kind == "int" and inner.elem.kind == "int":
                return self.affine(inner)
            case Apply(function="negate", args=(inner,)):
                negated = self.affine(inner)
                return None if negated is None else (negated[0].times(-1), negated[1])
            case Apply(function=operator, args=(a, b)):
                left, right = self.affine(a), self.affine(b)
                return None if left is None or right is None else self._combined(operator, left, right)
            case _:
                return None

    def _combined(
        self, operator: str, left: tuple[LinearExpr, IntegerSet], right: tuple[LinearExpr, IntegerSet]
    ) -> tuple[LinearExpr, IntegerSet] | None:
        (x, rx), (y, ry) = left, right
        domain = intersection(rx, ry, self._with_quotients(rx, ry))
        match operator:
            case "add" | "subtract":
                return x.plus(y, 1 if operator == "add" else -1), domain
            case "multiply" if not x.terms or not y.terms:
                return (y.times(x.constant) if not x.terms else x.times(y.constant)), domain
            case "floor_divide" | "modulo" if not y.terms and y.constant > 0:
                low, high = x.span(self._with_quotients(domain))
                if low < 0 or domain != FULL:
                    return None
                extent, divisor = high // y.constant + 1, y.constant
                quotient = variable(f"{x.terms}+{x.constant}//{divisor}/{extent}")
                remainder = x.plus(quotient, -divisor)
                definition = constrained([remainder, linear((), divisor - 1).plus(remainder, -1)])
                return (quotient if operator == "floor_divide" else remainder), definition
            case _:
                return None

    # --- neutral values --------------------------------------------------------------

    def differs(self, value: Value, neutral: float) -> IntegerSet:
        """Returns where a value may differ from `neutral`. Elsewhere the text says that it equals it, or
        without `may`, data may make it equal."""
        key = id(value), neutral
        if key not in self.nonneutral:
            self.nonneutral[key] = (
                self._differs(value, neutral) if self.deep else self._window(value, neutral)
            )
            self.graph.follow(self.nonneutral[key])
        return self.nonneutral[key]

    def _window(self, value: Value, neutral: float) -> IntegerSet:
        match value:
            case Read(fill=fill) if fill == neutral:
                return preimage(value, FULL, self.graph.extents)
            case _:
                return FULL

    def _differs(self, value: Value, neutral: float) -> IntegerSet:
        extents = self.graph.extents
        match value:
            case Constant(value=number):
                return EMPTY if float(number) == neutral else FULL
            case Cast(value=inner) if neutral == 0 or value.elem.name in ("f32", "f16", "bf16", "tf32"):
                return self.differs(inner, neutral)
            case Apply(function="where", args=(condition, a, b)):
                arms = self.differs(a, neutral), self.differs(b, neutral)
                from_first = intersection(self.holds(condition, True, self.may), arms[0], extents)
                from_second = intersection(self.holds(condition, False, self.may), arms[1], extents)
                certain = union(from_first, from_second, extents)
                if self.may or self.decides(condition):
                    return certain
                # Where nobody knows which arm it is, both must differ.
                return union(certain, intersection(*arms, extents), extents)
            case Apply(function="multiply", args=(a, b)) if neutral == 0:
                return intersection(self.differs(a, 0.0), self.differs(b, 0.0), extents)
            case Apply(function="add", args=(a, b)) if neutral == -math.inf:
                return intersection(self.differs(a, neutral), self.differs(b, neutral), extents)
            case Apply(function="divide", args=(a, _)) if neutral == 0:
                return self.differs(a, 0.0)
            case Apply(function=function, args=(a, *_)) if neutral == 0 and facts(function).keeps_zero:
                return self.differs(a, 0.0)
            case Apply(function="exp", args=(a,)) if neutral == 0:
                return self.differs(a, -math.inf)
            case Softmax(value=inner, log=False) if neutral == 0:
                return self.differs(inner, -math.inf)
            case Read(value=inner, fill=fill) if fill == neutral:
                return preimage(value, self.differs(inner, neutral), extents)
            case ParamValue(index=index):
                return self._through_buffer(index, neutral)
            case _:
                return FULL

    def _through_buffer(self, index: int, neutral: float) -> IntegerSet:
        """Follows a buffer that one launch stored and another reads."""
        source = self.graph.sources[index]
        buffer = self.graph.buffers.get(source.buffer)
        if not isinstance(buffer, KernelBuffer) or not isinstance(source.type, TensorType):
            return FULL
        if neutral != 0 and buffer.type.elem.name not in ("f32", "f16", "bf16"):
            return FULL
        return through(self.differs(buffer.value, neutral), buffer.type, source.type, self.graph.extents)


def _quotients(region: IntegerSet) -> list[str]:
    return sorted({v for p in region for c in p.conditions for v, _ in c.terms if "/" in v})


def _primed(names: tuple[str, ...]) -> dict[str, str]:
    """Returns other names for the same coordinates, so that old and new names can be used together."""
    return {n: f"{n}'" for n in names}


def _tie(position: Position, scaled: LinearExpr, at: LinearExpr) -> LinearExpr:
    offset = position.at.offset
    assert isinstance(offset, Fixed)  # `graph_of` has evaluated it
    return scaled.times(position.scale).plus(at, -1).plus(linear((), offset.value), -1)


def preimage(node: Read, inner: IntegerSet, extents: Mapping[str, int]) -> IntegerSet:
    """Returns the points of a read whose position exists and lies in a set of the value that is read."""
    primed = _primed(tuple(p.dim for p in node.positions))
    equations = [_tie(p, variable(primed[p.dim]), linear(p.at.terms)) for p in node.positions]
    wide_extents = {**extents, **{new: extents[old] for old, new in primed.items()}}
    region = intersection(constrained(equal=equations), rename(inner, primed), wide_extents)
    return project(region, primed.values(), wide_extents)


def image(node: Read, outer: IntegerSet, extents: Mapping[str, int]) -> IntegerSet:
    """Returns the elements of the value that the points of a set read."""
    positioned = {p.dim for p in node.positions}
    kept_dims = {d for d in node.value.dims if d not in positioned}
    primed = _primed(tuple(d for d in node.dims if d not in kept_dims))
    equations = [
        _tie(p, variable(p.dim), linear((primed.get(d, d), c) for d, c in p.at.terms)) for p in node.positions
    ]
    wide_extents = {**extents, **{new: extents[old] for old, new in primed.items()}}
    region = intersection(constrained(equal=equations), rename(outer, primed), wide_extents)
    return project(region, primed.values(), wide_extents)


def through(region: IntegerSet, old: TensorType, new: TensorType, extents: Mapping[str, int]) -> IntegerSet:
    """Translates a set over the names of one type into the names of another type of the same memory."""
    if region in (FULL, EMPTY):
        return region
    names = tuple(d for axis in old.axes for d in axis.dims)
    primed = _primed(names)
    wide_extents = {**extents, **{primed[n]: extents[n] for n in names}}
    equations = []
    for before, after in zip(old.axes, new.axes, strict=True):
        coordinate = _linearised(tuple(primed[d] for d in before.dims), wide_extents)
        equations.append(coordinate.plus(_linearised(after.dims, wide_extents), -1))
    moved = intersection(constrained(equal=equations), rename(region, primed), wide_extents)
    return project(moved, primed.values(), wide_extents)


def _linearised(dims: tuple[str, ...], extents: Mapping[str, int]) -> LinearExpr:
    """Returns the coordinate along a memory axis of several names, the first outermost."""
    coordinate = linear(())
    for d in dims:
        coordinate = coordinate.times(extents[d]).plus(variable(d))
    return coordinate
