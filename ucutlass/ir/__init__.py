"""The typed program: what a text means once every name, type and extent is resolved.

The checker builds it, the patterns of families, the reference interpreter and the reports read
it. Every value knows its element type and the set of dimensions it ranges over; where
it lies in memory is said by the types of parameters and results alone.

Values form a graph in which equal subexpressions are one node, so they compare and hash by
identity: structural comparison of a shared graph takes time exponential in its depth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from ucutlass.grammar.syntax import NOWHERE, Span
from ucutlass.ir.elements import Element
from ucutlass.ir.extents import Extent

Dims: TypeAlias = tuple[str, ...]
"""Dimension names in the order in which the program first names them; each at most once."""


def _span() -> Span:
    return field(default=NOWHERE, compare=False, repr=False)


# --- values ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class ParamValue:
    """A parameter, by its position in the program's parameter list."""

    index: int
    elem: Element
    dims: Dims
    span: Span = _span()


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A number or truth value; `elem` is f32, i32, i64 or bool. A literal adapts to the values beside it;
    the extent of a dimension, known or not, is an i64."""

    value: float | int | bool
    elem: Element
    dims: Dims = ()
    span: Span = _span()
    literal: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Size:
    """`size(D)`: an extent as an i64 value."""

    extent: Extent
    elem: Element
    dims: Dims = ()
    span: Span = _span()


@dataclass(frozen=True, slots=True, eq=False)
class Coordinate:
    """`index(L)`: the coordinate along one dimension as an i64 value; dims is (L,)."""

    dim: str
    elem: Element
    dims: Dims
    span: Span = _span()


@dataclass(frozen=True, slots=True, eq=False)
class Apply:
    """An element-wise function of `ucutlass.ir.functions.FUNCTIONS`; operators are functions too.

    Arguments broadcast by name; `dims` is the union of theirs. Float work is f32.
    """

    function: str
    args: tuple[Value, ...]
    elem: Element
    dims: Dims
    span: Span = _span()


@dataclass(frozen=True, slots=True, eq=False)
class Cast:
    """Rounds (float), converts (int) or selects the compute type of a dot operand (tf32)."""

    value: Value
    elem: Element
    dims: Dims
    span: Span = _span()


@dataclass(frozen=True, slots=True, eq=False)
class Dot:
    """The product of left and right summed over `over`; shared names not listed are batch.

    `compute_type` is the operands' element type; `accumulate` one of the compute type's accumulations
    (`ucutlass.ir.compute_types`). `elem` is f32, or i32 for the integer compute types.
    """

    over: Dims
    left: Value
    right: Value
    compute_type: Element
    accumulate: str
    elem: Element
    dims: Dims
    span: Span = _span()


ReduceOp: TypeAlias = Literal["sum", "mean", "max", "min", "prod", "var", "argmax", "argmin", "logsumexp"]


@dataclass(frozen=True, slots=True, eq=False)
class Reduce:
    """Removes the dimensions `over`; `argmax` and `argmin` give i64 coordinates."""

    op: ReduceOp
    over: Dims
    value: Value
    elem: Element
    dims: Dims
    span: Span = _span()


@dataclass(frozen=True, slots=True, eq=False)
class Softmax:
    """`softmax[S](e)`, or its logarithm: keeps the dimensions it runs over."""

    over: Dims
    value: Value
    log: bool
    elem: Element
    dims: Dims
    span: Span = _span()


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """Cumulative sum or product along one dimension, which it keeps."""

    op: Literal["cumsum", "cumprod"]
    along: str
    value: Value
    exclusive: bool
    reverse: bool
    elem: Element
    dims: Dims
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Affine:
    """`sum(c * coordinate(d) for d, c in terms) + offset`; the offset may use extents."""

    terms: tuple[tuple[str, int], ...]
    offset: Extent


@dataclass(frozen=True, slots=True)
class Position:
    """Where an index reads along `dim`: the x with `scale * x == at`.

    A position with no such x, or one outside the tensor, reads the neutral element of
    the reduction or product directly around the index, which is 0 elsewhere.
    """

    dim: str
    scale: int
    at: Affine


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """`x[H = 2*P + R - 1]`: replaces the indexed dimensions by those of the positions."""

    value: Value
    positions: tuple[Position, ...]
    fill: float
    elem: Element
    dims: Dims
    span: Span = _span()


@dataclass(frozen=True, slots=True, eq=False)
class Gather:
    """`z[V = ids]`: the element of `value` at coordinate `ids` along `dim`; shared names align."""

    value: Value
    dim: str
    ids: Value
    elem: Element
    dims: Dims
    span: Span = _span()


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """`segment(T, offsets)`: the group e with offsets[e] <= t < offsets[e + 1]; dims is (T,)."""

    dim: str
    offsets: Value
    elem: Element
    dims: Dims
    span: Span = _span()


Value: TypeAlias = (
    ParamValue
    | Constant
    | Size
    | Coordinate
    | Apply
    | Cast
    | Dot
    | Reduce
    | Softmax
    | Scan
    | Read
    | Gather
    | Segment
)


def children(value: Value) -> tuple[Value, ...]:
    """The values that this one is computed from, left to right."""
    match value:
        case ParamValue() | Constant() | Size() | Coordinate():
            return ()
        case Apply(args=args):
            return args
        case Dot(left=left, right=right):
            return (left, right)
        case Gather(value=inner, ids=ids):
            return (inner, ids)
        case Segment(offsets=offsets):
            return (offsets,)
        case Cast(value=inner) | Reduce(value=inner) | Softmax(value=inner):
            return (inner,)
        case Scan(value=inner) | Read(value=inner):
            return (inner,)


def rebuild(value: Value, change: Callable[[Value], Value]) -> Value:
    """The graph with `change` applied to every node once its children are rebuilt.

    Shared nodes stay shared.
    """
    done: dict[int, Value] = {}

    def visit(node: Value) -> Value:
        if id(node) not in done:
            done[id(node)] = change(with_children(node, visit))
        return done[id(node)]

    return visit(value)


def with_children(node: Value, visit: Callable[[Value], Value]) -> Value:
    match node:
        case Apply(args=args):
            return replace(node, args=tuple(visit(a) for a in args))
        case Dot(left=left, right=right):
            return replace(node, left=visit(left), right=visit(right))
        case Gather(value=inner, ids=ids):
            return replace(node, value=visit(inner), ids=visit(ids))
        case Segment(offsets=offsets):
            return replace(node, offsets=visit(offsets))
        case Cast() | Reduce() | Softmax() | Scan() | Read():
            return replace(node, value=visit(node.value))
        case _:
            return node


# --- programs --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemoryAxis:
    """One axis in memory: no dims for a nameless one, several (outer first) for a composite."""

    dims: Dims
    extent: Extent


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dense tensor; the last axis is contiguous. `axes` empty: one element on the device."""

    elem: Element
    axes: tuple[MemoryAxis, ...]

    @property
    def dims(self) -> Dims:
        return tuple(d for axis in self.axes for d in axis.dims)


