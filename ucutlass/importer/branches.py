"""Writes the branches of `where` by what its condition says of the coordinates.

A concatenation along an axis that splits at its seam, such as the two halves of rotary positions, asks for the
coordinate of the whole axis, `index(Z)*64 + index(D) < 64`. Where D has 64 elements that is `index(Z) == 0`, and
a position `Z*64 + D - 64` in the other branch is D.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ucutlass.grammar.syntax import (
    Argument,
    Binary,
    Call,
    Expr,
    Index,
    IndexItem,
    Literal_,
    Name,
    Number,
    Unary,
)
from ucutlass.importer.expressions import add, binary, index, mul, number, sub


@dataclass(frozen=True, slots=True)
class _Affine:
    """A sum of multiples of coordinates and a number."""

    terms: Mapping[str, int]
    offset: int

    def fixed(self, ranges: Mapping[str, range]) -> _Affine:
        """Returns the sum with the coordinates that have one value put in."""
        values = {d: r[0] for d, r in ranges.items() if len(r) == 1 and d in self.terms}
        terms = {d: n for d, n in self.terms.items() if d not in values}
        return _Affine(terms, self.offset + sum(self.terms[d] * at for d, at in values.items()))


def simplified(value: Expr, extents: Mapping[str, int]) -> Expr:
    """Returns a `where` with a shorter condition and positions, where its condition decides on one coordinate;
    other expressions as they are. `extents` are those of all names."""
    return _simplified(value, {d: range(n) for d, n in extents.items()})


def _simplified(value: Expr, ranges: Mapping[str, range]) -> Expr:
    match value:
        case Call("where", None, (Argument(Literal_("true" | "false" as word)), yes, no)):
            return _simplified(yes.value if word == "true" else no.value, ranges)
        case Call("where", None, (Argument(Binary("<" | "==" as op, left, Number(int() as limit))), yes, no)):
            split = _split(left, limit, ranges) if op == "<" else _first(left, limit, ranges)
            if split is None:
                return value
            dim, at = split
            before, after = range(ranges[dim].start, at), range(at, ranges[dim].stop)
            condition = (
                binary("==", index(dim), before[0]) if len(before) == 1 else binary("<", index(dim), at)
            )
            branches = [
                Argument(_branch(branch.value, {**ranges, dim: part}))
                for branch, part in ((yes, before), (no, after))
            ]
            return replace(value, arguments=(Argument(condition), *branches))
    return value


def _split(left: Expr, limit: int, ranges: Mapping[str, range]) -> tuple[str, int] | None:
    """Returns the coordinate on which `left < limit` decides, and its first value that is not below."""
    affine = _affine(left, coordinates=True)
    if affine is None or not affine.terms.keys() <= ranges.keys():
        return None
    if [*affine.terms.values()] == [1]:
        (dim,) = affine.terms
        at = limit - affine.offset
        return (dim, at) if ranges[dim].start < at < ranges[dim].stop else None
    if len(affine.terms) != 2:
        return None
    (inner, step), (outer, factor) = sorted(affine.terms.items(), key=lambda term: term[1])
    if factor < 1:
        return None
    at, rest = divmod(limit - affine.offset, factor)
    whole = ranges[inner] == range(factor) and step == 1 and rest == 0
    return (outer, at) if whole and ranges[outer].start < at < ranges[outer].stop else None


def _first(left: Expr, value: int, ranges: Mapping[str, range]) -> tuple[str, int] | None:
    """Does as `_split` for `left == value`, where the coordinate is at its first value."""
    affine = _affine(left, coordinates=True)
    if affine is None or [*affine.terms.values()] != [1] or not affine.terms.keys() <= ranges.keys():
        return None
    (dim,) = affine.terms
    at = value - affine.offset
    return (dim, at + 1) if at == ranges[dim].start and len(ranges[dim]) > 1 else None


def _branch(value: Expr, ranges: Mapping[str, range]) -> Expr:
    """Returns a branch in which coordinates have these ranges."""
    match value:
        case Unary(op, inner):
            return Unary(op, _branch(inner, ranges))
        case Binary(op, left, right):
            return Binary(op, _branch(left, ranges), _branch(right, ranges))
        case Call("where", None, _):
            return _simplified(value, ranges)
        case Index(base, items):
            left_items = tuple(item for item in (_item(i, ranges) for i in items) if item.left != item.right)
            return Index(base, left_items) if left_items else base
    return value


def _item(item: IndexItem, ranges: Mapping[str, range]) -> IndexItem:
    position = _affine(item.right, coordinates=False)
    if position is None:
        return item
    fixed = position.fixed(ranges)
    return item if fixed == position else IndexItem(item.left, _written(fixed))


def _affine(value: Expr, coordinates: bool) -> _Affine | None:
    """Returns an expression over `index(D)`, or over D, as a sum; None for what is none."""
    match value:
        case Number(int() as n):
            return _Affine({}, n)
        case Name(dim) if not coordinates:
            return _Affine({dim: 1}, 0)
        case Call("index", None, (Argument(Name(dim)),)) if coordinates:
            return _Affine({dim: 1}, 0)
        case Binary("+" | "-" as op, left, right):
            a, b = _affine(left, coordinates), _affine(right, coordinates)
            if a is None or b is None or a.terms.keys() & b.terms.keys():
                return None
            sign = 1 if op == "+" else -1
            return _Affine(
                {**a.terms, **{d: sign * n for d, n in b.terms.items()}}, a.offset + sign * b.offset
            )
        case Binary("*", left, right):
            a, b = _affine(left, coordinates), _affine(right, coordinates)
            if a is None or b is None or (a.terms and b.terms):
                return None
            factor, of = (a.offset, b) if not a.terms else (b.offset, a)
            return _Affine({d: n * factor for d, n in of.terms.items()}, of.offset * factor)
    return None


def _written(position: _Affine) -> Expr:
    value: Expr | None = None
    for dim, factor in position.terms.items():
        term = Name(dim) if abs(factor) == 1 else mul(dim, abs(factor))
        value = (
            term
            if value is None and factor > 0
            else add(value or 0, term)
            if factor > 0
            else sub(value or 0, term)
        )
    if value is None:
        return number(position.offset)
    if not position.offset:
        return value
    return add(value, position.offset) if position.offset > 0 else sub(value, -position.offset)
