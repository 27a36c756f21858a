"""What a training step keeps for its gradient, and what the gradient computes again."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.utils.checkpoint import CheckpointPolicy

_EQUALITIES = (torch.ops.aten.eq.Tensor, torch.ops.aten.ne.Tensor)


def partitioned(joint: fx.GraphModule, inputs: Any, **sizes: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Parts a joint graph in forward and backward with the fewest bytes between them: element-wise work is
    computed again, where a program does it while it reads.

    Random numbers are kept, also within `torch.utils.checkpoint`: a mask has a byte an element, and to draw it
    again would need the generator's state, which no program reads. What is compared for equality, as a maximum
    with the elements it is one of, is kept too: another kernel may round it otherwise.
    """
    for node in joint.graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        elif node.target in _EQUALITIES:
            for source in node.all_input_nodes:
                source.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return min_cut_rematerialization_partition(joint, inputs, **sizes)
