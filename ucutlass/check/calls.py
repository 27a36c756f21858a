"""Calls: the built-in operations, element-wise functions, casts and the program's own functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import get_args

from ucutlass import ir
from ucutlass.check import elementwise
from ucutlass.check.scope import Reject, Repeated, Scope, describe, did_you_mean, show_value
from ucutlass.check.spellings import spelling_hint
from ucutlass.check.subexpressions import index_items, names
from ucutlass.check.types import extent_of, positive
from ucutlass.grammar import syntax
from ucutlass.grammar.format import format_expression
from ucutlass.grammar.syntax import Span
from ucutlass.ir import Dims, Value
from ucutlass.ir.compute_types import COMPUTE_TYPES, multiply_together
from ucutlass.ir.elements import BOOL, ELEMENTS, F32, I64, Element
from ucutlass.ir.functions import FUNCTIONS, NAMED, ElementwiseFunction
from ucutlass.ir.neutral import NEUTRAL, survives
from ucutlass.torch_functions import TORCH_SIGNATURES

REDUCTIONS: tuple[str, ...] = get_args(ir.ReduceOp)

_MAX_EXPANSION = 32
"""How deep functions may call each other."""


def check_call(call: syntax.Call, scope: Scope) -> Value:
    """The value of `f(..)` or `f[K](..)`. Raises Reject with the first thing wrong."""
    name = call.callee
    if name in scope.functions:
        return _expand(scope.functions[name], call, scope)
    if call.brackets is not None and (consuming := _CONSUMING.get(name)):
        return consuming(call, _consumed(call, scope), scope)
    if call.brackets is not None:
        if name in NAMED or name in ELEMENTS or name in _PLAIN:
            raise Reject(
                "UC0222",
                f"{name} consumes no dimension",
                call.callee_span,
                f"write {name}(..) without brackets",
            )
        raise _unknown(call, scope)
    if plain := _PLAIN.get(name):
        return plain(call, scope)
    if name in ELEMENTS:
        return _cast(ELEMENTS[name], call, scope)
    if name in NAMED:
        return _function(NAMED[name], call, scope)
    if name in _CONSUMING:
        raise _unnamed(call, scope)
    raise _unknown(call, scope)


def _unnamed(call: syntax.Call, scope: Scope) -> Reject:
    """For a reduction without brackets; the hint has the names of what it is called with."""
    operands = [a.value for a in call.arguments if a.name is None][: 2 if call.callee == "dot" else 1]
    values = scope.check_all(operands)
    shared = [d for d in (values[0].dims if values else ()) if all(d in v.dims for v in values)]
    text = ", ".join(map(format_expression, operands))
    name = scope.written(shared[-1]) if shared else "K"
    hint = f"write {call.callee}[{name}]({text if operands and len(text) <= 60 else '..'})"
    if call.callee == "expand":
        hint = "name what the value lacks: expand[N](x)"
    elif len(shared) > 1:
        hint += f", or other names of {describe(map(scope.written, shared))}"
    what = "adds" if call.callee == "expand" else "consumes"
    return Reject("UC0222", f"{call.callee} needs the names it {what}", call.callee_span, hint)


def _unknown(call: syntax.Call, scope: Scope) -> Reject:
    name = call.callee
    if name.startswith("torch."):
        callable_ = name.removeprefix("torch.") in TORCH_SIGNATURES
        return Reject(
            "UC0504",
            "a torch call is a stage of its own in a pipeline",
            call.span,
            f"bind it with its type: h: f32[B, C] = {name}(x)"
            if callable_
            else spelling_hint(name) or "write it in the language's own functions",
        )
    if name in scope.programs:
        return Reject(
            "UC0502",
            f"{name} is a {scope.programs[name].kind}; its call must stand alone as a stage",
            call.span,
            f"bind it first: h = {name}(..)",
        )
    callables = [*NAMED, *_CONSUMING, *_PLAIN, *ELEMENTS, *scope.functions, *scope.programs]
    hint = (
        spelling_hint(name) or did_you_mean(name, callables) or f"define it, as in fn {name[:40]}(x) = x * x"
    )
    return Reject("UC0104", f"no function is named {name}", call.callee_span, hint)


def _positional(
    call: syntax.Call, least: int, most: int, options: tuple[str, ...] = ()
) -> tuple[list[syntax.Expr], dict[str, syntax.Argument]]:
    positional = [a.value for a in call.arguments if a.name is None]
    named = {a.name: a for a in call.arguments if a.name is not None}
    for option, argument in named.items():
        if option not in options:
            hint = did_you_mean(option, options) or _signature(call.callee, options)
            raise Reject("UC0105", f"{call.callee} has no argument named {option}", argument.span, hint)
    if not least <= len(positional) <= most:
        count = str(least) if least == most else f"{least} to {most}"
        raise Reject(
            "UC0105",
            f"{call.callee} takes {count} argument{'s' if most != 1 else ''}, here are {len(positional)}",
            call.span,
            _signature(call.callee, options),
        )
    return positional, named


def _signature(callee: str, options: tuple[str, ...]) -> str | None:
    """How a function is called: arguments in their order, those with a default by name."""
    function = NAMED.get(callee)
    if function is not None:
        least, _ = function.arity
        defaults = zip(function.parameters[least:], function.defaults, strict=True)
        written = [*function.parameters[:least], *(f"{p}={d:g}" for p, d in defaults)]
        return f"write {callee}({', '.join(written)})"
    if options:
        return f"its named arguments: {', '.join(options)}"
    if callee in _CONSUMING:
        return f"names stand in the brackets, as in {callee}[K](x), and results align by name"
    return None


def _one(call: syntax.Call, scope: Scope, options: tuple[str, ...] = ()) -> Value:
    (only,), _ = _positional(call, 1, 1, options)
    return scope.check(only)


def _function(function: ElementwiseFunction, call: syntax.Call, scope: Scope) -> Value:
    least, most = function.arity
    by_name = next((a for a in call.arguments if a.name in function.parameters[:least]), None)
    if by_name is not None:
        raise Reject(
            "UC0105",
            f"{call.callee} takes {by_name.name} by its place, not by name",
            by_name.span,
            _signature(call.callee, ()),
        )
    if function.name in REDUCTIONS and sum(a.name is None for a in call.arguments) == 1:
        raise _unnamed(call, scope)  # max(x), as PyTorch reduces all
    args, named = _positional(call, least, most, function.parameters)
    values = list(scope.check_all(args))
    for parameter, default in zip(
        function.parameters[len(args) :], function.defaults[len(args) - least :], strict=False
    ):
        argument = named.pop(parameter, None)
        values.append(
            scope.check(argument.value)
            if argument
            else scope.graph.add(ir.Constant(default, F32, span=call.span))
        )
    if named:
        extra = next(iter(named.values()))
        raise Reject("UC0105", f"{call.callee} is given {extra.name} twice", extra.span)
    return elementwise.apply(function, tuple(values), scope, call.span)


def _cast(elem: Element, call: syntax.Call, scope: Scope) -> Value:
    value = _one(call, scope)
    if value.elem is elem:
        return value
    return scope.graph.add(ir.Cast(value, elem, value.dims, call.span))


# --- size, index, segment ---------------------------------------------------------


def _dim_argument(call: syntax.Call, scope: Scope) -> str:
    (only,), _ = _positional(call, 1, 1)
    if not isinstance(only, syntax.Name):
        raise Reject("UC0105", f"{call.callee} takes the name of a dimension", only.span)
    return scope.need_dim(only.name, only.span)


def _size(call: syntax.Call, scope: Scope) -> Value:
    return elementwise.size(_dim_argument(call, scope), scope, call.span)


def _index(call: syntax.Call, scope: Scope) -> Value:
    dim = _dim_argument(call, scope)
    return scope.graph.add(ir.Coordinate(dim, I64, (dim,), call.span))


def _segment(call: syntax.Call, scope: Scope) -> Value:
    (name, offsets), _ = _positional(call, 2, 2)
    if not isinstance(name, syntax.Name):
        raise Reject("UC0105", "segment takes a dimension and its offsets: segment(T, offsets)", name.span)
    dim = scope.need_dim(name.name, name.span)
    value = scope.check(offsets)
    if value.elem.kind != "int" or len(value.dims) > 1 or dim in value.dims:
        raise Reject(
            "UC0212",
            f"offsets are one axis of integers, i32[E+1], or i32[O] with E=O-1; this is {show_value(value)}",
            offsets.span,
        )
    return scope.graph.add(ir.Segment(dim, value, I64, (dim,), call.span))


_PLAIN: Mapping[str, Callable[[syntax.Call, Scope], Value]] = {
    "size": _size,
    "index": _index,
    "segment": _segment,
}


# --- what names stand in brackets of ----------------------------------------------------------


def _consumed(call: syntax.Call, scope: Scope) -> tuple[tuple[str, Span], ...]:
    """The dimensions in a call's brackets. A name that has no extent yet takes the one written here, or that
    of the dimension which a rename in the call's arguments gives it: `sum[S](x[L = S])`."""
    dims: dict[str, Span] = {}
    for b in call.brackets or ():
        if b.extent is None and scope.alias is None and not scope.known(b.name):
            _introduce_renamed(b, call, scope)
        if b.extent is not None and scope.dim(b.name) is None and scope.alias is None:
            scope.dims.declare(b.name, positive(extent_of(b.extent, scope.dims), b.span), b.span)
        elif b.extent is not None:
            scope.dims.declare(
                scope.need_dim(b.name, b.span), positive(extent_of(b.extent, scope.dims), b.span), b.span
            )
        dim = scope.need_dim(b.name, b.span)
        if dim in dims:
            raise Reject("UC0103", f"{b.name} is consumed twice", b.span)
        dims[dim] = b.span
    return tuple(dims.items())


