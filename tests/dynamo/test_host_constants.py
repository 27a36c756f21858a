"""Constants that a graph makes on the host and reads on its device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd

from ucutlass.dynamo.host_constants import move_host_constants

DEVICE = torch.device("meta")


class Checked(fx.Interpreter):
    """Runs a graph and holds each value's device against what the graph says of it."""

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, torch.Tensor):
            assert value.device == n.meta["val"].device, n
        return value


def devices_of(function: Callable[[torch.Tensor], Any]) -> dict[str, torch.device]:
    """Returns the devices of the values of a function's graph on a device, by the names of their nodes."""
    graphs: list[fx.GraphModule] = []

    def compiled(graph: fx.GraphModule, _: Any) -> Callable[..., Any]:
        move_host_constants(graph, {DEVICE.type})
        graph.graph.lint()
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=aot_autograd(fw_compiler=compiled, inference_compiler=compiled))(
            torch.empty(4, 5, device=DEVICE)
        )
    (graph,) = graphs
    Checked(graph).run(torch.empty(4, 5, device=DEVICE))
    return {node.name: node.meta["val"].device for node in graph.graph.nodes if "val" in node.meta}


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:, torch.tensor([1, 2])],
        lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).to(x.device),
        lambda x: x * (torch.zeros(4, 5) + 1).to(x.device),
        lambda x: x.masked_fill(torch.ones(4, 5, dtype=torch.bool).tril().to(x.device), 0.0),
    ],
    ids=["index", "numbers", "expression", "mask"],
)
def test_constants_are_made_on_the_device(function: Callable[[torch.Tensor], Any]) -> None:
    assert set(devices_of(function).values()) == {DEVICE}


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x + 1, torch.arange(3) + 1),
        lambda x: x + torch.rand(5).to(x.device),
        lambda x: (x + (a := torch.ones(5)).to(x.device), a),
        lambda x: (x + ((a := torch.arange(5)) + 1).to(x.device), a),
    ],
    ids=[
        "a result on the host",
        "random numbers of the host",
        "also a result on the host",
        "made of a result on the host",
    ],
)
def test_others_stay_on_the_host(function: Callable[[torch.Tensor], Any]) -> None:
    devices = devices_of(function)
    assert {device.type for device in devices.values()} == {"cpu", DEVICE.type}


def test_constants_of_a_graph_on_the_host_stay() -> None:
    graphs: list[fx.GraphModule] = []

    def compiled(graph: fx.GraphModule, _: Any) -> Callable[..., Any]:
        move_host_constants(graph, {DEVICE.type})
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    index = torch.tensor([1, 2])
    x = torch.randn(4, 5)
    with torch.no_grad():
        y = torch.compile(lambda x: x[:, index], backend=aot_autograd(fw_compiler=compiled))(x)
    assert torch.equal(y, x[:, index])
