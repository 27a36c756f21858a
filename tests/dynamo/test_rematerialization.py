"""What training keeps between forward and backward: few bytes, and all that must be the same in both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch._functorch.partitioners import default_partition
from torch.utils.checkpoint import checkpoint

from tests.dynamo.test_backend import HOOKS, compiled
from tests.dynamo.training_step import outside, training_difference
from ucutlass.dynamo.rematerialization import Partition, partition_of


class Gated(nn.Module):
    """A gated layer with a norm and dropout."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.gate, self.up, self.down = (nn.Linear(*n) for n in ((width, 96), (width, 96), (96, width)))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + F.dropout(self.down(F.silu(self.gate(y)) * self.up(y)), 0.2)


class Checkpointed(Gated):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(super().forward, x * 2, use_reentrant=False)
        return result


class Extremum(nn.Module):
    """The elements that are the least are found again by comparing."""

    def forward(self, x: Tensor) -> Tensor:
        return F.celu(x, 1.5).amin(1, keepdim=True) * torch.tanh(x)


def kept_bytes(
    model: nn.Module, x: Tensor, partition: Callable[[fx.GraphModule], Partition] = partition_of
) -> int:
    """Returns the bytes that forward computes for backward alone."""
    numbers: list[int] = []

    def counting(graph: fx.GraphModule) -> Partition:
        own = partition(graph)

        def counted(joint: fx.GraphModule, inputs: Any, **sizes: Any) -> Any:
            forward, backward = own(joint, inputs, **sizes)
            results = forward.graph.output_node().args[0][sizes["num_fwd_outputs"] :]
            tensors = [node.meta["val"] for node in results if node.op != "placeholder"]
            numbers.append(sum(t.numel() * t.element_size() for t in tensors))
            return forward, backward

        return counted

    fast, _ = compiled(model, replace(HOOKS, partition=counting))
    fast(x).sum().backward()
    return numbers[0]


def test_element_wise_work_is_computed_again_rather_than_kept() -> None:
    x = torch.randn(4, 8, 32)
    ours = kept_bytes(Gated(), x)
    assert ours < 0.8 * kept_bytes(Gated(), x, lambda _: default_partition)
    # What must be read again: two products, the gated one, the norm with its scale, and the mask.
    products = 4 * 8 * 96 * 4 * 3
    assert ours <= products + 4 * 8 * 32 * 4 + 4 * 8 * 4 + 4 * 8 * 32


@pytest.mark.parametrize("module", [Gated, pytest.param(Checkpointed, marks=pytest.mark.slow), Extremum])
def test_gradients_are_right(module: type[nn.Module]) -> None:
    torch.manual_seed(2)
    report, words = training_difference(module(), torch.randn(4, 8, 32))
    assert not words
    assert {o.operator for o in outside(report)} <= {"aten.empty.memory_format", "aten.bernoulli.p"}


def test_what_is_compared_for_equality_is_kept() -> None:
    x = torch.randn(4, 8, 32)
    assert kept_bytes(Extremum(), x.requires_grad_()) >= x.numel() * x.element_size()


class Averaged(nn.Module):
    """A buffer that is read and then changed, with a gradient."""

    average: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.ones(4, 8))

    def forward(self, x: Tensor) -> Tensor:
        y = ((x + self.average).abs() + 0.1).pow(1.5)
        self.average.mul_(0.75).add_(x, alpha=0.25)
        return y


def test_an_input_that_changes_afterwards_is_not_read_by_the_gradient() -> None:
    _, words = training_difference(Averaged(), torch.randn(4, 8))
    assert not words

    def model(x: Tensor, w: Tensor, how: str) -> Tensor:
        y = w * torch.exp(x)
        if how == "method":
            x.add_(1)
        elif how == "operator":
            x += 1
        elif how == "item":
            x[0] = 5.0
        elif how == "function":
            F.relu(x, True)
        else:
            torch.add(x, 1, out=x)
        return y

    for how in ("method", "operator", "item", "function", "out"):
        gradients = []
        for form in (compiled(model)[0], model):
            x, w = torch.arange(-2.0, 2.0), torch.ones(4, requires_grad=True)
            form(x, w, how).sum().backward()
            gradients.append((w.grad, x))
        torch.testing.assert_close(gradients[0], gradients[1])