def _introduce_renamed(bracket: syntax.BracketName, call: syntax.Call, scope: Scope) -> None:
    """Raises Reject UC0101 where the arguments read positions along the name but none gives its extent."""
    positions = [item for item in index_items(call) if bracket.name in names(item.right)]
    for item in positions:
        match item:
            case syntax.IndexItem(syntax.Name(old), syntax.Name(_, span)) if scope.extent_known(old):
                scope.dims.declare(bracket.name, scope.extent(old, span), span)
                return
    if positions:
        raise Reject(
            "UC0101",
            f"no dimension is named {bracket.name}",
            bracket.span,
            did_you_mean(bracket.name, scope.dims.extents)
            or f"a new name takes its extent where it is introduced: {call.callee}[{bracket.name}=3](..)",
        )


def _over(consumed: tuple[tuple[str, Span], ...], value: Value, scope: Scope, what: str) -> Dims:
    for dim, span in consumed:
        if dim not in value.dims:
            raise Reject(
                "UC0211",
                f"{what} over {dim}, but the value ranges over {describe(value.dims)}",
                span,
                did_you_mean(scope.written(dim), map(scope.written, value.dims))
                or f"write {what}[{scope.written(value.dims[-1])}](..), or leave {what} out"
                if value.dims
                else f"the value is one element: leave {what} out",
            )
    return scope.dims.order(d for d, _ in consumed)


