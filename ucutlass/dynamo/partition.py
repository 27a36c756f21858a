"""Divides an ATen graph into parts that programs compute and the rest.

The parts are convex, as large as they can be, and hold no views at their edges: a view of a stored tensor is
nothing to PyTorch and a copy to a program.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from ucutlass.dynamo.region import Region, RegionRefused, region_of, values_of
from ucutlass.dynamo.rules import RULES, TORCH_ONLY
from ucutlass.dynamo.subgraphs import extracted, groups, read_outside, replace, sort
from ucutlass.importer.export import CHECKS, ELEMENTS, is_empty
from ucutlass.importer.masks import noted
from ucutlass.importer.operators.views import SKIP_EMPTY
from ucutlass.importer.symbolic import PRIMES, stand_ins, symbols_of

VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        "view.default",
        "reshape.default",
        "_unsafe_view.default",
        "t.default",
        "transpose.int",
        "permute.default",
        "expand.default",
        "unsqueeze.default",
        "squeeze.dim",
        "squeeze.dims",
        "slice.Tensor",
        "select.int",
        "alias.default",
        "as_strided.default",
        "detach.default",
        "split.Tensor",
        "split_with_sizes.default",
        "squeeze.default",
        "unbind.int",
        "view_as_real.default",
    )
)
"""Operators that compute nothing, by the overload's name."""

VIEW = "a view, which computes nothing"
"""Why a node that a program could hold stands outside of all."""

SIZES = "arithmetic of extents, which the host does"
"""Why a node without tensors stands outside of all."""

CHECK = "a check of values, which torch makes"
"""Why a check stands outside of all programs."""

NO_WORK = frozenset({VIEW, SIZES, CHECK})
"""Why nodes stand outside that compute nothing, or on the host."""

MAX_ATTEMPTS = 64
"""Programs of a graph's whole size that are tried for it, or more smaller ones. Beyond them what is left goes to
the fallback."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part with its program: `name` of the submodule, the names of its nodes, and the region."""

    name: str
    nodes: tuple[str, ...]
    region: Region


@dataclass(frozen=True, slots=True)
class Division:
    """How a graph is divided: its parts in order, and why operators are refused, by their nodes' names."""

    parts: tuple[Part, ...]
    refused: Mapping[str, str]


def reason(node: fx.Node, refused: Mapping[str, str], devices: Collection[str]) -> str:
    """Returns why no program computes a node, "" where one may."""
    if node.name in refused:
        return refused[node.name]
    target = str(node.target)
    if target in CHECKS:
        return CHECK
    if target in VIEWS and target not in RULES:
        return VIEW
    if not is_item(node) and (target in TORCH_ONLY or target not in RULES):
        return TORCH_ONLY.get(target, "the importer has no rule for this operator")
    if is_item(node):
        (source, _) = node.args
        assert isinstance(source, fx.Node)
        return reason(source, refused, devices)
    sources = [v for n in node.all_input_nodes for v in values_of(n)]
    reads_none = not any(isinstance(v, Tensor) for v in sources)
    if reads_none and all(str(user.target) in TORCH_ONLY for user in node.users):
        return "what it makes is torch's alone"
    if str(node.target) in SKIP_EMPTY:
        sources = [v for v in sources if not is_empty(v)]
    values = [*_read_values(node), *sources]
    return next((why for value in values if (why := unfit(value, devices))), "")


def _read_values(node: fx.Node) -> list[Any]:
    """Returns the results of an operator that something reads: others, such as the statistics that a norm saves
    for its gradient, may be empty."""
    values = values_of(node)
    if not isinstance(node.meta.get("val"), tuple | list):
        return values
    numbers = {user.args[1] for user in node.users if is_item(user)}
    return [value for number, value in enumerate(values) if number in numbers]


def is_item(node: fx.Node) -> bool:
    return node.target is operator.getitem


def unfit(value: Any, devices: Collection[str]) -> str:
    """Returns why no program takes or gives a value."""
    if value is None or isinstance(value, torch.SymInt | int):
        return ""
    if not isinstance(value, Tensor):
        return f"a value is {type(value).__name__}, not a tensor"
    if value.device.type not in devices:
        return f"a tensor is on {value.device.type}"
    if value.layout != torch.strided or value.is_complex() or value.is_quantized:
        return f"a tensor is {value.layout}, {value.dtype}"
    if value.dtype not in ELEMENTS:
        return f"a tensor's element type is {value.dtype}"
    return "a tensor has no elements" if is_empty(value) else ""


