"""Indexing: `x[H = 2*P + R - 1]` reads at affine positions, `z[V = ids]` gathers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ucutlass import ir
from ucutlass.check.scope import Reject, Scope, combine, describe, did_you_mean, show_value
from ucutlass.grammar import syntax
from ucutlass.grammar.format import format_expression
from ucutlass.ir import Affine, Position, Value
from ucutlass.ir.extents import Extent, Fixed
from ucutlass.limits import FACTOR, within


def check_index(index: syntax.Index, scope: Scope) -> Value:
    """The value of `e[..]`: affine equations first, then the gathers among them."""
    value = scope.check(index.base)
    gathers = [i for i in index.items if _is_gather(i.right, scope)]
    affine = [i for i in index.items if not _is_gather(i.right, scope)]
    if affine:
        value = _read(value, affine, scope, index)
    for item in gathers:
        dim, scale = _left(item, value, scope)
        if scale != 1:
            raise Reject("UC0214", "a gather picks single elements; its left side is a name", item.left.span)
        ids = scope.check(item.right)
        if ids.elem.kind != "int":
            raise Reject(
                "UC0212",
                f"coordinates are integers; this is {show_value(ids)}",
                item.right.span,
                f"write {scope.written(dim)} = i64({format_expression(item.right)}), which rounds to nearest"
                if ids.elem.kind == "float"
                else "write i64(where(c, 1, 0)) to make a number of a condition",
            )
        dims = scope.dims.order([d for d in value.dims if d != dim] + list(ids.dims))
        value = scope.graph.add(ir.Gather(value, dim, ids, value.elem, dims, index.span))
    return value


def _is_gather(expr: syntax.Expr, scope: Scope) -> bool:
    """Whether a right side speaks of values instead of coordinates."""
    match expr:
        case syntax.Name(name):
            return name in scope.values and scope.dim(name) is None
        case syntax.Unary(operand=operand):
            return _is_gather(operand, scope)
        case syntax.Binary(left=left, right=right):
            return _is_gather(left, scope) or _is_gather(right, scope)
        case syntax.Call(callee=callee):
            return callee != "size"
        case syntax.Index():
            return True
        case _:
            return False


def _left(item: syntax.IndexItem, value: Value, scope: Scope) -> tuple[str, int]:
    match item.left:
        case syntax.Name(name):
            written, scale = name, 1
        case syntax.Binary("*", syntax.Number(int(number)), syntax.Name(name)) if number >= 1:
            written, scale = name, number
        case syntax.Binary("*", syntax.Name(name), syntax.Number(int(number))) if number >= 1:
            written, scale = name, number
        case _:
            raise Reject(
                "UC0214",
                "the left side of an index is a name, or a whole number times a name",
                item.left.span,
                "write x[H = ..] or x[2*H = ..]",
            )
    dim = scope.need_dim(written, item.left.span)
    if dim not in value.dims:
        raise Reject(
            "UC0215",
            f"{written} is indexed, but the value ranges over {describe(value.dims)}",
            item.left.span,
            did_you_mean(written, map(scope.written, value.dims))
            or "index a name that the value has; what it lacks broadcasts",
        )
    return dim, scale


@dataclass(frozen=True, slots=True)
class _Sum:
    """An affine form under construction: coefficients by dimension, and a constant."""

    terms: dict[str, int]
    offset: Extent


def _read(value: Value, items: list[syntax.IndexItem], scope: Scope, index: syntax.Index) -> Value:
    positions: list[Position] = []
    for item in items:
        dim, scale = _left(item, value, scope)
        if any(p.dim == dim for p in positions):
            raise Reject("UC0103", f"{dim} is indexed twice", item.left.span)
        _introduce_by_rename(item, dim, scale, scope)
        at = _affine(item.right, scope)
        offset = at.offset.value if isinstance(at.offset, Fixed) else 0
        within(FACTOR, max(scale, abs(offset), *map(abs, at.terms.values())))
        terms = tuple((d, at.terms[d]) for d in scope.dims.order(at.terms) if at.terms[d])
        positions.append(Position(dim, scale, Affine(terms, at.offset)))
    indexed = {p.dim for p in positions}
    dims = scope.dims.order(
        [d for d in value.dims if d not in indexed] + [d for p in positions for d, _ in p.at.terms]
    )
    return scope.graph.add(ir.Read(value, tuple(positions), 0.0, value.elem, dims, index.span))


def _introduce_by_rename(item: syntax.IndexItem, dim: str, scale: int, scope: Scope) -> None:
    """`x[M = J]` with a J that has no extent yet gives it M's."""
    match item.right:
        case syntax.Name(name, span) if scale == 1 and scope.alias is None:
            if name not in scope.dims.extents or name in scope.dims.pending:
                scope.dims.declare(name, scope.extent(dim, span), span)