def _numeric(value: Value, what: str) -> Value:
    if value.elem is BOOL:
        raise Reject(
            "UC0212", f"{what} takes numbers; this is {show_value(value)}", value.span, "write where(c, 1, 0)"
        )
    return value


Consumed = tuple[tuple[str, Span], ...]


def _dot(call: syntax.Call, consumed: Consumed, scope: Scope) -> Value:
    (first, second), named = _positional(call, 2, 2, ("acc",))
    left, right = scope.check_all((first, second))
    _check_operands(left, right, consumed, call)
    compute_type = COMPUTE_TYPES[left.elem.name]
    accumulate = _accumulation(named.get("acc"), compute_type.elem.name)
    over = scope.dims.order(d for d, _ in consumed)
    dims = scope.dims.order(d for d in (*left.dims, *right.dims) if d not in over)
    return scope.graph.add(
        ir.Dot(over, left, right, compute_type.elem, accumulate, compute_type.result, dims, call.span)
    )


def _check_operands(left: Value, right: Value, consumed: Consumed, call: syntax.Call) -> None:
    for dim, span in consumed:
        for side, value in (("left", left), ("right", right)):
            if dim not in value.dims:
                raise Reject(
                    "UC0205",
                    f"dot sums over {dim}, but its {side} operand ranges over {describe(value.dims)}",
                    span,
                    f"both operands need {dim}; sum[{dim}](..) removes a name that only one has",
                )
    if not multiply_together(left.elem, right.elem):
        narrow = left if left.elem.bits < right.elem.bits else right
        raise Reject(
            "UC0203",
            f"dot multiplies one element type; these are {left.elem.name} and {right.elem.name}",
            call.span,
            f"cast in plain sight, for example {narrow.elem.name}(..) around the "
            f"{'right' if narrow is left else 'left'} operand",
            (("left operand", left.span), ("right operand", right.span)),
        )
    if left.elem.name not in COMPUTE_TYPES:
        raise Reject(
            "UC0204",
            f"no compute type multiplies {left.elem.name}",
            call.span,
            "compute types: " + " ".join(COMPUTE_TYPES),
        )


