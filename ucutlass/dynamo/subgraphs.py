"""Parts of an FX graph: which nodes go together, and calls of a submodule in their place."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence

from torch import fx
from torch.fx.passes.tools_common import stable_topological_sort


def groups(graph: fx.GraphModule, inside: Callable[[fx.Node], bool]) -> list[list[fx.Node]]:
    """Returns the nodes that are inside in groups, in order. No path leaves a group and comes back to it, nor
    leads from a group to an earlier one; no division of this kind has fewer groups along any path.

    Each node has a level, which no edge falls: even for nodes inside, odd for those outside. A node inside
    whose users all stand on later levels moves to theirs, so that it is computed where it is read, and its items
    with it: a program reads the halves of a tensor where they lie, where a call would copy them.
    """
    level: dict[fx.Node, int] = {}
    members: set[fx.Node] = set()
    for node in graph.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        least = max((level[source] for source in node.all_input_nodes if source in level), default=-1)
        if inside(node):
            members.add(node)
            level[node] = least + least % 2
        else:
            level[node] = least + 1 - least % 2
    for node in reversed(graph.graph.nodes):
        if node.target is operator.getitem and node.args[0] in members:  # an item stays with what has it
            continue
        users = [level[user] for user in _users(node) if user in level]
        if node in members and users and min(users) > level[node]:
            level[node] = min(users) - min(users) % 2
    for node in graph.graph.nodes:
        if node in members and node.target is operator.getitem and node.args[0] in members:
            level[node] = level[node.args[0]]
    gathered: dict[int, list[fx.Node]] = {}
    for node in graph.graph.nodes:
        if node in members:
            gathered.setdefault(level[node], []).append(node)
    return [gathered[number] for number in sorted(gathered)]


def _users(node: fx.Node) -> list[fx.Node]:
    """Returns what reads a node, or an item of it. An item that nothing reads, such as a result, keeps it."""
    users: list[fx.Node] = []
    for user in node.users:
        own = list(user.users) if user.target is operator.getitem else []
        users += own or [user]
    return users


def read_outside(nodes: Sequence[fx.Node]) -> tuple[fx.Node, ...]:
    """Returns the nodes that others read."""
    members = set(nodes)
    return tuple(node for node in nodes if any(user not in members for user in node.users))


def extracted(
    graph: fx.GraphModule,
    nodes: Sequence[fx.Node],
    outputs: Sequence[fx.Node],
    name: str,
    more_inputs: Sequence[fx.Node] = (),
) -> tuple[fx.GraphModule, tuple[fx.Node, ...]]:
    """Returns nodes, which are in the graph's order, as a module of their own that gives a tuple of `outputs`,
    and the graph's nodes that its placeholders stand for: `more_inputs`, then what the nodes read."""
    own, members = fx.Graph(), set(nodes)
    copies: dict[fx.Node, fx.Node] = {}
    read = (n for node in nodes for n in node.all_input_nodes if n not in members)
    inputs = tuple(dict.fromkeys((*more_inputs, *read)))
    for node in inputs:
        copies[node] = own.placeholder(node.name)
        copies[node].meta = copy.copy(node.meta)
    for node in nodes:
        copies[node] = own.node_copy(node, copies.__getitem__)
    own.output(tuple(copies[node] for node in outputs))
    return fx.GraphModule(graph, own, name), inputs


def replace(
    graph: fx.GraphModule, nodes: Sequence[fx.Node], name: str, more_inputs: Sequence[fx.Node] = ()
) -> fx.GraphModule:
    """Puts a call of a submodule of this name in the place of the nodes, and returns the submodule. The graph
    is to be `sort`ed when all are in place."""
    outputs = read_outside(nodes)
    module, inputs = extracted(graph, nodes, outputs, name, more_inputs)
    graph.add_submodule(name, module)
    with graph.graph.inserting_after(nodes[-1]):
        call = last = graph.graph.call_module(name, inputs)
    for number, node in enumerate(outputs):
        with graph.graph.inserting_after(last):
            last = graph.graph.call_function(operator.getitem, (call, number))
        last.meta = copy.copy(node.meta)
        node.replace_all_uses_with(last)
    for node in reversed(nodes):
        graph.graph.erase_node(node)
    return module


def sort(graph: fx.GraphModule) -> None:
    """Orders the nodes by what they read, and otherwise as they are, and writes the graph's code anew."""
    stable_topological_sort(graph)
    graph.recompile()
