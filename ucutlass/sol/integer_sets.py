"""Sets of integer points, given by linear conditions and counted exactly: which elements of a value are
needed.

As in isl, a set is a union of basic sets; a basic set holds the points for which some values of its
existential variables satisfy all of its linear conditions. Every variable ranges from 0 to below its extent.
Triangles, sliding windows, strides, padding and the positions that a transposed convolution reads are such
sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from math import gcd
from typing import TypeAlias

Extents: TypeAlias = Mapping[str, int]

MOST_BASIC_SETS = 4
MOST_CONDITIONS = 24
"""Beyond these limits a set is reduced to a subset, so that counts stay lower bounds."""
_MOST_KEPT = 2 * MOST_CONDITIONS
"""Most conditions of a basic set that is kept."""


@dataclass(frozen=True, slots=True)
class LinearExpr:
    """`sum(c * v for v, c in terms) + constant`; names are sorted and no coefficient is zero."""

    terms: tuple[tuple[str, int], ...]
    constant: int

    def coefficient(self, name: str) -> int:
        for variable_name, factor in self.terms:
            if variable_name == name:
                return factor
        return 0

    def plus(self, other: LinearExpr, factor: int = 1) -> LinearExpr:
        """Returns `self + factor * other`."""
        return linear(
            chain(self.terms, ((v, factor * c) for v, c in other.terms)),
            self.constant + factor * other.constant,
        )

    def times(self, factor: int) -> LinearExpr:
        return linear(((v, factor * c) for v, c in self.terms), factor * self.constant)

    def renamed(self, names: Mapping[str, str]) -> LinearExpr:
        return linear(((names.get(v, v), c) for v, c in self.terms), self.constant)

    def substitute(self, name: str, value: LinearExpr) -> LinearExpr:
        """Returns the expression with `value` in the place of a variable."""
        factor = self.coefficient(name)
        rest = LinearExpr(tuple(t for t in self.terms if t[0] != name), self.constant)
        return rest.plus(value, factor) if factor else self

    def span(self, extents: Extents) -> tuple[int, int]:
        """Returns its smallest and largest value."""
        reach = [(c * (extents[v] - 1)) for v, c in self.terms]
        return (
            self.constant + sum(r for r in reach if r < 0),
            self.constant + sum(r for r in reach if r > 0),
        )


def linear(terms: Iterable[tuple[str, int]], constant: int = 0) -> LinearExpr:
    """Returns the sum of these terms in normal form."""
    total: dict[str, int] = {}
    for name, factor in terms:
        total[name] = total.get(name, 0) + factor
    return LinearExpr(tuple(sorted((v, c) for v, c in total.items() if c)), constant)


def variable(name: str) -> LinearExpr:
    return LinearExpr(((name, 1),), 0)


@dataclass(frozen=True, slots=True)
class BasicSet:
    """The points for which existential variables exist such that every `atleast` is >= 0 and every `equal` is
    0. Existential variable i is named `?i` and has the extent `inner[i]`."""

    atleast: frozenset[LinearExpr] = frozenset()
    equal: frozenset[LinearExpr] = frozenset()
    inner: tuple[int, ...] = ()

    @property
    def conditions(self) -> tuple[LinearExpr, ...]:
        return (*self.atleast, *self.equal)

    def extents(self, outer: Extents) -> dict[str, int]:
        """Returns the extents of the variables that it has conditions on: `outer` has those of a whole network."""
        inner = {_inner_name(i): n for i, n in enumerate(self.inner)}
        names = {v for c in self.conditions for v, _ in c.terms}
        return {v: inner[v] if v in inner else outer[v] for v in names}

    def renamed(self, names: Mapping[str, str]) -> BasicSet:
        return BasicSet(
            frozenset(c.renamed(names) for c in self.atleast),
            frozenset(c.renamed(names) for c in self.equal),
            self.inner,
        )


IntegerSet: TypeAlias = tuple[BasicSet, ...]

FULL: IntegerSet = (BasicSet(),)
EMPTY: IntegerSet = ()


def _inner_name(i: int) -> str:
    return f"?{i}"


def constrained(atleast: Iterable[LinearExpr] = (), equal: Iterable[LinearExpr] = ()) -> IntegerSet:
    """Returns the points that satisfy these conditions."""
    return (BasicSet(frozenset(atleast), frozenset(equal)),)


def intersection(left: IntegerSet, right: IntegerSet, extents: Extents) -> IntegerSet:
    """Returns the intersection of two sets."""
    if left in (FULL, right):
        return right
    if right == FULL:
        return left
    return _coalesce((_conjoin(a, b) for a in left for b in right), extents)


def union(left: IntegerSet, right: IntegerSet, extents: Extents) -> IntegerSet:
    """Returns the union of two sets."""
    if FULL in (left, right):
        return FULL
    if left == right:
        return left
    return _coalesce((*left, *right), extents)


def rename(region: IntegerSet, names: Mapping[str, str]) -> IntegerSet:
    """Returns the set with other names for its variables, all replaced at once."""
    return tuple(p.renamed(names) for p in region)


def project(region: IntegerSet, dims: Iterable[str], extents: Extents) -> IntegerSet:
    """Returns the points for which coordinates along `dims` exist such that they lie in the set."""
    used = {v for basic_set in region for c in basic_set.conditions for v, _ in c.terms}
    hidden = tuple(v for v in dims if v in used)
    return _coalesce((_existential(p, hidden, extents) for p in region), extents) if hidden else region


def coalesced(region: IntegerSet, extents: Extents) -> IntegerSet:
    """Returns the same points with as few basic sets, conditions and existential variables as the simplifier
    finds."""
    return _coalesce(region, extents)


def _conjoin(a: BasicSet, b: BasicSet) -> BasicSet:
    shift = {_inner_name(i): _inner_name(i + len(a.inner)) for i in range(len(b.inner))}
    other = b.renamed(shift)
    return BasicSet(a.atleast | other.atleast, a.equal | other.equal, a.inner + b.inner)


def _existential(basic_set: BasicSet, dims: tuple[str, ...], extents: Extents) -> BasicSet:
    used = {v for c in basic_set.conditions for v, _ in c.terms}
    hidden = [v for v in dims if v in used]
    names = {v: _inner_name(len(basic_set.inner) + i) for i, v in enumerate(hidden)}
    renamed = basic_set.renamed(names)
    return BasicSet(renamed.atleast, renamed.equal, basic_set.inner + tuple(extents[v] for v in hidden))


def _coalesce(basic_sets: Iterable[BasicSet], extents: Extents) -> IntegerSet:
    """Returns simplified basic sets, each once and none that is seen to lie inside another."""
    kept_sets: list[BasicSet] = []
    for basic_set in basic_sets:
        simplified = simplify(basic_set, extents)
        if simplified == BasicSet():
            return FULL
        if simplified is None or len(simplified.conditions) > _MOST_KEPT:
            continue
        if any(_contains(simplified, other) for other in kept_sets):
            continue
        kept_sets = [other for other in kept_sets if not _contains(other, simplified)] + [simplified]
    return tuple(kept_sets[:MOST_BASIC_SETS])


def _contains(small: BasicSet, large: BasicSet) -> bool:
    return not large.inner and large.atleast <= small.atleast and large.equal <= small.equal


# --- one piece ---------------------------------------------------------------------


def simplify(basic_set: BasicSet, extents: Extents) -> BasicSet | None:
    """Returns the same points with fewer conditions and existential variables; None for the empty set."""
    while True:
        reduced = _drop(basic_set, extents)
        if reduced is None:
            return None
        eliminated = _eliminate(reduced, extents)
        if eliminated is None:
            return _renumbered(reduced)
        basic_set = eliminated


def _drop(basic_set: BasicSet, extents: Extents) -> BasicSet | None:
    """Drops conditions that always hold; returns None where one never holds."""
    all_extents = basic_set.extents(extents)
    atleast, equal = set(), set()
    for condition in basic_set.atleast:
        low, high = condition.span(all_extents)
        if high < 0:
            return None
        if low < 0:
            atleast.add(condition)
    for condition in basic_set.equal:
        low, high = condition.span(all_extents)
        step = gcd(*(c for _, c in condition.terms)) if condition.terms else 0
        if not low <= 0 <= high or (step and condition.constant % step):
            return None
        if condition.terms:
            equal.add(condition)
    return BasicSet(frozenset(atleast), frozenset(equal), basic_set.inner)


def _eliminate(basic_set: BasicSet, extents: Extents) -> BasicSet | None:
    """Eliminates one existential variable where that is exact over the integers; returns None where it is
    not."""
    for i, extent in enumerate(basic_set.inner):
        name = _inner_name(i)
        equal = sorted((c for c in basic_set.equal if c.coefficient(name)), key=repr)
        unit = next((c for c in equal if abs(c.coefficient(name)) == 1), None)
        if unit is not None:
            # c * v + rest = 0 with c = 1 or -1 says v = -c * rest.
            value = unit.plus(variable(name), -unit.coefficient(name)).times(-unit.coefficient(name))
            bounds = {value, linear((), extent - 1).plus(value, -1)}
            return BasicSet(
                frozenset(c.substitute(name, value) for c in basic_set.atleast | bounds),
                frozenset(c.substitute(name, value) for c in basic_set.equal - {unit}),
                basic_set.inner,
            )
        if not equal and any(c.coefficient(name) for c in basic_set.atleast):
            eliminated = _fourier_motzkin(basic_set, name, extents)
            if eliminated is not None:
                return eliminated
    return None


def _fourier_motzkin(basic_set: BasicSet, name: str, extents: Extents) -> BasicSet | None:
    """Combines every lower limit of a variable with every upper one; this is exact if all coefficients of one
    side are 1."""
    bounds = {variable(name), linear(((name, -1),), basic_set.extents(extents)[name] - 1)}
    lower = [c for c in basic_set.atleast | bounds if c.coefficient(name) > 0]
    upper = [c for c in basic_set.atleast | bounds if c.coefficient(name) < 0]
    exact = all(c.coefficient(name) == 1 for c in lower) or all(c.coefficient(name) == -1 for c in upper)
    if not exact or len(lower) * len(upper) > MOST_CONDITIONS:
        return None
    rest = frozenset(c for c in basic_set.atleast if not c.coefficient(name))
    pairs = frozenset(
        low.times(-high.coefficient(name)).plus(high, low.coefficient(name))
        for low in lower
        for high in upper
    )
    eliminated = BasicSet(rest | pairs, basic_set.equal, basic_set.inner)
    return None if overflows(eliminated.atleast, basic_set.extents(extents)) else eliminated


def overflows(conditions: Iterable[LinearExpr], extents: Extents) -> bool:
    """Returns whether a condition's value may exceed 64-bit arithmetic."""
    return any(max(map(abs, c.span(extents))) > 2**60 for c in conditions)


def _renumbered(basic_set: BasicSet) -> BasicSet:
    """Drops existential variables that no condition uses, since each of them can be 0, and renumbers the
    others."""
    used = {v for c in basic_set.conditions for v, _ in c.terms}
    used_inner = [i for i in range(len(basic_set.inner)) if _inner_name(i) in used]
    names = {_inner_name(i): _inner_name(k) for k, i in enumerate(used_inner)}
    renamed = basic_set.renamed(names)
    return BasicSet(renamed.atleast, renamed.equal, tuple(basic_set.inner[i] for i in used_inner))