def _accumulation(argument: syntax.Argument | None, compute_type: str) -> str:
    allowed = COMPUTE_TYPES[compute_type].accumulations
    if argument is None:
        return allowed[0]
    match argument.value:
        case syntax.Name(word) if word in allowed:
            return word
    raise Reject(
        "UC0217",
        f"compute type {compute_type} accumulates in {' or '.join(allowed)}",
        argument.span,
        f"write acc={allowed[-1]} or leave it out",
    )


def _reduce(op: str) -> Callable[[syntax.Call, Consumed, Scope], Value]:
    def check(call: syntax.Call, consumed: Consumed, scope: Scope) -> Value:
        value = _numeric(_one(call, scope), op)
        if op == "logsumexp" and isinstance(value, (ir.Read, ir.Cast)) and value.elem.kind == "int":
            value = scope.graph.add(ir.Cast(value, F32, value.dims, value.span))
        value = _fill(value, NEUTRAL[op], scope)
        over = _over(consumed, value, scope, op)
        dims = tuple(d for d in value.dims if d not in over)
        if op in ("argmax", "argmin") and len(over) != 1:
            raise Reject(
                "UC0222", f"{op} gives the coordinate along one dimension; here are {len(over)}", call.span
            )
        return scope.graph.add(ir.Reduce(op, over, value, _reduced_element(op, value), dims, call.span))  # type: ignore[arg-type]

    return check


def _reduced_element(op: str, value: Value) -> Element:
    if op in ("argmax", "argmin"):
        return I64
    if value.elem.kind == "int" and op in ("sum", "prod", "max", "min"):
        return I64 if op in ("sum", "prod") else value.elem
    return F32


def _fill(value: Value, neutral: float, scope: Scope) -> Value:
    """A read, or casts of one, with what it gives outside; a cast that the neutral element would not survive
    moves inside the read."""
    match value:
        case ir.Read():
            return scope.graph.add(replace(value, fill=neutral))
        case ir.Cast(value=inner, elem=elem):
            filled = _fill(inner, neutral, scope)
            if not isinstance(filled, ir.Read) or not math.isinf(neutral) or survives(filled.elem, elem):
                return scope.graph.add(replace(value, value=filled))
            source = scope.graph.add(ir.Cast(filled.value, elem, filled.value.dims, value.span))
            return scope.graph.add(replace(filled, value=source, elem=elem))
        case _:
            return value


def _softmax(log: bool) -> Callable[[syntax.Call, Consumed, Scope], Value]:
    def check(call: syntax.Call, consumed: Consumed, scope: Scope) -> Value:
        value = _numeric(_one(call, scope), call.callee)
        over = _over(consumed, value, scope, call.callee)
        return scope.graph.add(ir.Softmax(over, value, log, F32, value.dims, call.span))

    return check


def _scan(call: syntax.Call, consumed: Consumed, scope: Scope) -> Value:
    (only,), named = _positional(call, 1, 1, ("exclusive", "reverse"))
    value = _numeric(scope.check(only), call.callee)
    over = _over(consumed, value, scope, call.callee)
    if len(over) != 1:
        raise Reject("UC0222", f"{call.callee} runs along one dimension; here are {len(over)}", call.span)
    elem = I64 if value.elem.kind == "int" else F32
    flags = {name: _flag(argument) for name, argument in named.items()}
    return scope.graph.add(
        ir.Scan(
            "cumsum" if call.callee == "cumsum" else "cumprod",
            over[0],
            value,
            flags.get("exclusive", False),
            flags.get("reverse", False),
            elem,
            value.dims,
            call.span,
        )
    )


