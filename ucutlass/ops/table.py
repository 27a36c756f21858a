"""The operators: what torch knows of each, its PyTorch equivalent, and the program that serves it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import torch
from torch import Tensor

from ucutlass.ops import equivalents
from ucutlass.ops.equivalents import loss_dtype
from ucutlass.ops.programs import ELEMENTS, ProgramCall

Results: TypeAlias = "Tensor | tuple[Tensor, ...]"

EVERY_ARCH = ("sm80", "sm89", "sm90a")
HOPPER = ("sm90a",)
HALVES = (torch.bfloat16, torch.float16)
FLOATS = tuple(ELEMENTS)


@dataclass(frozen=True, slots=True)
class OpsEntry:
    """One operator `ucutlass::name`. The functions take the arguments of `schema`, all by position.

    `call` gives the program's call. All `results` have the shape that `shape` returns, and the dtype that
    `dtype` returns for the first argument's. `unserved` says why no kernel serves these shapes well, "" where
    one does; `elements` and `arches` are the dtypes and compile targets whose kernels use tensor cores where
    PyTorch's do.
    """

    schema: str
    equivalent: Callable[..., Results]
    call: Callable[..., ProgramCall]
    shape: Callable[..., tuple[int, ...]]
    elements: tuple[torch.dtype, ...] = FLOATS
    arches: tuple[str, ...] = EVERY_ARCH
    unserved: Callable[..., str] = lambda *_: ""
    results: int = 1
    dtype: Callable[[torch.dtype], torch.dtype] = lambda dtype: dtype

    def empty(self, first: Tensor, *others: object) -> Results:
        """Returns the results without data."""
        shape, dtype = self.shape(first, *others), self.dtype(first.dtype)
        every = tuple(first.new_empty(shape, dtype=dtype) for _ in range(self.results))
        return every if self.results > 1 else every[0]


def rows(tensor: Tensor) -> Tensor:
    """Returns a tensor as a dense matrix of its last axis."""
    return tensor.reshape(-1, tensor.shape[-1]).contiguous()


# --- calls of programs --------------------------------------------------------------


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> ProgramCall:
    operands = (rows(x), weight.contiguous())
    if bias is None:
        return ProgramCall("linear", "linear", operands, activation)
    return ProgramCall("linear", "linear_bias", (*operands, bias.contiguous()), activation)


def _gated_mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, activation: str) -> ProgramCall:
    weights = (t.contiguous() for t in (gate, up, down))
    return ProgramCall("gated_mlp", "gated_mlp", (rows(x), *weights), activation)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> ProgramCall:
    return ProgramCall("rms_norm", "rms_norm", (rows(x), weight.contiguous(), eps))


def _add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> ProgramCall:
    return ProgramCall("rms_norm", "add_rms_norm", (rows(x), rows(residual), weight.contiguous(), eps))


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> ProgramCall:
    if bias is None:
        return ProgramCall("layer_norm", "layer_norm", (rows(x), weight.contiguous(), eps))
    affine = (weight.contiguous(), bias.contiguous())
    return ProgramCall("layer_norm", "layer_norm_bias", (rows(x), *affine, eps))


def _add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, eps: float
) -> ProgramCall:
    operands = (rows(x), rows(residual), weight.contiguous())
    if bias is None:
        return ProgramCall("layer_norm", "add_layer_norm", (*operands, eps))
    return ProgramCall("layer_norm", "add_layer_norm_bias", (*operands, bias.contiguous(), eps))


_REDUCTIONS: Mapping[str, str] = MappingProxyType(
    {"none": "cross_entropy_rows", "sum": "cross_entropy_sum", "mean": "cross_entropy_mean"}
)
"""Programs of cross entropy by what becomes of the rows' losses."""


def _cross_entropy(logits: Tensor, target: Tensor, ignore_index: int, reduction: str) -> ProgramCall:
    operands = (rows(logits), target.reshape(-1).contiguous(), ignore_index)
    return ProgramCall("cross_entropy", _REDUCTIONS[reduction], operands)


