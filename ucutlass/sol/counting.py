"""Counts the points of integer sets. Each connected component is counted by enumerating all variables but one
and solving for that one. Equations with coefficients are first split by remainders, so that no long axis is
enumerated for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice, product
from math import gcd, prod
from typing import TYPE_CHECKING

from ucutlass.sol.integer_sets import (
    BasicSet,
    Extents,
    IntegerSet,
    LinearExpr,
    coalesced,
    intersection,
    linear,
    overflows,
    rename,
    simplify,
)

if TYPE_CHECKING:
    from torch import Tensor

CELLS = 1 << 18
"""Most combinations that are enumerated. Beyond, coordinates are taken in blocks of which only those count
that lie inside entirely, and the count is a lower bound."""

PARTS = 4
"""Where blocks are not possible, at most this many times CELLS combinations are enumerated; the rest is left
out."""

REMAINDERS = 64
"""An equation is split by the remainders of its variables where there are at most this many combinations."""


def count(region: IntegerSet, dims: Sequence[str], extents: Extents) -> int:
    """Returns the number of points of a set over `dims`; the result never exceeds the true number.

    Overlapping basic sets are counted by inclusion and exclusion. Where a basic set is too large to be
    counted exactly, the count is that of the largest basic set.
    """
    # Which variable is solved and which are enumerated may follow the order of names: it shall be that of
    # `dims`, whatever they are called.
    region, extents = numbered(region, dims), {_name(i): extents[dim] for i, dim in enumerate(dims)}
    region, dims = coalesced(region, extents), tuple(extents)
    if not region:
        return 0
    counts = [_count_basic_set(p, dims, extents) for p in region]
    if len(region) == 1:
        return counts[0].points
    if not all(s.exact for s in counts):
        return max(s.points for s in counts)
    total = sum(s.points for s in counts)
    for size in range(2, len(region) + 1):
        for subset in combinations(region, size):
            overlap: IntegerSet = (subset[0],)
            for basic_set in subset[1:]:
                overlap = intersection(overlap, (basic_set,), extents)
            shared = [_count_basic_set(p, dims, extents) for p in overlap]
            if not all(s.exact for s in shared):
                return max(s.points for s in counts)
            total += (-1) ** (size + 1) * sum(s.points for s in shared)
    return total


def numbered(region: IntegerSet, dims: Sequence[str]) -> IntegerSet:
    """Returns the set with variables named by their places in `dims`, by which equal layers have equal sets."""
    return rename(region, {dim: _name(i) for i, dim in enumerate(dims)})


def _name(place: int) -> str:
    return f"d{place:06}"


@dataclass(frozen=True, slots=True)
class _PointCount:
    points: int
    exact: bool


def _count_basic_set(basic_set: BasicSet, dims: Sequence[str], extents: Extents) -> _PointCount:
    cases = _by_remainders(basic_set, extents)
    if cases is None:
        return _count_points(basic_set, dims, extents)
    parts = [_count_basic_set(part, dims, lengths) for part, lengths in cases]
    return _PointCount(sum(p.points for p in parts), all(p.exact for p in parts))


def _by_remainders(basic_set: BasicSet, extents: Extents) -> list[tuple[BasicSet, Extents]] | None:
    """Splits a basic set into disjoint ones where an equation gives an existential variable a coefficient: in
    `2*h = p + 1 - r` each of p and r is twice another variable plus 0 or 1, and then `h` has the coefficient
    1. Returns None where no equation can be split."""
    for equation in sorted(basic_set.equal, key=repr):
        factors = [abs(c) for v, c in equation.terms if v.startswith("?")]
        if len(factors) != 1 or factors[0] == 1:
            continue
        (factor,) = factors
        names = [v for v, c in equation.terms if c % factor]
        if names and factor ** len(names) <= REMAINDERS:
            return [
                case
                for remainders in product(range(factor), repeat=len(names))
                if (case := _remainder(basic_set, dict(zip(names, remainders, strict=True)), factor, extents))
                is not None
            ]
    return None


def _remainder(
    basic_set: BasicSet, remainders: dict[str, int], factor: int, extents: Extents
) -> tuple[BasicSet, Extents] | None:
    """Returns the points whose coordinates leave these remainders, over the quotients; None where there are
    none."""
    lengths = {**extents, **{v: (extents[v] - r + factor - 1) // factor for v, r in remainders.items()}}
    if any(lengths[v] < 1 for v in remainders):
        return None
    values = {v: linear([(v, factor)], r) for v, r in remainders.items()}
    equal = [_divided(_substitute_all(c, values)) for c in basic_set.equal]
    atleast = [_substitute_all(c, values) for c in basic_set.atleast]
    simplified = simplify(BasicSet(frozenset(atleast), frozenset(equal), basic_set.inner), lengths)
    return None if simplified is None else (simplified, lengths)


def _substitute_all(condition: LinearExpr, values: dict[str, LinearExpr]) -> LinearExpr:
    for name, value in values.items():
        condition = condition.substitute(name, value)
    return condition


def _divided(equation: LinearExpr) -> LinearExpr:
    """Returns the equation divided by its common factor. A factor that the constant does not have is left,
    and then no point satisfies the equation."""
    common = gcd(*(c for _, c in equation.terms)) if equation.terms else 1
    if common < 2 or equation.constant % common:
        return equation
    return LinearExpr(tuple((v, c // common) for v, c in equation.terms), equation.constant // common)


def _count_points(basic_set: BasicSet, dims: Sequence[str], extents: Extents) -> _PointCount:
    variable_extents = basic_set.extents({d: extents[d] for d in dims})
    points, exact = 1, True
    bound: set[str] = set()
    for conditions in _components(basic_set):
        names = sorted({v for c in conditions for v, _ in c.terms})
        bound |= set(names)
        part = _component(basic_set, conditions, names, variable_extents)
        points, exact = points * part.points, exact and part.exact
    return _PointCount(points * prod(extents[d] for d in dims if d not in bound), exact)


def _components(basic_set: BasicSet) -> list[list[LinearExpr]]:
    """Returns the conditions in groups that share no variable."""
    groups: list[tuple[set[str], list[LinearExpr]]] = []
    for condition in sorted(basic_set.conditions, key=repr):
        names, members = {v for v, _ in condition.terms}, [condition]
        disjoint = []
        for group in groups:
            if group[0] & names:
                names, members = names | group[0], members + group[1]
            else:
                disjoint.append(group)
        groups = [*disjoint, (names, members)]
    return [members for _, members in groups]


def _component(
    basic_set: BasicSet, conditions: Sequence[LinearExpr], names: Sequence[str], variable_extents: Extents
) -> _PointCount:
    """Counts the points over the free variables of `names`: the solutions for one variable are an interval,
    the others are enumerated, in blocks where there are too many."""
    if overflows(conditions, variable_extents):
        return _PointCount(0, False)
    fixed = {v for c in conditions if c in basic_set.equal for v, _ in c.terms}
    inner = [v for v in names if v.startswith("?")]
    solved = max(inner or names, key=lambda v: (v not in fixed, variable_extents[v], v))
    free = [v for v in names if v != solved and v not in inner]
    axes = [_Axis(v, 0, variable_extents[v], 1) for v in (*free, *(v for v in inner if v != solved))]
    blocked = _blocked(axes, set(free) - fixed)
    chunks = list(islice(_chunks(blocked), PARTS + 1))
    counted = [part for part in chunks[:PARTS] if prod(axis.cells for axis in part) <= CELLS]
    points = sum(
        _points(basic_set, conditions, solved, part, len(free), variable_extents) for part in counted
    )
    return _PointCount(points, len(counted) == len(chunks) and all(axis.step == 1 for axis in blocked))


@dataclass(frozen=True, slots=True)
class _Axis:
    """Coordinates `start` to below `stop` of a variable, in blocks of `step`."""

    name: str
    start: int
    stop: int
    step: int

    @property
    def cells(self) -> int:
        return -(-(self.stop - self.start) // self.step)


def _blocked(axes: list[_Axis], allowed: set[str]) -> list[_Axis]:
    """Doubles the step of the longest axis that may be blocked until there are few enough cells."""
    while prod(a.cells for a in axes) > CELLS:
        longest = max((a for a in axes if a.name in allowed), key=lambda a: a.cells, default=None)
        if longest is None or longest.cells == 1:
            break
        axes = [replace(a, step=2 * a.step) if a is longest else a for a in axes]
    return axes


def _chunks(axes: list[_Axis]) -> Iterator[list[_Axis]]:
    """Yields the axes with the longest one cut into chunks of at most CELLS combinations."""
    if prod(a.cells for a in axes) <= CELLS:
        yield axes
        return
    longest = max(axes, key=lambda a: a.cells)
    others = prod(a.cells for a in axes if a is not longest)
    length = max(1, CELLS // others) * longest.step
    for start in range(0, longest.stop, length):
        chunk = replace(longest, start=start, stop=min(longest.stop, start + length))
        yield [chunk if a is longest else a for a in axes]


def _points(
    basic_set: BasicSet,
    conditions: Sequence[LinearExpr],
    solved: str,
    axes: Sequence[_Axis],
    free: int,
    variable_extents: Extents,
) -> int:
    """Counts the points over the first `free` axes, and over `solved` too where that is no existential
    variable."""
    low, high, valid = _interval(basic_set, conditions, solved, axes, variable_extents[solved])
    length = (high - low + 1).clamp(min=0) * valid
    if solved.startswith("?"):
        length = (length > 0).to(length.dtype)
    for _ in axes[free:]:
        length = length.amax(dim=-1)
    for axis in reversed(axes[:free]):
        full_blocks, remainder = divmod(axis.stop - axis.start, axis.step)
        length = (
            length[..., :full_blocks].sum(dim=-1) * axis.step
            + length[..., full_blocks:].sum(dim=-1) * remainder
        )
    return int(length)


def _interval(
    basic_set: BasicSet, conditions: Sequence[LinearExpr], solved: str, axes: Sequence[_Axis], extent: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns for each cell the smallest and the largest solution, and whether the conditions without the
    solved variable hold. For a block it returns what holds at each of its coordinates."""
    import torch  # a count without conditions needs none

    shape = [a.cells for a in axes]
    low = torch.zeros(shape, dtype=torch.int64)
    high = torch.full(shape, extent - 1, dtype=torch.int64)
    valid = torch.ones(shape, dtype=torch.int64)
    for condition in conditions:
        factor = condition.coefficient(solved)
        rest = _least(condition, solved, axes)
        if condition in basic_set.equal:
            if factor == 0:
                valid = valid * (rest == 0)
                continue
            # factor * v + rest = 0
            valid = valid * (rest % abs(factor) == 0)
            at = torch.div(-rest * (1 if factor > 0 else -1), abs(factor), rounding_mode="floor")
            low, high = torch.maximum(low, at), torch.minimum(high, at)
        elif factor > 0:
            low = torch.maximum(low, -torch.div(rest, factor, rounding_mode="floor"))
        elif factor < 0:
            high = torch.minimum(high, torch.div(rest, -factor, rounding_mode="floor"))
        else:
            valid = valid * (rest >= 0)
    return low, high, valid


def _least(condition: LinearExpr, solved: str, axes: Sequence[_Axis]) -> Tensor:
    """Returns the smallest value in each block of the condition without the solved variable."""
    import torch

    total = torch.full([1] * len(axes), condition.constant, dtype=torch.int64)
    for i, axis in enumerate(axes):
        factor = condition.coefficient(axis.name)
        if factor == 0:
            continue
        first = torch.arange(axis.start, axis.stop, axis.step, dtype=torch.int64)
        last = (first + axis.step - 1).clamp(max=axis.stop - 1)
        contribution = factor * (first if factor > 0 else last)
        total = total + contribution.reshape([-1 if k == i else 1 for k in range(len(axes))])
    return total.expand([a.cells for a in axes])