def _flag(argument: syntax.Argument) -> bool:
    match argument.value:
        case syntax.Literal_(word="true" | "false" as word):
            return word == "true"
    raise Reject("UC0212", f"{argument.name} is true or false", argument.span)


def _repeat(call: syntax.Call, consumed: Consumed, scope: Scope) -> Value:
    """`expand[N](e)`: e at every coordinate of N, chosen by a condition that always holds. Families compute
    no choice between a value and itself."""
    value = _one(call, scope)
    for dim, span in consumed:
        if dim in value.dims:
            raise Reject("UC0103", f"the value has {scope.written(dim)} already", span, "leave it out")
    zero = elementwise.number(0, scope, call.span)
    always: Value | None = None
    for dim, span in consumed:
        here = scope.graph.add(ir.Coordinate(dim, I64, (dim,), span))
        inside = elementwise.apply(FUNCTIONS["greater_equal"], (here, zero), scope, call.span)
        always = inside if always is None else _both(always, inside, scope, call.span)
    if always is None:
        return value
    if value.elem is BOOL:
        return _both(always, value, scope, call.span)
    repeated = elementwise.apply(FUNCTIONS["where"], (always, value, value), scope, call.span)
    if repeated.elem is value.elem:
        return repeated
    return scope.graph.add(ir.Cast(repeated, value.elem, repeated.dims, call.span))


def _both(left: Value, right: Value, scope: Scope, span: Span) -> Value:
    return elementwise.apply(FUNCTIONS["and"], (left, right), scope, span)


_CONSUMING: Mapping[str, Callable[[syntax.Call, Consumed, Scope], Value]] = {
    "dot": _dot,
    "softmax": _softmax(False),
    "log_softmax": _softmax(True),
    "cumsum": _scan,
    "cumprod": _scan,
    "expand": _repeat,
    **{op: _reduce(op) for op in REDUCTIONS},
}

BUILTINS: tuple[str, ...] = (*_CONSUMING, *_PLAIN)
"""Names that a program's own functions and programs cannot take."""


# --- the program's own functions --------------------------------------------------


def _expand(function: syntax.Function, call: syntax.Call, scope: Scope) -> Value:
    if function.name in scope.stack:
        raise Reject(
            "UC0106",
            f"{function.name} calls itself",
            call.callee_span,
            "functions are expanded in place; write the repetition out",
        )
    if len(scope.stack) >= _MAX_EXPANSION:
        raise Reject("UC0107", f"functions call each other more than {_MAX_EXPANSION} deep", call.span)
    brackets = call.brackets or ()
    if len(brackets) != len(function.dims):
        raise Reject(
            "UC0105",
            f"{function.name} takes {len(function.dims)} dimensions, here are {len(brackets)}",
            call.span,
        )
    args, _ = _positional(call, len(function.params), len(function.params))
    dims = [dim for dim, _ in _consumed(call, scope)]
    values = scope.check_all(args)
    # Equal values are one node, so that functions that call each other twice need not be expanded twice.
    key = (function.name, *dims, *map(id, values))
    expansion = scope.expansions.get(key)
    if expansion is None:
        inner = replace(
            scope,
            values=dict(zip(function.params, values, strict=True)),
            alias=dict(zip(function.dims, dims, strict=False)),
            stack=(*scope.stack, function.name),
            bound={},
        )
        try:
            expansion = _body(function, inner)
        except Reject as problem:
            expansion = problem
        scope.expansions[key] = expansion
    if isinstance(expansion, Reject):
        raise Repeated(expansion)
    return expansion


def _body(function: syntax.Function, inner: Scope) -> Value:
    """What a function gives whose parameters and dimensions are bound. Raises Reject and Cascade."""
    for statement in function.body:
        match statement:
            case syntax.Bind(targets=(syntax.Target(name, None),), value=value):
                inner.values[name] = inner.check(value)
            case syntax.Return(items=(syntax.ReturnItem(value, None),)):
                return inner.check(value)
            case _:
                raise Reject("UC0223", "a function holds bindings and ends in one return", statement.span)
    raise Reject("UC0223", f"{function.name} returns nothing", function.name_span, "end it in: return ..")
