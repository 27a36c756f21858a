"""Expressions: from syntax to typed values, names aligned by name."""

from __future__ import annotations

from ucutlass import ir
from ucutlass.check import calls, elementwise, indexing
from ucutlass.check.scope import Cascade, Poisoned, Reject, Repeated, Scope, unknown_value, used_before
from ucutlass.grammar import syntax
from ucutlass.grammar.syntax import Span
from ucutlass.ir import Value
from ucutlass.ir.elements import BOOL, F32
from ucutlass.ir.functions import OPERATORS
from ucutlass.limits import EXPRESSIONS, LEVELS, within


def check(expr: syntax.Expr, scope: Scope) -> Value:
    """The value of an expression. Raises Reject with the first thing wrong in it, and LimitPassed."""
    scope.graph.effort.spend(EXPRESSIONS)
    scope.graph.level += 1
    within(LEVELS, scope.graph.level)
    try:
        return _value(expr, scope)
    finally:
        scope.graph.level -= 1


def _value(expr: syntax.Expr, scope: Scope) -> Value:
    match expr:
        case syntax.Number(value, _, span):
            return elementwise.number(value, scope, span)
        case syntax.Literal_(word, span):
            if word == "inf":
                return scope.graph.add(ir.Constant(float("inf"), F32, span=span))
            return scope.graph.add(ir.Constant(word == "true", BOOL, span=span))
        case syntax.Name(name, span):
            return _name(name, scope, span)
        case syntax.Unary(op, operand, span):
            return elementwise.apply(OPERATORS[op, 1], (check(operand, scope),), scope, span)
        case syntax.Binary(op, left, right, span):
            return elementwise.apply(OPERATORS[op, 2], scope.check_all((left, right)), scope, span)
        case syntax.Call():
            return calls.check_call(expr, scope)
        case syntax.Index():
            return indexing.check_index(expr, scope)


def _name(name: str, scope: Scope, span: Span) -> Value:
    value = scope.values.get(name)
    if isinstance(value, Poisoned):
        raise Cascade
    if value is not None:
        return value
    if scope.dim(name) is not None:
        raise Reject(
            "UC0102",
            f"{name} is a dimension; alone it has no value",
            span,
            f"write size({name}) for its extent or index({name}) for the coordinate along it",
        )
    # A function's body is checked for each list of arguments, and a hint compares many names.
    if span not in scope.unknown:
        scope.unknown[span] = _unknown(name, scope, span)
    raise Repeated(scope.unknown[span])


def _unknown(name: str, scope: Scope, span: Span) -> Reject:
    if name in scope.bound:
        return used_before(name, scope.bound[name], span)
    dims = scope.dims.extents if scope.alias is None else scope.alias
    return unknown_value(name, scope.values, dims, scope.functions, span)


def truth(expr: syntax.Expr, scope: Scope) -> Value:
    """A guard or requirement as a whole. Raises Reject UC0405, also for a number."""
    value = condition(expr, scope, "UC0405")
    if value.elem.kind != "bool":
        raise Reject("UC0405", "this is a number, not a condition", expr.span, "compare it: M <= 64")
    return value


def condition(expr: syntax.Expr, scope: Scope, code: str) -> Value:
    """A guard or requirement: names are extents, the outcome is a bool.

    Raises Reject with `code` for anything that is not arithmetic on extents, and LimitPassed.
    """
    scope.graph.effort.spend(EXPRESSIONS)
    match expr:
        case syntax.Number(int(value), _, span):
            return elementwise.number(value, scope, span)
        case syntax.Name(name, span):
            if scope.dim(name) is None and name in scope.values:
                raise Reject(
                    code,
                    f"{name} is a value; a condition here is made of extents",
                    span,
                    "what follows a value is chosen element by element, by where(c, a, b)",
                )
            return elementwise.size(scope.need_dim(name, span), scope, span)
        case syntax.Call(
            callee="size", brackets=None, arguments=(syntax.Argument(syntax.Name(name), None),), span=span
        ):
            return elementwise.size(scope.need_dim(name, span), scope, span)
        case syntax.Unary("not" | "-" as op, operand, span):
            return elementwise.apply(OPERATORS[op, 1], (condition(operand, scope, code),), scope, span)
        case syntax.Binary(op, left, right, span) if op not in ("/", "**"):
            pair = (condition(left, scope, code), condition(right, scope, code))
            return elementwise.apply(OPERATORS[op, 2], pair, scope, span)
        case _:
            raise Reject(
                code,
                "a condition here is made of extents: names, whole numbers, + - * // %, comparisons, and, "
                "or, not",
                expr.span,
                "write for example M <= 64 and K % 8 == 0",
            )
