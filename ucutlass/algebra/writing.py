"""Writes a graph of values as the text of a program."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, cast

from ucutlass import ir
from ucutlass.algebra.whole import WholeProgram
from ucutlass.grammar import syntax
from ucutlass.ir import Value, children
from ucutlass.ir.elements import F32
from ucutlass.ir.extents import Combined, Extent, Fixed, Free
from ucutlass.ir.functions import FUNCTIONS
from ucutlass.ir.neutral import NEUTRAL
from ucutlass.ir.traversal import upwards

_NOUNS = {"sum": "total", "mean": "mean", "max": "peak", "min": "least", "var": "variance", "prod": "product"}


FREE_ORDERS = 3
"""Dimensions of a stored value of which the compiler chooses the memory order; more have too many orders to price
for a candidate, and lie as the program names them."""


class NotWritable(Exception):
    """A graph that no text of the language says; the message says why."""


@dataclass(frozen=True, slots=True)
class _Position:
    """Where an expression stands: what is directly around it."""

    fill: float = 0.0


def written(
    whole: WholeProgram, roots: Mapping[str, Value], tree: syntax.File, stored: Sequence[Value]
) -> syntax.File:
    """Returns the file with the program's body written anew: `roots` has the value of each of the whole
    program's roots, and `stored` the values that are stages of their own. Raises NotWritable."""
    name = whole.program.name
    old = next(i for i in tree.items if isinstance(i, syntax.Program) and i.name == name)
    calls = unchanged_calls(whole, roots, old)
    writer = _ProgramWriter(whole, old, dict(roots), {id(v): v for v in stored}, calls)
    body = writer.body()
    kind: Literal["kernel", "pipeline"] = (
        "kernel" if old.kind == "kernel" and writer.stages == 1 else "pipeline"
    )
    new = replace(old, kind=kind, body=tuple(body), results=tuple(writer.typed_results()))
    gone = called_in(old.body) - called_in(body)
    items = [
        new if item is old else item
        for item in tree.items
        if not (isinstance(item, syntax.Program) and item.name in gone)
    ]
    return replace(tree, items=tuple(items))


def called_in(body: Sequence[syntax.Statement]) -> set[str]:
    """Returns the names that stages call."""
    values = [s.value for s in body if isinstance(s, syntax.Bind)]
    values += [item.value for s in body if isinstance(s, syntax.Return) for item in s.items]
    return {v.callee for v in values if isinstance(v, syntax.Call)}


def unchanged_calls(
    whole: WholeProgram, roots: Mapping[str, Value], old: syntax.Program
) -> dict[int, ir.Stage]:
    """Returns the calls of kernels that stay, by the identities of their results: those of which every result is a value
    below the roots as it stands."""
    bound = {frozenset(t.name for t in s.targets) for s in old.body if isinstance(s, syntax.Bind)}
    stages = [stage for stage in whole.calls if frozenset(stage.outputs) in bound]
    while True:
        calls = {id(whole.stored[name]): stage for stage in stages for name in stage.outputs}
        below = {id(v) for v in upwards(*roots.values(), into=partial(parts_of, calls=calls, whole=whole))}
        missing = [s for s in stages if any(id(whole.stored[name]) not in below for name in s.outputs)]
        if not missing:
            return calls
        stages = [stage for stage in stages if stage not in missing]


def parts_of(value: Value, calls: Mapping[int, ir.Stage], whole: WholeProgram) -> Sequence[Value]:
    """Returns what a value is computed from: of a call that stays, the stored values that it takes."""
    stage = calls.get(id(value))
    if stage is None:
        return children(value)
    return [whole.stored[a] for a in stage.arguments if isinstance(a, str) and a in whole.stored]


