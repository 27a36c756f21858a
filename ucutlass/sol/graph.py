"""A program as one graph of values with concrete extents: launches are joined, and equal values are one node.

What a pipeline stores between its launches is a buffer of the graph, since a kernel for the whole pipeline
would not have to store it. Dimensions of a called kernel are prefixed with the kernel's name, because two
programs do not share names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import prod
from typing import Any

from ucutlass.ir import (
    Affine,
    Constant,
    Kernel,
    MemoryAxis,
    ParamType,
    ParamValue,
    Pipeline,
    Position,
    Program,
    ScalarType,
    Size,
    TensorType,
    TorchCall,
    Value,
    children,
    extents,
)
from ucutlass.ir.elements import I64
from ucutlass.ir.extents import Fixed
from ucutlass.limits import CONDITIONS, Effort, LimitPassed
from ucutlass.shapes import ShapeError
from ucutlass.sol.integer_sets import IntegerSet


@dataclass(frozen=True, slots=True)
class BufferView:
    """What a ParamValue reads: a buffer, through the dimension names of `type`."""

    buffer: str
    type: ParamType


@dataclass(frozen=True, slots=True)
class KernelBuffer:
    """A buffer that a kernel computes; `launch` is the number of its stage."""

    value: Value
    type: TensorType
    launch: int


@dataclass(frozen=True, slots=True)
class TorchBuffer:
    """A buffer that a torch function computes from other buffers and numbers, one of `outputs`."""

    call: TorchCall
    outputs: tuple[str, ...]
    arguments: tuple[str | float | int, ...]
    launch: int


@dataclass(frozen=True, slots=True)
class ValueGraph:
    """`extents` are by name, those of called kernels included. `sources` are by ParamValue.index, `inputs`
    are the program's parameters, `results` the buffers that it returns, and `types` those of all buffers.
    Equal values are one node."""

    extents: Mapping[str, int]
    sources: tuple[BufferView, ...]
    inputs: tuple[str, ...]
    buffers: Mapping[str, KernelBuffer | TorchBuffer]
    results: tuple[str, ...]
    types: Mapping[str, ParamType]
    effort: Effort = field(default_factory=Effort, compare=False)

    def follow(self, region: IntegerSet) -> None:
        """Counts the conditions of a derived set. Raises ShapeError as `spend` does."""
        self.spend(sum(len(piece.conditions) for piece in region))

    def spend(self, conditions: int) -> None:
        """Raises ShapeError UC0709 once more conditions were followed in total than the limit admits."""
        try:
            self.effort.spend(CONDITIONS, conditions)
        except LimitPassed as problem:
            raise ShapeError(problem.limit.code, problem.message) from None

    @property
    def torch_stages(self) -> tuple[TorchBuffer, ...]:
        """A buffer of each stage that a torch function computes."""
        return tuple(dict.fromkeys(b for b in self.buffers.values() if isinstance(b, TorchBuffer)))

    def count(self, dims: Sequence[str]) -> int:
        return prod(self.extents[d] for d in dims)

    def bytes_of(self, tensor: ParamType) -> int:
        """Returns the bytes in memory; 0 for a number that the host passes."""
        match tensor:
            case ScalarType():
                return 0
            case TensorType(elem, axes):
                length = prod(axis_length(a, self.extents) for a in axes)
                return -(-length * elem.bits // 8)


def axis_length(axis: MemoryAxis, sizes: Mapping[str, int]) -> int:
    return prod(sizes[d] for d in axis.dims) if axis.dims else extents.evaluate(axis.extent, sizes)


def graph_of(program: Program, sizes: Mapping[str, int]) -> ValueGraph:
    """Returns the program's graph; `sizes` has every dimension's extent by name."""
    builder = _GraphBuilder(dict(sizes))
    match program:
        case Kernel():
            params = {p.name: p.type for p in program.params}
            builder.types |= params
            # A result may be called as a parameter is, and is another buffer all the same.
            names = [r.name or "result" for r in program.results]
            names = [f"{name} (result)" if name in params else name for name in names]
            builder.launch(program, [p.name for p in program.params], names, 0)
            results = names
        case Pipeline():
            builder.types |= {p.name: p.type for p in program.params}
            builder.types |= dict(program.buffers) | dict(program.results)
            for number, stage in enumerate(program.stages):
                match stage.call:
                    case Kernel():
                        builder.launch(stage.call, stage.arguments, stage.outputs, number)
                    case TorchCall() as call:
                        buffer = TorchBuffer(call, stage.outputs, stage.arguments, number)
                        builder.buffers |= dict.fromkeys(stage.outputs, buffer)
                        builder.types |= dict(zip(stage.outputs, call.results, strict=True))
            results = [name for name, _ in program.results]
    return ValueGraph(
        builder.extents,
        tuple(builder.sources),
        tuple(p.name for p in program.params),
        builder.buffers,
        tuple(results),
        builder.types,
    )


@dataclass(slots=True)
class _GraphBuilder:
    extents: dict[str, int]
    sources: list[BufferView] = field(default_factory=list)
    buffers: dict[str, KernelBuffer | TorchBuffer] = field(default_factory=dict)
    types: dict[str, ParamType] = field(default_factory=dict)
    nodes: dict[Any, Value] = field(default_factory=dict)

    def launch(
        self, kernel: Kernel, arguments: Sequence[str | float | int], outputs: Sequence[str], number: int
    ) -> None:
        """Adds one kernel's results as buffers."""
        sizes = self._sizes(kernel, arguments)
        inline = all(self.extents.get(d) == n for d, n in sizes.items())
        names = {d: d if inline else f"{kernel.name}:{d}" for d in sizes}
        self.extents |= {names[d]: n for d, n in sizes.items()}
        source_indices: list[int] = []
        for decl, argument in zip(kernel.params, arguments, strict=True):
            buffer = argument if isinstance(argument, str) else ""
            source_indices.append(self._source(BufferView(buffer, _renamed_type(decl.type, names, sizes))))
        rewrite = _Rewrite(self.nodes, names, sizes, source_indices)
        for result, output in zip(kernel.results, outputs, strict=True):
            type_ = _renamed_type(result.type, names, sizes)
            assert isinstance(type_, TensorType)
            self.buffers[output] = KernelBuffer(rewrite.visit(result.value), type_, number)
            self.types.setdefault(output, type_)

    def _sizes(self, kernel: Kernel, arguments: Sequence[str | float | int]) -> dict[str, int]:
        if all(d in self.extents for d in kernel.dims) and _same_axes(kernel, arguments, self.types):
            return {d: self.extents[d] for d in kernel.dims}
        from ucutlass.reference.binding import bind  # its package loads torch, which kernels do not need

        shapes: list[tuple[int, ...] | None] = []
        for argument in arguments:
            type_ = self.types[argument] if isinstance(argument, str) else None
            shapes.append(
                tuple(axis_length(a, self.extents) for a in type_.axes)
                if isinstance(type_, TensorType)
                else None
            )
        return bind(kernel, shapes, self.extents)

    def _source(self, source: BufferView) -> int:
        if source not in self.sources:
            self.sources.append(source)
        return self.sources.index(source)


