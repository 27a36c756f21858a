"""What torch's switches let products and convolutions of f32 multiply in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ucutlass.importer.operators.builder import Multiplier

_SWITCHES: Mapping[Multiplier, Any] = {"matmul": torch.backends.cuda.matmul, "cudnn": torch.backends.cudnn}


def multiplied(values: Iterable[Any]) -> dict[Multiplier, str]:
    """Returns the compute type of those that need not multiply in f32, as eager PyTorch's do not: of tensors on a GPU,
    which the switches are of."""
    if not any(isinstance(value, torch.Tensor) and value.device.type == "cuda" for value in values):
        return {}
    return {multiplier: "tf32" for multiplier, switches in _SWITCHES.items() if _allows(switches)}


def _allows(switches: Any) -> bool:
    try:
        return bool(switches.allow_tf32)
    except RuntimeError:  # the newer switch has been set, and the older one is refused
        return bool(getattr(switches, "conv", switches).fp32_precision == "tf32")
