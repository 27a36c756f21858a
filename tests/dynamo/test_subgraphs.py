"""Division of FX graphs into groups, and submodules in place of nodes."""

from __future__ import annotations

import torch
from torch import fx

from ucutlass.dynamo.subgraphs import groups, replace, sort


def inside(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is not torch.sort


def names(graph: fx.GraphModule) -> list[list[str]]:
    return [[node.name for node in group] for group in groups(graph, inside)]


def test_what_reads_an_outsider_stands_in_a_later_group() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        a = torch.relu(x)
        b, _ = torch.sort(a)
        return torch.add(torch.exp(b), a)

    graph = fx.symbolic_trace(model)
    assert names(graph)[0] == ["relu"] and names(graph)[-1][-2:] == ["exp", "add"]


def test_two_groups_do_not_read_each_other() -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a = torch.relu(x)
        b = torch.exp(y)
        c = torch.add(torch.sort(a)[0], b)
        return torch.add(torch.sort(c)[0], torch.sort(b)[0])

    graph = fx.symbolic_trace(model)
    for number, group in enumerate(groups(graph, inside)):
        replace(graph, group, f"part_{number}")
    sort(graph)
    x, y = torch.randn(3, 5), torch.randn(3, 5)
    torch.testing.assert_close(graph(x, y), model(x, y))
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert torch.add not in targets and targets.count(torch.sort) == 3


def test_what_only_a_later_group_reads_is_computed_there() -> None:
    def model(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        weights = torch.exp(mask)
        return torch.mul(torch.sort(torch.relu(x))[0], weights)

    assert names(fx.symbolic_trace(model)) == [["relu"], ["exp", "getitem", "mul"]]


def test_several_results_stay_where_they_are_computed() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        a, b = torch.chunk(x, 2)
        return torch.add(torch.sort(torch.relu(a))[0], b)

    first, second = names(fx.symbolic_trace(model))
    assert first == ["chunk", "getitem", "getitem_1", "relu"] and second[-1] == "add"


def test_several_results_that_only_a_later_group_reads_are_computed_there() -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a, b = torch.chunk(torch.exp(y), 2)
        return torch.mul(torch.sort(torch.relu(x))[0], torch.add(a, b))

    first, second = names(fx.symbolic_trace(model))
    assert first == ["relu"] and {"exp", "chunk", "getitem", "getitem_1"} <= {*second}
