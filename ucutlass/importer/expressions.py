"""Short constructors for the language's expressions, and what the importer does to them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TypeAlias, cast

from ucutlass.grammar import syntax
from ucutlass.grammar.parse import parse
from ucutlass.grammar.syntax import (
    Argument,
    Binary,
    BinaryOp,
    BracketName,
    Call,
    Expr,
    Index,
    IndexItem,
    Literal_,
    Name,
    Number,
    Unary,
)

Like: TypeAlias = Expr | float | int | bool | str


def expr(value: Like) -> Expr:
    """Returns a number as a literal, a string as a name, an expression as it is. Raises ValueError for NaN,
    which the language cannot write."""
    match value:
        case bool():
            return Literal_("true" if value else "false")
        case int() | float():
            return number(value)
        case str():
            return Name(value)
        case _:
            return value


def number(value: int | float) -> Expr:
    """Returns a literal, negated where the number is. Raises ValueError for NaN."""
    if math.isnan(value):
        raise ValueError("the language has no NaN")
    if value < 0 or (value == 0 and math.copysign(1.0, value) < 0):
        return Unary("-", number(-value))
    if isinstance(value, float):
        return Literal_("inf") if math.isinf(value) else Number(value, repr(value).replace("e-0", "e-"))
    return Number(value)


def operand(index: int) -> Name:
    return Name(f"x{index}")


def binary(op: str, left: Like, right: Like) -> Expr:
    return Binary(cast(BinaryOp, op), expr(left), expr(right))


def add(left: Like, right: Like) -> Expr:
    return binary("+", left, right)


def sub(left: Like, right: Like) -> Expr:
    return binary("-", left, right)


def mul(left: Like, right: Like) -> Expr:
    return binary("*", left, right)


def div(left: Like, right: Like) -> Expr:
    return binary("/", left, right)


def call(callee: str, *arguments: Like, **named: Like) -> Expr:
    positional = [Argument(expr(a)) for a in arguments]
    return Call(callee, None, (*positional, *(Argument(expr(v), k) for k, v in named.items())))


def over(callee: str, labels: tuple[str, ...], *arguments: Like, **named: Like) -> Expr:
    """Returns `callee[labels](arguments)`: a dot, a reduction, a softmax or a scan."""
    positional = [Argument(expr(a)) for a in arguments]
    brackets = tuple(BracketName(label) for label in labels)
    return Call(callee, brackets, (*positional, *(Argument(expr(v), k) for k, v in named.items())))


def at(base: Like, items: Mapping[str, Like]) -> Expr:
    """Returns `base[left = right, ..]` for axes by label; base itself without any."""
    if not items:
        return expr(base)
    return Index(expr(base), tuple(IndexItem(Name(k), expr(v)) for k, v in items.items()))


def where(condition: Like, yes: Like, no: Like) -> Expr:
    return call("where", condition, yes, no)


def selected_of(element: str, condition: Like, yes: Like, no: Like) -> Expr:
    """Returns one of two values of an element; `where` takes numbers alone, and conditions are counted."""
    if element != "bool":
        return where(condition, yes, no)
    return binary("!=", where(condition, where(yes, 1, 0), where(no, 1, 0)), 0)


def index(label: str) -> Expr:
    return call("index", label)


def both(*conditions: Expr) -> Expr:
    """Returns the conjunction of at least one condition."""
    whole = conditions[0]
    for condition in conditions[1:]:
        whole = binary("and", whole, condition)
    return whole


def affine(label: str, scale: int = 1, offset: int = 0) -> Expr:
    """Returns `scale*label + offset` without what is neutral."""
    term: Expr = Name(label) if scale == 1 else mul(scale, label) if scale > 0 else mul(number(scale), label)
    return plus(term, offset)


def plus(term: Expr, offset: int) -> Expr:
    if offset == 0:
        return term
    return add(term, offset) if offset > 0 else sub(term, -offset)


@cache
def template(text: str) -> Expr:
    """Returns an expression that is written in the language, such as `relu(x0)`."""
    function = parse(f"fn template(x0) = {text}").items[0]
    assert isinstance(function, syntax.Function)
    statement = function.body[0]
    assert isinstance(statement, syntax.Return)
    return statement.items[0].value


def names_in(value: Expr) -> Iterator[str]:
    """Yields every name that stands in the expression as a value, in order, as often as it stands there."""
    match value:
        case Name(name):
            yield name
        case Unary(_, inner):
            yield from names_in(inner)
        case Binary(_, left, right):
            yield from names_in(left)
            yield from names_in(right)
        case Call(callee, _, arguments):
            if callee not in ("index", "size"):
                for argument in arguments:
                    yield from names_in(argument.value)
        case Index(base, items):
            yield from names_in(base)
            for item in items:
                yield from names_in(item.right)


def substituted(value: Expr, names: Mapping[str, Expr]) -> Expr:
    """Returns the expression with some names replaced."""
    match value:
        case Name(name):
            return names.get(name, value)
        case Unary(op, inner):
            return Unary(op, substituted(inner, names))
        case Binary(op, left, right):
            return Binary(op, substituted(left, names), substituted(right, names))
        case Call(callee, brackets, arguments) if callee not in ("index", "size"):
            return Call(
                callee, brackets, tuple(Argument(substituted(a.value, names), a.name) for a in arguments)
            )
        case Index(base, items):
            return Index(
                substituted(base, names), tuple(IndexItem(i.left, substituted(i.right, names)) for i in items)
            )
        case _:
            return value


def folded(value: Expr) -> Expr:
    """Returns a position without terms that are 0 and factors that are 0 or 1."""
    match value:
        case Binary("+" | "-" | "*" as op, left, right):
            a, b = folded(left), folded(right)
            match op, a, b:
                case _, Number(x), Number(y):
                    return number({"+": x + y, "-": x - y, "*": x * y}[op])
                case "+" | "-", _, Number(0):
                    return a
                case "+", Number(0), _:
                    return b
                case "*", Number(1), _:
                    return b
                case "*", _, Number(1):
                    return a
                case "*", Number(0), _:
                    return Number(0)
                case "*", _, Number(0):
                    return Number(0)
            return Binary(op, a, b)
        case _:
            return value
