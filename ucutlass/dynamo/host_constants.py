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
            # Another node may read the same attribute on the host.
            moved = f"{node.target}_on_{device.type}"
            with unset_fake_temporarily():
                setattr(graph, moved, getattr(graph, node.target).to(device))
            node.target = moved
        elif _takes_device(node):
            node.kwargs = {**node.kwargs, "device": device}
        value = node.meta["val"]
        with value.fake_mode:
            node.meta["val"] = torch.empty_like(value, device=device)


def _host_constants(nodes: list[fx.Node], device: torch.device) -> set[fx.Node]:
    """Returns the nodes on the host that depend on no input, of which every reader is one of them or gives a
    tensor on the device."""
    constants = {node for node in nodes if _is_on_host(node) and _is_repeatable(node)}
    while True:
        left = {
            node
            for node in constants
            if constants.issuperset(node.all_input_nodes)
            and all(_reads_on(user, device, constants) for user in node.users)
        }
        if left == constants:
            return constants
        constants = left


def _is_on_host(node: fx.Node) -> bool:
    value = _value(node)
    return isinstance(value, FakeTensor) and value.device.type == "cpu"


def _is_repeatable(node: fx.Node) -> bool:
    """Returns whether a node gives the same values on any device, and can be told on which."""
    if node.op == "get_attr":
        return isinstance(node.target, str) and "." not in node.target
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    seeded = torch.Tag.nondeterministic_seeded in node.target.tags
    return not seeded and bool(node.all_input_nodes or _takes_device(node))


def _takes_device(node: fx.Node) -> bool:
    """Returns whether a node's operator makes its result on a device that its arguments name."""
    return isinstance(node.target, torch._ops.OpOverload) and any(
        argument.name == "device" for argument in node.target._schema.arguments
    )


def _reads_on(user: fx.Node, device: torch.device, constants: set[fx.Node]) -> bool:
    value = _value(user)
    return user in constants or (isinstance(value, Tensor) and value.device == device)


def _value(node: fx.Node) -> object:
    return node.meta.get("val")
