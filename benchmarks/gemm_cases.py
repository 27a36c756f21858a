"""Matrix products that scripts time: their shapes, their programs, and what each is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F

from benchmarks.harness import Item
from ucutlass.runtime.timing import sets_for

Shape: TypeAlias = tuple[str, int, int, int, int]
"""Name, batch, M, N, K."""

Run: TypeAlias = "Callable[..., torch.Tensor]"

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

HELD_OUT: tuple[Shape, ...] = (
    ("M 8", 1, 8, 8192, 8192),
    ("M 32", 1, 32, 8192, 8192),
    ("M 256", 1, 256, 7168, 7168),
    ("304 rows", 1, 304, 5120, 5120),
    ("2048 rows", 1, 2048, 11008, 4096),
    ("K 1408", 1, 4096, 2048, 1408),
    ("tall thin", 1, 65536, 512, 1024),
    ("batch 64", 64, 256, 128, 2048),
)
"""Shapes that the cost model has not seen."""

UNRECORDED: tuple[Shape, ...] = (
    ("qkv of 2560", 1, 2048, 7680, 2560),
    ("down 13824", 1, 4096, 5120, 13824),
    ("gate 28672", 1, 1024, 28672, 8192),
    ("M 48", 1, 48, 5120, 5120),
    ("12288 rows", 1, 12288, 2560, 10240),
    ("1000 rows", 1, 1000, 5000, 2000),
    ("192 rows", 1, 192, 11008, 4096),
    ("batch 24", 24, 1024, 1024, 192),
)
"""Further ones, that no recording had, for what is tuned."""

_F32: tuple[Shape, ...] = (
    ("square 2048", 1, 2048, 2048, 2048),
    ("square 4096", 1, 4096, 4096, 4096),
    ("wide N", 1, 2048, 8192, 4096),
    ("wide K", 1, 2048, 2048, 8192),
    ("tall", 1, 16384, 1024, 2048),
)
_FP8 = ("square 4096", "square 8192", "wide N", "wide K", "tall", "512 rows")
_FUSED = ("square 4096", "wide N", "tall", "512 rows", "M 128 wide", "small K")
_UNTUNED = ("M 1 wide", "M 16 wide", "512 rows", "K 64")
"""Shapes that take no tuning."""

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


# --- what each kind is compared with ---------------------------------------------------


def _mm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.matmul(x, w.mT)


def _gelu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, w, b))


def _residual(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return torch.relu(F.linear(x, w) + r)


def _scaled(fast: bool) -> Run:
    def run(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(x, w.mT, scale_a=a, scale_b=b, out_dtype=torch.bfloat16, use_fast_accum=fast)

    return run


@dataclass(frozen=True, slots=True)
class Kind:
    """`text` with the place of an element type `{t}`; `eager` computes the same with torch, under the
    name that tables give it. `compiled`: torch.compile's max-autotune is a rival too."""

    text: str
    rival: str
    eager: Run
    compiled: bool = True


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "gemm": Kind(PLAIN, "mm", _mm),
        "bias+gelu": Kind(_GELU, "eager", _gelu),
        "residual+relu": Kind(_RESIDUAL, "eager", _residual),
        "tf32x3": Kind(PLAIN.replace(" }}", " schedule sm90a {{ math tf32x3 }} }}"), "eager", _mm, False),
        "fp8": Kind(_SCALED.format(""), "scaled_mm", _scaled(False), False),
        "fp8 fast": Kind(_SCALED.format(", acc=fast"), "scaled_mm", _scaled(True), False),
    }
)


@dataclass(frozen=True, slots=True)
class Task:
    """One product, of a kind of `KINDS`."""

    kind: str
    shape: Shape
    dtype: str

    @property
    def name(self) -> str:
        return f"{self.kind} {self.dtype} {self.shape[0]}"

    @property
    def text(self) -> str:
        text = KINDS[self.kind].text if self.shape[1] == 1 else BATCHED
        return text.format(t=self.dtype)

    @property
    def sizes(self) -> dict[str, int]:
        return extents_of(self.shape)

    def item(self) -> Item:
        return {"name": self.name, **asdict(self)}


def task_of(item: Mapping[str, Any]) -> Task:
    """Returns the task of what `item` made, through JSON."""
    name, b, m, n, k = item["shape"]
    return Task(item["kind"], (name, b, m, n, k), item["dtype"])


@dataclass(frozen=True, slots=True)
class Product:
    """A plain product of drawn extents; `order` has the contiguous modes of the left and of the right operand."""

    element: str
    m: int
    n: int
    k: int
    order: str = "KK"

    @property
    def extents(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def text(self) -> str:
        x, w = ("M, K" if self.order[0] == "K" else "K, M"), ("N, K" if self.order[1] == "K" else "K, N")
        e = self.element
        return f"kernel k(x: {e}[{x}], w: {e}[{w}]) -> {e}[M, N] {{ return dot[K](x, w) }}"

    @property
    def sizes(self) -> dict[str, int]:
        return {"M": self.m, "N": self.n, "K": self.k}

    def operands(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Returns left and right operands that rotate through more than twice the L2."""
        dtype = DTYPES[self.element]
        sets = sets_for(dtype.itemsize * (self.m * self.k + self.n * self.k + self.m * self.n))
        x = (self.m, self.k) if self.order[0] == "K" else (self.k, self.m)
        w = (self.n, self.k) if self.order[1] == "K" else (self.k, self.n)
        return [torch.randn(x, device="cuda", dtype=dtype) for _ in range(sets)], [
            torch.randn(w, device="cuda", dtype=dtype) for _ in range(sets)
        ]

    def eager(self, x: torch.Tensor, w: torch.Tensor, tf32: bool = False) -> torch.Tensor:
        """Returns eager's product, its operands as views of their memory."""
        torch.backends.cuda.matmul.allow_tf32 = tf32
        return (x if self.order[0] == "K" else x.mT) @ (w.mT if self.order[1] == "K" else w)


GROUPS = ("plain", "fused", "tf32x3", "fp8")


def tasks(groups: Sequence[str], dtypes: Sequence[str], tuned: bool = False) -> list[Task]:
    """Returns the products of these groups. `tuned` leaves out what takes no tuning, and adds more shapes."""
    shapes = SHAPES + HELD_OUT
    if tuned:
        shapes = tuple(s for s in shapes if s[0] not in _UNTUNED) + UNRECORDED
    fused, fp8 = ([s for s in SHAPES if s[0] in names] for names in (_FUSED, _FP8))
    every = {
        "plain": [Task("gemm", s, t) for t in dtypes for s in shapes],
        "fused": [Task(kind, s, dtypes[0]) for s in fused for kind in ("bias+gelu", "residual+relu")],
        "tf32x3": [Task("tf32x3", s, "f32") for s in _F32],
        "fp8": [Task(kind, s, "e4m3") for kind in ("fp8", "fp8 fast") for s in fp8],
    }
    return [task for group in GROUPS if group in groups for task in every[group]]