def _same_axes(
    kernel: Kernel, arguments: Sequence[str | float | int], types: Mapping[str, ParamType]
) -> bool:
    """Returns whether every argument is a buffer of exactly the parameter's type, as those of an inline stage
    are."""
    return all(
        types[a] == p.type if isinstance(a, str) else True
        for p, a in zip(kernel.params, arguments, strict=True)
    )


def _renamed_type(kind: ParamType, names: Mapping[str, str], sizes: Mapping[str, int]) -> ParamType:
    if isinstance(kind, ScalarType):
        return kind
    axes = tuple(MemoryAxis(tuple(names[d] for d in a.dims), Fixed(axis_length(a, sizes))) for a in kind.axes)
    return TensorType(kind.elem, axes)


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """Rewrites values with other dimension names and with parameters replaced by sources; equal values become
    one node."""

    nodes: dict[Any, Value]
    names: Mapping[str, str]
    sizes: Mapping[str, int]
    source_indices: Sequence[int]
    done: dict[int, Value] = field(default_factory=dict)

    def visit(self, root: Value) -> Value:
        for node in bottom_up([root], children):
            if id(node) not in self.done:
                self.done[id(node)] = self._interned(node)
        return self.done[id(root)]

    def _interned(self, node: Value) -> Value:
        rewritten = self._rewritten(node)
        key = (
            type(rewritten).__name__,
            *(_identity(getattr(rewritten, f.name)) for f in fields(rewritten) if f.compare),
        )
        return self.nodes.setdefault(key, rewritten)

    def _rewritten(self, node: Value) -> Value:
        changed: dict[str, Any] = {"dims": self._dims(node.dims)}
        for entry in fields(node):
            previous = getattr(node, entry.name)
            match entry.name:
                case "value" if not isinstance(node, Constant):
                    changed["value"] = self.done[id(previous)]
                case "left" | "right" | "ids" | "offsets":
                    changed[entry.name] = self.done[id(previous)]
                case "args":
                    changed["args"] = tuple(self.done[id(a)] for a in previous)
                case "over":
                    changed["over"] = self._dims(previous)
                case "dim" | "along":
                    changed[entry.name] = self.names[previous]
                case "positions":
                    changed["positions"] = tuple(self._position(p) for p in previous)
        match node:
            case Size(extent):
                return Constant(extents.evaluate(extent, self.sizes), I64)
            case ParamValue(index):
                return replace(node, index=self.source_indices[index], dims=changed["dims"])
            case _:
                return replace(node, **changed)

    def _dims(self, dims: Sequence[str]) -> tuple[str, ...]:
        return tuple(self.names[d] for d in dims)

    def _position(self, position: Position) -> Position:
        at = position.at
        terms = tuple((self.names[d], c) for d, c in at.terms)
        offset = Fixed(extents.evaluate(at.offset, self.sizes))
        return Position(self.names[position.dim], position.scale, Affine(terms, offset))


