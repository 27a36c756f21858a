"""Calls of every operator, for its tests on the CPU and on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Draw = Callable[..., torch.Tensor]


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """An operator's name behind `ucutlass::`, and its arguments of values that `draw(*shape)` gives."""

    name: str
    arguments: Callable[[Draw], tuple[Any, ...]]


def offsets(*bounds: int, device: str = "cpu") -> torch.Tensor:
    return torch.tensor(bounds, dtype=torch.int32, device=device)


def classes(draw: Draw, *shape: int, below: int, ignored: int | None = None) -> torch.Tensor:
    """Class numbers, the first of them ignored where a number says so."""
    target = (draw(*shape).float() * 1e4).long().abs() % below
    if ignored is not None:
        target.view(-1)[0] = ignored
    return target


CALLS: Mapping[str, OperatorCall] = {
    "linear": OperatorCall("linear", lambda r: (r(2, 3, 16), r(8, 16), None, "none")),
    "linear of one odd row": OperatorCall("linear", lambda r: (r(7), r(5, 7), r(5), "gelu")),
    "linear of a transposed weight": OperatorCall("linear", lambda r: (r(4, 9), r(9, 6).t(), r(6), "relu")),
    "gated_mlp": OperatorCall("gated_mlp", lambda r: (r(2, 5, 16), r(24, 16), r(24, 16), r(16, 24), "silu")),
    "gated_mlp of odd widths": OperatorCall(
        "gated_mlp", lambda r: (r(1, 3), r(5, 3), r(5, 3), r(3, 5), "gelu_tanh")
    ),
    "rms_norm": OperatorCall("rms_norm", lambda r: (r(3, 4, 32), r(32), 1e-6)),
    "rms_norm of one odd row": OperatorCall("rms_norm", lambda r: (r(13), r(13), 1e-3)),
    "add_rms_norm": OperatorCall("add_rms_norm", lambda r: (r(2, 3, 17), r(2, 3, 17), r(17), 1e-6)),
    "layer_norm": OperatorCall("layer_norm", lambda r: (r(5, 24), r(24), None, 1e-5)),
    "layer_norm of one odd row": OperatorCall("layer_norm", lambda r: (r(1, 11), r(11), r(11), 1e-5)),
    "add_layer_norm": OperatorCall("add_layer_norm", lambda r: (r(2, 17), r(2, 17), r(17), None, 1e-5)),
    "add_layer_norm with bias": OperatorCall(
        "add_layer_norm", lambda r: (r(3, 2, 8), r(3, 2, 8), r(8), r(8), 1e-5)
    ),
    "cross_entropy": OperatorCall(
        "cross_entropy", lambda r: (r(6, 37), classes(r, 6, below=37, ignored=-100), -100, "mean")
    ),
    "cross_entropy of rows": OperatorCall(
        "cross_entropy", lambda r: (r(2, 3, 8), classes(r, 2, 3, below=8, ignored=3), 3, "none")
    ),
    "cross_entropy's sum of one row": OperatorCall(
        "cross_entropy", lambda r: (r(1, 5), classes(r, 1, below=5), -100, "sum")
    ),
    "attention": OperatorCall(
        "attention", lambda r: (r(2, 3, 9, 8), r(2, 3, 7, 8), r(2, 3, 7, 8), False, 0.3)
    ),
    "causal attention of grouped queries": OperatorCall(
        "attention", lambda r: (r(4, 5, 16), r(2, 5, 16), r(2, 5, 16), True, 0.25)
    ),
    "causal attention of one token": OperatorCall(
        "attention", lambda r: (r(1, 2, 1, 8), r(1, 1, 6, 8), r(1, 1, 6, 8), True, 0.5)
    ),
    "token_attention": OperatorCall(
        "token_attention", lambda r: (r(2, 9, 4, 8), r(2, 7, 2, 8), r(2, 7, 2, 8), False, 0.3)
    ),
    "causal token_attention": OperatorCall(
        "token_attention", lambda r: (r(2, 7, 3, 8), r(2, 7, 3, 8), r(2, 7, 3, 8), True, 0.3)
    ),
    "expert_linear": OperatorCall(
        "expert_linear", lambda r: (r(9, 16), r(3, 8, 16), offsets(0, 4, 4, 9), None, "none")
    ),
    "expert_linear with bias": OperatorCall(
        "expert_linear", lambda r: (r(5, 8), r(2, 16, 8), offsets(0, 1, 5), r(2, 16), "silu")
    ),
    "expert_mlp": OperatorCall(
        "expert_mlp", lambda r: (r(7, 8), r(2, 16, 8), r(2, 16, 8), r(2, 8, 16), offsets(0, 3, 7), "silu")
    ),
    "expert_mlp of one row": OperatorCall(
        "expert_mlp", lambda r: (r(1, 8), r(2, 8, 8), r(2, 8, 8), r(2, 8, 8), offsets(0, 0, 1), "gelu")
    ),
}
"""Rows of 1, odd widths, empty experts, ignored classes."""


def normal(dtype: torch.dtype, seed: int = 0) -> Draw:
    """Returns a source of normal values."""
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def converted(arguments: tuple[Any, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    """Returns arguments with the floating-point tensors in another dtype."""
    return tuple(
        a.to(dtype) if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in arguments
    )


def as_tuple(results: Any) -> tuple[torch.Tensor, ...]:
    return (results,) if isinstance(results, torch.Tensor) else tuple(results)
