"""A pipeline while it is made: the buffers and stages there are so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from ucutlass import ir
from ucutlass.check import types
from ucutlass.check.scope import Scope
from ucutlass.grammar import syntax
from ucutlass.grammar.syntax import Span
from ucutlass.ir import TensorType


@dataclass(slots=True)
class Draft:
    """A pipeline under construction: buffers by name, in the order in which they are filled.

    `unordered` are the buffers whose memory order the compiler chooses, `called` those that a call of a kernel
    fills and whose binding leaves their type out.
    """

    scope: Scope
    kernels: dict[str, ir.Kernel]
    buffers: dict[str, ir.ParamType] = field(default_factory=dict)
    stages: list[ir.Stage] = field(default_factory=list)
    unordered: list[str] = field(default_factory=list)
    called: set[str] = field(default_factory=set)

    def buffer_names(self) -> tuple[str, ...]:
        return tuple(self.buffers)


def declared_type(target: syntax.Target, scope: Scope) -> TensorType:
    assert target.type is not None
    types.register_names(target.type.axes or (), scope.dims, pending=True)
    return types.tensor_type(target.type, scope)


def define(name: str, type_: TensorType, span: Span, draft: Draft) -> None:
    """Adds a buffer, or gives one that exists another type for the statements that follow."""
    draft.buffers[name] = type_
    index = draft.buffer_names().index(name)
    draft.scope.values[name] = draft.scope.graph.add(ir.ParamValue(index, type_.elem, type_.dims, span))
