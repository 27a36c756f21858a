"""Divides an ATen graph into parts that programs compute and the rest.

The parts are convex, as large as they can be, and hold no views at their edges: a view of a stored tensor is
nothing to PyTorch and a copy to a program.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.fx.passes.tools_common import legalize_graph
from torch.fx.passes.utils.fuser_utils import fuse_as_graphmodule, insert_subgm

from ucutlass.dynamo.region import Region, RegionRefused, region_of, values_of
from ucutlass.dynamo.rules import RULES
from ucutlass.importer.export import ELEMENTS

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
        "detach.default",
        "split.Tensor",
        "unbind.int",
    )
)
"""Operators that compute nothing, by the overload's name."""

VIEW = "a view, which computes nothing"
"""Why a node that a program could hold stands outside of all."""

MAX_ATTEMPTS = 64
"""Programs that are tried for one graph. Beyond them what is left goes to the fallback."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part with its program: `name` of the submodule, the names of its nodes, and the region."""

    name: str
    nodes: tuple[str, ...]
    region: Region


@dataclass(slots=True)
class Partition:
    """The divided graph. `reasons` says of each node outside of the parts why it is."""

    graph: fx.GraphModule
    parts: list[Part] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)


class _ProgramSupport(OperatorSupportBase):
    def __init__(self, refused: Mapping[str, str], devices: Collection[str]) -> None:
        self._refused, self._devices = refused, devices

    def is_node_supported(self, submodules: Mapping[str, Any], node: fx.Node) -> bool:
        return node.op == "call_function" and not reason(node, self._refused, self._devices)


class _Function(OperatorSupportBase):
    def is_node_supported(self, submodules: Mapping[str, Any], node: fx.Node) -> bool:
        return node.op == "call_function"


def reason(node: fx.Node, refused: Mapping[str, str], devices: Collection[str]) -> str:
    """Returns why no program computes a node, "" where one may."""
    if node.name in refused:
        return refused[node.name]
    if not is_item(node) and str(node.target) not in RULES:
        return "the importer has no rule for this operator"
    if is_item(node):
        (source, _) = node.args
        assert isinstance(source, fx.Node)
        return reason(source, refused, devices)
    return next(
        (why for n in (node, *node.all_input_nodes) for v in values_of(n) if (why := unfit(v, devices))), ""
    )


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
    return "a tensor has no elements" if any(isinstance(n, int) and n == 0 for n in value.shape) else ""


def partitioned(graph: fx.GraphModule, devices: Collection[str], name: str) -> Partition:
    """Divides the graph in place; the parts become submodules `NAME_0`, `NAME_1`, .. that are to be replaced
    by calls of their programs."""
    refused: dict[str, str] = {}
    attempts: dict[tuple[str, ...], Region | RegionRefused] = {}
    parts: list[tuple[Sequence[fx.Node], Part]] = []
    while True:
        parts, news = [], False
        for nodes in _proposals(graph, refused, devices):
            key = tuple(node.name for node in nodes)
            if key not in attempts and len(attempts) < MAX_ATTEMPTS:
                part_name = f"{name}_{len(parts)}"
                attempts[key] = _attempt(graph, nodes, part_name)
            attempt = attempts.get(
                key, RegionRefused(key[0], f"more than {MAX_ATTEMPTS} programs were tried")
            )
            if isinstance(attempt, RegionRefused):
                refused[attempt.node if attempt.node in key else key[0]] = attempt.why
                news = True
            else:
                parts.append((nodes, Part(f"{name}_{len(parts)}", key, attempt)))
        if not news:
            break
    result = Partition(graph)
    for members, part in parts:
        submodule, inputs, outputs = fuse_as_graphmodule(graph, list(members), part.name)
        insert_subgm(graph, submodule, inputs, outputs)
        result.parts.append(part)
    legalize_graph(graph)
    graph.recompile()
    inside = {name for part in result.parts for name in part.nodes}
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.name not in inside:
            result.reasons[node.name] = reason(node, refused, devices) or VIEW
    return result


def _proposals(
    graph: fx.GraphModule, refused: Mapping[str, str], devices: Collection[str]
) -> list[list[fx.Node]]:
    order = {node: number for number, node in enumerate(graph.graph.nodes)}
    partitioner = CapabilityBasedPartitioner(
        graph, _ProgramSupport(refused, devices), allows_single_node_partition=True
    )
    proposals: list[list[fx.Node]] = []
    for partition in partitioner.propose_partitions():
        nodes = _without_edge_views(sorted(partition.nodes, key=order.__getitem__))
        if any(not _is_view(node) for node in nodes):
            proposals.append(nodes)
    return sorted(proposals, key=lambda nodes: order[nodes[0]])


def _is_view(node: fx.Node) -> bool:
    if is_item(node):
        (source, _) = node.args
        return isinstance(source, fx.Node) and _is_view(source)
    return str(node.target) in VIEWS


def _without_edge_views(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Returns the nodes without views that nothing among them reads."""
    left = dict.fromkeys(nodes)
    for node in reversed(nodes):
        if _is_view(node) and not any(user in left for user in node.users):
            del left[node]
    return list(left)


def _attempt(graph: fx.GraphModule, nodes: Sequence[fx.Node], name: str) -> Region | RegionRefused:
    submodule, _, _ = fuse_as_graphmodule(graph, list(nodes), name)
    try:
        return region_of(submodule, name)
    except RegionRefused as refusal:
        return refusal


def rest(graph: fx.GraphModule, name: str) -> list[str]:
    """Gathers what is left of a divided graph in submodules, in place; returns their names."""
    partitioner = CapabilityBasedPartitioner(graph, _Function(), allows_single_node_partition=True)
    order = {node: number for number, node in enumerate(graph.graph.nodes)}
    names: list[str] = []
    for partition in partitioner.propose_partitions():
        nodes = sorted(partition.nodes, key=order.__getitem__)
        if all(_is_view(node) for node in nodes):
            continue
        names.append(f"{name}_{len(names)}")
        submodule, inputs, outputs = fuse_as_graphmodule(graph, nodes, names[-1])
        insert_subgm(graph, submodule, inputs, outputs)
    legalize_graph(graph)
    graph.recompile()
    return names