@dataclass(slots=True)
class _ProgramWriter:
    whole: WholeProgram
    old: syntax.Program
    roots: dict[str, Value]
    cut: dict[int, Value]
    calls: Mapping[int, ir.Stage]
    names: dict[int, str] = field(default_factory=dict)
    """By identity of a value that is bound: its name."""
    taken: set[str] = field(default_factory=set)
    known: set[str] = field(default_factory=set)
    """Dimensions that have their extent by now."""
    out: list[syntax.Statement] = field(default_factory=list)
    uses: Counter[int] = field(default_factory=Counter)
    stages: int = 1

    def body(self) -> list[syntax.Statement]:
        program = self.whole.program
        self.taken = {*program.dims, *self.whole.inputs, *FUNCTIONS, *NEUTRAL, *_RESERVED}
        self.taken |= {i.name for i in _items(self.old)}
        self.known = set(self._given_dims())
        values = list(upwards(*self.roots.values(), into=self._parts))
        for value in values:
            self.uses.update(id(c) for c in self._parts(value))
        self.cut |= {id(v): v for value in values if id(value) in self.calls for v in self._parts(value)}
        results = self._results()
        pending = list(self.whole.kept)
        needed = {id(self.roots[n]): n for n in self.roots if n not in results}
        for value in values:
            pending = self._ready(pending)
            if id(value) in self.calls:
                self._call(self.calls[id(value)])
            elif id(value) in needed:
                self._store(value, needed[id(value)])
            elif id(value) in self.cut and not isinstance(value, _LEAVES):
                self._store(value, self._own_name(value))
            elif self._worth_a_name(value):
                self._bind(value)
        pending = self._ready(pending)
        if pending:
            raise NotWritable("a stage that stays reads what is not stored before it")
        items = [
            syntax.ReturnItem(self._returned(n), n.removeprefix("return").strip() or None) for n in results
        ]
        self.stages = 1 + sum(self._is_stage(s) for s in self.out)
        return [*self.out, syntax.Return(tuple(items))]

    def _given_dims(self) -> Iterator[str]:
        """Yields the dimensions whose extents the parameters and the results' types give."""
        for param in self.whole.program.params:
            if isinstance(param.type, ir.TensorType):
                yield from param.type.dims
        for result in self.old.results:
            for axis in result.type.axes or ():
                parts = axis.parts if isinstance(axis, syntax.CompositeAxis) else (axis,)
                yield from (p.name for p in parts if isinstance(p, syntax.NamedAxis) and p.extent is not None)

    def _results(self) -> list[str]:
        """Returns the names of roots that the program returns, in order."""
        program = self.whole.program
        if isinstance(program, ir.Kernel):
            return list(self.roots)
        return [name for name, _ in program.results]

    def _returned(self, name: str) -> syntax.Expr:
        if name not in self.roots:  # a stage that stays fills it
            return self._kept_result(name)
        return self._value(self.roots[name], _Position())

    def _kept_result(self, name: str) -> syntax.Expr:
        raise NotWritable(f"{name} is filled by a stage that stays")

    @staticmethod
    def _is_stage(statement: syntax.Statement) -> bool:
        return isinstance(statement, syntax.Bind) and any(
            t.type is not None and t.type.element is not None for t in statement.targets
        )

    def typed_results(self) -> Iterator[syntax.Result]:
        """Yields the results with the extents of dimensions that nothing else gives, as where they are constants."""
        for result in self.old.results:
            axes = tuple(map(self._given, result.type.axes or ()))
            yield replace(result, type=replace(result.type, axes=axes)) if axes else result

    def _given(self, axis: syntax.Axis) -> syntax.Axis:
        match axis:
            case syntax.CompositeAxis(parts=parts):
                return replace(axis, parts=tuple(map(self._named, parts)))
            case syntax.NamedAxis():
                return self._named(axis)
            case _:
                return axis

    def _named(self, axis: syntax.NamedAxis) -> syntax.NamedAxis:
        if axis.name in self.known:
            return axis
        self.known.add(axis.name)
        return replace(axis, extent=extent_expression(self.whole.program.dims[axis.name], axis.name))

    def _parts(self, value: Value) -> Sequence[Value]:
        return parts_of(value, self.calls, self.whole)

    # --- statements ------------------------------------------------------------------

    def _call(self, stage: ir.Stage) -> None:
        """Writes a call that stays, once for all of its results."""
        if id(self.whole.stored[stage.outputs[0]]) in self.names:
            return
        for argument in stage.arguments:
            old = self.whole.stored.get(argument) if isinstance(argument, str) else None
            if old is not None and self.names.get(id(old)) != argument:
                raise NotWritable(f"{argument}, which a call takes, has another name")
        self.out.append(self._kept(stage))
        self.taken |= {*stage.outputs}
        self.names |= {id(self.whole.stored[name]): name for name in stage.outputs}

    def _ready(self, pending: list[ir.Stage]) -> list[ir.Stage]:
        """Writes those stages that stay whose arguments are stored by now, and returns the others."""
        left: list[ir.Stage] = []
        bound = {*self.names.values(), *(p.name for p in self.whole.program.params)}
        bound |= {t.name for s in self.out if isinstance(s, syntax.Bind) for t in s.targets}
        for stage in pending:
            if left or any(isinstance(a, str) and a not in bound for a in stage.arguments):
                left.append(stage)
                continue
            self.out.append(self._kept(stage))
            bound |= {*stage.outputs}
        return left

    def _kept(self, stage: ir.Stage) -> syntax.Statement:
        for statement in self.old.body:
            if isinstance(statement, syntax.Bind) and {t.name for t in statement.targets} == {*stage.outputs}:
                for target in statement.targets:
                    self.known |= {*self.whole.types[target.name].dims}
                return statement
        raise NotWritable(f"the stage {', '.join(stage.outputs)} is returned as it is called")

    def _store(self, value: Value, name: str) -> None:
        element = value.elem
        if not element.storable or element.kind == "bool":
            raise NotWritable(f"a value of {element.name} is not stored")
        expression = self._value(value, _Position())
        missing = [d for d in value.dims if d not in self.known]
        if missing:
            inner = self._fresh("part")
            self.out.append(syntax.Bind((syntax.Target(inner, self._axes(value)),), expression))
            expression = syntax.Name(inner)
        type_ = self.whole.types.get(name)
        old = self._old_target(name)
        typed = old if old is not None and type_ is not None and {*type_.dims} == {*value.dims} else None
        axes = tuple(syntax.NamedAxis(d) for d in value.dims) if len(value.dims) > FREE_ORDERS else None
        target = syntax.Target(name, typed or syntax.TypeExpr(element.name, axes))
        self.out.append(syntax.Bind((target,), expression))
        self.names[id(value)] = name
        self.known |= {*value.dims}

    def _old_target(self, name: str) -> syntax.TypeExpr | None:
        for statement in self.old.body:
            if isinstance(statement, syntax.Bind) and len(statement.targets) == 1:
                target = statement.targets[0]
                if target.name == name and target.type is not None and target.type.element is not None:
                    return target.type
        return None

    def _bind(self, value: Value) -> None:
        expression = self._value(value, _Position(self._fill(value)))
        missing = [d for d in value.dims if d not in self.known]
        type_ = self._axes(value) if missing else None
        name = self._fresh(self._noun(value))
        self.out.append(syntax.Bind((syntax.Target(name, type_),), expression))
        self.names[id(value)] = name
        self.known |= {*value.dims}

    def _fill(self, value: Value) -> float:
        """A read that is bound to a name takes the fill of what is around the name."""
        return value.fill if isinstance(value, ir.Read) else 0.0

    def _axes(self, value: Value) -> syntax.TypeExpr:
        axes = []
        for dim in value.dims:
            extent = None if dim in self.known else extent_expression(self.whole.program.dims[dim], dim)
            axes.append(syntax.NamedAxis(dim, extent))
        return syntax.TypeExpr(None, tuple(axes))

    def _worth_a_name(self, value: Value) -> bool:
        if isinstance(value, _LEAVES) or id(value) in self.names:
            return False
        if isinstance(value, ir.Read) and any(d not in self.known for d in value.dims):
            return True
        if isinstance(value, ir.Coordinate) or value.elem.kind == "bool":
            return False
        return self.uses[id(value)] > 1 and not isinstance(value, ir.Cast)

    def _own_name(self, value: Value) -> str:
        for name, old in self.whole.stored.items():
            free = name not in self.roots and name not in self.taken
            if old is value and free and not name.startswith("return"):
                self.taken.add(name)
                return name
        return self._fresh(self._noun(value))

    def _noun(self, value: Value) -> str:
        match value:
            case ir.Reduce(op=op):
                return _NOUNS.get(op, "reduced")
            case ir.Dot():
                return "dots"
            case ir.Softmax():
                return "weights"
            case ir.Read():
                return "window"
            case _:
                return "values"

    def _fresh(self, noun: str) -> str:
        own = {*self.whole.stored}
        name, number = noun, 1
        while name in self.taken or name in own:
            number += 1
            name = f"{noun}{number}"
        self.taken.add(name)
        return name

    # --- expressions -----------------------------------------------------------------

    def _value(self, value: Value, place: _Position) -> syntax.Expr:
        name = self.names.get(id(value))
        if name is not None:
            return syntax.Name(name)
        return self._expression(value, place)

    def _expression(self, value: Value, place: _Position) -> syntax.Expr:
        plain = _Position()
        match value:
            case ir.ParamValue(index=index):
                return syntax.Name(self.whole.inputs[index])
            case ir.Constant(value=number):
                return _number(number, value.elem is F32)
            case ir.Size(extent=extent):
                return _extent_value(extent)
            case ir.Coordinate(dim=dim):
                return _call("index", syntax.Name(dim))
            case ir.Apply(function=function, args=args):
                return self._applied(function, [self._value(a, plain) for a in args])
            case ir.Cast(value=inner, elem=elem):
                return _call(elem.name, self._value(inner, place))
            case ir.Dot(over=over, left=left, right=right, accumulate=accumulate):
                arguments = [syntax.Argument(self._value(v, plain)) for v in (left, right)]
                if accumulate not in ("f32", "s32"):
                    arguments.append(syntax.Argument(syntax.Name(accumulate), "acc"))
                return syntax.Call("dot", _brackets(over), tuple(arguments))
            case ir.Reduce(op=op, over=over, value=inner):
                return _over(op, over, self._value(inner, _Position(NEUTRAL.get(op, 0.0))))
            case ir.Softmax(over=over, value=inner, log=log):
                return _over("log_softmax" if log else "softmax", over, self._value(inner, plain))
            case ir.Scan(op=op, along=along, value=inner, exclusive=exclusive, reverse=reverse):
                flags = [("exclusive", exclusive), ("reverse", reverse)]
                named = [syntax.Argument(syntax.Literal_("true"), n) for n, on in flags if on]
                first = syntax.Argument(self._value(inner, _Position(NEUTRAL.get(op, 0.0))))
                return syntax.Call(op, _brackets((along,)), (first, *named))
            case ir.Read(value=inner, positions=positions):
                return syntax.Index(self._value(inner, plain), tuple(_index_item(p) for p in positions))
            case ir.Gather(value=inner, dim=dim, ids=ids):
                item = syntax.IndexItem(syntax.Name(dim), self._value(ids, plain))
                return syntax.Index(self._value(inner, plain), (item,))
            case ir.Segment(dim=dim, offsets=offsets):
                return _call("segment", syntax.Name(dim), self._value(offsets, plain))

    def _applied(self, function: str, args: list[syntax.Expr]) -> syntax.Expr:
        spelling = FUNCTIONS[function].spelling
        if not spelling:
            return _call(function, *args)
        if len(args) == 1:
            return syntax.Unary("not" if spelling == "not" else "-", args[0])
        return syntax.Binary(cast(syntax.BinaryOp, spelling), args[0], args[1])


