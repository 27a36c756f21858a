"""Graphs on their way to the process that compiles them for TorchInductor's cache."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn

from ucutlass.dynamo.fallback_process import PortableGraph, portable


class Pools(nn.Module):
    """Functions of every kind that TorchDynamo puts into a graph: of Python, built in, and made by another."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = nn.functional.max_pool2d(nn.functional.relu(x), 2)
        return (
            torch.flatten(nn.functional.adaptive_max_pool2d(pooled, 1), 1).mul(2)
            + nn.functional.gelu(x).sum()
        )


def test_a_graph_arrives_with_the_functions_that_it_calls() -> None:
    graphs: list[fx.GraphModule] = []
    written: list[bytes | None] = []

    def kept(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        graphs.append(graph)
        written.append(portable(graph, inputs))
        return graph.forward

    with torch.no_grad():
        torch.compile(Pools(), backend=kept, dynamic=False)(torch.randn(2, 3, 8, 8))
    assert written[0] is not None
    arrived: PortableGraph = pickle.loads(written[0])
    targets = [node.target for node in graphs[0].graph.nodes]
    assert [node.target for node in arrived.nodes] == targets
    assert nn.functional.max_pool2d in targets
