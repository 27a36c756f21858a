"""Constants that a graph makes on the host and reads on its device.

A list as an index, `torch.tensor([..])` and a mask that a model makes before it is moved are tensors on the CPU in
AOTAutograd's graph, which no program may read. Where nothing but the device's operators reads them, they are made on
the device.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily


def move_host_constants(graph: fx.GraphModule, devices: Collection[str]) -> None:
    """Makes such constants on the device, in place. A graph of several devices is left as it is."""
    nodes = list(graph.graph.nodes)
    there = {v.device for node in nodes if isinstance(v := _value(node), Tensor) and v.device.type in devices}
    if len(there) != 1:
        return
    (device,) = there
    constants = _host_constants(nodes, device)
    for node in nodes:
        if node not in constants:
            continue
        if node.op == "get_attr":
            with unset_fake_temporarily():
                setattr(graph, node.target, getattr(graph, node.target).to(device))
        elif "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": device}
        value = node.meta["val"]
        with value.fake_mode:
            node.meta["val"] = torch.empty_like(value, device=device)


def _host_constants(nodes: list[fx.Node], device: torch.device) -> set[fx.Node]:
    """Returns the nodes on the host that depend on no input, of which every reader is one of them or gives a
    tensor on the device."""
    constants: set[fx.Node] = set()
    for node in nodes:
        value = _value(node)
        on_host = isinstance(value, FakeTensor) and value.device.type == "cpu"
        if on_host and _is_repeatable(node) and constants.issuperset(node.all_input_nodes):
            constants.add(node)
    for node in reversed(nodes):  # readers come before what they read
        if node in constants and not all(_reads_on(user, device, constants) for user in node.users):
            constants.discard(node)
    return constants


def _is_repeatable(node: fx.Node) -> bool:
    """Returns whether a node gives the same values on any device."""
    if node.op == "get_attr":
        return isinstance(node.target, str) and "." not in node.target
    tags = getattr(node.target, "tags", ())
    return node.op == "call_function" and torch.Tag.nondeterministic_seeded not in tags


def _reads_on(user: fx.Node, device: torch.device, constants: set[fx.Node]) -> bool:
    value = _value(user)
    return user in constants or (isinstance(value, Tensor) and value.device == device)


def _value(node: fx.Node) -> object:
    return node.meta.get("val")