def _identity(entry: Any) -> Any:
    """Returns a hashable key: children count by identity, since they are unique already, numbers with their
    type and sign."""
    match entry:
        case tuple():
            return tuple(_identity(e) for e in entry)
        case bool() | int() | float():
            return type(entry).__name__, repr(entry)
        case _ if hasattr(entry, "dims") and hasattr(entry, "elem"):
            return id(entry)
        case _:
            return entry


def topological_order(graph: ValueGraph) -> tuple[Value, ...]:
    """Returns every node that the results need, each before its operands."""
    roots = [value for name in graph.results for value in _buffer_values(name, graph)]
    return tuple(reversed(bottom_up(roots, lambda node: operands(node, graph))))


def bottom_up(roots: Sequence[Value], operands_of: Callable[[Value], Sequence[Value]]) -> list[Value]:
    """Returns every node below the roots, each after its operands. It does not recurse, since launches in a
    row make graphs deeper than Python's stack."""
    done: dict[int, Value] = {}
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if id(node) in done:
            continue
        if ready:
            done[id(node)] = node
            continue
        stack.append((node, True))
        stack += [(child, False) for child in operands_of(node) if id(child) not in done]
    return list(done.values())


def operands(node: Value, graph: ValueGraph) -> tuple[Value, ...]:
    """Returns the values that a node is computed from, through buffers too."""
    match node:
        case ParamValue(index=index):
            return _buffer_values(graph.sources[index].buffer, graph)
        case _:
            return children(node)


def _buffer_values(buffer: str, graph: ValueGraph) -> tuple[Value, ...]:
    match graph.buffers.get(buffer):
        case None:
            return ()
        case KernelBuffer(value=value):
            return (value,)
        case TorchBuffer() as opaque:
            return _argument_values(opaque, graph)


def _argument_values(opaque: TorchBuffer, graph: ValueGraph) -> tuple[Value, ...]:
    named = (a for a in opaque.arguments if isinstance(a, str))
    return tuple(value for a in named for value in _buffer_values(a, graph))