def _attention(prefix: str) -> Callable[..., ProgramCall]:
    def call(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> ProgramCall:
        operands = (t.reshape(-1, *t.shape[-3:]).contiguous() for t in (q, k, v))
        return ProgramCall("attention", f"{'causal_' * causal}{prefix}attention", (*operands, scale))

    return call


def _expert_linear(
    x: Tensor, weight: Tensor, offsets: Tensor, bias: Tensor | None, activation: str
) -> ProgramCall:
    operands = (x.contiguous(), weight.contiguous())
    if bias is None:
        return ProgramCall("experts", "expert_linear", (*operands, offsets.contiguous()), activation)
    biased = (*operands, bias.contiguous(), offsets.contiguous())
    return ProgramCall("experts", "expert_linear_bias", biased, activation)


def _expert_mlp(
    x: Tensor, gate: Tensor, up: Tensor, down: Tensor, offsets: Tensor, activation: str
) -> ProgramCall:
    operands = (t.contiguous() for t in (x, gate, up, down, offsets))
    return ProgramCall("experts", "expert_mlp", tuple(operands), activation)


# --- shapes of results, and shapes that no kernel serves ------------------------------


def _width_of(x: Tensor, weight: Tensor, *_: object) -> tuple[int, ...]:
    return (*x.shape[:-1], weight.shape[-2])


def _width_of_last(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, *_: object) -> tuple[int, ...]:
    return _width_of(x, down)


def _shape_of(x: Tensor, *_: object) -> tuple[int, ...]:
    return tuple(x.shape)


def _loss_shape(logits: Tensor, target: Tensor, ignore_index: int, reduction: str) -> tuple[int, ...]:
    return tuple(target.shape) if reduction == "none" else ()


def _heads(q: Tensor, k: Tensor, v: Tensor, *_: object) -> str:
    if not q.shape[-1] == k.shape[-1] == v.shape[-1]:
        return "heads of queries, keys and values have different widths"
    if q.shape[-1] % 8 or q.shape[-1] > 256:
        return "heads are served with a multiple of 8 elements, at most 256"
    return ""


def _widths(*tensors: object) -> str:
    """Products of two weights, and of ragged rows, use tensor cores for rows of whole 16 bytes alone."""
    if any(t.shape[-1] % 8 for t in tensors if isinstance(t, Tensor) and t.is_floating_point()):
        return "widths are served in multiples of 8"
    return ""


TABLE: Mapping[str, OpsEntry] = MappingProxyType(
    {
        "linear": OpsEntry(
            "(Tensor x, Tensor weight, Tensor? bias, str activation) -> Tensor",
            equivalents.linear,
            _linear,
            _width_of,
        ),
        "gated_mlp": OpsEntry(
            "(Tensor x, Tensor gate, Tensor up, Tensor down, str activation) -> Tensor",
            equivalents.gated_mlp,
            _gated_mlp,
            _width_of_last,
            HALVES,
            HOPPER,
            _widths,
        ),
        "rms_norm": OpsEntry(
            "(Tensor x, Tensor weight, float eps) -> Tensor", equivalents.rms_norm, _rms_norm, _shape_of
        ),
        "add_rms_norm": OpsEntry(
            "(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)",
            equivalents.add_rms_norm,
            _add_rms_norm,
            _shape_of,
            results=2,
        ),
        "layer_norm": OpsEntry(
            "(Tensor x, Tensor weight, Tensor? bias, float eps) -> Tensor",
            equivalents.layer_norm,
            _layer_norm,
            _shape_of,
        ),
        "add_layer_norm": OpsEntry(
            "(Tensor x, Tensor residual, Tensor weight, Tensor? bias, float eps) -> (Tensor, Tensor)",
            equivalents.add_layer_norm,
            _add_layer_norm,
            _shape_of,
            results=2,
        ),
        "cross_entropy": OpsEntry(
            "(Tensor logits, Tensor target, int ignore_index, str reduction) -> Tensor",
            equivalents.cross_entropy,
            _cross_entropy,
            _loss_shape,
            dtype=loss_dtype,
        ),
        "attention": OpsEntry(
            "(Tensor q, Tensor k, Tensor v, bool causal, float scale) -> Tensor",
            equivalents.attention,
            _attention(""),
            _shape_of,
            HALVES,
            HOPPER,
            _heads,
        ),
        "token_attention": OpsEntry(
            "(Tensor q, Tensor k, Tensor v, bool causal, float scale) -> Tensor",
            equivalents.token_attention,
            _attention("token_"),
            _shape_of,
            HALVES,
            HOPPER,
            _heads,
        ),
        "expert_linear": OpsEntry(
            "(Tensor x, Tensor weight, Tensor offsets, Tensor? bias, str activation) -> Tensor",
            equivalents.expert_linear,
            _expert_linear,
            _width_of,
            HALVES,
            HOPPER,
            _widths,
        ),
        "expert_mlp": OpsEntry(
            "(Tensor x, Tensor gate, Tensor up, Tensor down, Tensor offsets, str activation) -> Tensor",
            equivalents.expert_mlp,
            _expert_mlp,
            _width_of_last,
            HALVES,
            HOPPER,
            _widths,
        ),
    }
)
"""By the name behind `ucutlass::`."""
