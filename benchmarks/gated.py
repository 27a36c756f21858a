"""Gated pairs, two dots over one left operand in one launch, against eager and torch.compile.

    python -m benchmarks.gated --out gated.json [--compile]

Default schedules, nothing tuned; candidates in turns in one process. `over best` is the fastest rival's time
over ours; "one product" is cuBLAS's time for one product of twice the columns, with no gate: no rival, since
it computes less, but what the multiplications alone cost there.
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
import torch.nn.functional as F

import ucutlass
from benchmarks.report import geomean, machine
from ucutlass import frontend
from ucutlass.backend import build_sources, source_of
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.timing import compare
from ucutlass.shapes import complete

TEXTS: Mapping[str, str] = MappingProxyType({
    "swiglu": "kernel k(x: {t}[T, D], w: {t}[F, D], u: {t}[F, D]) -> {t}[T, F] "
              "{{ return silu(dot[D](x, w)) * dot[D](x, u) }}",
    "geglu": "kernel k(x: {t}[T, D], w: {t}[F, D], u: {t}[F, D], a: {t}[F], b: {t}[F]) -> {t}[T, F] "
             "{{ return gelu(dot[D](x, w) + a) * (dot[D](x, u) + b) }}",
})  # fmt: skip

SHAPES = (
    (8192, 4096, 14336), (4096, 4096, 11008), (2048, 5120, 13824), (16384, 2048, 5632), (512, 4096, 14336),
    (64, 4096, 14336), (4096, 8192, 28672),
)  # fmt: skip
"""Rows, model width, gate's width."""

CASES = [("swiglu", "bf16", shape) for shape in SHAPES] + [("geglu", "f16", shape) for shape in SHAPES[:3]]

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


def eager(
    kind: str, x: torch.Tensor, w: torch.Tensor, u: torch.Tensor, *biases: torch.Tensor
) -> torch.Tensor:
    if kind == "swiglu":
        return F.silu(x @ w.t()) * (x @ u.t())
    return F.gelu(F.linear(x, w, biases[0])) * F.linear(x, u, biases[1])


def planned(kind: str, dtype: str, shape: tuple[int, int, int]) -> tuple[Any, Any, Any]:
    checked = frontend.read_text(TEXTS[kind].format(t=dtype))
    program = frontend.kernel(checked)
    sizes = complete(program, dict(zip("TDF", shape, strict=True)))
    return checked, program, frontend.plan_kernel(checked, program, sizes, "sm90a").planned


def row(kind: str, dtype: str, shape: tuple[int, int, int], compiled: bool) -> dict[str, Any]:
    t, d, f = shape
    random = torch.Generator("cuda").manual_seed(1)

    def normal(*extents: int, scale: float = 1.0) -> torch.Tensor:
        return torch.empty(extents, dtype=DTYPES[dtype], device="cuda").normal_(0, scale, generator=random)

    args = [normal(t, d), normal(f, d, scale=d**-0.5), normal(f, d, scale=d**-0.5)]
    args += [normal(f), normal(f)] if kind == "geglu" else []
    kernel = ucutlass.loads(TEXTS[kind].format(t=dtype))
    out = kernel(*args)
    wanted = eager(kind, *args)
    error = float((out.float() - wanted.float()).norm() / wanted.float().norm())
    both = torch.cat((args[1], args[2]))
    candidates: dict[str, Callable[[int], object]] = {
        "ours": lambda _: kernel(*args, out=out),
        "eager": lambda _: eager(kind, *args),
        "one product": lambda _: args[0] @ both.t(),
    }
    if compiled:
        torch._dynamo.reset()
        fast = torch.compile(eager, mode="max-autotune-no-cudagraphs")
        fast(kind, *args)
        candidates["compile"] = lambda _: fast(kind, *args)
    times = compare(candidates, 1, rounds=7, window_us=4000.0)
    ours = times["ours"].median
    return {
        "name": f"{kind} {dtype} {t}x{d}x{f}", "error": error,
        "schedule": str(planned(kind, dtype, shape)[2].plan.schedule),
        "tflops": 4.0 * t * d * f / ours * 1e-6,
        "over_best": min(x.median for name, x in times.items() if name in ("eager", "compile")) / ours,
        "spread": max(x.spread for x in times.values()),
        "microseconds": {name: x.median for name, x in times.items()},
    }  # fmt: skip


def main() -> None:
    from benchmarks.grouped import line

    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--compile", action="store_true", help="torch.compile too: half a minute a row")
    options = parser.parse_args()
    plans = [planned(*case) for case in CASES]
    built = build_sources([(source_of(*plan), plan[2].plan) for plan in plans])
    pairs = zip(CASES, built, strict=True)
    unbuilt = [f"{case}: {made}" for case, made in pairs if not isinstance(made, Artifact)]
    rows = []
    for case in CASES:
        rows.append(row(*case, options.compile))
        print(line(rows[-1]), flush=True)
        options.out.write_text(json.dumps({"machine": machine(), "rows": rows, "unbuilt": unbuilt}, indent=1))
    ratios = [r["over_best"] for r in rows]
    print(f"geomean over best {geomean(ratios):.3f}, least {min(ratios):.3f}, {len(rows)} rows")
    print("\n".join(unbuilt))
    sys.exit(bool(unbuilt) or any(not r["error"] < 0.01 for r in rows))


if __name__ == "__main__":
    main()