def _affine(expr: syntax.Expr, scope: Scope) -> _Sum:
    match expr:
        case syntax.Number(int(value)):
            return _Sum({}, Fixed(value))
        case syntax.Name(name, span):
            return _Sum({scope.need_dim(name, span): 1}, Fixed(0))
        case syntax.Call(
            callee="size", brackets=None, arguments=(syntax.Argument(syntax.Name(name), None),), span=span
        ):
            return _Sum({}, scope.extent(scope.need_dim(name, span), span))
        case syntax.Unary("-", operand):
            return _scaled(_affine(operand, scope), -1)
        case syntax.Binary("+" | "-" as op, left, right):
            a, b = _affine(left, scope), _affine(right, scope)
            sign = 1 if op == "+" else -1
            terms = {d: a.terms.get(d, 0) + sign * b.terms.get(d, 0) for d in {**a.terms, **b.terms}}
            return _Sum(terms, combine(op, a.offset, b.offset) if b.offset != Fixed(0) else a.offset)
        case syntax.Binary("*", left, right):
            a, b = _affine(left, scope), _affine(right, scope)
            for factor, other in ((a, b), (b, a)):
                if not factor.terms and isinstance(factor.offset, Fixed):
                    return _scaled(other, factor.offset.value)
    gathered = _coordinates(expr, scope)
    raise Reject(
        "UC0214",
        "a position is a sum of coordinates times whole numbers",
        expr.span,
        "write for example x[H = 2*P + R - 1]; x[2*H = P + 1 - R] divides"
        if gathered is None
        else f"other positions are gathered: write i64({format_expression(gathered)})",
    )


def _coordinates(expr: syntax.Expr, scope: Scope) -> syntax.Expr | None:
    """The position as a value, `index(D)` for each D; None where it holds what no coordinate is made of."""
    match expr:
        case syntax.Number(int()):
            return expr
        case syntax.Name(name) if scope.dim(name) is not None:
            return syntax.Call("index", None, (syntax.Argument(expr),))
        case syntax.Call(callee="size"):
            return expr
        case syntax.Unary("-", operand) if (inner := _coordinates(operand, scope)) is not None:
            return syntax.Unary("-", inner)
        case syntax.Binary("+" | "-" | "*" | "//" | "%" as op, left, right):
            a, b = _coordinates(left, scope), _coordinates(right, scope)
            return None if a is None or b is None else syntax.Binary(op, a, b)
    return None


def _scaled(a: _Sum, factor: int) -> _Sum:
    offset = a.offset if factor == 1 else combine("*", Fixed(factor), a.offset)
    return _Sum({d: c * factor for d, c in a.terms.items()}, offset)


def is_rename(read: ir.Read, extents: Mapping[str, Extent]) -> bool:
    """Whether every position is another dimension, known to be as long, read one to one, and no two
    are the same: only then the tensor lies in memory as if it were declared with the new names."""
    return fixed_coordinates(read, extents) == {}


def fixed_coordinates(read: ir.Read, extents: Mapping[str, Extent]) -> dict[str, int] | None:
    """The coordinates within the tensor at which some axes are read, where all others are only renamed:
    what is read then lies in memory with the strides of the tensor. None for any other read."""
    fixed = {
        p.dim: offset.value
        for p in read.positions
        if not p.at.terms
        and p.scale == 1
        and isinstance(offset := p.at.offset, Fixed)
        and isinstance(extent := extents[p.dim], Fixed)
        and 0 <= offset.value < extent.value
    }
    renamed = len(read.dims) + len(fixed) == len(read.value.dims) and all(
        p.scale == 1
        and p.at.offset == Fixed(0)
        and len(p.at.terms) == 1
        and p.at.terms[0][1] == 1
        and extents[p.dim] == extents[p.at.terms[0][0]]
        for p in read.positions
        if p.dim not in fixed
    )
    return fixed if renamed else None
