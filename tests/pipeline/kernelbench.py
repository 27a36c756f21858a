"""Twenty chains of KernelBench's level 2 and five blocks of its level 3: each a pipeline in
`tests/pipeline/programs/`, and the same in eager torch.

The programs are written in bf16; `in_compute_type` gives the same text in another compute type. Shapes are KernelBench's;
images lie channels last, for both sides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ucutlass import frontend, ir
from ucutlass.ir import TensorType
from ucutlass.reference.binding import shape_of
from ucutlass.reference.rounding import outer_dtype
from ucutlass.shapes import complete

PROGRAMS = Path(__file__).parent / "programs"
COMPUTE_TYPES = ("bf16", "f16", "tf32", "f32")

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Case:
    """`sizes` are KernelBench's, `small` ones for the interpreter; `twin` takes the parameters in order."""

    name: str
    sizes: Sizes
    small: Sizes
    twin: Callable[..., Tensor]

    @property
    def text(self) -> str:
        return (PROGRAMS / f"{self.name}.ucu").read_text(encoding="utf-8")


# --- compute types -------------------------------------------------------------------------


def in_compute_type(text: str, compute_type: str) -> str:
    """A program written in bf16, in another compute type; `tf32` keeps f32 in memory and rounds dots' operands.
    No attention kernel multiplies in either of f32's compute types, so there scores and weights are stored."""
    if compute_type not in ("tf32", "f32"):
        return text.replace("bf16", compute_type)
    for before, cut in _ATTENTION_CUTS:
        text = text.replace(before, cut)
    text = text.replace("bf16", "f32")
    if compute_type == "f32":
        return text
    text_, at = "", 0
    while (start := text.find("dot[", at)) >= 0:
        opening = text.index("(", text.index("]", start))
        comma, closing = _operands(text, opening)
        text_ += text[at : opening + 1]
        text_ += f"tf32({text[opening + 1 : comma]}), tf32({text[comma + 1 : closing].strip()})"
        at = closing
    return text_ + text[at:]


_ATTENTION_CUTS = (
    ("  s = where(", "  s: bf16[B, H, T, S] = where("),
    (
        "  y: bf16[B, T, (H D)] = dot[S](bf16(softmax[S](s)), v)",
        "  p: bf16[B, H, T, S] = softmax[S](s)\n  y: bf16[B, T, (H D)] = dot[S](p, v)",
    ),
)


def _operands(text: str, opening: int) -> tuple[int, int]:
    """Where the comma between a dot's two operands stands, and the bracket that closes it."""
    depth, comma = 0, -1
    for i in range(opening, len(text)):
        depth += (text[i] in "([") - (text[i] in ")]")
        if text[i] == "," and depth == 1 and comma < 0:
            comma = i
        if depth == 0:
            return comma, i
    raise ValueError("a dot is not closed")


def checked(case: Case, compute_type: str) -> tuple[frontend.Checked, ir.Pipeline]:
    text = frontend.read_text(in_compute_type(case.text, compute_type), f"{case.name}.{compute_type}.ucu")
    program = frontend.program(text)
    assert isinstance(program, ir.Pipeline)
    return text, program


def arguments(program: ir.Pipeline, sizes: Sizes, device: str, seed: int = 0) -> list[Any]:
    """Normal numbers; matrices are scaled so that what they make is about normal too, as layers' are."""
    full = dict(zip(program.dims, complete(program, sizes), strict=True))
    random = torch.Generator(device).manual_seed(seed)
    tensors = []
    for number, decl in enumerate(program.params):
        assert isinstance(decl.type, TensorType)
        shape = shape_of(decl.type, full)
        tensor = torch.randn(shape, generator=random, device=device)
        if number and len(shape) > 1 and decl.name != "y":
            tensor /= math.sqrt(math.prod(shape[1:]))
        elif len(shape) == 1:
            tensor = 1 + 0.1 * tensor if decl.name.startswith("g") else 0.1 * tensor
        tensors.append(tensor.to(outer_dtype(decl.type.elem)))
    return tensors


# --- the same in torch -----------------------------------------------------------------


