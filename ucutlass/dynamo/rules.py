"""What the operators of AOTAutograd's graphs become: the importer's rules, and those of operators that
torch.export leaves whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F

from ucutlass.dynamo import whole_attention
from ucutlass.dynamo.gradients import RULES as GRADIENT_RULES
from ucutlass.importer.export import more_decompositions
from ucutlass.importer.operators import RULES as EXPORT_RULES
from ucutlass.importer.operators.builder import Arguments, GraphBuilder, ValueRef
from ucutlass.importer.operators.pointwise import Rule
from ucutlass.importer.operators.reductions import (
    group_norm,
    layer_norm,
    reciprocal_deviation,
    statistics_element,
)

_ATTENTION = EXPORT_RULES["aten.scaled_dot_product_attention.default"]

_MASKS = {"attn_bias": "attn_mask"}
"""The arguments of a device's attention that the composite operator calls otherwise."""


def _attention(b: GraphBuilder, a: Arguments) -> tuple[ValueRef | None, ...]:
    """A device's own attention, of which the first result alone is given: the rest serves its gradient."""
    if a.get("return_debug_mask"):
        raise b.fail("the weights of attention are asked for")
    named = {_MASKS.get(name, name): value for name, value in a.named.items()}
    result = _ATTENTION(b, Arguments(named, a.results))
    assert isinstance(result, ValueRef)
    return (result, *(None for _ in a.results[1:]))


def _layer_norm(b: GraphBuilder, a: Arguments) -> tuple[ValueRef, ...]:
    """The norm, and for its gradient the means and the reciprocals of standard deviations."""
    y, mean, var = layer_norm(b, a, statistics_element(a))
    return y, mean, reciprocal_deviation(b, var, a["eps"])


def _group_norm(b: GraphBuilder, a: Arguments) -> tuple[ValueRef, ...]:
    """As the layer norm, with statistics of each example's groups."""
    named = {**a.named, "num_groups": a["group"]}
    y, mean, var = group_norm(b, Arguments(named, a.results), statistics_element(a))
    shape = b.shape(mean)[:2]
    return y, b.reshape(mean, shape), b.reshape(reciprocal_deviation(b, var, a["eps"]), shape)


DEVICE_ATTENTION = (
    "aten._scaled_dot_product_flash_attention.default",
    "aten._scaled_dot_product_efficient_attention.default",
    "aten._scaled_dot_product_cudnn_attention.default",
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
)

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **EXPORT_RULES,
        **GRADIENT_RULES,
        **dict.fromkeys(DEVICE_ATTENTION, _attention),
        whole_attention.OPERATOR: _ATTENTION,
        "aten.native_group_norm.default": _group_norm,
        "aten.native_layer_norm.default": _layer_norm,
    }
)
"""By the overload's name."""

TORCH_ONLY: Mapping[str, str] = MappingProxyType(
    {
        "aten.topk.default": "which of equal elements it takes is torch's to say",
        "aten.bernoulli.p": "random numbers, which torch draws",
        **{
            f"aten._scaled_dot_product_{name}.default": "attention's gradient has no kernel"
            for name in (
                "flash_attention_backward",
                "efficient_attention_backward",
                "cudnn_attention_backward",
                "flash_attention_for_cpu_backward",
            )
        },
    }
)
"""Why operators stay whole that no program computes, by the overload's name."""


def _dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Dropout as a mask, which torch draws, and a product, which a program computes."""
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    # Of x's shape and not of x: the mask waits for nothing, and x and the product stay in one program.
    if x.is_contiguous():
        places = torch.empty(x.shape, dtype=torch.bool, device=x.device)
    else:
        strides = torch.empty_like(x).stride()
        places = torch.empty_strided(x.shape, strides, dtype=torch.bool, device=x.device)
    mask = torch.ops.aten.bernoulli.p(places, 1.0 - p)
    return x * mask * (1.0 / (1.0 - p)), mask


_OF_KEYS = 1
"""The `mask_type` of an encoder layer's mask over each example's keys."""


def _encoder_layer(
    src: torch.Tensor,
    width: int,
    heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    first_weight: torch.Tensor,
    first_bias: torch.Tensor,
    second_weight: torch.Tensor,
    second_bias: torch.Tensor,
    up: torch.Tensor,
    up_bias: torch.Tensor,
    down: torch.Tensor,
    down_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """What `nn.TransformerEncoderLayer` calls in eval mode without gradients. It hides a key wherever the mask is not 0,
    and a row whose keys are all hidden is NaN. gelu is the layer's own, for which PyTorch's kernel takes that by tanh on
    a GPU."""

    def attention(x: torch.Tensor) -> torch.Tensor:
        qkv = F.linear(x, qkv_weight, qkv_bias)
        parts = qkv.view(*qkv.shape[:-1], 3, heads, width // heads).unbind(-3)
        q, k, v = (part.transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v) if mask is None else masked(q, k, v, mask)
        return F.linear(y.transpose(1, 2).flatten(-2), proj_weight, proj_bias)

    def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = mask.bool()[:, None, None] if mask_type == _OF_KEYS else mask.bool()
        scores: torch.Tensor = (q @ k.mT * (width // heads) ** -0.5).masked_fill(hidden, -torch.inf)
        return scores.softmax(-1) @ v

    def block(x: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, up, up_bias)
        return F.linear(F.gelu(y) if use_gelu else F.relu(y), down, down_bias)

    def first(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (width,), first_weight, first_bias, eps)

    def second(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (width,), second_weight, second_bias, eps)

    if norm_first:
        x = src + attention(first(src))
        return x + block(second(x))
    x = first(src + attention(src))
    return second(x + block(x))


def _unfold_backward(gradient: torch.Tensor, sizes: Sequence[int], dim: int, size: int, step: int) -> Any:
    """The windows' gradients folded back into the axis that they were taken of: PyTorch writes them at indices."""
    if not sizes:
        return NotImplemented
    dim %= len(sizes)
    columns = gradient.movedim(dim, -1)
    windows = columns.reshape(-1, *columns.shape[-2:])
    folded = F.fold(windows, (1, sizes[dim]), (1, size), stride=(1, step))
    return folded.reshape(*columns.shape[:-2], sizes[dim]).movedim(-1, dim)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Returns how AOTAutograd takes operators apart: as PyTorch does those that have neither a rule nor a place
    in TORCH_ONLY."""
    whole = RULES.keys() | TORCH_ONLY.keys()
    every: Mapping[Any, Any] = {**torch._decomp.core_aten_decompositions(), **more_decompositions()}
    table = {op: function for op, function in every.items() if str(op) not in whole}
    return table | {
        torch.ops.aten.native_dropout.default: _dropout,
        torch.ops.aten.unfold_backward.default: _unfold_backward,
        torch.ops.aten._transformer_encoder_layer_fwd.default: _encoder_layer,
    }
