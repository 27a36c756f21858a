"""Element-wise work: functions over values aligned by name, numbers and extents as values."""

from __future__ import annotations

from ucutlass import ir
from ucutlass.check import fold
from ucutlass.check.scope import Reject, Scope, show_value
from ucutlass.elements import BOOL, F32, I32, I64, Element
from ucutlass.extents import Fixed
from ucutlass.functions import Function
from ucutlass.grammar.syntax import Span
from ucutlass.ir import Value

_MAX_INT = 2**63 - 1
_MAX_I32 = 2**31 - 1


def number(value: int | float, scope: Scope, span: Span) -> Value:
    if isinstance(value, int):
        if value > _MAX_INT:
            raise Reject(
                "UC0212", "an integer beyond 64 bits", span, "write it with a point to make it a float"
            )
        return scope.graph.add(ir.Constant(value, I64, span=span))
    return scope.graph.add(ir.Constant(value, F32, span=span))


def apply(function: Function, args: tuple[Value, ...], scope: Scope, span: Span) -> Value:
    """An element-wise function over values; equal names align, others broadcast.

    Raises Reject UC0212 where an argument is of the wrong kind.
    """
    elem = _outcome(function, args, span)
    if all(isinstance(a, ir.Constant) for a in args):
        values = tuple(a.value for a in args if isinstance(a, ir.Constant))
        folded = fold.fold(function.name, values, elem is F32 and function.name != "where")
        if folded is not None:
            return scope.graph.add(ir.Constant(float(folded) if elem is F32 else folded, elem, span=span))
    dims = scope.dims.order(d for a in args for d in a.dims)
    return scope.graph.add(ir.Apply(function.name, args, elem, dims, span))


def _outcome(function: Function, args: tuple[Value, ...], span: Span) -> Element:
    values = args[1:] if function.domain == "any" else args
    if function.domain == "any" and args[0].elem is not BOOL:
        raise _wrong_kind(function, "a condition (bool) first", args[0])
    if function.domain == "bool":
        for a in args:
            if a.elem is not BOOL:
                raise _wrong_kind(function, "conditions (bool)", a)
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

    Constants adapt to the others, so `x + 1` keeps an i32 x an i32.
    """
    firm: list[Value] = [v for v in values if not isinstance(v, ir.Constant)]
    firm = firm or list(values)
    if any(isinstance(v, ir.Constant) and v.elem is I64 and abs(v.value) > _MAX_I32 for v in values):
        return F32 if any(v.elem.kind == "float" for v in values) else I64
    if any(v.elem.kind == "float" for v in values):
        return F32
    if all(v.elem is BOOL for v in values):
        return BOOL
    return I64 if any(v.elem is I64 for v in firm) else I32


def _wrong_kind(function: Function, wanted: str, got: Value, hint: str | None = None) -> Reject:
    called = function.spelling or function.name
    return Reject("UC0212", f"{called} takes {wanted}; this is {show_value(got)}", got.span, hint)


def size(dim: str, scope: Scope, span: Span) -> Value:
    extent = scope.extent(dim, span)
    if isinstance(extent, Fixed):
        return scope.graph.add(ir.Constant(extent.value, I64, span=span))
    return scope.graph.add(ir.Size(extent, I64, span=span))
