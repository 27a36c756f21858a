"""Speed of heuristic schedules, nothing tuned, against cuBLAS (torch.mm), eager and torch.compile.

    python -m benchmarks.speed --out speed.json [--fused] [--dtypes bf16,f16] [--only SHAPE,..] [--quick]

Claim: schedules that the cost model chooses are as fast as cuBLAS over 28 shapes, 8 of which it was not fitted
to; fused kernels (`--fused`) are as fast as eager and torch.compile.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F

import ucutlass
from benchmarks import harness
from benchmarks.harness import Item, Row, machine
from ucutlass.ir.schedule import show
from ucutlass.runtime.timing import compare, sets_for

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

FUSED = ("square 4096", "wide N", "tall", "512 rows", "M 128 wide", "small K")

PLAIN = "kernel k(x: {t}[M, K], w: {t}[N, K]) -> {t}[M, N] {{ return dot[K](x, w) }}"
BATCHED = "kernel k(x: {t}[B, M, K], w: {t}[B, N, K]) -> {t}[B, M, N] {{ return dot[K](x, w) }}"
GELU = "kernel k(x: {t}[M, K], w: {t}[N, K], b: {t}[N]) -> {t}[M, N] {{ return gelu(dot[K](x, w) + b) }}"
RESIDUAL = (
    "kernel k(x: {t}[M, K], w: {t}[N, K], r: {t}[M, N]) -> {t}[M, N] {{ return relu(dot[K](x, w) + r) }}"
)

ROW_SECONDS = 150.0
"""What one row may take; torch.compile tries out its kernels within it."""

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


@dataclass(frozen=True, slots=True)
class Task:
    """One row. `kind` is `gemm`, or the epilogue of a fused kernel."""

    kind: str
    shape: Shape
    dtype: str

    @property
    def name(self) -> str:
        return f"{self.kind} {self.dtype} {self.shape[0]}"

    @property
    def text(self) -> str:
        plain = PLAIN if self.shape[1] == 1 else BATCHED
        return {"gemm": plain, "bias+gelu": GELU, "residual+relu": RESIDUAL}[self.kind].format(t=self.dtype)

    def item(self) -> Item:
        return {"name": self.name, **asdict(self)}


def tasks(dtypes: Sequence[str], fused: bool) -> list[Task]:
    """Plain products first; fused kernels in the first dtype alone."""
    plain = [Task("gemm", s, t) for t in dtypes for s in SHAPES + HELD_OUT]
    kinds = ("bias+gelu", "residual+relu") if fused else ()
    return plain + [Task(kind, s, dtypes[0]) for s in SHAPES if s[0] in FUSED for kind in kinds]


def tensors(shape: tuple[int, ...], dtype: torch.dtype, sets: int) -> list[torch.Tensor]:
    return [torch.randn(shape, device="cuda").to(dtype) for _ in range(sets)]


def gemm_row(name: str, b: int, m: int, n: int, k: int, t: str) -> Row:
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


def fused_row(name: str, kind: str, m: int, n: int, k: int, t: str, with_compile: bool) -> Row:
    dtype = DTYPES[t]
    kernel = ucutlass.loads((GELU if kind == "bias+gelu" else RESIDUAL).format(t=t))
    sets = sets_for((m * k + n * k + 2 * m * n) * 2)
    x, w, y = tensors((m, k), dtype, sets), tensors((n, k), dtype, sets), tensors((m, n), dtype, sets)
    extra = tensors((n,) if kind == "bias+gelu" else (m, n), dtype, sets)

    def eager(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return F.gelu(F.linear(a, b, c)) if kind == "bias+gelu" else torch.relu(F.linear(a, b) + c)

    candidates: dict[str, Callable[[int], object]] = {
        "ours": lambda i: kernel(x[i], w[i], extra[i], out=y[i]),
        "eager": lambda i: eager(x[i], w[i], extra[i]),
    }
    if with_compile:
        fast = harness.compiled(eager, x[0], w[0], extra[0])
        candidates["compile"] = lambda i: fast(x[i], w[i], extra[i])
    times = compare(candidates, sets)
    ours = times["ours"].median
    over = {f"over {name}": t.median / ours for name, t in times.items() if name != "ours"}
    return {
        "shape": name,
        "kind": kind,
        "sizes": [m, n, k],
        "dtype": t,
        **{name: t.median for name, t in times.items()},
        **over,
        "spread": max(v.spread for v in times.values()),
    }


def rows_here(items: list[Item], rows: str, item_seconds: float) -> int:
    """Runs in the child of `harness.run`."""
    return harness.serve(_row, items, rows, item_seconds)


def _row(item: Item) -> Row:
    torch.manual_seed(item["seed"])
    name, b, m, n, k = item["shape"]
    if item["kind"] == "gemm":
        times = gemm_row(name, b, m, n, k, item["dtype"])
    else:
        times = fused_row(name, item["kind"], m, n, k, item["dtype"], item["compile"])
    return {"kind": item["kind"], "schedule": item["schedule"]} | times


def main() -> None:
    parser = harness.parser_of(__doc__, compiles=True)
    parser.add_argument("--fused", action="store_true", help="fused kernels too")
    parser.add_argument("--dtypes", default="bf16,f16")
    options = parser.parse_args()
    dtypes = options.dtypes.split(",")
    chosen = harness.selected(tasks(dtypes, options.fused), options, lambda task: task.shape[0])
    more = {"seed": options.seed, "compile": harness.compiles(options)}
    report = run(chosen, options.out.with_suffix(".jsonl"), more)
    harness.write(options.out, report)
    print(table(report, dtypes))
    sys.exit(bool(report["lost"] or report["unbuilt"]))


def run(chosen: Sequence[Task], rows: Path, more: Item) -> dict[str, Any]:
    """Builds and times; returns the report. `more` is what every item has besides."""
    plans = {task.name: harness.planned(task.text, extents_of(task.shape)) for task in chosen}
    unbuilt = harness.prebuild(plans)
    items = [
        task.item() | {"schedule": show(plans[task.name][2].request)} | more
        for task in chosen
        if task.name not in unbuilt
    ]
    timed = harness.run("benchmarks.speed:rows_here", items, harness.fresh(rows), item_seconds=ROW_SECONDS)
    right = [row for row in timed if row["ok"]]
    return {
        "machine": machine(),
        "gemm": [row for row in right if row["kind"] == "gemm"],
        "fused": [row for row in right if row["kind"] != "gemm"],
        "lost": [row for row in timed if not row["ok"]],
        "unbuilt": unbuilt,
    }


def table(report: dict[str, Any], dtypes: Sequence[str]) -> str:
    lines = [
        f"{r['dtype']} {r['shape']:14} {r['ours']:9.1f} us  mm {r['mm']:9.1f}  ratio {r['ratio']:.3f}  "
        f"spread {r['spread']:.3f}  {r['schedule']}"
        for r in report["gemm"]
    ]
    lines += [
        f"{r['kind']:14} {r['shape']:12} {r['ours']:9.1f} us  eager {r['over eager']:.3f}"
        + (f"  compile {r['over compile']:.3f}" if "over compile" in r else "")
        for r in report["fused"]
    ]
    groups = {"fitted": SHAPES, "held out": HELD_OUT, "all": SHAPES + HELD_OUT}
    ratios = {
        f"{t} {label}, mm / ours": [
            r["ratio"]
            for r in report["gemm"]
            if r["dtype"] == t and r["shape"] in {shape[0] for shape in group}
        ]
        for t in dtypes
        for label, group in groups.items()
    }
    ratios |= {c: [r[c] for r in report["fused"] if c in r] for c in ("over eager", "over compile")}
    lines += harness.means(ratios)
    return "\n".join([*lines, *harness.lost_lines(report["lost"], report["unbuilt"])])


def extents_of(shape: Shape) -> dict[str, int]:
    _, b, m, n, k = shape
    return {"M": m, "N": n, "K": k} | ({"B": b} if b > 1 else {})


if __name__ == "__main__":
    main()
