"""Convolutions of one input whose results are concatenated, as in SqueezeNet's fire modules: one convolution by the
weights of both, those of single pixels amid zeros. The input is read once, and no launch copies the results together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from ucutlass.grammar.syntax import Binary, Expr, Index, IndexItem, Name
from ucutlass.importer.expressions import at, binary, both, index, number, operand, sub, where
from ucutlass.importer.graph import (
    Computation,
    ImportedTensor,
    Node,
    OperandRead,
    Reshape,
    TensorGraph,
    readers,
)
from ucutlass.importer.prices import StagePrices
from ucutlass.pipeline.pricing import pays

CHANNELS = 1
"""The axis of images' channels, along which results are concatenated."""


def with_joined_convolutions(graph: TensorGraph, prices: StagePrices) -> TensorGraph:
    """Returns the graph with convolutions whose results are concatenated as one where that is estimated to take less
    time."""
    if not prices.exact:
        return graph
    nodes, values = list(graph.nodes), dict(graph.values)
    makers = {node.name: node for node in nodes}
    counts = Counter({value: len(by) for value, by in readers(nodes).items()})
    counts.update(graph.results)
    for node in graph.nodes:
        branches = _branches(node, makers, counts)
        if branches is None:
            continue
        assert isinstance(node, Computation)
        joined = _joined(node, branches, values)
        after = {**values, **{n.name: n.tensor for n in joined}}
        apart = [_seconds(branch.nodes, values, prices) for branch in branches]
        apart.append(_seconds((node,), values, prices))
        together = [_seconds((n,), after, prices) for n in joined[: -len(branches[0].nodes)]]
        together.append(_seconds(joined[-len(branches[0].nodes) :], after, prices))
        if not pays(apart, together):
            continue
        gone = {n.name for branch in branches for n in branch.nodes}
        place = nodes.index(node)
        nodes[place : place + 1] = joined
        nodes = [n for n in nodes if n.name not in gone]
        values = after
        makers |= {n.name: n for n in joined}
    return replace(graph, nodes=tuple(nodes), values=MappingProxyType(values))


def _seconds(nodes: Sequence[Node], values: Mapping[str, ImportedTensor], prices: StagePrices) -> float:
    return prices.of_stage(values, nodes, (nodes[-1].name,))


@dataclass(frozen=True, slots=True)
class _Branch:
    """A convolution and what is computed of it element by element, in `nodes`. `parameters` are, by the node's number and
    the operand's, vectors over the channels that it reads."""

    nodes: tuple[Computation, ...]
    parameters: Mapping[tuple[int, int], str]

    @property
    def convolution(self) -> Computation:
        return self.nodes[0]

    @property
    def columns(self) -> int:
        return self.convolution.tensor.shape[CHANNELS]

    @property
    def taps(self) -> tuple[int, int]:
        extents = self.convolution.extents
        return extents.get("R", 1), extents.get("S", 1)

    @property
    def bodies(self) -> tuple[Expr, ...]:
        return tuple(node.body for node in self.nodes[1:])


def _branches(
    node: Node, makers: Mapping[str, Node], counts: Mapping[str, int]
) -> tuple[_Branch, ...] | None:
    """Returns the convolutions of one input that a node concatenates along the channels, one of which has windows that
    lie around the single pixels of the others; None where there are none such."""
    if (
        not isinstance(node, Computation)
        or node.origin.operator != "aten.cat.default"
        or node.kind != "index"
    ):
        return None
    whole = node.axes[CHANNELS] if len(node.axes) == 4 else ()
    if len(whole) != 1 or any(whole[0] in axis for read in node.operands for axis in read.axes):
        return None
    branches = [_branch(read.value, makers, counts) for read in node.operands]
    joinable = tuple(branch for branch in branches if branch is not None)
    if len(joinable) != len(node.operands) or len({b.convolution.operands[0].value for b in joinable}) != 1:
        return None
    if (
        sum(branch.columns for branch in joinable) != node.tensor.shape[CHANNELS]
        or len({b.bodies for b in joinable}) != 1
    ):
        return None
    if any(b.parameters.keys() != joinable[0].parameters.keys() for b in joinable):
        return None
    return joinable if sum(b.taps != (1, 1) for b in joinable) == 1 else None


def _branch(value: str, makers: Mapping[str, Node], counts: Mapping[str, int]) -> _Branch | None:
    nodes: list[Computation] = []
    parameters: dict[tuple[int, int], str] = {}
    while True:
        node = makers.get(value)
        if not isinstance(node, Computation) or counts[value] != 1 or len(node.axes) != 4:
            return None
        nodes.insert(0, node)
        if node.kind == "dot":
            break
        images = [read for read in node.operands if len(read.axes) == 4]
        if node.kind != "pointwise" or len(images) != 1 or images[0].axes != node.axes:
            return None
        value = images[0].value
    if not _is_centred(nodes[0]):
        return None
    for place, node in enumerate(nodes[1:], 1):
        for i, read in enumerate(node.operands):
            if len(read.axes) == 4:
                continue
            vector = _vector(read, node, makers)
            if vector is None:
                return None
            parameters[place, i] = vector
    return _Branch(tuple(nodes), MappingProxyType(parameters))


def _vector(read: OperandRead, node: Computation, makers: Mapping[str, Node]) -> str | None:
    """Returns the vector over the channels that an operand views."""
    view = makers.get(read.value)
    if read.axes != (node.axes[CHANNELS], (), ()) or not isinstance(view, Reshape) or view.value in makers:
        return None
    return view.value


