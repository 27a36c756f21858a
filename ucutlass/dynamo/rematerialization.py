"""What a training step keeps for its gradient, and what the gradient computes again."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import fx
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.utils.checkpoint import CheckpointPolicy

from ucutlass.dynamo.partition import VIEWS

Partition: TypeAlias = Callable[..., tuple[fx.GraphModule, fx.GraphModule]]
"""Parts a joint graph in forward and backward, as AOTAutograd calls it."""

_EQUALITIES = (torch.ops.aten.eq.Tensor, torch.ops.aten.ne.Tensor)

_IN_PLACE = (
    operator.setitem,
    operator.iadd,
    operator.isub,
    operator.imul,
    operator.itruediv,
    operator.ifloordiv,
    operator.imod,
    operator.iand,
    operator.ior,
    operator.ixor,
)


def partition_of(graph: fx.GraphModule) -> Partition:
    """Returns how the joint graph of a graph of TorchDynamo is parted."""
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    fixed = [bool(re.search(r"(^|_)parameters_", node.name)) for node in inputs]
    return partial(_parted, fixed if any(map(_may_change, graph.graph.nodes)) else [True] * len(inputs))


def _parted(
    fixed: list[bool], joint: fx.GraphModule, inputs: Any, **sizes: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Parts a joint graph with the fewest bytes between forward and backward: element-wise work is computed
    again, where a program does it while it reads.

    Random numbers are saved, also within `torch.utils.checkpoint`: a mask has a byte an element, and to draw it
    again would need the generator's state, which no program reads. What is compared for equality, as a maximum
    with the elements it is one of, is saved too: another kernel may round it otherwise. So is what is computed of
    an input that is not `fixed`, since backward may find it changed.
    """
    nodes = list(joint.graph.nodes)
    own = [n for n in nodes if n.op == "placeholder" and "tangents" not in str(n.target)]
    same = fixed if len(fixed) == len(own) else [all(fixed)] * len(own)
    saved = [
        reader
        for node, unchanged in zip(own, same, strict=True)
        if not unchanged
        for reader in _readers(node)
    ]
    for node in nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            saved.append(node)
        elif node.target in _EQUALITIES:
            saved += node.all_input_nodes
    for node in saved:
        node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return min_cut_rematerialization_partition(joint, inputs, **sizes)


def _readers(node: fx.Node) -> list[fx.Node]:
    """Returns what computes with a tensor or with views of it."""
    return [
        reader
        for user in node.users
        if user.op == "call_function"
        for reader in (_readers(user) if str(user.target) in VIEWS else [user])
    ]


def _may_change(node: fx.Node) -> bool:
    """Returns whether a node of TorchDynamo's graph may change a tensor that it reads."""
    target = node.target
    match node.op:
        case "call_method":
            return str(target).endswith("_") and not str(target).endswith("__")
        case "call_module":
            return True
        case "call_function" if isinstance(target, torch._ops.OpOverload):
            return bool(target._schema.is_mutable)
        case "call_function" if isinstance(
            target, torch._ops.OpOverloadPacket | torch._ops.HigherOrderOperator
        ):
            return True
        case "call_function":
            name = getattr(target, "__name__", "")
            flags = (*node.args, *node.kwargs.values())
            return (
                name.endswith("_")
                or target in _IN_PLACE
                or "out" in node.kwargs
                or any(flag is True for flag in flags)
            )
        case _:
            return False