def _norm(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    return (x - x.mean(dims, keepdim=True)) * torch.rsqrt(x.var(dims, unbiased=False, keepdim=True) + 1e-5)


def _groups(x: Tensor, groups: int, gain: Tensor, shift: Tensor) -> Tensor:
    return F.group_norm(x, groups, gain, shift)


def _batch_norm(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, gain, shift, training=True)


def _12(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.leaky_relu(F.linear(x, w, b) * 2, 0.1)


def _14(x: Tensor, w: Tensor) -> Tensor:
    return (torch.matmul(x, w.t()) / 2).sum(dim=1, keepdim=True) * 1.5


def _22(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    s = F.linear(x, w, b) * 2
    t = torch.logsumexp(torch.clamp(s + s, -10, 10), dim=1, keepdim=True)
    return t * F.mish(t)


def _28(x: Tensor, y: Tensor, w: Tensor, b: Tensor) -> Tensor:
    h = F.linear(x, w, b)
    return (F.instance_norm(h[:, None, None, :])[:, 0, 0, :] + y) * y


def _30(x: Tensor, w: Tensor, b: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    return F.hardtanh(_groups(F.linear(x, w, b), 16, gain, shift), -2.0, 2.0)


def _33(x: Tensor, w: Tensor, b: Tensor, scale: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    return _batch_norm(F.linear(x, w, b) * scale, gain, shift)


def _37(x: Tensor, w: Tensor, b: Tensor, bias: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    return _groups(F.silu(F.linear(x, w, b)) + bias, 64, gain, shift)


def _40(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    y = F.linear(x, w, b)
    return y * 0.5 + y


def _41(x: Tensor, w: Tensor, b: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    return F.relu(F.gelu(_batch_norm(F.linear(x, w, b), gain, shift)))


def _45(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    return torch.logsumexp(F.linear(torch.sigmoid(F.linear(x, w1, b1)), w2, b2), dim=1)


def _62(x: Tensor, w: Tensor, b: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    y = F.leaky_relu(_groups(F.linear(x, w, b), 512, gain, shift), 0.01)
    return y + y


def _64(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    t = torch.logsumexp(F.linear(x, w, b), dim=1, keepdim=True)
    return F.gelu(F.gelu(F.leaky_relu(F.leaky_relu(t, 0.01), 0.01)))


def _84(x: Tensor, w: Tensor, b: Tensor, gain: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return torch.softmax(scale * _batch_norm(F.linear(x, w, b), gain, shift), dim=1)


def _88(x: Tensor, w: Tensor, b: Tensor, gain: Tensor, shift: Tensor, weight: Tensor) -> Tensor:
    return F.silu(F.silu(_groups(F.linear(x, w, b), 256, gain, shift)) * weight)


def _98(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    pooled = F.avg_pool1d(F.linear(x, w, b)[:, None, :], 16)[:, 0, :]
    return (F.gelu(pooled) * 2).max(dim=1).values


def _99(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return torch.softmax(F.gelu(F.linear(x, w, b)), dim=1)


def _first(x: Tensor) -> Tensor:
    """Channels last to channels first, as torch sees the same memory."""
    return x.permute(0, 3, 1, 2)


def _last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


def _17(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return _last(F.instance_norm(F.conv2d(_first(x), _first(w), b)) / 2)


def _46(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return _last(F.avg_pool2d(torch.tanh(F.conv2d(_first(x), _first(w), b) - 0.5) - 0.2, 2))


def _85(x: Tensor, w: Tensor, b: Tensor, gain: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    n = _groups(F.conv2d(_first(x), _first(w), b), 16, gain, shift) * scale[:, None, None]
    return _last(torch.clamp(F.max_pool2d(n, 4), 0.0, 1.0))


def _91(x: Tensor, w: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    h = F.conv_transpose2d(_first(x), _first(w), b, stride=2, padding=1, output_padding=1)
    return _last(torch.sigmoid((torch.softmax(h, dim=1) + bias[:, None, None]) * 2))


def _mlp(x: Tensor, *layers: Tensor) -> Tensor:
    for at in range(0, len(layers) - 2, 2):
        x = F.relu(F.linear(x, layers[at], layers[at + 1]))
    return F.linear(x, layers[-2], layers[-1])


def _heads(x: Tensor, w: Tensor, b: Tensor, heads: int) -> Tensor:
    y = F.linear(x, w, b)
    return y.view(y.shape[0], y.shape[1], heads, -1).transpose(1, 2)


def _43(x: Tensor, *p: Tensor) -> Tensor:
    q, k, v = (_heads(x, p[2 * i], p[2 * i + 1], 8) for i in range(3))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.linear(y.transpose(1, 2).reshape(x.shape[0], x.shape[1], -1), p[6], p[7])


def _44(x: Tensor, g1: Tensor, s1: Tensor, *p: Tensor) -> Tensor:
    g2, s2, up, up_b, down, down_b = p[8:]
    r = _43(F.layer_norm(x, x.shape[-1:], g1, s1), *p[:8]) + x
    f = F.gelu(F.linear(F.layer_norm(r, r.shape[-1:], g2, s2), up, up_b), approximate="tanh")
    return F.linear(f, down, down_b) + r


def _50(x: Tensor, *p: Tensor) -> Tensor:
    q, k, v = (_heads(x, p[2 * i], p[2 * i + 1], 12) for i in range(3))
    tokens = x.shape[1]
    mask = torch.ones(tokens, tokens, device=x.device, dtype=torch.bool).tril()
    s = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(q.shape[-1]))
    y = F.relu(s.masked_fill(~mask, float("-inf"))) @ v
    return y.transpose(1, 2).reshape(x.shape[0], tokens, -1)


# --- the table -------------------------------------------------------------------------

_GEMM = {"M": 1024, "N": 8192, "K": 8192}
_LITTLE = {"M": 6, "N": 10, "K": 12}
_SMALL_BLOCK = {"B": 2, "T": 5, "C": 6, "D": 4}


def _gemm(name: str, twin: Callable[..., Tensor], **other: int) -> Case:
    return Case(name, {**_GEMM, **other}, _LITTLE, twin)


def _grouped(name: str, twin: Callable[..., Tensor], rows: int, c: int, k: int) -> Case:
    return Case(name, {"M": rows, "C": c, "K": k}, {"M": 3, "C": 3, "K": 5}, twin)


CASES: tuple[Case, ...] = (
    _gemm("l2_12_gemm_multiply_leaky_relu", _12),
    _gemm("l2_14_gemm_divide_sum_scaling", _14),
    _gemm("l2_22_matmul_scale_residual_clamp_logsumexp_mish", _22),
    _gemm("l2_28_bmm_instance_norm_sum_residual_multiply", _28),
    _grouped("l2_30_gemm_group_norm_hardtanh", _30, 1024, 512, 8192),
    _gemm("l2_33_gemm_scale_batch_norm", _33),
    _grouped("l2_37_matmul_swish_sum_group_norm", _37, 32768, 64, 1024),
    _gemm("l2_40_matmul_scaling_residual", _40, M=16384, N=4096, K=4096),
    _gemm("l2_41_gemm_batch_norm_gelu_relu", _41, M=16384, N=4096, K=4096),
    Case(
        "l2_45_gemm_sigmoid_logsumexp",
        {"M": 16384, "K": 2048, "F": 4096, "N": 1024},
        {"M": 6, "K": 5, "F": 7, "N": 9},
        _45,
    ),
    _grouped("l2_62_matmul_group_norm_leaky_relu_sum", _62, 1024, 16, 8192),
    _gemm("l2_64_gemm_logsumexp_activations", _64),
    _gemm("l2_84_gemm_batch_norm_scaling_softmax", _84),
    _grouped("l2_88_gemm_group_norm_swish_multiply_swish", _88, 1024, 32, 8192),
    Case(
        "l2_98_matmul_avg_pool_gelu_scale_max",
        {"M": 1024, "P": 512, "K": 8192},
        {"M": 6, "P": 3, "K": 5},
        _98,
    ),
    _gemm("l2_99_matmul_gelu_softmax", _99),
    Case(
        "l2_17_conv_instance_norm_divide",
        {"B": 128, "H": 128, "W": 128, "C": 64, "K": 128},
        {"B": 2, "H": 6, "W": 7, "C": 3, "K": 4},
        _17,
    ),
    Case(
        "l2_46_conv_subtract_tanh_subtract_avg_pool",
        {"B": 128, "H": 128, "W": 128, "C": 64, "K": 128},
        {"B": 2, "H": 7, "W": 8, "C": 3, "K": 4},
        _46,
    ),
    Case(
        "l2_85_conv_group_norm_scale_max_pool_clamp",
        {"B": 128, "H": 128, "W": 128, "C": 8, "E": 4},
        {"B": 2, "H": 11, "W": 10, "C": 3, "E": 2},
        _85,
    ),
    Case(
        "l2_91_conv_transpose_softmax_bias_scaling_sigmoid",
        {"B": 128, "H": 64, "W": 64, "C": 64, "K": 128},
        {"B": 2, "H": 4, "W": 3, "C": 3, "K": 5},
        _91,
    ),
    Case(
        "l3_01_mlp",
        {"M": 128, "A": 16384, "F": 16384, "G": 16384, "N": 8192},
        {"M": 3, "A": 5, "F": 7, "G": 6, "N": 4},
        _mlp,
    ),
    Case(
        "l3_03_deep_narrow_mlp",
        {"M": 1024, "A": 8192, "D": 1024, "N": 8192},
        {"M": 3, "A": 6, "D": 5, "N": 4},
        _mlp,
    ),
    Case("l3_43_min_gpt_causal_attention", {"B": 128, "T": 512, "C": 768, "D": 96}, _SMALL_BLOCK, _43),
    Case(
        "l3_44_mini_gpt_block",
        {"B": 128, "T": 512, "C": 768, "D": 96, "F": 3072},
        {**_SMALL_BLOCK, "F": 8},
        _44,
    ),
    Case("l3_50_relu_self_attention", {"B": 16, "T": 1024, "C": 768, "D": 64}, _SMALL_BLOCK, _50),
)
