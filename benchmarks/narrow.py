"""Weights narrower than the activations, and fp8 with scales of blocks of K, against products of bf16.

    python -m benchmarks.narrow --out narrow.json

Default schedules, nothing tuned; candidates in turns in one process. The rival is cuBLAS's product of bf16
weights of the same shape, to which a person without the narrow kernel would widen them beforehand; for scales
of blocks also torch._scaled_mm with the same scales, where this torch has it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

import ucutlass
from benchmarks.report import geomean, machine
from ucutlass import frontend
from ucutlass.backend import build_sources, source_of
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.timing import compare
from ucutlass.shapes import complete

TEXTS: Mapping[str, str] = MappingProxyType({
    "int8, scale a column": "kernel k(x: bf16[M, K], w: s8[N, K], s: bf16[N]) -> bf16[M, N] "
                            "{ return dot[K](x, bf16(w)) * s }",
    "int8, scales of 128": "kernel k(x: bf16[M, (G J=128)], w: s8[N, (G J)], s: f32[N, G]) -> bf16[M, N] "
                           "{ return sum[G](dot[J](x, bf16(w)) * s) }",
    "fp8 weights": "kernel k(x: bf16[M, K], w: e4m3[N, K], s: bf16[N]) -> bf16[M, N] "
                   "{ return dot[K](x, bf16(w)) * s }",
    "fp8, blocks": "kernel k(x: e4m3[M, (G J=128)], sx: f32[M, G], w: e4m3[(P Q=128), (G J)], sw: f32[P, G]) "
                   "-> bf16[M, (P Q)] { return sum[G](dot[J](x, w) * sx * sw) }",
})  # fmt: skip

SHAPES = ((16, 14336, 4096), (128, 4096, 14336), (4096, 4096, 7168), (8192, 8192, 4096))
"""Rows, columns, K."""


def sizes_of(kind: str, shape: tuple[int, int, int]) -> dict[str, int]:
    m, n, k = shape
    if kind == "fp8, blocks":
        return {"M": m, "P": n // 128, "G": k // 128}
    return {"M": m, "N": n} | ({"G": k // 128} if "128" in kind else {"K": k})


def planned(kind: str, shape: tuple[int, int, int]) -> tuple[Any, Any, Any]:
    checked = frontend.read_text(TEXTS[kind])
    program = frontend.kernel(checked)
    sizes = complete(program, sizes_of(kind, shape))
    return checked, program, frontend.plan_kernel(checked, program, sizes, "sm90a").planned


def row(kind: str, shape: tuple[int, int, int]) -> dict[str, Any]:
    m, n, k = shape
    random = torch.Generator("cuda").manual_seed(1)

    def normal(*extents: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(extents, device="cuda").normal_(generator=random).to(dtype)

    def parts(x: torch.Tensor, scale: torch.Tensor, rows: int = 1) -> torch.Tensor:
        return x.float() * scale.repeat_interleave(rows, 0).repeat_interleave(128, 1)

    fp8 = torch.float8_e4m3fn
    x = normal(m, k, dtype=fp8 if kind == "fp8, blocks" else torch.bfloat16)
    if kind.startswith("int8"):
        w = torch.randint(-128, 128, (n, k), device="cuda", dtype=torch.int8, generator=random)
    else:
        w = normal(n, k, dtype=fp8)
    others: dict[str, Callable[[], Any]] = {}
    if kind == "fp8, blocks":
        sx, sw = torch.rand(m, k // 128, device="cuda"), torch.rand(n // 128, k // 128, device="cuda")
        args = [x, sx, w, sw]
        wide_x, wide = parts(x, sx).bfloat16(), parts(w, sw, 128).bfloat16()
        sxt = sx.t().contiguous().t()
        others["scaled"] = lambda: torch._scaled_mm(x, w.t(), sxt, sw.t(), out_dtype=torch.bfloat16)
        try:
            others["scaled"]()
        except (RuntimeError, ValueError) as refused:
            print(f"torch._scaled_mm: {str(refused)[:200]}")
            del others["scaled"]
    else:
        s = torch.rand((n, k // 128) if "128" in kind else (n,), device="cuda")
        s = s if "128" in kind else s.bfloat16()
        args, wide_x = [x, w, s], x
        wide = (parts(w, s) if "128" in kind else w.float() * s.float()[:, None]).bfloat16()
    others["bf16"] = lambda: wide_x @ wide.t()
    kernel = ucutlass.loads(TEXTS[kind])
    out = kernel(*args)
    wanted = others["bf16"]()
    error = float((out.float() - wanted.float()).norm() / wanted.float().norm())
    candidates: dict[str, Callable[[int], object]] = {"ours": lambda _: kernel(*args, out=out)}
    candidates |= {name: lambda _, call=call: call() for name, call in others.items()}  # type: ignore[misc]
    times = compare(candidates, 1, rounds=7, window_us=3000.0)
    ours = times["ours"].median
    return {
        "name": f"{kind} {m}x{n}x{k}", "error": error, "schedule": str(planned(kind, shape)[2].plan.schedule),
        "tflops": 2.0 * m * n * k / ours * 1e-6,
        "over_best": min(t.median for name, t in times.items() if name != "ours") / ours,
        "spread": max(t.spread for t in times.values()),
        "microseconds": {name: t.median for name, t in times.items()},
    }  # fmt: skip


def main() -> None:
    from benchmarks.grouped import line

    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    cases = [(kind, shape) for kind in TEXTS for shape in SHAPES]
    built = build_sources([(source_of(*plan), plan[2].plan) for plan in (planned(*c) for c in cases)])
    unbuilt = [f"{c}: {made}" for c, made in zip(cases, built, strict=True) if not isinstance(made, Artifact)]
    rows = []
    for case in cases:
        rows.append(row(*case))
        print(line(rows[-1]), flush=True)
        options.out.write_text(json.dumps({"machine": machine(), "rows": rows, "unbuilt": unbuilt}, indent=1))
    ratios = [r["over_best"] for r in rows]
    print(f"geomean over best {geomean(ratios):.3f}, least {min(ratios):.3f}, {len(rows)} rows")
    print("\n".join(unbuilt))
    sys.exit(bool(unbuilt) or any(not r["error"] < 0.01 for r in rows))


if __name__ == "__main__":
    main()
