"""Matrix products of fixed shapes that recordings hold: their extents and their programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import torch

Shape: TypeAlias = tuple[str, int, int, int, int]
"""Name, batch, M, N, K."""

SHAPES: tuple[Shape, ...] = (
    ("square 2048", 1, 2048, 2048, 2048),
    ("square 4096", 1, 4096, 4096, 4096),
    ("square 8192", 1, 8192, 8192, 8192),
    ("wide N", 1, 4096, 14336, 4096),
    ("wide K", 1, 4096, 4096, 14336),
    ("tall", 1, 16384, 1024, 4096),
    ("512 rows", 1, 512, 4096, 4096),
    ("M 1", 1, 1, 4096, 4096),
    ("M 1 wide", 1, 1, 14336, 4096),
    ("M 16", 1, 16, 4096, 4096),
    ("M 16 wide", 1, 16, 14336, 4096),
    ("M 64", 1, 64, 4096, 4096),
    ("M 64 deep", 1, 64, 4096, 14336),
    ("M 128", 1, 128, 4096, 4096),
    ("M 128 wide", 1, 128, 14336, 4096),
    ("large K", 1, 1024, 1024, 32768),
    ("small K", 1, 8192, 8192, 128),
    ("K 64", 1, 4096, 4096, 64),
    ("batch 32", 32, 512, 512, 512),
    ("batch 16 thin", 16, 1024, 1024, 128),
)
"""The shapes that the cost model was fitted to."""

PLAIN = "kernel k(x: {t}[M, K], w: {t}[N, K]) -> {t}[M, N] {{ return dot[K](x, w) }}"
BATCHED = "kernel k(x: {t}[B, M, K], w: {t}[B, N, K]) -> {t}[B, M, N] {{ return dot[K](x, w) }}"
_GELU = "kernel k(x: {t}[M, K], w: {t}[N, K], b: {t}[N]) -> {t}[M, N] {{ return gelu(dot[K](x, w) + b) }}"
_RESIDUAL = (
    "kernel k(x: {t}[M, K], w: {t}[N, K], r: {t}[M, N]) -> {t}[M, N] {{ return relu(dot[K](x, w) + r) }}"
)
_SCALED = (
    "kernel k(x: {{t}}[M, K], w: {{t}}[N, K], a: f32[], b: f32[]) -> bf16[M, N] "
    "{{{{ return a * b * dot[K](x, w{}) }}}}"
)

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def extents_of(shape: Shape) -> dict[str, int]:
    _, b, m, n, k = shape
    return {"M": m, "N": n, "K": k} | ({"B": b} if b > 1 else {})


TEXTS: Mapping[str, str] = MappingProxyType(
    {
        "gemm": PLAIN,
        "bias+gelu": _GELU,
        "residual+relu": _RESIDUAL,
        "tf32x3": PLAIN.replace(" }}", " schedule sm90a {{ math tf32x3 }} }}"),
        "fp8": _SCALED.format(""),
        "fp8 fast": _SCALED.format(", acc=fast"),
    }
)
"""Of each kind of recorded products, with the place of an element type `{t}`."""


@dataclass(frozen=True, slots=True)
class Task:
    """One recorded product, of a kind of `TEXTS`."""

    kind: str
    shape: Shape
    dtype: str

    @property
    def text(self) -> str:
        text = TEXTS[self.kind] if self.shape[1] == 1 else BATCHED
        return text.format(t=self.dtype)
