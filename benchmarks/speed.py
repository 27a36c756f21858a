"""Speed of heuristic schedules, nothing tuned, against cuBLAS (torch.mm), eager and torch.compile.

    python -m benchmarks.speed --out speed.json [--fused] [--dtypes bf16,f16] [--only SHAPE,...]

Rows are timed one after another, in a process that may be lost with one of them, and lie in speed.jsonl
beside the report as soon as they are known. The same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F

import ucutlass
from benchmarks import budget, relay
from benchmarks.budget import Deadline
from benchmarks.report import geomean, machine
from ucutlass import frontend
from ucutlass.backend import build_sources, source_of
from ucutlass.ir.schedule import show
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.errors import BuildCancelled
from ucutlass.runtime.timing import compare, sets_for
from ucutlass.shapes import complete

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

    def item(self) -> relay.Item:
        return {"name": self.name, **asdict(self)}


def tasks(dtypes: Sequence[str], fused: bool) -> list[Task]:
    """Plain products first; fused kernels in the first dtype alone."""
    plain = [Task("gemm", s, t) for t in dtypes for s in SHAPES + HELD_OUT]
    kinds = ("bias+gelu", "residual+relu") if fused else ()
    return plain + [Task(kind, s, dtypes[0]) for s in SHAPES if s[0] in FUSED for kind in kinds]


def prebuild(wanted: Sequence[Task], deadline: Deadline) -> tuple[dict[str, str], dict[str, str]]:
    """Builds every kernel in parallel: the schedules of those that were built, by task, and why others
    were not; those that the deadline cut short are in neither."""
    sources, shown = [], []
    for task in wanted:
        checked = frontend.read_text(task.text)
        program = frontend.kernel(checked)
        sizes = complete(program, extents_of(task.shape))
        planned = frontend.plan_kernel(checked, program, sizes, "sm90a").planned
        sources.append((source_of(checked, program, planned), planned.plan))
        shown.append(show(planned.request))
    results = build_sources(sources, cancel=deadline.event())
    built, unbuilt = {}, {}
    for task, schedule, result in zip(wanted, shown, results, strict=True):
        match result:
            case Artifact():
                built[task.name] = schedule
            case BuildCancelled():
                pass
            case failure:
                unbuilt[task.name] = str(failure)[:2000]
    return built, unbuilt


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


def rows_here(items: list[relay.Item], rows: str, item_seconds: float) -> int:
    """In the child of `relay.run`."""
    return relay.serve(_row, items, rows, item_seconds)


def _row(item: relay.Item) -> relay.Row:
    name, b, m, n, k = item["shape"]
    if item["kind"] == "gemm":
        made = gemm_row(name, b, m, n, k, item["dtype"])
    else:
        made = fused_row(name, item["kind"], m, n, k, item["dtype"])
    return {"kind": item["kind"], "schedule": item["schedule"]} | made


def main() -> None:
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--fused", action="store_true")
    parser.add_argument("--dtypes", default="bf16,f16")
    parser.add_argument("--only", default="", help="names of shapes, with commas")
    budget.add_option(parser)
    options = parser.parse_args()
    dtypes, only = options.dtypes.split(","), list(filter(None, options.only.split(",")))
    wanted = [task for task in tasks(dtypes, options.fused) if not only or task.shape[0] in only]
    report = run(wanted, options.out.with_suffix(".jsonl"), budget.after(options.seconds))
    budget.write(options.out, report)
    print(table(report, dtypes))
    if report["left"]:
        print(f"{len(report['left'])} rows not timed for lack of time; the same command goes on")
        sys.exit(budget.OUT_OF_TIME)
    sys.exit(bool(report["lost"] or report["unbuilt"]))


def run(wanted: Sequence[Task], journal: Path, deadline: Deadline) -> dict[str, Any]:
    """Builds, times and sorts: the report."""
    known = {row["name"] for row in budget.lines(journal)}
    fresh = [task for task in wanted if task.name not in known]
    built, unbuilt = prebuild(fresh, deadline)
    items = [task.item() | {"schedule": built[task.name]} for task in fresh if task.name in built]
    relay.run("benchmarks.speed:rows_here", items, journal, item_seconds=ROW_SECONDS, deadline=deadline)
    found = {row["name"]: row for row in budget.lines(journal)}
    names = [task.name for task in wanted]
    done = [found[name] for name in names if name in found]
    rows = [row for row in done if row["ok"]]
    return {
        "machine": machine(),
        "gemm": [row for row in rows if row["kind"] == "gemm"],
        "fused": [row for row in rows if row["kind"] != "gemm"],
        "lost": [row for row in done if not row["ok"]],
        "unbuilt": unbuilt,
        "left": [name for name in names if name not in found and name not in unbuilt],
    }


def table(report: dict[str, Any], dtypes: Sequence[str]) -> str:
    lines = [
        f"{r['dtype']} {r['shape']:14} {r['ours']:9.1f} us  mm {r['mm']:9.1f}  ratio {r['ratio']:.3f}  "
        f"spread {r['spread']:.3f}  {r['schedule']}"
        for r in report["gemm"]
    ]
    for t in dtypes:
        for label, group in (("fitted", SHAPES), ("held out", HELD_OUT), ("all", SHAPES + HELD_OUT)):
            names = {s[0] for s in group}
            ratios = [r["ratio"] for r in report["gemm"] if r["dtype"] == t and r["shape"] in names]
            if ratios:
                lines.append(
                    f"{t} {label}: geomean of mm / ours {geomean(ratios):.3f}, worst {min(ratios):.3f}, "
                    f"{len(ratios)} of {len(group)} shapes"
                )
    lines += [
        f"{r['kind']:14} {r['shape']:12} {r['ours']:9.1f} us  eager {r['over eager']:.3f}  compile "
        f"{r['over compile']:.3f}"
        for r in report["fused"]
    ]
    for column in ("over eager", "over compile") if report["fused"] else ():
        lines.append(f"geomean {column}: {geomean([r[column] for r in report['fused']]):.3f}")
    lines += [f"lost: {r['name']}: {r['error']}: {r['detail'][:300]}" for r in report["lost"]]
    lines += [f"not built: {name}: {why[:300]}" for name, why in report["unbuilt"].items()]
    return "\n".join(lines)


def extents_of(shape: Shape) -> dict[str, int]:
    _, b, m, n, k = shape
    return {"M": m, "N": n, "K": k} | ({"B": b} if b > 1 else {})


if __name__ == "__main__":
    main()
