"""The parts of an expression: subexpressions, names, index equations."""

from __future__ import annotations

from collections.abc import Iterator

from ucutlass.grammar import syntax


def names(expr: syntax.Expr) -> set[str]:
    """Every name in an expression, values and dimensions alike."""
    match expr:
        case syntax.Name(name):
            return {name}
        case syntax.Call(brackets=brackets):
            return {b.name for b in brackets or ()}.union(*map(names, parts(expr)))
        case _:
            return set[str]().union(*map(names, parts(expr)))


def index_items(expr: syntax.Expr) -> Iterator[syntax.IndexItem]:
    """The equations of every index in an expression."""
    if isinstance(expr, syntax.Index):
        yield from expr.items
    for part in parts(expr):
        yield from index_items(part)


def parts(expr: syntax.Expr) -> tuple[syntax.Expr, ...]:
    """The expressions of which an expression is made."""
    match expr:
        case syntax.Unary(operand=operand):
            return (operand,)
        case syntax.Binary(left=left, right=right):
            return (left, right)
        case syntax.Index(base=base, items=items):
            return (base, *(side for item in items for side in (item.left, item.right)))
        case syntax.Call(brackets=brackets, arguments=arguments):
            extents = tuple(b.extent for b in brackets or () if b.extent is not None)
            return (*extents, *(a.value for a in arguments))
        case _:
            return ()
