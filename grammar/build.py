"""Reductions of the grammar to nodes: one method a rule or alias of `ucutlass.lark`.

Children come with all their tokens, so that every node's span is exact. Nothing here
recurses: LALR reduces bottom-up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from lark import Token, Transformer

from ucutlass.grammar import problems
from ucutlass.grammar.problems import MAX_INTEGER, Problem, SyntaxProblem, shortened
from ucutlass.grammar.syntax import (
    Argument,
    Axis,
    Binary,
    Bind,
    BracketName,
    Call,
    CompositeAxis,
    Expr,
    Field,
    FieldValue,
    File,
    Function,
    Index,
    IndexItem,
    IntValue,
    Literal_,
    Name,
    NamedAxis,
    NamelessAxis,
    Number,
    Param,
    Program,
    Require,
    Result,
    Return,
    ReturnItem,
    Schedule,
    ShapeValue,
    Span,
    StageName,
    Statement,
    Target,
    TypeExpr,
    Unary,
    WordValue,
)
from ucutlass.grammar.tokens import span_of


@dataclass(frozen=True, slots=True)
class _Group:
    """A bracketed list on its way to its owner."""

    items: tuple[Any, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class _BracketItem:
    left: Expr
    right: Expr | None
    span: Span


@dataclass(frozen=True, slots=True)
class _Bracketed:
    """`NAME[..]` before it is known whether a call or an index."""

    name: Token
    brackets: _Group


class _Params(tuple[Param, ...]):
    """The kinds of list that a rule may leave out are told apart by type, not by place."""


class _Results(tuple[Result, ...]):
    pass


class _Dims(tuple[str, ...]):
    pass


class _Names(tuple[str, ...]):
    pass


Children: TypeAlias = list[Any]


class Build(Transformer[Token, File]):
    """Raises SyntaxProblem with one problem for what the grammar lets through but no node can hold."""

    def start(self, c: Children) -> File:
        return File(tuple(c))

    # --- items

    def program(self, c: Children) -> Program:
        kind, name = c[0], c[1]
        params, results = _only(_Params, c), _only(_Results, c)
        body = tuple(x for x in c[2:] if isinstance(x, (Bind, Return, Require, Schedule)))
        return Program(
            kind.value, name.value, params, results, body, name_span=span_of(name), span=_across(c)
        )

    def params(self, c: Children) -> _Params:
        return _Params(x for x in c if isinstance(x, Param))

    def param(self, c: Children) -> Param:
        return Param(c[0].value, c[2], _across(c))

    def results(self, c: Children) -> _Results:
        if isinstance(c[0], TypeExpr):
            return _Results((Result(c[0], None, c[0].span),))
        return _Results(x for x in c if isinstance(x, Result))

    def result(self, c: Children) -> Result:
        return Result(c[2], c[0].value, _across(c))

    def function_expr(self, c: Children) -> Function:
        value: Expr = c[-1]
        body = (Return((ReturnItem(value, None, value.span),), span=value.span),)
        return self._function(c, body, False)

    def function_block(self, c: Children) -> Function:
        body = tuple(x for x in c if isinstance(x, (Bind, Return)))
        return self._function(c, body, True)

    def _function(self, c: Children, body: tuple[Statement, ...], is_block: bool) -> Function:
        name = c[1]
        dims, params = _only(_Dims, c), _only(_Names, c)
        return Function(name.value, dims, params, body, is_block, name_span=span_of(name), span=_across(c))

    def dims(self, c: Children) -> _Dims:
        return _Dims(x.value for x in c if x.type == "NAME")

    def names(self, c: Children) -> _Names:
        return _Names(x.value for x in c if x.type == "NAME")

    # --- types

    def type(self, c: Children) -> TypeExpr:
        axes = c[1].items if len(c) > 1 else None
        return TypeExpr(c[0].value, axes, span_of(c[0]), _across(c))

    def shape(self, c: Children) -> TypeExpr:
        return TypeExpr(None, c[0].items, c[0].span, c[0].span)

    def axes(self, c: Children) -> _Group:
        return _Group(tuple(x for x in c if not isinstance(x, Token)), _across(c))

    def bare_axis(self, c: Children) -> Axis:
        match c[0]:
            case Name(name, span):
                return NamedAxis(name, None, span)
            case extent:
                return NamelessAxis(extent, extent.span)

    def named_axis(self, c: Children) -> NamedAxis:
        return NamedAxis(c[0].value, c[2] if len(c) > 1 else None, _across(c))

    part = named_axis

    def composite(self, c: Children) -> CompositeAxis:
        return CompositeAxis(tuple(c[1:-1]), _across(c))

    # --- statements

    def bind(self, c: Children) -> Bind:
        return Bind(tuple(x for x in c if isinstance(x, Target)), c[-1], span=_across(c))

    def target(self, c: Children) -> Target:
        return Target(c[0].value, c[2] if len(c) > 1 else None, _across(c))

    def return_(self, c: Children) -> Return:
        if isinstance(c[1], ReturnItem):
            return Return(tuple(x for x in c if isinstance(x, ReturnItem)), span=_across(c))
        return Return((ReturnItem(c[1], None, c[1].span),), span=_across(c))

    def return_item(self, c: Children) -> ReturnItem:
        return ReturnItem(c[2], c[0].value, _across(c))

    def require(self, c: Children) -> Require:
        return Require(c[1], span=_across(c))

    def schedule(self, c: Children) -> Schedule:
        arch = c[1]
        stage = next((x for x in c if isinstance(x, StageName)), None)
        when = next((x.items[0] for x in c if isinstance(x, _Group)), None)
        fields = tuple(x for x in c if isinstance(x, Field))
        return Schedule(arch.value, when, fields, arch_span=span_of(arch), span=_across(c), stage=stage)

    def stage(self, c: Children) -> StageName:
        name = c[-1].value if c[-1].type == "NAME" else None
        return StageName(name, c[1].type == "RETURN", Span(_start(c[1]), _end(c[-1])))

    def when(self, c: Children) -> _Group:
        return _Group((c[1],), _across(c))

    def field(self, c: Children) -> Field:
        values = tuple(x for x in c if not isinstance(x, Token))
        return Field(c[0].value, values, name_span=span_of(c[0]), span=_across(c))

    def value(self, c: Children) -> FieldValue:
        token: Token = c[0]
        span = span_of(token)
        match token.type:
            case "SHAPE":
                return ShapeValue(tuple(_integer(size, span) for size in token.split("x")), span)
            case "INT":
                return IntValue(_integer(token, span), span)
            case _:
                return WordValue(token.value, span)

    # --- expressions

    def binary(self, c: Children) -> Binary:
        return Binary(c[1].value, c[0], c[2], _across(c))

    def prefix(self, c: Children) -> Unary:
        return Unary(c[0].value, c[1], _across(c))

    def name(self, c: Children) -> Name:
        return Name(c[0].value, span_of(c[0]))

    def number(self, c: Children) -> Number:
        token: Token = c[0]
        span = span_of(token)
        if token.type == "INT":
            return Number(_integer(token, span), token.value, span)
        value = float(token)
        if math.isinf(value):
            raise _too_large(token, "f64", span, "write `inf` for infinity")
        return Number(value, token.value, span)

    def word(self, c: Children) -> Literal_:
        return Literal_(c[0].value, span_of(c[0]))

    def paren(self, c: Children) -> Expr:
        inner: Expr = c[1]
        return replace(inner, span=_across(c))

    def bracketed(self, c: Children) -> _Bracketed:
        return _Bracketed(c[0], c[1])

    def index_name(self, c: Children) -> Index:
        name: Token = c[0].name
        return _index(Name(name.value, span_of(name)), c[0].brackets)

    def index(self, c: Children) -> Index:
        return _index(c[0], c[1])

    def call(self, c: Children) -> Call:
        arguments: _Group = c[1]
        match c[0]:
            case _Bracketed(name, brackets):
                return _call(name, tuple(map(_consumed, brackets.items)), arguments)
            case name:
                return _call(name, None, arguments)

    def brackets(self, c: Children) -> _Group:
        return _Group(tuple(x for x in c if isinstance(x, _BracketItem)), _across(c))

    def bracket_item(self, c: Children) -> _BracketItem:
        return _BracketItem(c[0], c[2] if len(c) > 1 else None, _across(c))

    def arguments(self, c: Children) -> _Group:
        return _Group(tuple(x for x in c if isinstance(x, Argument)), _across(c))

    def argument(self, c: Children) -> Argument:
        if len(c) == 1:
            return Argument(c[0], None, _across(c))
        return Argument(c[2], c[0].value, _across(c))


_T = TypeVar("_T")


def _only(kind: type[tuple[_T, ...]], children: Sequence[Any]) -> tuple[_T, ...]:
    return next((tuple(x) for x in children if isinstance(x, kind)), ())


def _span(x: Any) -> Span:
    if isinstance(x, Token):
        return span_of(x)
    span = x.span
    assert isinstance(span, Span)
    return span


def _across(children: Sequence[Any]) -> Span:
    """Returns the span from the first child to the last."""
    return Span(_start(children[0]), _end(children[-1]))


def _start(x: Any) -> int:
    return (x.brackets.span if isinstance(x, _Bracketed) else _span(x)).start


def _end(x: Any) -> int:
    return _span(x).end


def _problem(code: str, message: str, span: Span, hint: str | None = None) -> SyntaxProblem:
    return SyntaxProblem((Problem(code, message, span, hint),))


def _integer(text: str, span: Span) -> int:
    digits = text.lstrip("0") or "0"
    # The length first: Python refuses to convert very long texts.
    if len(digits) > len(str(MAX_INTEGER)) or int(digits) > MAX_INTEGER:
        raise _too_large(text, "i64", span, f"the largest is {MAX_INTEGER}")
    return int(digits)


def _too_large(text: str, element: str, span: Span, hint: str) -> SyntaxProblem:
    message = f"the number {shortened(text)} does not fit {element}"
    return _problem(problems.NUMBER_TOO_LARGE, message, span, hint)


def _call(name: Token, brackets: tuple[BracketName, ...] | None, arguments: _Group) -> Call:
    at = span_of(name)
    return Call(name.value, brackets, arguments.items, at, at.to(arguments.span))


def _consumed(item: _BracketItem) -> BracketName:
    match item.left:
        case Name(name):
            return BracketName(name, item.right, item.span)
    raise _problem(
        problems.MALFORMED_CONSUMED,
        "brackets before `(` name dimensions",
        item.left.span,
        "write names, as in `sum[K](x)`, with an extent where one is new, as in `max[R=3](x)`",
    )


def _index(base: Expr, brackets: _Group) -> Index:
    items = tuple(_equation(base, item) for item in brackets.items)
    return Index(base, items, base.span.to(brackets.span))


def _equation(base: Expr, item: _BracketItem) -> IndexItem:
    if item.right is not None:
        return IndexItem(item.left, item.right, item.span)
    hint = "write an equation for a dimension, as in `x[M = J]` or `x[H = 2*P + R - 1]`"
    if isinstance(base, Call) and base.brackets is None:
        hint = f"what a call consumes stands before its arguments: `{base.callee}[..](..)`"
    elif isinstance(base, Name):
        hint += f"; `{base.name}[..]` without `=` is a call and needs arguments: `{base.name}[..](x)`"
    raise _problem(problems.MALFORMED_INDEX, "an index without `=`", item.span, hint)
