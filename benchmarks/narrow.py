"""Weights narrower than the activations, and fp8 with scales of blocks of K, against products of bf16.

    python -m benchmarks.narrow --out narrow.json [--only "PART;.."] [--compile ["PART;.."]]

Default schedules, nothing tuned; candidates in turns in one process, and for few rows over as many copies of
the weights as L2 does not hold. Rivals: cuBLAS's product of bf16 weights of the same shape, to which a person
without the narrow kernel would widen them beforehand; torch's own products of four bits (tinygemm) and of fp8
with the same scales, where this torch has them; torch.compile of widening and product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

import ucutlass
from benchmarks.product_tables import Planned, Row, compiled, finished, planned, table
from ucutlass.runtime.timing import compare

TEXTS: Mapping[str, str] = MappingProxyType(
    {
        "int8, scale a column": "kernel k(x: bf16[M, K], w: s8[N, K], s: bf16[N]) -> bf16[M, N] "
        "{ return dot[K](x, bf16(w)) * s }",
        "int8, scales of 128": "kernel k(x: bf16[M, (G J=128)], w: s8[N, (G J)], s: f32[N, G]) -> bf16[M, N] "
        "{ return sum[G](dot[J](x, bf16(w)) * s) }",
        "int4, scale a column": "kernel k(x: bf16[M, K], w: s4[N, K], s: bf16[N]) -> bf16[M, N] "
        "{ return dot[K](x, bf16(w)) * s }",
        "int4, scales of 128": "kernel k(x: bf16[M, (G J=128)], w: s4[N, (G J)], s: f32[N, G]) -> bf16[M, N] "
        "{ return sum[G](dot[J](x, bf16(w)) * s) }",
        "fp8 weights": "kernel k(x: bf16[M, K], w: e4m3[N, K], s: bf16[N]) -> bf16[M, N] "
        "{ return dot[K](x, bf16(w)) * s }",
        "fp8, blocks": "kernel k(x: e4m3[M, (G J=128)], sx: f32[M, G], w: e4m3[(P Q=128), (G J)], sw: f32[P, G]) "
        "-> bf16[M, (P Q)] { return sum[G](dot[J](x, w) * sx * sw) }",
    }
)

SHAPES = ((16, 14336, 4096), (128, 4096, 14336), (4096, 4096, 7168), (8192, 8192, 4096))
"""Rows, columns, K."""

FEW = 128
"""Rows up to which weights are rotated: they are what is moved then."""

BEYOND_L2 = 3e8
"""Bytes of all copies of the weights."""

CASES = {f"{kind} {m}x{n}x{k}": (kind, (m, n, k)) for kind in TEXTS for m, n, k in SHAPES}

FP8 = torch.float8_e4m3fn


@dataclass(frozen=True, slots=True)
class Weights:
    """One copy: as the kernel takes them, and widened."""

    stored: torch.Tensor
    wide: torch.Tensor


def plan_of(kind: str, shape: tuple[int, int, int]) -> Planned:
    m, n, k = shape
    if kind == "fp8, blocks":
        return planned(TEXTS[kind], {"M": m, "P": n // 128, "G": k // 128})
    return planned(TEXTS[kind], {"M": m, "N": n} | ({"G": k // 128} if "128" in kind else {"K": k}))


def parts(x: torch.Tensor, scale: torch.Tensor, rows: int = 1) -> torch.Tensor:
    """Values times their scales: one for 128 neighbours along K, or one a row."""
    if scale.dim() == 1:
        return (x.float() * scale.float()[:, None]).bfloat16()
    return (x.float() * scale.repeat_interleave(rows, 0).repeat_interleave(128, 1)).bfloat16()


def widened(kind: str, stored: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    values = ucutlass.unpack_s4(stored) if kind.startswith("int4") else stored
    return parts(values, scale, 128 if kind == "fp8, blocks" else 1)


def weights(kind: str, n: int, k: int, random: torch.Generator) -> torch.Tensor:
    if kind.startswith("int4"):
        return torch.randint(0, 256, (n, k // 2), device="cuda", dtype=torch.uint8, generator=random)
    if kind.startswith("int8"):
        return torch.randint(-128, 128, (n, k), device="cuda", dtype=torch.int8, generator=random)
    return torch.empty((n, k), device="cuda").normal_(generator=random).to(FP8)


def row(kind: str, shape: tuple[int, int, int], compile_too: bool) -> Row:
    m, n, k = shape
    random = torch.Generator("cuda").manual_seed(1)
    blocks = kind == "fp8, blocks"
    x = torch.empty((m, k), device="cuda").normal_(generator=random).to(FP8 if blocks else torch.bfloat16)
    copies = math.ceil(BEYOND_L2 / (n * k / (2 if kind.startswith("int4") else 1))) if m <= FEW else 1
    by_group = (n // 128 if blocks else n, k // 128)
    s = torch.rand(by_group if "128" in kind or blocks else (n,), device="cuda", generator=random)
    s = s if "128" in kind or blocks else s.bfloat16()
    stored = [weights(kind, n, k, random) for _ in range(copies)]
    every = [Weights(w, widened(kind, w, s)) for w in stored]
    sx = torch.rand(m, k // 128, device="cuda", generator=random)
    wide_x = parts(x, sx) if blocks else x
    kernel = ucutlass.loads(TEXTS[kind])

    def ours(i: int) -> Any:
        return kernel(x, sx, stored[i], s, out=out) if blocks else kernel(x, stored[i], s, out=out)

    out = torch.empty((m, n), device="cuda", dtype=torch.bfloat16)
    candidates: dict[str, Callable[[int], object]] = {
        "ours": ours,
        "bf16": lambda i: wide_x @ every[i].wide.t(),
    }
    candidates |= _of_torch(kind, x, sx, s, stored)
    ours(0)
    wanted = wide_x.float() @ every[0].wide.float().t()
    error = float((out.float() - wanted).norm() / wanted.norm())
    if compile_too and not blocks:
        fast = compiled(lambda w: x @ widened(kind, w, s).t(), stored[0])
        candidates["compile"] = lambda i: fast(stored[i])
    times = compare(candidates, copies, rounds=7, window_us=3000.0)
    return finished(f"{kind} {m}x{n}x{k}", error, plan_of(kind, shape), 2.0 * m * n * k, times)


def _of_torch(
    kind: str, x: torch.Tensor, sx: torch.Tensor, s: torch.Tensor, stored: list[torch.Tensor]
) -> dict[str, Callable[[int], object]]:
    """torch's own product of such weights, where it has one for them."""
    try:
        if kind == "fp8, blocks":
            sxt = sx.t().contiguous().t()

            def scaled(i: int) -> Any:
                return torch._scaled_mm(x, stored[i].t(), sxt, s.t(), out_dtype=torch.bfloat16)

            scaled(0)
            return {"scaled_mm": scaled}
        if kind == "int4, scales of 128":
            # Its own order of bytes and of tiles; zeros are offsets of 8 that it subtracts itself.
            laid = [torch._convert_weight_to_int4pack(w, 8) for w in stored]
            both = torch.stack((s.t(), torch.zeros_like(s.t())), -1).bfloat16().contiguous()

            def tinygemm(i: int) -> Any:
                return torch._weight_int4pack_mm(x, laid[i], 128, both)

            tinygemm(0)
            return {"tinygemm": tinygemm}
    except (RuntimeError, ValueError) as refused:
        print(f"{kind}: {str(refused)[:200]}")
    return {}


def main() -> None:
    plans = {name: plan_of(*case) for name, case in CASES.items()}
    table(__doc__, plans, lambda name, compile_too: row(*CASES[name], compile_too))


if __name__ == "__main__":
    main()
