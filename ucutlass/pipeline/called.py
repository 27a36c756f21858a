"""Writes what a called kernel computes in place of the call, in the names of the pipeline.

It is done where every dimension of the kernel has a name of its own in the pipeline; other calls are left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ucutlass.grammar import syntax
from ucutlass.ir import ParamType, TensorType


class NotInPlace(Exception):
    """A call cannot be written out; the message says why."""


@dataclass(frozen=True, slots=True)
class CallInPlace:
    """What a call computes: the bindings before it, and its value."""

    bindings: tuple[syntax.Bind, ...]
    value: syntax.Expr


def in_place(
    call: syntax.Call,
    kernel: syntax.Program,
    buffers: Mapping[str, ParamType],
    result: TensorType,
    used_names: Iterable[str],
) -> CallInPlace:
    """Returns what a call of a kernel with one result computes. `buffers` are the pipeline's tensors and
    numbers, `result` is the type with which the call is stored, `used_names` are the pipeline's names. Raises
    NotInPlace."""
    if len(kernel.results) != 1 or any(isinstance(s, syntax.Require) for s in kernel.body):
        raise NotInPlace(f"{kernel.name} has several results or requirements")
    names = _PipelineNames({*used_names})
    values = _arguments(call, kernel)
    names.axes(kernel.results[0].type, result, kernel.name)
    for param in kernel.params:
        argument = values[param.name]
        buffer = buffers.get(argument.name) if isinstance(argument, syntax.Name) else None
        if isinstance(buffer, TensorType):
            names.axes(param.type, buffer, param.name)
    values |= {dim: syntax.Name(name) for dim, name in names.dims.items()}
    bindings: list[syntax.Bind] = []
    for statement in kernel.body:
        match statement:
            case syntax.Bind(targets=(target,)):
                name = names.fresh(target.name)
                bound = replace(target, name=name, type=_renamed_type(target.type, values, names))
                bindings.append(syntax.Bind((bound,), _renamed(statement.value, values, names)))
                values[target.name] = syntax.Name(name)
            case syntax.Bind():
                raise NotInPlace(f"{kernel.name} binds several results at once")
            case syntax.Return(items=(item,)):
                return CallInPlace(tuple(bindings), _renamed(item.value, values, names))
    raise NotInPlace(f"{kernel.name} returns several results")


def _arguments(call: syntax.Call, kernel: syntax.Program) -> dict[str, syntax.Expr]:
    positional = [a.value for a in call.arguments if a.name is None]
    by_name = {a.name: a.value for a in call.arguments if a.name is not None}
    params = [p.name for p in kernel.params]
    return {**dict(zip(params, positional, strict=False)), **by_name}


@dataclass(slots=True)
class _PipelineNames:
    """The pipeline's names of a kernel's dimensions, and the names that are used."""

    used_names: set[str]
    dims: dict[str, str] = field(default_factory=dict)

    def axes(self, type_: syntax.TypeExpr, buffer: TensorType, what: str) -> None:
        """Raises NotInPlace where a dimension would have two names, or two dimensions one."""
        for axis, memory in zip(type_.axes or (), buffer.axes, strict=True):
            match axis:
                case syntax.NamedAxis(name=name):
                    parts: tuple[str, ...] = (name,)
                case syntax.CompositeAxis(parts=named):
                    parts = tuple(p.name for p in named)
                case _:
                    parts = ()
            if len(parts) != len(memory.dims):
                raise NotInPlace(f"{what} has other names for its axes there and here")
            for part, name in zip(parts, memory.dims, strict=True):
                bound = self.dims.setdefault(part, name)
                if bound != name or list(self.dims.values()).count(name) > 1:
                    raise NotInPlace(
                        f"the axes of {what} would have the name {name} twice, or {part} two names"
                    )

    def fresh(self, name: str) -> str:
        free, number = name, 1
        while free in self.used_names:
            number += 1
            free = f"{name}{number}"
        self.used_names.add(free)
        return free

    def introduced(self, dim: str, values: dict[str, syntax.Expr]) -> str:
        """Returns the name of a dimension that an expression of the kernel has."""
        if dim not in values:
            values[dim] = syntax.Name(self.fresh(dim))
        name = values[dim]
        assert isinstance(name, syntax.Name)
        return name.name


def _renamed(value: syntax.Expr, values: dict[str, syntax.Expr], names: _PipelineNames) -> syntax.Expr:
    def inner(expr: syntax.Expr) -> syntax.Expr:
        return _renamed(expr, values, names)

    match value:
        case syntax.Name(name):
            return values.get(name, value)
        case syntax.Unary(operand=operand):
            return replace(value, operand=inner(operand))
        case syntax.Binary(left=left, right=right):
            return replace(value, left=inner(left), right=inner(right))
        case syntax.Call(brackets=brackets, arguments=arguments):
            renamed = brackets and tuple(
                syntax.BracketName(names.introduced(b.name, values), b.extent and inner(b.extent))
                for b in brackets
            )
            written = tuple(replace(a, value=inner(a.value)) for a in arguments)
            return replace(value, brackets=renamed, arguments=written)
        case syntax.Index(base=base, items=items):
            equations = tuple(syntax.IndexItem(inner(i.left), inner(i.right)) for i in items)
            return replace(value, base=inner(base), items=equations)
        case _:
            return value


def _renamed_type(
    type_: syntax.TypeExpr | None, values: dict[str, syntax.Expr], names: _PipelineNames
) -> syntax.TypeExpr | None:
    if type_ is None or type_.axes is None:
        return type_
    axes: list[syntax.Axis] = []
    for axis in type_.axes:
        if not isinstance(axis, syntax.NamedAxis):
            raise NotInPlace("a binding of it has an axis of several names")
        extent = axis.extent and _renamed(axis.extent, values, names)
        axes.append(syntax.NamedAxis(names.introduced(axis.name, values), extent))
    return replace(type_, axes=tuple(axes))


def type_of(buffer: TensorType, shape: Sequence[int]) -> syntax.TypeExpr:
    """Returns the type of a stored tensor as a text has it, whose names are known."""
    axes: list[syntax.Axis] = []
    for axis, extent in zip(buffer.axes, shape, strict=True):
        match axis.dims:
            case ():
                axes.append(syntax.NamelessAxis(syntax.Number(extent)))
            case (only,):
                axes.append(syntax.NamedAxis(only))
            case parts:
                axes.append(syntax.CompositeAxis(tuple(syntax.NamedAxis(p) for p in parts)))
    return syntax.TypeExpr(buffer.elem.name, tuple(axes))
