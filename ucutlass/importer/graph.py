"""What a module computes, as the importer sees it: a list of small computations over tensors.

A computation has the language's expression with two kinds of holes: operands, `x0`, `x1`, .., and labels,
which name the dimensions of this one computation. Which labels of different computations are one name of the
program is found later (`ucutlass.importer.names`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import mul
from types import MappingProxyType
from typing import Literal, TypeAlias

from ucutlass.grammar.syntax import Expr, Name

Axis: TypeAlias = tuple[str, ...]
"""The labels of one axis of a tensor, outer first. Empty where the axis has one element, or where an operand
is repeated along it."""

Axes: TypeAlias = tuple[Axis, ...]

Kind: TypeAlias = Literal["view", "index", "constant", "pointwise", "reduction", "window", "scan", "dot"]
"""What a computation does, which decides what is worth computing twice:

- `view`: nothing, its value is the operand's
- `index`: reads its operands elsewhere
- `constant`: has no operands
- `window`: reduces over windows, without a dot
"""


@dataclass(frozen=True, slots=True)
class ImportedTensor:
    """A tensor's shape and the language's element; f64 stands for tensors that are computed in float64. Axes go
    batch, channels, positions; `channels_last`: the importer has put the channels behind these."""

    shape: tuple[int, ...]
    element: str
    channels_last: bool = False

    def letters(self, axes: str) -> str:
        """Returns the letters of the axes as they lie, given those of a tensor as it came."""
        return f"{axes[0]}{axes[2:]}{axes[1]}" if self.channels_last and axes else axes


@dataclass(frozen=True, slots=True)
class OperandRead:
    """A tensor that a computation reads, by the name of what computes it, and the labels of its axes."""

    value: str
    axes: Axes


@dataclass(frozen=True, slots=True)
class OperatorOrigin:
    """Where a computation comes from: the operator, `aten.linear.default`, the path of the submodule whose
    forward called it, and the line of the module's source, "" where unknown."""

    operator: str
    module: str = ""
    line: str = ""


@dataclass(frozen=True, slots=True)
class Computation:
    """One binding: `body` over operands, whose value has the labels of `axes`. `extents` has every label.
    `hint` is a noun for the value, such as `mean`."""

    name: str
    kind: Kind
    operands: tuple[OperandRead, ...]
    body: Expr
    axes: Axes
    extents: Mapping[str, int]
    tensor: ImportedTensor
    origin: OperatorOrigin
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Reshape:
    """The operand's elements in memory order under another shape."""

    name: str
    value: str
    tensor: ImportedTensor
    origin: OperatorOrigin
    hint: str = ""

    @property
    def kind(self) -> Kind:
        return "view"

    @property
    def operands(self) -> tuple[OperandRead, ...]:
        return (OperandRead(self.value, ()),)


@dataclass(frozen=True, slots=True)
class TorchStage:
    """A function that torch computes: `torch.NAME(operands, keywords)`."""

    name: str
    function: str
    operands: tuple[OperandRead, ...]
    keywords: Mapping[str, int | bool]
    tensor: ImportedTensor
    origin: OperatorOrigin
    hint: str = ""

    @property
    def kind(self) -> Kind:
        return "dot"


