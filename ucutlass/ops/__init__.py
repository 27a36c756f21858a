"""Ready kernels for PyTorch: `from ucutlass import ops; y = ops.linear(x, w, bias, activation="gelu")`.

docs/ops.md lists the functions, their PyTorch equivalents and their programs.
"""

from __future__ import annotations

from ucutlass.ops.functions import (
    add_layer_norm,
    add_rms_norm,
    attention,
    cross_entropy,
    expert_linear,
    expert_mlp,
    gated_mlp,
    layer_norm,
    linear,
    rms_norm,
)
from ucutlass.ops.modules import CrossEntropyLoss, ExpertMLP, GatedMLP, LayerNorm, Linear, RMSNorm
from ucutlass.ops.programs import text
from ucutlass.ops.registry import UnservedWarning

__all__ = [
    "CrossEntropyLoss",
    "ExpertMLP",
    "GatedMLP",
    "LayerNorm",
    "Linear",
    "RMSNorm",
    "UnservedWarning",
    "add_layer_norm",
    "add_rms_norm",
    "attention",
    "cross_entropy",
    "expert_linear",
    "expert_mlp",
    "gated_mlp",
    "layer_norm",
    "linear",
    "rms_norm",
    "text",
]