_LEAVES = (ir.ParamValue, ir.Constant, ir.Size)

_RESERVED = (
    "return",
    "index",
    "size",
    "segment",
    "expand",
    "dot",
    "softmax",
    "log_softmax",
    "cumsum",
    "cumprod",
)


def _items(program: syntax.Program) -> list[syntax.Param]:
    return list(program.params)


def _call(callee: str, *arguments: syntax.Expr) -> syntax.Expr:
    return syntax.Call(callee, None, tuple(syntax.Argument(a) for a in arguments))


def _brackets(over: Sequence[str]) -> tuple[syntax.BracketName, ...]:
    return tuple(syntax.BracketName(d) for d in over)


def _over(callee: str, over: Sequence[str], value: syntax.Expr) -> syntax.Expr:
    return syntax.Call(callee, _brackets(over), (syntax.Argument(value),))


def _number(value: float | int | bool, as_float: bool) -> syntax.Expr:
    if isinstance(value, bool):
        return syntax.Literal_("true" if value else "false")
    if isinstance(value, float) and math.isnan(value):
        raise NotWritable("the language has no NaN")
    if value < 0 or (value == 0 and math.copysign(1.0, value) < 0):
        return syntax.Unary("-", _number(-value, as_float))
    if math.isinf(value):
        return syntax.Literal_("inf")
    if as_float:
        return syntax.Number(float(value), repr(float(value)).replace("e-0", "e-").replace("e+", "e"))
    return syntax.Number(int(value))


