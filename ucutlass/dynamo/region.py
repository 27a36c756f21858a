"""A convex part of an ATen graph as one program, and the call that runs it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor, fx

from ucutlass.dynamo.precision import multiplied
from ucutlass.dynamo.rules import RULES
from ucutlass.grammar.format import format_file
from ucutlass.importer.export import is_empty, needed, tensor_of, translated
from ucutlass.importer.graph import Input, OperatorOrigin, TensorGraph, TorchStage, Unsupported
from ucutlass.importer.naming import free
from ucutlass.importer.operators.builder import GraphBuilder, ValueRef
from ucutlass.importer.operators.views import EMPTY, permuted
from ucutlass.importer.prices import StagePrices
from ucutlass.importer.program import ImportedText, program_of
from ucutlass.importer.stages import NoKernelServes
from ucutlass.importer.symbolic import (
    FIXED,
    DependsOnExtents,
    Extents,
    StandIns,
    formulas_of,
    small_stand_ins,
    stand_ins,
    symbols_of,
    with_free_extents,
)
from ucutlass.importer.text import INLINE_STAGES

Order: TypeAlias = tuple[int, ...]
"""Axes of a tensor from the largest stride to the smallest."""

Executor: TypeAlias = Callable[..., Any]
"""A program as a callable of dense tensors in declared order; it returns a tensor, or a tuple of them."""


NAME = "ucutlass_name"
"""The entry of a node's `meta` that has its name for a reader."""

PARAMETER = "ucutlass_parameter"
"""The entry of a node's `meta` that says of an input that it is a parameter of the module."""


class RegionRefused(Exception):
    """No program computes the part; `operators` has those that stand in the way, by their nodes' names, and
    why. `whole`: none of them alone does, as where the program would be too long."""

    def __init__(self, operators: Mapping[str, str], whole: bool = False) -> None:
        super().__init__("; ".join(operators.values()))
        self.operators, self.whole = operators, whole


@dataclass(frozen=True, slots=True)
class Region:
    """A part's program by its text and name. `inputs` has the number of the part's argument for each parameter,
    with the order of its axes in memory; `outputs` the number of the program's result for each result of the
    part, likewise."""

    text: str
    name: str
    inputs: tuple[tuple[int, Order], ...]
    outputs: tuple[tuple[int, Order], ...]


def memory_order(value: Tensor, number: Extents = FIXED) -> Order:
    """Returns the axes by falling stride, where a tensor of these strides is dense; else their own order, in
    which the call makes a copy."""
    shape, strides = tuple(map(number, value.shape)), tuple(map(number, value.stride()))
    order = dense_order(shape, strides)
    return tuple(range(len(shape))) if order is None else order


def dense_order(shape: Sequence[int], strides: Sequence[int]) -> Order | None:
    """Returns the axes by falling stride, None where a tensor of these strides has gaps or repeats elements."""
    order = tuple(sorted(range(len(shape)), key=lambda axis: -strides[axis]))
    dense = 1
    for axis in reversed(order):
        if shape[axis] != 1 and strides[axis] != dense:
            return None
        dense *= shape[axis]
    return order


def inverse(order: Order) -> Order:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def region_of(graph: fx.GraphModule, name: str) -> Region:
    """Returns the program of a graph of ATen operators on fake tensors, whose symbolic extents are free. Raises
    RegionRefused."""
    nodes = [node for node in graph.graph.nodes if node.op in ("placeholder", "call_function")]
    symbols = symbols_of(value for node in nodes for value in values_of(node))
    if not symbols:
        program, inputs, outputs = _imported(graph, name, FIXED, StagePrices())
        return Region(program.text, program.name, inputs, outputs)
    try:
        return _with_symbols(graph, name, partial(stand_ins, symbols))
    except RegionRefused:
        # The larger numbers may be more than a table of positions has, or than a kernel computes.
        values = [value for node in nodes for value in values_of(node)]
        return _with_symbols(graph, name, partial(small_stand_ins, symbols, values))


