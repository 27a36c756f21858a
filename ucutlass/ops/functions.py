"""The operators as functions. Each equals the PyTorch code in its docstring but for roundings in between.

Tensors have one of f32, bf16 and f16; strides are free, and what is not dense is copied. Leading axes are free.
For other tensors PyTorch's own functions run, and an UnservedWarning says so once. Gradients are those of the
PyTorch code, which is computed again for them. Under autocast, arguments are cast as PyTorch casts those of the
equivalent. Functions raise ValueError for words that they do not know and for shapes that do not agree, and what
a call of a program raises (`ucutlass.api.LoadedProgram`).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ucutlass.ops.programs import check_activation
from ucutlass.ops.registry import OPERATORS


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, activation: str = "none") -> Tensor:
    """Returns `activation(F.linear(x, weight, bias))`: x [.., K], weight [N, K], bias [N]."""
    check_activation(activation)
    x, weight, bias = _autocast(x, weight, bias)
    result: Tensor = OPERATORS["linear"](x, weight, bias, activation)
    return result


def gated_mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, *, activation: str = "silu") -> Tensor:
    """Returns `F.linear(activation(F.linear(x, gate)) * F.linear(x, up), down)`: x [.., D], gate and up
    [F, D], down [D, F]. With `silu` it is SwiGLU, with `gelu` GeGLU."""
    check_activation(activation)
    x, gate, up, down = _autocast(x, gate, up, down)
    result: Tensor = OPERATORS["gated_mlp"](x, gate, up, down, activation)
    return result


def rms_norm(x: Tensor, weight: Tensor, *, eps: float | None = None) -> Tensor:
    """Returns `F.rms_norm(x, weight.shape, weight, eps)`: x [.., D], weight [D]."""
    x, weight = _autocast(x, weight, to=torch.float32)
    result: Tensor = OPERATORS["rms_norm"](x, weight, _eps(x, eps))
    return result


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, *, eps: float | None = None
) -> tuple[Tensor, Tensor]:
    """Returns `F.rms_norm(total, weight.shape, weight, eps), total` with `total = x + residual`."""
    _same_shape("x", x.shape, "residual", residual.shape)
    x, residual, weight = _autocast(x, residual, weight, to=torch.float32)
    result: tuple[Tensor, Tensor] = OPERATORS["add_rms_norm"](x, residual, weight, _eps(x, eps))
    return result


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, eps: float = 1e-5) -> Tensor:
    """Returns `F.layer_norm(x, weight.shape, weight, bias, eps)`: x [.., D], weight and bias [D]."""
    x, weight, bias = _autocast(x, weight, bias, to=torch.float32)
    result: Tensor = OPERATORS["layer_norm"](x, weight, bias, eps)
    return result


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None = None, *, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """Returns `F.layer_norm(total, weight.shape, weight, bias, eps), total` with `total = x + residual`."""
    _same_shape("x", x.shape, "residual", residual.shape)
    x, residual, weight, bias = _autocast(x, residual, weight, bias, to=torch.float32)
    result: tuple[Tensor, Tensor] = OPERATORS["add_layer_norm"](x, residual, weight, bias, eps)
    return result


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int = -100,
    reduction: Literal["none", "mean", "sum"] = "mean",
) -> Tensor:
    """Returns `F.cross_entropy(logits.flatten(0, -2).float(), target.flatten(), ignore_index=ignore_index,
    reduction=reduction)`, for `none` in the shape of target: logits [.., V], target [..] of class numbers.

    On a GPU a class number beyond the logits is read as it is: it must be in range or `ignore_index`.
    """
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"there is no reduction {reduction!r}; there are none, mean, sum")
    _same_shape("the rows of logits", logits.shape[:-1], "target", target.shape)
    result: Tensor = OPERATORS["cross_entropy"](logits, target.to(torch.int64), ignore_index, reduction)
    return result


def attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, scale: float | None = None) -> Tensor:
    """Returns `F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=True)`:
    q [.., heads, L, D], k and v [.., heads / group, S, D].

    Tensors whose tokens lie outside of their heads in memory, as the transpose of a projection's result, are
    read as they lie, and so is the result.
    """
    _same_shape("the batch of q", q.shape[:-3], "the batch of k", k.shape[:-3])
    _same_shape("the batch of k", k.shape[:-3], "the batch of v", v.shape[:-3])
    q, k, v = _autocast(q, k, v)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    result: Tensor
    by_tokens = [t.transpose(-3, -2) for t in (q, k, v)]
    # Of one token q is dense either way, and the keys decide.
    if all(t.is_contiguous() for t in by_tokens) and not all(t.is_contiguous() for t in (q, k, v)):
        result = OPERATORS["token_attention"](*by_tokens, causal, scale).transpose(-3, -2)
    else:
        result = OPERATORS["attention"](q, k, v, causal, scale)
    return result


def expert_linear(
    x: Tensor, weight: Tensor, offsets: Tensor, bias: Tensor | None = None, *, activation: str = "none"
) -> Tensor:
    """Returns, for every expert e, `activation(F.linear(x[offsets[e]:offsets[e+1]], weight[e], bias[e]))`,
    concatenated: x [T, D], sorted by expert, weight [E, F, D], bias [E, F], offsets [E + 1] of row numbers
    that begin with 0, do not decrease, and end with T."""
    check_activation(activation)
    _matrix(x)
    x, weight, bias = _autocast(x, weight, bias)
    result: Tensor = OPERATORS["expert_linear"](x, weight, offsets.to(torch.int32), bias, activation)
    return result


def expert_mlp(
    x: Tensor, gate: Tensor, up: Tensor, down: Tensor, offsets: Tensor, *, activation: str = "silu"
) -> Tensor:
    """Returns, for every expert e, `gated_mlp(x[offsets[e]:offsets[e+1]], gate[e], up[e], down[e])`,
    concatenated: x [T, D], gate and up [E, F, D], down [E, D, F], offsets as those of `expert_linear`."""
    check_activation(activation)
    _matrix(x)
    x, gate, up, down = _autocast(x, gate, up, down)
    result: Tensor = OPERATORS["expert_mlp"](x, gate, up, down, offsets.to(torch.int32), activation)
    return result


def _same_shape(name: str, shape: tuple[int, ...], other_name: str, other: tuple[int, ...]) -> None:
    """Raises ValueError for shapes that differ: nothing is broadcast."""
    if shape != other:
        raise ValueError(
            f"{name} has the shape {list(shape)} and {other_name} {list(other)}; they must agree"
        )


def _matrix(x: Tensor) -> None:
    if x.dim() != 2:
        raise ValueError(f"x has the shape {list(x.shape)}; rows sorted by expert are a matrix")


_AUTOCAST_DEVICES = ("cpu", "cuda", "mps", "xpu")
"""Device types that have autocast. torch.amp.is_autocast_available knows them too, but TorchDynamo of torch 2.11
cannot trace it."""


def _autocast(*tensors: Tensor | None, to: torch.dtype | None = None) -> tuple[Tensor, ...]:
    """Returns the tensors, under autocast converted to its dtype, or to `to`."""
    first = tensors[0]
    assert first is not None
    device = first.device.type
    if device not in _AUTOCAST_DEVICES or not torch.is_autocast_enabled(device):
        return tensors  # type: ignore[return-value]
    dtype = torch.get_autocast_dtype(device) if to is None else to
    return tuple(t if t is None else t.to(dtype) for t in tensors)  # type: ignore[misc]


def _eps(x: Tensor, eps: float | None) -> float:
    return torch.finfo(x.dtype).eps if eps is None else eps