def without_empty_operands(graph: fx.GraphModule) -> None:
    """Takes tensors without elements out of concatenations and of writes to slices, in place: what no program gives
    would stand between the programs of what it is joined to."""
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.cat.default):
        operands, *axis = node.args
        full = [x for x in operands if not is_empty(x.meta.get("val"))]
        if 0 < len(full) < len(operands):
            node.args = (full, *axis)
    for node in graph.graph.find_nodes(op="call_function", target=torch.ops.aten.slice_scatter.default):
        whole, part, *_ = node.args
        if is_empty(part.meta.get("val")):
            node.replace_all_uses_with(whole)


def division_of(graph: fx.GraphModule, devices: Collection[str], name: str) -> Division:
    """Returns how a graph without dead code is divided; its parts are called `NAME_0`, `NAME_1`, .. A part that
    is refused as a whole is halved."""
    _note_masks(graph.graph)
    refused: dict[str, str] = {}
    halved: set[tuple[str, ...]] = set()
    attempts: dict[tuple[str, ...], Region | RegionRefused] = {}
    most_nodes = MAX_ATTEMPTS * len(graph.graph.nodes)
    while True:
        parts: list[Part] = []
        before = len(refused), len(halved)
        proposals = _proposals(graph, refused, devices)
        for nodes in (half for proposal in proposals for half in _halves(proposal, halved)):
            key = tuple(node.name for node in nodes)
            part_name = f"{name}_{len(parts)}"
            if key not in attempts and sum(map(len, attempts)) < most_nodes:
                attempts[key] = _attempt(graph, nodes, part_name)
            attempt = attempts.get(
                key, RegionRefused({key[0]: f"programs of {most_nodes} operators in all were tried"})
            )
            if isinstance(attempt, RegionRefused) and attempt.whole and all(_sides(nodes)):
                halved.add(key)
            elif isinstance(attempt, RegionRefused):
                reasons = {node: why for node, why in attempt.operators.items() if node in key}
                refused |= reasons or {key[0]: str(attempt)}
            else:
                parts.append(Part(part_name, key, attempt))
        if (len(refused), len(halved)) == before:
            return Division(tuple(parts), refused)


def _note_masks(graph: fx.Graph) -> None:
    """Notes which masks leave each row a key, whatever the symbols are: of more symbols than an import takes,
    none."""
    symbols = symbols_of(value for node in graph.nodes for value in values_of(node))
    if len(symbols) <= len(PRIMES[0]):
        noted(graph, {}, stand_ins(symbols)[0])


def divide(graph: fx.GraphModule, division: Division, devices: Collection[str]) -> dict[str, str]:
    """Puts calls of submodules in the place of the parts. Returns for each operator outside of them why it is
    there, by its node's name."""
    nodes = {node.name: node for node in graph.graph.nodes}
    for part in division.parts:
        members = [nodes[name] for name in part.nodes]
        _views_for_others(graph, members)
        replace(graph, members, part.name)
    sort(graph)
    return {
        node.name: why_outside(node, division.refused, devices)
        for node in graph.graph.nodes
        if node.op == "call_function" and not _is_result(node)
    }


def why_outside(node: fx.Node, refused: Mapping[str, str], devices: Collection[str]) -> str:
    """Returns why an operator stands outside of all programs."""
    if is_size(node):
        return SIZES
    return reason(node, refused, devices) or VIEW


def is_size(node: fx.Node) -> bool:
    """Returns whether a node computes with extents alone."""
    return "val" in node.meta and isinstance(node.meta["val"], torch.SymInt | int)


def _is_result(node: fx.Node) -> bool:
    """Returns whether a node is a result of a submodule."""
    return is_item(node) and isinstance(node.args[0], fx.Node) and node.args[0].op == "call_module"


def _proposals(
    graph: fx.GraphModule, refused: Mapping[str, str], devices: Collection[str]
) -> list[list[fx.Node]]:
    """Returns the parts to try, in order. What follows a view at the edge of a part reads a view outside."""

    def inside(node: fx.Node) -> bool:
        return node.op == "call_function" and not reason(node, refused, devices)

    proposals: list[list[fx.Node]] = []
    for group in groups(graph, inside):
        nodes = _without_edge_views(group)
        if any(not is_view(node) for node in nodes):
            proposals.append(nodes)
    return proposals