def _with_symbols(
    graph: fx.GraphModule, name: str, numbers: Callable[[], tuple[StandIns, StandIns]]
) -> Region:
    """Returns the program of a graph with free extents, by these numbers for its symbols. Raises RegionRefused."""
    try:
        stands = numbers()
        try:
            return _agreed(graph, name, stands, several=True)
        except DependsOnExtents:
            # A call of a kernel of several results may need extents that bindings do not.
            return _agreed(graph, name, stands, several=False)
    except DependsOnExtents as problem:
        first = next(node.name for node in graph.graph.nodes if node.op == "call_function")
        raise RegionRefused({first: str(problem)}, whole=True) from problem


def _agreed(graph: fx.GraphModule, name: str, stands: tuple[StandIns, StandIns], several: bool) -> Region:
    """Returns the program that imports at two sets of extents agree on. Raises DependsOnExtents and
    RegionRefused."""
    table = formulas_of([value for node in graph.graph.nodes for value in values_of(node)], stands)
    (program, *edges), (other, *others) = (
        _imported(graph, name, numbers, StagePrices(exact=False, extents=extents), several)
        for numbers, extents in zip(stands, ({}, table.firsts), strict=True)
    )
    if edges != others:
        raise DependsOnExtents("the memory orders depend on an extent")
    tree = with_free_extents(program.tree, other.tree, table)
    inputs, outputs = edges
    return Region(format_file(tree), program.name, inputs, outputs)


def values_of(node: fx.Node) -> list[Any]:
    """Returns the fake tensors and numbers that a node gives."""
    value = node.meta.get("val")
    return list(value) if isinstance(value, tuple | list) else [value]


def _imported(
    graph: fx.GraphModule, name: str, number: Extents, prices: StagePrices, several: bool = True
) -> tuple[ImportedText, tuple[tuple[int, Order], ...], tuple[tuple[int, Order], ...]]:
    """Returns a part's program, cut by these prices, with what a Region has besides; its stages may have `several`
    results. Raises RegionRefused with every operator that alone stands in the way, or the first that does with others."""
    nodes = list(graph.graph.nodes)
    placeholders = [n for n in nodes if n.op == "placeholder"]
    used_names: list[str] = []
    inputs = _inputs(placeholders, used_names, number)
    builder = GraphBuilder({i.name: i.tensor for i in inputs.values()})
    builder.multiplied = multiplied(node.meta["val"] for node in placeholders)
    builder.parameters |= {i.name for node, i in inputs.items() if PARAMETER in node.meta}
    refs = _logical(placeholders, inputs, builder, used_names, number)
    makers = _computed(nodes, refs, builder, used_names, number)
    results, outputs = _stored(nodes, refs, builder, used_names, number)
    read = needed(builder, results)
    computations = tuple(node for node in builder.nodes if node.name in read)
    for computation in computations:
        if isinstance(computation, TorchStage):
            raise RegionRefused({makers[computation.name]: "torch computes it in a program too"})
    used = tuple(source for source in inputs.values() if source.name in read)
    first = next((node.name for node in nodes if node.op == "call_function"), "")
    try:
        whole = TensorGraph(used, computations, tuple(results), dict(builder.values))
        # The names of a pipeline that calls kernels alone tell extents, those of bindings how they hang together.
        most_bindings = INLINE_STAGES if prices.exact else len(computations) + len(results)
        program = program_of(whole, name, several=several, most_bindings=most_bindings, prices=prices)
    except NoKernelServes as problem:
        raise RegionRefused({makers.get(problem.node.name, first): problem.why}) from problem
    except Unsupported as problem:
        raise RegionRefused({first: problem.why}, whole=True) from problem
    if not program.inputs:
        raise RegionRefused({first: "it reads no tensor, so that nothing says where it runs"})
    orders = {node.name: memory_order(node.meta["val"], number) for node in inputs}
    places = [node.name for node in placeholders]
    reads = tuple((places.index(i.path), orders[i.path]) for i in program.inputs)
    return program, reads, outputs


