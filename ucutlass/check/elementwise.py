"""Element-wise work: functions over values aligned by name, numbers and extents as values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ucutlass import ir
from ucutlass.check import fold
from ucutlass.check.scope import Reject, Scope, show_value
from ucutlass.grammar.syntax import Span
from ucutlass.ir import Value
from ucutlass.ir.elements import BOOL, F32, I32, I64, Element
from ucutlass.ir.extents import Fixed
from ucutlass.ir.functions import ElementwiseFunction

_COMPARE = "compare it, as in x != 0"
_MAX_INT = 2**63 - 1
_MAX_I32 = 2**31 - 1


def number(value: int | float, scope: Scope, span: Span) -> Value:
    if isinstance(value, int):
        if value > _MAX_INT:
            raise Reject(
                "UC0212", "an integer beyond 64 bits", span, "write it with a point to make it a float"
            )
        return scope.graph.add(ir.Constant(value, I64, span=span))
    return scope.graph.add(ir.Constant(_f32(value), F32, span=span))


def _f32(value: float) -> float:
    """A number of f32's range: beyond it is an infinity before anything is folded."""
    return math.copysign(math.inf, value) if abs(value) >= 2.0**128 - 2.0**103 else value


def apply(function: ElementwiseFunction, args: tuple[Value, ...], scope: Scope, span: Span) -> Value:
    """An element-wise function over values; equal names align, others broadcast.

    Raises Reject UC0212 where an argument is of the wrong kind.
    """
    if function.name in _RING and any(map(_beyond, args)) and _is_i32([a for a in args if not _beyond(a)]):
        args = tuple(_wrapped(a, scope) for a in args)
    elem = _outcome(function, args)
    constants = [a for a in args if isinstance(a, ir.Constant)]
    if len(constants) == len(args):
        values = tuple(c.value for c in constants)
        folded = fold.fold(function.name, values, elem is F32 and function.name != "where")
        if folded is not None:
            value = _f32(float(folded)) if elem is F32 else folded
            literal = all(c.literal for c in constants)
            return scope.graph.add(ir.Constant(value, elem, span=span, literal=literal))
    dims = scope.dims.order(d for a in args for d in a.dims)
    return scope.graph.add(ir.Apply(function.name, args, elem, dims, span))


def _outcome(function: ElementwiseFunction, args: tuple[Value, ...]) -> Element:
    values = args[1:] if function.domain == "any" else args
    if function.domain == "any" and args[0].elem is not BOOL:
        raise _wrong_kind(function, "a condition (bool) first", args[0], _COMPARE)
    if function.domain == "bool":
        for a in args:
            if a.elem is not BOOL:
                raise _wrong_kind(function, "conditions (bool)", a, _COMPARE)
        return BOOL
    bools = [a for a in values if a.elem is BOOL]
    if bools and not (function.domain == "any" and len(bools) == len(values)):
        raise _wrong_kind(
            function, "numbers", bools[0], "write where(c, 1, 0) to make a number of a condition"
        )
    if function.outcome == "bool":
        return BOOL
    if function.domain == "float":
        return F32
    return common(values)


def common(values: tuple[Value, ...]) -> Element:
    """The element that values meet in: f32 if any is a float, else i64 or i32.

    Literals adapt to the others, so `x + 1` keeps an i32 x an i32; one that 32 bits do not hold is an i64.
    """
    if any(v.elem.kind == "float" for v in values):
        return F32
    if all(v.elem is BOOL for v in values):
        return BOOL
    firm = [v for v in values if not _adapts(v) or _beyond(v)]
    return I64 if any(v.elem is I64 for v in firm or values) else I32


def _adapts(value: Value) -> bool:
    return isinstance(value, ir.Constant) and value.literal


def _beyond(value: Value) -> bool:
    """Whether it is an integer literal that 32 bits do not hold."""
    match value:
        case ir.Constant(value=number, literal=True) if value.elem is I64:
            return not -_MAX_I32 - 1 <= number <= _MAX_I32
        case _:
            return False


def _is_i32(values: Sequence[Value]) -> bool:
    """Whether integers, of which one is no literal, meet in i32."""
    firm = [v for v in values if not _adapts(v)]
    return bool(firm) and all(v.elem.kind == "int" and v.elem is not I64 for v in firm)


_RING = frozenset({"add", "subtract", "multiply"})
"""Functions whose low 32 bits follow from those of their arguments."""


def _wrapped(value: Value, scope: Scope) -> Value:
    """A literal beyond 32 bits as what i32 arithmetic keeps of it."""
    if not isinstance(value, ir.Constant) or not _beyond(value):
        return value
    return scope.graph.add(replace(value, value=(int(value.value) + 2**31) % 2**32 - 2**31))


def _wrong_kind(
    function: ElementwiseFunction, expected: str, actual: Value, hint: str | None = None
) -> Reject:
    called = function.spelling or function.name
    return Reject("UC0212", f"{called} takes {expected}; this is {show_value(actual)}", actual.span, hint)


def size(dim: str, scope: Scope, span: Span) -> Value:
    extent = scope.extent(dim, span)
    if isinstance(extent, Fixed):
        return scope.graph.add(ir.Constant(extent.value, I64, span=span, literal=False))
    return scope.graph.add(ir.Size(extent, I64, span=span))