def extent_expression(extent: Extent, dim: str) -> syntax.Expr | None:
    if extent == Free(dim):
        return None
    match extent:
        case Fixed(value):
            return syntax.Number(value)
        case Free(other):
            return syntax.Name(other)
        case Combined(op, left, right):
            a, b = extent_expression(left, ""), extent_expression(right, "")
            assert a is not None and b is not None
            return syntax.Binary(cast(syntax.BinaryOp, op), a, b)


def _extent_value(extent: Extent) -> syntax.Expr:
    match extent:
        case Fixed(value):
            return syntax.Number(value)
        case Free(dim):
            return _call("size", syntax.Name(dim))
        case Combined(op, left, right):
            return syntax.Binary(cast(syntax.BinaryOp, op), _extent_value(left), _extent_value(right))


def _index_item(position: ir.Position) -> syntax.IndexItem:
    left: syntax.Expr = syntax.Name(position.dim)
    if position.scale != 1:
        left = syntax.Binary("*", syntax.Number(position.scale), left)
    right: syntax.Expr | None = None
    for dim, factor in position.at.terms:
        term: syntax.Expr = syntax.Name(dim)
        if abs(factor) != 1:
            term = syntax.Binary("*", syntax.Number(abs(factor)), term)
        if right is None:
            right = term if factor > 0 else syntax.Unary("-", term)
        else:
            right = syntax.Binary("+" if factor > 0 else "-", right, term)
    offset = position.at.offset
    match offset:
        case Fixed(0) if right is not None:
            pass
        case Fixed(value) if value < 0 and right is not None:
            right = syntax.Binary("-", right, syntax.Number(-value))
        case _:
            shift = _position_extent(offset)
            right = shift if right is None else syntax.Binary("+", right, shift)
    return syntax.IndexItem(left, right)


def _position_extent(extent: Extent) -> syntax.Expr:
    return _extent_value(extent)
