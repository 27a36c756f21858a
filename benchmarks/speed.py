"""Speed of heuristic schedules, nothing tuned, against cuBLAS (torch.mm), eager and torch.compile.

    python -m benchmarks.speed --out speed.json [--fused] [--dtypes bf16,f16]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import ucutlass
from benchmarks.report import geomean, machine
from ucutlass import frontend
from ucutlass.backend import source_of, toolchain
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.parallel import build_many
from ucutlass.runtime.timing import compare, sets_for
from ucutlass.schedule import show
from ucutlass.shapes import complete

SHAPES: tuple[tuple[str, int, int, int, int], ...] = (
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
"""Name, batch, M, N, K: the shapes that the cost model was fitted to."""

HELD_OUT: tuple[tuple[str, int, int, int, int], ...] = (
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

FUSED = ("square 4096", "wide N", "tall", "512 rows", "M 128 wide", "small K")

PLAIN = "kernel k(x: {t}[M, K], w: {t}[N, K]) -> {t}[M, N] {{ return dot[K](x, w) }}"
BATCHED = "kernel k(x: {t}[B, M, K], w: {t}[B, N, K]) -> {t}[B, M, N] {{ return dot[K](x, w) }}"
GELU = "kernel k(x: {t}[M, K], w: {t}[N, K], b: {t}[N]) -> {t}[M, N] {{ return gelu(dot[K](x, w) + b) }}"
RESIDUAL = (
    "kernel k(x: {t}[M, K], w: {t}[N, K], r: {t}[M, N]) -> {t}[M, N] {{ return relu(dot[K](x, w) + r) }}"
)

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


def prebuild(texts: list[tuple[str, dict[str, int]]]) -> list[str]:
    """Builds every kernel in parallel; the schedules that were chosen."""
    sources, shown = [], []
    for text, sizes in texts:
        checked = frontend.read_text(text)
        program = frontend.kernel(checked)
        planned = frontend.plan_kernel(checked, program, complete(program, sizes), "sm90a").planned
        sources.append(source_of(checked, program, planned))
        shown.append(show(planned.request))
    for result in build_many(sources, toolchain(), Cache.from_switches()):
        if isinstance(result, Exception):
            raise result
    return shown


def tensors(shape: tuple[int, ...], dtype: torch.dtype, sets: int) -> list[torch.Tensor]:
    return [torch.randn(shape, device="cuda").to(dtype) for _ in range(sets)]


def gemm_row(name: str, b: int, m: int, n: int, k: int, t: str) -> dict[str, Any]:
    dtype = DTYPES[t]
    text = (PLAIN if b == 1 else BATCHED).format(t=t)
    kernel = ucutlass.loads(text)
    sets = sets_for((m * k + n * k + m * n) * 2 * b)
    lead = () if b == 1 else (b,)
    x, w = tensors((*lead, m, k), dtype, sets), tensors((*lead, n, k), dtype, sets)
    y = tensors((*lead, m, n), dtype, sets)
    product = torch.mm if b == 1 else torch.bmm
    candidates: dict[str, Callable[[int], object]] = {
        "ours": lambda i: kernel(x[i], w[i], out=y[i]),
        "mm": lambda i: product(x[i], w[i].mT, out=y[i]),
        "mm again": lambda i: product(x[i], w[i].mT, out=y[i]),
    }
    times = compare(candidates, sets)
    best = min(times["mm"].median, times["mm again"].median)
    return {
        "shape": name,
        "sizes": [b, m, n, k],
        "dtype": t,
        "ours": times["ours"].median,
        "mm": best,
        "ratio": best / times["ours"].median,
        "spread": max(v.spread for v in times.values()),
        "noise": times["mm"].median / times["mm again"].median,
        "tflops": 2e-6 * b * m * n * k / times["ours"].median,
    }


def fused_row(name: str, kind: str, m: int, n: int, k: int, t: str) -> dict[str, Any]:
    dtype = DTYPES[t]
    kernel = ucutlass.loads((GELU if kind == "bias+gelu" else RESIDUAL).format(t=t))
    sets = sets_for((m * k + n * k + 2 * m * n) * 2)
    x, w, y = tensors((m, k), dtype, sets), tensors((n, k), dtype, sets), tensors((m, n), dtype, sets)
    extra = tensors((n,) if kind == "bias+gelu" else (m, n), dtype, sets)

    def eager(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(a, b, c)) if kind == "bias+gelu" else torch.relu(F.linear(a, b) + c)

    torch._dynamo.reset()
    compiled = torch.compile(eager, mode="max-autotune-no-cudagraphs")
    compiled(x[0], w[0], extra[0])
    times = compare(
        {
            "ours": lambda i: kernel(x[i], w[i], extra[i], out=y[i]),
            "eager": lambda i: eager(x[i], w[i], extra[i]),
            "compile": lambda i: compiled(x[i], w[i], extra[i]),
        },
        sets,
    )
    ours = times["ours"].median
    return {
        "shape": name,
        "kind": kind,
        "sizes": [m, n, k],
        "dtype": t,
        "ours": ours,
        "eager": times["eager"].median,
        "compile": times["compile"].median,
        "over eager": times["eager"].median / ours,
        "over compile": times["compile"].median / ours,
        "spread": max(v.spread for v in times.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--fused", action="store_true")
    parser.add_argument("--dtypes", default="bf16,f16")
    options = parser.parse_args()
    dtypes = options.dtypes.split(",")
    wanted = [
        ((PLAIN if s[1] == 1 else BATCHED).format(t=t), extents_of(s))
        for t in dtypes
        for s in SHAPES + HELD_OUT
    ]
    fused = [(s, kind) for s in SHAPES if s[0] in FUSED for kind in ("bias+gelu", "residual+relu")]
    if options.fused:
        wanted += [
            ((GELU if kind == "bias+gelu" else RESIDUAL).format(t=t), extents_of(s))
            for t in dtypes[:1]
            for s, kind in fused
        ]
    schedules = prebuild(wanted)
    report: dict[str, Any] = {"machine": machine(), "gemm": [], "fused": []}
    for i, (t, s) in enumerate((t, s) for t in dtypes for s in SHAPES + HELD_OUT):
        row = gemm_row(*s, t) | {"schedule": schedules[i]}
        report["gemm"].append(row)
        print(
            f"{t} {s[0]:14} {row['ours']:9.1f} us  mm {row['mm']:9.1f}  ratio {row['ratio']:.3f}  spread "
            f"{row['spread']:.3f}  {row['schedule']}",
            flush=True,
        )
        options.out.write_text(json.dumps(report, indent=1))
    for t in dtypes:
        for label, group in (("fitted", SHAPES), ("held out", HELD_OUT), ("all", SHAPES + HELD_OUT)):
            names = {s[0] for s in group}
            ratios = [r["ratio"] for r in report["gemm"] if r["dtype"] == t and r["shape"] in names]
            print(f"{t} {label}: geomean of mm / ours {geomean(ratios):.3f}, worst {min(ratios):.3f}")
    for s, kind in fused if options.fused else []:
        row = fused_row(s[0], kind, *s[2:], dtypes[0])
        report["fused"].append(row)
        print(
            f"{kind:14} {s[0]:12} {row['ours']:9.1f} us  eager {row['over eager']:.3f}  compile "
            f"{row['over compile']:.3f}",
            flush=True,
        )
        options.out.write_text(json.dumps(report, indent=1))
    for column in ("over eager", "over compile") if options.fused else ():
        print(f"geomean {column}: {geomean([r[column] for r in report['fused']]):.3f}")
    options.out.write_text(json.dumps(report, indent=1))


def extents_of(shape: tuple[str, int, int, int, int]) -> dict[str, int]:
    _, b, m, n, k = shape
    return {"M": m, "N": n, "K": k} | ({"B": b} if b > 1 else {})


if __name__ == "__main__":
    main()