Node: TypeAlias = Computation | Reshape | TorchStage


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor from outside. `path` is the name in `forward`, or the attribute path of a parameter, buffer or
    constant."""

    name: str
    path: str
    origin: Literal["input", "parameter", "buffer", "constant"]
    tensor: ImportedTensor


@dataclass(frozen=True, slots=True)
class TensorGraph:
    """A module: its inputs, the computations in order, and the names of its results."""

    inputs: tuple[Input, ...]
    nodes: tuple[Node, ...]
    results: tuple[str, ...]
    values: Mapping[str, ImportedTensor] = field(default_factory=lambda: MappingProxyType({}))
    """The tensor of every input and node."""


@dataclass(frozen=True, slots=True)
class ImportedStage:
    """What one launch computes: `outputs` of `nodes`, from `inputs`."""

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def torch(self) -> TorchStage | None:
        """The function that torch computes, where this is one."""
        last = self.nodes[-1] if self.nodes else None
        return last if isinstance(last, TorchStage) else None


def in_order(stages: Sequence[ImportedStage]) -> list[ImportedStage]:
    """Returns the stages so that each follows what it reads."""
    makers: Mapping[str, ImportedStage] = {output: stage for stage in stages for output in stage.outputs}
    placed: list[ImportedStage] = []
    visited: set[int] = set()

    def place(stage: ImportedStage) -> None:
        if id(stage) in visited:
            return
        visited.add(id(stage))
        for value in stage.inputs:
            if value in makers:
                place(makers[value])
        placed.append(stage)

    for stage in stages:
        place(stage)
    return placed


class Unsupported(Exception):
    """An operator, or one of its arguments, that the importer cannot turn into a program."""

    def __init__(self, why: str, origin: OperatorOrigin | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.origin = origin

    def __str__(self) -> str:
        if self.origin is None:
            return self.why
        where = f" at {self.origin.line}" if self.origin.line else ""
        return f"{self.origin.operator}{where}: {self.why}"


def with_stored(graph: TensorGraph, reader: Node, number: int) -> TensorGraph:
    """Returns the graph with a copy of one operand of a computation, which one kernel stores as it is
    read."""
    assert isinstance(reader, Computation)
    value = reader.operands[number].value
    tensor = graph.values[value]
    name = f"{value}_stored"
    while name in graph.values:
        name += "_"
    copy = copy_of(name, value, tensor, reader.origin)
    reads = list(reader.operands)
    reads[number] = replace(reads[number], value=name)
    nodes = [
        inserted
        for node in graph.nodes
        for inserted in ((copy, replace(reader, operands=tuple(reads))) if node is reader else (node,))
    ]
    return replace(graph, nodes=tuple(nodes), values={**graph.values, name: tensor})


def with_constant(graph: TensorGraph, node: Node) -> TensorGraph:
    """Returns the graph with a copy of a constant, which its views read instead."""
    name = f"{node.name}_stored"
    while name in graph.values:
        name += "_"
    nodes: list[Node] = []
    for other in graph.nodes:
        if other.kind == "view" and other.operands[0].value == node.name:
            if isinstance(other, Reshape):
                other = replace(other, value=name)
            elif isinstance(other, Computation):
                other = replace(other, operands=(replace(other.operands[0], value=name),))
        nodes.append(other)
        if other is node:
            nodes.append(copy_of(name, node.name, node.tensor, node.origin))
    return replace(graph, nodes=tuple(nodes), values={**graph.values, name: node.tensor})


def copy_of(name: str, value: str, tensor: ImportedTensor, origin: OperatorOrigin) -> Computation:
    """Returns a computation that gives a tensor as it is."""
    labels = tuple(f"_{chr(97 + i)}" for i in range(len(tensor.shape)))
    axes: Axes = tuple((label,) if n != 1 else () for label, n in zip(labels, tensor.shape, strict=True))
    extents = dict(zip(labels, tensor.shape, strict=True))
    return Computation(
        name, "pointwise", (OperandRead(value, axes),), Name("x0"), axes, extents, tensor, origin, "copy"
    )


def with_copied_inputs(graph: TensorGraph) -> TensorGraph:
    """Returns the graph with a copy in place of each input among its results: as stored values the two have names and
    memory orders of their own."""
    inputs = {i.name for i in graph.inputs}
    copies = {
        name: copy_of(f"{name}_copied", name, graph.values[name], OperatorOrigin("aten.clone.default"))
        for name in graph.results
        if name in inputs
    }
    return replace(
        graph,
        nodes=(*graph.nodes, *copies.values()),
        results=tuple(copies[name].name if name in copies else name for name in graph.results),
        values=MappingProxyType({**graph.values, **{copy.name: copy.tensor for copy in copies.values()}}),
    )


def with_copy(graph: TensorGraph, reshape: Reshape) -> TensorGraph:
    """Returns the graph with a copy before a reshape, of the shape in which both of its sides are whole: what
    one kernel stores there, another may read under other names."""
    before = graph.values[reshape.value]
    shape = _common(before.shape, reshape.tensor.shape)
    merged = ImportedTensor(shape, before.element)
    view, copy = f"{reshape.name}_merged", f"{reshape.name}_copy"
    nodes: list[Node] = []
    for node in graph.nodes:
        if node is not reshape:
            nodes.append(node)
            continue
        nodes.append(Reshape(view, reshape.value, merged, reshape.origin, "copy"))
        nodes.append(copy_of(copy, view, merged, reshape.origin))
        nodes.append(replace(reshape, value=copy))
    return replace(graph, nodes=tuple(nodes), values={**graph.values, view: merged, copy: merged})


def _common(before: Sequence[int], after: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape of the fewest axes that are products of neighbours in both shapes."""
    shared = sorted(set(accumulate(before, mul)) & set(accumulate(after, mul)))
    return tuple(b // a for a, b in zip([1, *shared], shared, strict=False) if b != a)


def readers(nodes: Sequence[Node]) -> dict[str, list[Node]]:
    """Returns the nodes that read each value, each once, in order."""
    by_value: dict[str, list[Node]] = {}
    for node in nodes:
        for value in dict.fromkeys(operand.value for operand in node.operands):
            by_value.setdefault(value, []).append(node)
    return by_value