def _is_centred(node: Computation) -> bool:
    """Returns whether a node is a convolution of all channels whose windows stand around each pixel."""
    if "conv" not in node.origin.operator or node.extents.get("G", 1) != 1 or len(node.operands) != 2:
        return False
    if tuple(node.axes) != (("B",), ("K",), *node.axes[2:]) or node.tensor.shape[0] == 0:
        return False
    taps = (node.extents.get("R", 1), node.extents.get("S", 1))
    if taps == (1, 1):
        return node.axes[2:] == (("H",), ("W",)) == node.operands[0].axes[2:]
    windows = {item.left.name: item.right for item in _items(node.body) if isinstance(item.left, Name)}
    return windows == {"H": _around("P", "R", taps[0]), "W": _around("Q", "S", taps[1])}


def _items(value: object) -> list[IndexItem]:
    """Returns the items of all indexing in an expression."""
    if isinstance(value, Index):
        return list(value.items)
    parts = getattr(value, "arguments", ())
    return [item for part in parts for item in _items(part.value)]


def _around(result: str, tap: str, taps: int) -> Expr | None:
    """Returns where a window of an odd number of taps reads that stands around each position."""
    return sub(Binary("+", Name(result), Name(tap)), (taps - 1) // 2) if taps % 2 == 1 and taps > 1 else None


# --- the one convolution --------------------------------------------------------------------


def _joined(
    node: Computation, branches: Sequence[_Branch], values: Mapping[str, ImportedTensor]
) -> tuple[Computation, ...]:
    """Returns the weights and vectors of all branches beside each other, and the nodes of the widest branch with all
    channels, the last under the name of the concatenation."""
    wide = next(branch for branch in branches if branch.taps != (1, 1))
    columns = sum(branch.columns for branch in branches)
    weights = _weights(node, branches, wide, values)
    vectors = {
        place: _beside(
            f"{node.name}_joined_{'_'.join(map(str, place))}",
            [b.parameters[place] for b in branches],
            node,
            values,
        )
        for place in wide.parameters
    }
    together: list[Computation] = [weights, *vectors.values()]
    value = ""
    for place, own in enumerate(wide.nodes):
        last = place == len(wide.nodes) - 1
        name = node.name if last else f"{node.name}_joined_{place}"
        (channel,) = own.axes[CHANNELS]
        shape = (own.tensor.shape[0], columns, *own.tensor.shape[2:])
        reads = list(own.operands)
        if place == 0:
            reads[1] = replace(reads[1], value=weights.name)
        for i, read in enumerate(own.operands if place else ()):
            if (place, i) in vectors:
                reads[i] = OperandRead(vectors[place, i].name, ((channel,),))
            else:
                reads[i] = replace(read, value=value)
        together.append(
            replace(
                own,
                name=name,
                operands=tuple(reads),
                extents={**own.extents, channel: columns},
                tensor=replace(own.tensor, shape=shape),
                hint=node.hint if last else own.hint,
            )
        )
        value = name
    return tuple(together)


def _weights(
    node: Computation, branches: Sequence[_Branch], wide: _Branch, values: Mapping[str, ImportedTensor]
) -> Computation:
    """Returns the weights of all branches as those of the widest one's windows: single pixels amid zeros."""
    columns = sum(branch.columns for branch in branches)
    axes = (("K",), ("C",), ("R",), ("S",))
    extents = {"K": columns, "C": wide.convolution.extents["C"], "R": wide.taps[0], "S": wide.taps[1]}
    reads: list[OperandRead] = []
    parts: list[Expr] = []
    begins = _begins([branch.columns for branch in branches])
    for i, (branch, begin) in enumerate(zip(branches, begins, strict=True)):
        label = f"_m{i}"
        extents[label] = branch.columns
        whole = branch is wide
        windows = axes[2:] if whole else ((), ())
        reads.append(OperandRead(branch.convolution.operands[1].value, ((label,), ("C",), *windows)))
        part = at(operand(i), {label: _from("K", begin)})
        if not whole:
            centre = both(
                *(binary("==", index(d), (n - 1) // 2) for d, n in zip("RS", wide.taps, strict=True) if n > 1)
            )
            part = where(centre, part, number(0.0))
        parts.append(part)
    element = values[wide.convolution.operands[1].value].element
    tensor = ImportedTensor((columns, extents["C"], *wide.taps), element)
    name = f"{node.name}_joined_weights"
    body = _chain("K", begins, parts)
    return Computation(name, "index", tuple(reads), body, axes, extents, tensor, node.origin, "weights")


def _beside(
    name: str, vectors: Sequence[str], node: Computation, values: Mapping[str, ImportedTensor]
) -> Computation:
    """Returns vectors one after another."""
    lengths = [values[v].shape[0] for v in vectors]
    extents = {"K": sum(lengths), **{f"_m{i}": n for i, n in enumerate(lengths)}}
    begins = _begins(lengths)
    parts = [at(operand(i), {f"_m{i}": _from("K", begin)}) for i, begin in enumerate(begins)]
    body = _chain("K", begins, parts)
    reads = tuple(OperandRead(v, ((f"_m{i}",),)) for i, v in enumerate(vectors))
    tensor = ImportedTensor((sum(lengths),), values[vectors[0]].element)
    return Computation(name, "index", reads, body, (("K",),), extents, tensor, node.origin, "bias")


def _begins(lengths: Sequence[int]) -> list[int]:
    return [sum(lengths[:i]) for i in range(len(lengths))]


def _chain(label: str, begins: Sequence[int], parts: Sequence[Expr]) -> Expr:
    """Returns the parts one after another along a label, each from where it begins."""
    body = parts[-1]
    for part, end in zip(reversed(parts[:-1]), reversed(begins[1:]), strict=True):
        body = where(binary("<", index(label), end), part, body)
    return body


def _from(label: str, begin: int) -> Expr:
    return sub(Name(label), begin) if begin else Name(label)
