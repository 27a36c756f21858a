"""Represents the graph of a PyTorch module, as a value, which crosses from the process that ran the problem file.

It holds names, shapes and plain arguments, and nothing that could be executed, so that counting happens where
the file's code never ran. `ucutlass.runtime.module.export` makes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

ITEM_BYTES: Mapping[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
}
"""Bytes of an element by the name of torch's dtype."""

InputOrigin: TypeAlias = Literal["parameter", "buffer", "constant", "input"]
Fate: TypeAlias = Literal["result", "mutation"]


class GraphUnreadable(Exception):
    """What the process sent is not a graph: its code may have replaced the exporter's own."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"the process of the problem file sent no graph: {self.what}"


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """A dense tensor's shape and element type, the latter by torch's name without `torch.`."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def item(self) -> int:
        return ITEM_BYTES[self.dtype]

    def __str__(self) -> str:
        return "x".join(map(str, self.shape)) or "scalar"


@dataclass(frozen=True, slots=True)
class Ref:
    """Output `index` of the node or source named `name`."""

    name: str
    index: int = 0


@dataclass(frozen=True, slots=True)
class OperatorNode:
    """A call of an operator. `op` is torch's name with its overload (`aten.mm.default`), `arguments` has
    every argument of its schema by name, with defaults filled in; a tensor is a `Ref`, a dtype its name. An
    output that is no tensor is None."""

    name: str
    op: str
    arguments: Mapping[str, Any]
    outputs: tuple[TensorMeta | None, ...]

    @property
    def packet(self) -> str:
        """The operator without its overload: `aten.mm`."""
        return ".".join(self.op.split(".")[:2])

    @property
    def refs(self) -> tuple[Ref, ...]:
        return tuple(_refs(self.arguments))


@dataclass(frozen=True, slots=True)
class GraphInput:
    """A tensor that exists before the first operator."""

    name: str
    origin: InputOrigin
    tensor: TensorMeta


@dataclass(frozen=True, slots=True)
class GraphOutput:
    """What the module leaves behind: a returned tensor, or the new content of one that it writes over."""

    ref: Ref
    fate: Fate


@dataclass(frozen=True, slots=True)
class ModuleGraph:
    """Nodes are in an order in which every operand comes first. `method` names how the graph was exported,
    `attempts` what was tried before it and why that failed."""

    sources: tuple[GraphInput, ...]
    nodes: tuple[OperatorNode, ...]
    results: tuple[GraphOutput, ...]
    method: str
    attempts: tuple[str, ...] = ()

    def tensors(self) -> dict[Ref, TensorMeta]:
        """Returns every tensor of the graph."""
        by_ref = {Ref(s.name): s.tensor for s in self.sources}
        by_ref |= {Ref(n.name, i): t for n in self.nodes for i, t in enumerate(n.outputs) if t is not None}
        return by_ref


def _refs(value: Any) -> Iterator[Ref]:
    match value:
        case Ref():
            yield value
        case list() | tuple():
            for item in value:
                yield from _refs(item)
        case dict():
            for item in value.values():
                yield from _refs(item)


# --- JSON -------------------------------------------------------------------------


def to_json(graph: ModuleGraph) -> dict[str, Any]:
    """Returns the graph as a JSON value; `from_json` returns an equal graph."""
    return {
        "sources": [
            {"name": s.name, "origin": s.origin, "tensor": _tensor_out(s.tensor)} for s in graph.sources
        ],
        "nodes": [
            {
                "name": n.name,
                "op": n.op,
                "arguments": {k: _value_out(v) for k, v in n.arguments.items()},
                "outputs": [None if t is None else _tensor_out(t) for t in n.outputs],
            }
            for n in graph.nodes
        ],
        "results": [{"ref": _value_out(r.ref), "fate": r.fate} for r in graph.results],
        "method": graph.method,
        "attempts": list(graph.attempts),
    }


def from_json(value: Any) -> ModuleGraph:
    """Returns the graph of a JSON value. Raises GraphUnreadable for anything else."""
    match value:
        case {
            "sources": list(sources),
            "nodes": list(nodes),
            "results": list(results),
            "method": str(method),
            "attempts": list(attempts),
        }:
            graph = ModuleGraph(
                tuple(map(_source, sources)),
                tuple(map(_node, nodes)),
                tuple(map(_result, results)),
                method,
                tuple(map(str, attempts)),
            )
        case _:
            raise GraphUnreadable("parts are missing")
    _check(graph)
    return graph


def _check(graph: ModuleGraph) -> None:
    """Raises GraphUnreadable where a reference names nothing, or a later node."""
    defined = {Ref(s.name) for s in graph.sources}
    for node in graph.nodes:
        if missing := [r for r in node.refs if r not in defined]:
            lost = f"{missing[0].name}[{missing[0].index}]"
            raise GraphUnreadable(f"{node.name} uses {lost}, which is missing")
        defined |= {Ref(node.name, i) for i in range(len(node.outputs))}
    tensors = graph.tensors()
    if missing := [r.ref for r in graph.results if r.ref not in tensors]:
        raise GraphUnreadable(f"{missing[0].name}[{missing[0].index}] is returned, but no tensor")


def _tensor_out(tensor: TensorMeta) -> dict[str, Any]:
    return {"shape": list(tensor.shape), "dtype": tensor.dtype}


def _value_out(value: Any) -> Any:
    match value:
        case Ref(name, index):
            return {"ref": [name, index]}
        case list() | tuple():
            return [_value_out(item) for item in value]
        case _:
            return value


def _value_in(value: Any) -> Any:
    match value:
        case {"ref": [str(name), int(index)]}:
            return Ref(name, index)
        case list():
            return [_value_in(item) for item in value]
        case None | bool() | int() | float() | str():
            return value
        case _:
            raise GraphUnreadable(f"an argument is a {type(value).__name__}")


def _tensor_in(value: Any) -> TensorMeta:
    match value:
        case {"shape": list(shape), "dtype": str(dtype)} if dtype in ITEM_BYTES and all(
            type(extent) is int and extent >= 0 for extent in shape
        ):
            return TensorMeta(tuple(shape), dtype)
        case _:
            raise GraphUnreadable("a tensor has an unreadable shape or an unknown dtype")


def _source(value: Any) -> GraphInput:
    match value:
        case {
            "name": str(name),
            "origin": ("parameter" | "buffer" | "constant" | "input") as origin,
            "tensor": tensor,
        }:
            return GraphInput(name, origin, _tensor_in(tensor))
        case _:
            raise GraphUnreadable("a source is malformed")


def _node(value: Any) -> OperatorNode:
    match value:
        case {"name": str(name), "op": str(op), "arguments": dict(arguments), "outputs": list(outputs)}:
            arguments_by_name = {str(k): _value_in(v) for k, v in arguments.items()}
            return OperatorNode(
                name, op, arguments_by_name, tuple(None if t is None else _tensor_in(t) for t in outputs)
            )
        case _:
            raise GraphUnreadable("a node is malformed")


def _result(value: Any) -> GraphOutput:
    match value:
        case {"ref": {"ref": [str(name), int(index)]}, "fate": ("result" | "mutation") as fate}:
            return GraphOutput(Ref(name, index), fate)
        case _:
            raise GraphUnreadable("a result is malformed")
