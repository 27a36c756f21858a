"""The rows of `benchmarks.memory_bound`: programs with what a PyTorch user would write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F

Twin = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Problem:
    """A kernel with extents, and its eager twin over the same arguments. `compiled`: torch.compile is
    timed beside it."""

    family: str
    text: str
    sizes: Mapping[str, int]
    eager: Twin
    compiled: bool = False


_NORM = "d = x - mean[{o}](x)\n return d * rsqrt(mean[{o}](d * d) + 1e-5) * g + b"
_POOL = "x[H = 2*P + R - 1, W = 2*Q + S - 1]"


def _rms(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), g, 1e-5)


def _rms_channels(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-5)


def _scan(elem: str, sizes: Mapping[str, int]) -> Problem:
    """A cumulative sum along L of few long rows, or down few long columns."""
    type_ = f"{elem}[{', '.join(sizes)}]"
    axis = list(sizes).index("L")
    text = f"kernel k(x: {type_}) -> {type_} {{ return cumsum[L](x) }}"
    return Problem("long scan", text, sizes, lambda x: x.cumsum(axis))


PROBLEMS: Mapping[str, Problem] = MappingProxyType(
    {
        "softmax bf16 4096": Problem(
            "row-wise",
            "kernel k(x: bf16[T, D]) -> bf16[T, D] { return softmax[D](x) }",
            {"T": 131072, "D": 4096},
            lambda x: torch.softmax(x, -1),
            True,
        ),
        "softmax f32 8192": Problem(
            "row-wise",
            "kernel k(x: f32[T, D]) -> f32[T, D] { return softmax[D](x) }",
            {"T": 32768, "D": 8192},
            lambda x: torch.softmax(x, -1),
            True,
        ),
        "softmax f32 262144": Problem(
            "row-wise",
            "kernel k(x: f32[T, D]) -> f32[T, D] { return softmax[D](x) }",
            {"T": 1024, "D": 262144},
            lambda x: torch.softmax(x, -1),
        ),
        "log_softmax f16 32000": Problem(
            "row-wise",
            "kernel k(x: f16[T, D]) -> f16[T, D] { return log_softmax[D](x) }",
            {"T": 16384, "D": 32000},
            lambda x: torch.log_softmax(x, -1),
        ),
        "layer norm bf16 4096": Problem(
            "row-wise",
            "kernel k(x: bf16[T, D], g: bf16[D], b: bf16[D]) -> bf16[T, D] { " + _NORM.format(o="D") + " }",
            {"T": 131072, "D": 4096},
            lambda x, g, b: F.layer_norm(x, (x.shape[-1],), g, b),
            True,
        ),
        "layer norm f32 1024": Problem(
            "row-wise",
            "kernel k(x: f32[T, D], g: f32[D], b: f32[D]) -> f32[T, D] { " + _NORM.format(o="D") + " }",
            {"T": 262144, "D": 1024},
            lambda x, g, b: F.layer_norm(x, (x.shape[-1],), g, b),
            True,
        ),
        "rms norm bf16 4096": Problem(
            "row-wise",
            "kernel k(x: bf16[T, D], g: bf16[D]) -> bf16[T, D] { return x * rsqrt(mean[D](x * x) + 1e-5) * g }",
            {"T": 131072, "D": 4096},
            _rms,
            True,
        ),
        "rms norm bf16 16384": Problem(
            "row-wise",
            "kernel k(x: bf16[T, D], g: bf16[D]) -> bf16[T, D] { return x * rsqrt(mean[D](x * x) + 1e-5) * g }",
            {"T": 32768, "D": 16384},
            _rms,
            True,
        ),
        "rms norm channels f32": Problem(
            "row-wise",
            "kernel k(x: f32[B, C, H, W]) -> f32[B, C, H, W] { return x * rsqrt(mean[C](x * x) + 1e-5) }",
            {"B": 16, "C": 64, "H": 512, "W": 512},
            _rms_channels,
        ),
        "group norm f32": Problem(
            "row-wise",
            "kernel k(x: f32[B, (G=8 C), H, W], g: f32[(G C)], b: f32[(G C)]) -> f32[B, (G C), H, W] { "
            + _NORM.format(o="C, H, W")
            + " }",
            {"B": 512, "C": 8, "H": 64, "W": 64},
            lambda x, g, b: F.group_norm(x, 8, g, b),
        ),
        "instance norm f16": Problem(
            "row-wise",
            "kernel k(x: f16[B, C, H, W]) -> f16[B, C, H, W] { d = x - mean[H, W](x)\n"
            " return d * rsqrt(mean[H, W](d * d) + 1e-5) }",
            {"B": 256, "C": 128, "H": 128, "W": 128},
            lambda x: F.instance_norm(x),
        ),
        "sum middle f32": Problem(
            "row-wise",
            "kernel k(x: f32[A, L, C]) -> f32[A, C] { return sum[L](x) }",
            {"A": 128, "L": 4096, "C": 1024},
            lambda x: x.sum(1),
        ),
        "mean of all f32": Problem(
            "row-wise",
            "kernel k(x: f32[A, L]) -> f32[] { return mean[A, L](x * x) }",
            {"A": 65536, "L": 8192},
            lambda x: (x * x).mean(),
        ),
        "argmax f32": Problem(
            "row-wise",
            "kernel k(x: f32[A, L]) -> i64[A] { return argmax[L](x) }",
            {"A": 65536, "L": 8192},
            lambda x: x.argmax(-1),
        ),
        "max of rows bf16": Problem(
            "row-wise",
            "kernel k(x: bf16[A, L]) -> bf16[A] { return max[L](x) }",
            {"A": 131072, "L": 8192},
            lambda x: x.amax(-1),
        ),
        "column sums bf16": Problem(
            "row-wise",
            "kernel k(x: bf16[A, L]) -> f32[L] { return sum[A](x) }",
            {"A": 262144, "L": 4096},
            lambda x: x.sum(0, dtype=torch.float32),
        ),
        "cumsum middle f32": Problem(
            "scan",
            "kernel k(x: f32[A, L, C]) -> f32[A, L, C] { return cumsum[L](x) }",
            {"A": 64, "L": 4096, "C": 1024},
            lambda x: x.cumsum(1),
        ),
        "cumsum middle odd f32": Problem(
            "scan",
            "kernel k(x: f32[A, L, C]) -> f32[A, L, C] { return cumsum[L](x) }",
            {"A": 64, "L": 2048, "C": 4095},
            lambda x: x.cumsum(1),
        ),
        "cumsum last f32": Problem(
            "scan",
            "kernel k(x: f32[A, L]) -> f32[A, L] { return cumsum[L](x) }",
            {"A": 32768, "L": 8192},
            lambda x: x.cumsum(1),
        ),
        "cumsum reversed f32": Problem(
            "scan",
            "kernel k(x: f32[A, L]) -> f32[A, L] { return cumsum[L](x, reverse=true) }",
            {"A": 32768, "L": 8192},
            lambda x: x.flip(1).cumsum(1).flip(1),
        ),
        "gelu bf16": Problem(
            "element-wise",
            "kernel k(x: bf16[A, L]) -> bf16[A, L] { return gelu(x) }",
            {"A": 65536, "L": 8192},
            lambda x: F.gelu(x),
        ),
        "silu times bf16": Problem(
            "element-wise",
            "kernel k(x: bf16[A, L], y: bf16[A, L]) -> bf16[A, L] { return silu(x) * y }",
            {"A": 65536, "L": 4096},
            lambda x, y: F.silu(x) * y,
        ),
        "scale shift channels f32": Problem(
            "element-wise",
            "kernel k(x: f32[B, C, H, W], g: f32[C], b: f32[C]) -> f32[B, C, H, W] { return relu(x * g + b) }",
            {"B": 64, "C": 64, "H": 256, "W": 256},
            lambda x, g, b: torch.relu(x * g[:, None, None] + b[:, None, None]),
        ),
        "cast f32 to bf16": Problem(
            "element-wise",
            "kernel k(x: f32[A, L]) -> bf16[A, L] { return x }",
            {"A": 65536, "L": 4096},
            lambda x: x.to(torch.bfloat16),
        ),
        "transpose bf16": Problem(
            "element-wise",
            "kernel k(x: bf16[A, L]) -> bf16[L, A] { return x }",
            {"A": 32768, "L": 16384},
            lambda x: x.mT.contiguous(),
        ),
        "heads bf16": Problem(
            "element-wise",
            "kernel k(x: bf16[B, L, H, D]) -> bf16[B, H, L, D] { return x }",
            {"B": 16, "L": 8192, "H": 32, "D": 128},
            lambda x: x.transpose(1, 2).contiguous(),
        ),
        "average pool f32": Problem(
            "window",
            "kernel k(x: f32[N, C, H, W]) -> f32[N, C, P=(H+1)//2, Q=(W+1)//2] { return "
            "mean[R=3, S=3](" + _POOL + ") }",
            {"N": 64, "C": 64, "H": 256, "W": 256},
            lambda x: F.avg_pool2d(x, 3, 2, 1),
        ),
        "max pool f16 channels last": Problem(
            "window",
            "kernel k(x: f16[N, H, W, C]) -> f16[N, P=(H+1)//2, Q=(W+1)//2, C] { return "
            "max[R=3, S=3](" + _POOL + ") }",
            {"N": 256, "H": 112, "W": 112, "C": 128},
            lambda x: F.max_pool2d(x.permute(0, 3, 1, 2), 3, 2, 1),
        ),
        "causal depthwise bf16": Problem(
            "window",
            "kernel k(x: bf16[B, C, L], w: bf16[C, 1, K=4], b: bf16[C]) -> bf16[B, C, L] { "
            "return silu(sum[K](x[L = L + K - 3] * w) + b) }",
            {"B": 16, "C": 4096, "L": 4096},
            lambda x, w, b: F.silu(F.conv1d(F.pad(x, (3, 0)), w, b, groups=x.shape[1])),
        ),
    }
)

SCANS: Mapping[str, Problem] = MappingProxyType(
    {
        "scan of 1 row f32": _scan("f32", {"A": 1, "L": 2**28}),
        "scan of 8 rows f32": _scan("f32", {"A": 8, "L": 2**25}),
        "scan of 64 rows f32": _scan("f32", {"A": 64, "L": 2**22}),
        "scan of 1 row bf16": _scan("bf16", {"A": 1, "L": 2**28}),
        "scan of 8 rows bf16": _scan("bf16", {"A": 8, "L": 2**25}),
        "scan of 1 odd row f32": _scan("f32", {"A": 1, "L": 2**28 - 57}),
        "scan of 8 columns f32": _scan("f32", {"L": 2**25, "C": 8}),
        "scan of 256 columns f32": _scan("f32", {"L": 2**20, "C": 256}),
    }
)
"""Few long rows: what one row's threads can do is not enough."""
