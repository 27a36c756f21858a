"""What each operator computes, in PyTorch's own functions: for tensors that no kernel serves, for gradients,
and for tests.

Each function takes the arguments of its operator's schema in `ucutlass.ops.table`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional

NO_ACTIVATION = "none"

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        NO_ACTIVATION: lambda x: x,
        "elu": functional.elu,
        "gelu": functional.gelu,
        "gelu_tanh": partial(functional.gelu, approximate="tanh"),
        "hardswish": functional.hardswish,
        "leaky_relu": functional.leaky_relu,
        "mish": functional.mish,
        "relu": functional.relu,
        "selu": functional.selu,
        "sigmoid": torch.sigmoid,
        "silu": functional.silu,
        "softplus": functional.softplus,
        "tanh": torch.tanh,
    }
)
"""PyTorch's function by the name that the language has for it."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    return ACTIVATIONS[activation](functional.linear(x, weight, bias))


def gated_mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, activation: str) -> Tensor:
    return functional.linear(linear(x, gate, None, activation) * functional.linear(x, up), down)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return functional.rms_norm(x, weight.shape, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm(total, weight, eps), total


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    return functional.layer_norm(x, weight.shape, weight, bias, eps)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    total = x + residual
    return layer_norm(total, weight, bias, eps), total


def cross_entropy(logits: Tensor, target: Tensor, ignore_index: int, reduction: str) -> Tensor:
    """Returns the loss in f32; in f64 for logits of f64."""
    rows = logits.reshape(-1, logits.shape[-1]).to(loss_dtype(logits.dtype))
    loss = functional.cross_entropy(rows, target.reshape(-1), ignore_index=ignore_index, reduction=reduction)
    return loss.reshape(target.shape) if reduction == "none" else loss


def loss_dtype(logits: torch.dtype) -> torch.dtype:
    """Returns the element type of the loss of logits."""
    return torch.promote_types(logits, torch.float32)


def attention(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=True)


def token_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Tensor:
    heads_q, heads_k, heads_v = (t.transpose(-3, -2) for t in (q, k, v))
    return attention(heads_q, heads_k, heads_v, causal, scale).transpose(-3, -2)


def expert_linear(x: Tensor, weight: Tensor, offsets: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    parts = [
        linear(x[begin:end], weight[e], None if bias is None else bias[e], activation)
        for e, (begin, end) in enumerate(_segments(offsets))
    ]
    return torch.cat(parts)


def expert_mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, offsets: Tensor, activation: str) -> Tensor:
    parts = [
        gated_mlp(x[begin:end], gate[e], up[e], down[e], activation)
        for e, (begin, end) in enumerate(_segments(offsets))
    ]
    return torch.cat(parts)


def _segments(offsets: Tensor) -> list[tuple[int, int]]:
    """Returns the first row and the end of each segment. Waits for the device."""
    bounds = offsets.tolist()
    return list(pairwise(bounds))