@dataclass(frozen=True, slots=True)
class ScalarType:
    """A number passed by value from the host."""

    elem: Element


ParamType: TypeAlias = TensorType | ScalarType


@dataclass(frozen=True, slots=True)
class ParamDecl:
    name: str
    type: ParamType
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class ResultDecl:
    """`name` is "" for the single unnamed result."""

    name: str
    type: TensorType
    value: Value
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Choice:
    """The alternatives of one schedule field: ints, shapes (tuples) or words."""

    field: str
    values: tuple[int | str | tuple[int, ...], ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class ScheduleBlock:
    """One schedule block; `guard` is a bool value over Size and Constant, None: always."""

    arch: str
    guard: Value | None
    choices: tuple[Choice, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch. `dims` maps every dimension to its extent (`Free(itself)` where a call
    decides), in the order of first appearance: that order is also the binary interface's."""

    name: str
    dims: Mapping[str, Extent] = field(hash=False)
    params: tuple[ParamDecl, ...]
    results: tuple[ResultDecl, ...]
    requires: tuple[Value, ...]
    schedules: tuple[ScheduleBlock, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a pipeline: a kernel (or a torch function), its arguments and the names of
    the buffers it fills. An argument is a buffer's name or a number."""

    call: Kernel | TorchCall
    arguments: tuple[str | float | int, ...]
    outputs: tuple[str, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True)
class TorchCall:
    """`torch.NAME(..)`: opaque to the compiler, counted in every report. `results` are the types of what its stage
    stores, and `gives` says which of the function's results those are."""

    function: str
    keywords: tuple[tuple[str, float | int | bool], ...]
    results: tuple[TensorType, ...]
    gives: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Several launches over named buffers; parameters and results are buffers too. The memory order of those
    in `unordered` is the compiler's to choose: their types have some."""

    name: str
    dims: Mapping[str, Extent] = field(hash=False)
    params: tuple[ParamDecl, ...]
    results: tuple[tuple[str, TensorType], ...]
    buffers: tuple[tuple[str, TensorType], ...]
    stages: tuple[Stage, ...]
    span: Span = _span()
    unordered: tuple[str, ...] = ()


Program: TypeAlias = Kernel | Pipeline


@dataclass(frozen=True, slots=True)
class Module:
    """A checked file: its kernels and pipelines in order of appearance."""

    programs: tuple[Program, ...]