def _inputs(placeholders: Sequence[fx.Node], used_names: list[str], number: Extents) -> dict[fx.Node, Input]:
    """Returns the tensors of a part that have elements, as they lie in memory."""
    inputs: dict[fx.Node, Input] = {}
    for node in placeholders:
        value = node.meta["val"]
        if not isinstance(value, Tensor) or is_empty(value):
            continue
        used_names.append(free(node.meta.get(NAME, node.name), used_names))
        try:
            logical = tensor_of(value, node.name, number)
        except Unsupported as problem:
            raise RegionRefused({next(iter(node.users)).name: problem.why}) from problem
        shape = tuple(logical.shape[axis] for axis in memory_order(value, number))
        inputs[node] = Input(used_names[-1], node.name, "input", type(logical)(shape, logical.element))
    return inputs


def _logical(
    placeholders: Sequence[fx.Node],
    inputs: Mapping[fx.Node, Input],
    builder: GraphBuilder,
    used_names: list[str],
    number: Extents,
) -> dict[str, Any]:
    """Returns what each placeholder is in a program: a tensor with its axes in the order of the graph, a number."""
    refs: dict[str, Any] = {}
    for node in placeholders:
        value = node.meta["val"]
        if node in inputs:
            source = inputs[node].name
            builder.origin = OperatorOrigin("aten.permute.default")
            builder.name = free(f"{source}_logical", used_names)
            refs[node.name] = permuted(builder, ValueRef(source), inverse(memory_order(value, number)))
        else:
            refs[node.name] = EMPTY if isinstance(value, Tensor) else number(value)
    return refs


def _computed(
    nodes: Sequence[fx.Node],
    refs: dict[str, Any],
    builder: GraphBuilder,
    used_names: list[str],
    number: Extents,
) -> dict[str, str]:
    """Translates every operator. Returns which one each computation is of. Raises RegionRefused."""
    makers: dict[str, str] = {}
    refused: dict[str, str] = {}
    for node in nodes:
        if node.op != "call_function" or any(source.name not in refs for source in node.all_input_nodes):
            continue
        before = len(builder.nodes)
        try:
            if node.target is operator.getitem:
                refs[node.name] = _item(refs, node)
            else:
                refs[node.name] = translated(node, refs, builder, used_names, RULES, number)
        except Unsupported as problem:
            refused[node.name] = problem.why
        except RegionRefused as problem:
            refused |= problem.operators
        makers |= {computation.name: node.name for computation in builder.nodes[before:]}
    if refused:
        raise RegionRefused(refused)
    return makers


def _stored(
    nodes: Sequence[fx.Node],
    refs: Mapping[str, Any],
    builder: GraphBuilder,
    used_names: list[str],
    number: Extents,
) -> tuple[list[str], tuple[tuple[int, Order], ...]]:
    """Returns the results, each once, and for each output of the graph its result and memory order."""
    results: list[str] = []
    outputs: list[tuple[int, Order]] = []
    (output,) = (node for node in nodes if node.op == "output")
    leaves = output.args[0]
    assert isinstance(leaves, tuple)
    for leaf in leaves:
        assert isinstance(leaf, fx.Node)
        order = memory_order(leaf.meta["val"], number)
        builder.origin = OperatorOrigin("aten.permute.default")
        builder.name = free(f"{leaf.name}_stored", used_names)
        value = permuted(builder, refs[leaf.name], order).name
        if value not in results:
            results.append(value)
        outputs.append((results.index(value), order))
    return results, tuple(outputs)


def _item(refs: Mapping[str, Any], node: fx.Node) -> Any:
    source, index = node.args
    assert isinstance(source, fx.Node) and isinstance(index, int)
    several = refs[source.name]
    if not isinstance(several, tuple | list) or index >= len(several) or several[index] is None:
        raise RegionRefused({source.name: f"its result {index} is read, which no program gives"})
    return several[index]
