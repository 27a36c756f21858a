"""Scans behind their neutral element, as modules write exclusive scans, become scans of what is shifted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from ucutlass.grammar.syntax import Argument, Binary, BracketName, Call, Index, Literal_, Name, Number
from ucutlass.importer.graph import Computation, Node, OperandRead, TensorGraph, readers

NEUTRAL: Mapping[str, float] = MappingProxyType({"cumsum": 0.0, "cumprod": 1.0})


@dataclass(frozen=True, slots=True)
class _Shifted:
    """A scan along `axis` that a node has behind so many neutral elements."""

    scan: Computation
    call: Call
    axis: int
    count: int


def with_shifted_scans(graph: TensorGraph) -> TensorGraph:
    """Returns the graph with `cat(0, cumsum(x))` as `cumsum(cat(0, x))`, which one kernel computes, and as an exclusive
    scan where x lacks the last element of what is stored. They differ by additions of 0."""
    nodes = {node.name: node for node in graph.nodes}
    reading = readers(graph.nodes)
    values = dict(graph.values)
    replaced: dict[str, tuple[Node, ...]] = {}
    for node in graph.nodes:
        shifted = _shifted(node, nodes)
        if shifted is None or len(reading[shifted.scan.name]) > 1 or shifted.scan.name in graph.results:
            continue
        assert isinstance(node, Computation)
        source = shifted.scan.operands[0].value
        along, arguments = node.axes[shifted.axis][0], shifted.call.arguments
        before: tuple[Node, ...] = ()
        if (longer := _longer(nodes.get(source), node, shifted)) is not None:
            if len(reading[source]) == 1 and source not in graph.results:
                replaced[source] = ()
            source, arguments = longer, (*arguments, Argument(Literal_("true"), "exclusive"))
        else:
            first, second = node.operands
            source_of_second = replace(second, value=source)
            source = f"{node.name}_shifted"
            values[source] = node.tensor
            before = (replace(node, name=source, operands=(first, source_of_second)),)
        scan = replace(
            shifted.scan,
            name=node.name,
            operands=(OperandRead(source, node.axes),),
            body=replace(shifted.call, brackets=(BracketName(along),), arguments=arguments),
            axes=node.axes,
            extents={label: node.extents[label] for axis in node.axes for label in axis},
            tensor=node.tensor,
        )
        replaced |= {shifted.scan.name: (), node.name: (*before, scan)}
    ordered = tuple(new for node in graph.nodes for new in replaced.get(node.name, (node,)))
    left = {name: tensor for name, tensor in values.items() if replaced.get(name) != ()}
    return replace(graph, nodes=ordered, values=MappingProxyType(left)) if replaced else graph


def _shifted(node: Node, nodes: Mapping[str, Node]) -> _Shifted | None:
    if not isinstance(node, Computation) or node.kind != "index" or len(node.operands) != 2:
        return None
    first, scan = (nodes.get(operand.value) for operand in node.operands)
    if not isinstance(first, Computation) or not isinstance(scan, Computation) or scan.kind != "scan":
        return None
    if scan.operands[0].axes != scan.axes or scan.tensor.element != node.tensor.element:
        return None
    match node.body, scan.body, first.body:
        case (
            Call(
                "where",
                None,
                (
                    Argument(condition),
                    Argument(Name("x0") | Index(Name("x0"))),
                    Argument(Index(Name("x1"), (item,))),
                ),
            ),
            Call(function, (BracketName(label),), (Argument(Name("x0")),)) as call,
            Number(neutral),
        ) if NEUTRAL.get(function) == neutral:
            axis = scan.axes.index((label,))
            own, read = node.axes[axis], node.operands[1].axes[axis]
            match condition, item.left, item.right:
                case (
                    Binary("<", Call("index", None, (Argument(Name(place)),)), Number(int(count))),
                    Name(inner),
                    Binary("-", Name(outer), Number(int(shift))),
                ) if (own, own, read, count) == ((place,), (outer,), (inner,), shift):
                    return _Shifted(scan, call, axis, count)
    return None


def _longer(source: Node | None, node: Computation, shifted: _Shifted) -> str | None:
    """Returns what a slice reads up to the last element of an axis, where one neutral element replaces that."""
    if not isinstance(source, Computation) or shifted.count != 1 or len(source.operands) != 1:
        return None
    match source.body:
        case Index(Name("x0"), (item,)):
            read, axis = source.operands[0], shifted.axis
            match item.left, item.right:
                case Name(inner), Name(outer) if (read.axes[axis], source.axes[axis]) == ((inner,), (outer,)):
                    same = source.extents[inner] == node.extents[node.axes[axis][0]]
                    return read.value if same else None
    return None