def _halves(nodes: Sequence[fx.Node], halved: Collection[tuple[str, ...]]) -> list[list[fx.Node]]:
    """Returns a part, or its halves in order where it is to be halved, and theirs."""
    if not any(not is_view(node) for node in nodes):
        return []
    if tuple(node.name for node in nodes) not in halved:
        return [list(nodes)]
    return [half for side in _sides(nodes) for half in _halves(_without_edge_views(side), halved)]


def _sides(nodes: Sequence[fx.Node]) -> tuple[list[fx.Node], list[fx.Node]]:
    """Returns the halves of a part; one of them is empty where the part is a single operator's."""
    middle = len(nodes) // 2
    first = set(nodes[:middle])
    # One of several results goes where they are computed.
    first |= {node for node in nodes[middle:] if is_item(node) and node.args[0] in first}
    return [node for node in nodes if node in first], [node for node in nodes if node not in first]


def _views_for_others(graph: fx.GraphModule, nodes: Sequence[fx.Node]) -> None:
    """Gives those who read a view of the part from outside a view of their own, which costs nothing: a program
    would copy the tensor. Then the part gives `_stored`."""
    members = set(nodes)
    for node in reversed(nodes):
        others = [user for user in node.users if user not in members]
        if is_view(node) and others:
            with graph.graph.inserting_after(node):
                view = graph.graph.node_copy(node)
            for user in others:
                user.replace_input_with(node, view)


def is_view(node: fx.Node) -> bool:
    """Returns whether a node computes nothing."""
    if is_item(node):
        (source, _) = node.args
        return isinstance(source, fx.Node) and is_view(source)
    return str(node.target) in VIEWS


def _without_edge_views(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Returns the nodes without views that nothing among them reads."""
    left = dict.fromkeys(nodes)
    for node in reversed(nodes):
        if is_view(node) and not any(user in left for user in node.users):
            del left[node]
    return list(left)


def _stored(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Returns what a part gives: the nodes that others read, and for views those that they are views of."""
    roots: set[fx.Node] = set()
    for node in read_outside(nodes):
        root = node
        while is_view(root):
            (root, *_) = root.all_input_nodes
        roots.add(root)
    return [node for node in nodes if node in roots]


def _attempt(graph: fx.GraphModule, nodes: Sequence[fx.Node], name: str) -> Region | RegionRefused:
    submodule, _ = extracted(graph, nodes, _stored(nodes), name)
    try:
        return region_of(submodule, name)
    except RegionRefused as refusal:
        return refusal


def rest(graph: fx.GraphModule, name: str) -> list[str]:
    """Gathers what is left of a divided graph in submodules, in place; returns their names. Views, arithmetic
    of extents and operators without a result stay."""

    def inside(node: fx.Node) -> bool:
        return node.op == "call_function" and not _is_result(node)

    names: list[str] = []
    for nodes in groups(graph, inside):
        if read_outside(nodes) and not all(is_view(node) or is_size(node) for node in nodes):
            names.append(f"{name}_{len(names)}")
            replace(graph, nodes, names[-1], _extents_of(graph, nodes))
    sort(graph)
    return names


def _extents_of(graph: fx.GraphModule, nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Returns the graph's inputs that are the symbols of the nodes' shapes: TorchInductor takes each by itself.
    One that is no input by itself is read from a tensor's shape."""
    values = [value for node in nodes for n in (node, *node.all_input_nodes) for value in values_of(n)]
    missing = dict.fromkeys(symbols_of(values))
    extents: list[fx.Node] = []
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for node in inputs:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and value.node.expr in missing:
            del missing[value.node.expr]
            extents.append(node)
    for node in inputs:
        value = node.meta.get("val")
        for axis, extent in enumerate(value.shape if isinstance(value, Tensor) else ()):
            if isinstance(extent, torch.SymInt) and extent.node.expr in missing:
                del missing[extent.node.expr]
                with graph.graph.inserting_after(inputs[-1]):
                    size = graph.graph.call_function(torch.ops.aten.sym_size.int, (node, axis))
                size.meta["val"] = extent
                extents.append(size)
    return extents
