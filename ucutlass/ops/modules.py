"""The operators as modules whose parameters have the names and shapes of PyTorch's own, so that a state dict
fits both."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ucutlass.ops import functions
from ucutlass.ops.programs import check_activation


class Linear(nn.Linear):
    """`torch.nn.Linear` and the activation of its result."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        activation: str = "none",
        **options: Any,
    ) -> None:
        """`options` are the device and dtype of `torch.nn.Linear`. Raises ValueError for an unknown activation."""
        check_activation(activation)
        super().__init__(in_features, out_features, bias, **options)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return functions.linear(x, self.weight, self.bias, activation=self.activation)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation}"


class GatedMLP(nn.Module):
    """`down_proj(activation(gate_proj(x)) * up_proj(x))`, as Llama (silu) and Gemma (gelu_tanh) name it."""

    def __init__(self, width: int, hidden: int, *, activation: str = "silu", **options: Any) -> None:
        """`options` are the device and dtype of `torch.nn.Linear`. Raises ValueError for an unknown activation."""
        super().__init__()
        check_activation(activation)
        self.gate_proj = nn.Linear(width, hidden, bias=False, **options)
        self.up_proj = nn.Linear(width, hidden, bias=False, **options)
        self.down_proj = nn.Linear(hidden, width, bias=False, **options)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        weights = (self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight)
        return functions.gated_mlp(x, *weights, activation=self.activation)

    def extra_repr(self) -> str:
        return f"activation={self.activation}"


class RMSNorm(nn.RMSNorm):
    """`torch.nn.RMSNorm` over the last axis. With a residual, the result is the norm of the sum, and the sum."""

    def __init__(self, width: int, eps: float | None = None, **options: Any) -> None:
        """`options` are the device and dtype of `torch.nn.RMSNorm`."""
        super().__init__(width, eps, **options)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        if residual is None:
            return functions.rms_norm(x, self.weight, eps=self.eps)
        return functions.add_rms_norm(x, residual, self.weight, eps=self.eps)


class LayerNorm(nn.LayerNorm):
    """`torch.nn.LayerNorm` over the last axis. With a residual, the result is the norm of the sum, and the
    sum."""

    def __init__(self, width: int, eps: float = 1e-5, *, bias: bool = True, **options: Any) -> None:
        """`options` are the device and dtype of `torch.nn.LayerNorm`."""
        super().__init__(width, eps, bias=bias, **options)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        if residual is None:
            return functions.layer_norm(x, self.weight, self.bias, eps=self.eps)
        return functions.add_layer_norm(x, residual, self.weight, self.bias, eps=self.eps)


class CrossEntropyLoss(nn.Module):
    """`torch.nn.CrossEntropyLoss` of logits whose classes are the last axis, in f32."""

    def __init__(
        self, *, ignore_index: int = -100, reduction: Literal["none", "mean", "sum"] = "mean"
    ) -> None:
        super().__init__()
        self.ignore_index, self.reduction = ignore_index, reduction

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        return functions.cross_entropy(
            logits, target, ignore_index=self.ignore_index, reduction=self.reduction
        )

    def extra_repr(self) -> str:
        return f"ignore_index={self.ignore_index}, reduction={self.reduction}"


class ExpertMLP(nn.Module):
    """A gated MLP for each expert, over rows that are sorted by expert: `forward(x, offsets)`."""

    def __init__(
        self, experts: int, width: int, hidden: int, *, activation: str = "silu", **options: Any
    ) -> None:
        """`options` are a device and a dtype. Raises ValueError for an unknown activation."""
        super().__init__()
        check_activation(activation)
        self.gate = nn.Parameter(torch.empty(experts, hidden, width, **options))
        self.up = nn.Parameter(torch.empty(experts, hidden, width, **options))
        self.down = nn.Parameter(torch.empty(experts, width, hidden, **options))
        self.activation = activation
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws each expert's weights as `torch.nn.Linear` draws its own."""
        for weight in (self.gate, self.up, self.down):
            bound = 1 / math.sqrt(weight.shape[-1])
            nn.init.uniform_(weight, -bound, bound)

    def forward(self, x: Tensor, offsets: Tensor) -> Tensor:
        return functions.expert_mlp(x, self.gate, self.up, self.down, offsets, activation=self.activation)

    def extra_repr(self) -> str:
        experts, hidden, width = self.gate.shape
        return f"experts={experts}, width={width}, hidden={hidden}, activation={self.activation}"
