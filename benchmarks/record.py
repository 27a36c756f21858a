"""Measures many schedules on many shapes: the table that the cost model is fitted to.

    python -m benchmarks.record --out recorded.json [--probe] [--dtype bf16] [--seconds 500]

`--probe` measures the few pairs of shape and schedule instead that tell the cost model's weakest terms apart.
A shape's rows are timed in a process that may be lost with them, and lie in recorded.jsonl as soon as they
are known. The same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import ucutlass
from benchmarks import budget, relay
from benchmarks.budget import Deadline
from benchmarks.report import machine
from benchmarks.speed import BATCHED, DTYPES, PLAIN, SHAPES, Shape, extents_of, tensors
from ucutlass import frontend
from ucutlass.backend import build_sources, source_of
from ucutlass.diagnostics import ProgramError
from ucutlass.emit.text import Source
from ucutlass.kernels.planned import Planned
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.errors import BuildCancelled
from ucutlass.runtime.parallel import Failure
from ucutlass.runtime.timing import compare, sets_for
from ucutlass.shapes import complete

SCHEDULES: tuple[str, ...] = (
    *(
        f"warps cooperative tile {t}x64 cluster {c}"
        for t in ("128x256", "256x128")
        for c in ("1x1", "2x1", "1x2")
    ),
    *(f"warps cooperative tile {t}x64 cluster 2x1" for t in ("128x128", "128x192", "256x96", "256x64")),
    *(
        f"warps pingpong tile {t}x64 cluster {c}"
        for t in ("64x256", "128x128", "64x128")
        for c in ("1x1", "2x1", "1x2")
    ),
    *(f"warps pingpong tile {t}x64 cluster 1x1" for t in ("64x192", "128x64", "64x64", "64x96", "128x96")),
    "warps pingpong tile 64x64x128 cluster 1x1",
    "warps pingpong tile 64x32x128 cluster 1x1",
    "warps pingpong tile 64x16x128 cluster 1x1",
    "warps cooperative tile 128x256x64 cluster 2x1 split_k stream",
    "warps cooperative tile 128x128x64 cluster 1x1 split_k stream",
    "warps cooperative tile 128x64x64 cluster 1x1 split_k stream",
    *(
        f"warps pingpong tile {t} cluster 1x1 swap yes"
        for t in ("64x16x128", "64x32x128", "64x64x128", "64x128x64", "128x16x128", "128x64x64", "128x128x64")
    ),
    *(
        f"warps cooperative tile {t} cluster 1x1 swap yes split_k {s}"
        for t in ("128x16x128", "128x32x64", "128x64x64", "128x128x64")
        for s in (1, 2, 4, "stream")
    ),
    "warps multistage",
)


_EDGES = (
    "warps cooperative tile 128x128x64 cluster 1x1 swap no split_k 1",
    "warps cooperative tile 128x128x64 cluster 2x1 swap no split_k 1",
    "warps cooperative tile 128x128x64 cluster 1x2 swap no split_k 1",
    "warps pingpong tile 128x128x64 cluster 1x2 swap no",
    "warps pingpong tile 64x256x64 cluster 1x1 swap no",
    "warps pingpong tile 64x256x64 cluster 2x1 swap no",
    "warps pingpong tile 64x256x64 cluster 1x2 swap no",
    "warps cooperative tile 128x112x64 cluster 1x1 swap yes split_k 1",
    "warps cooperative tile 128x112x64 cluster 2x1 swap yes split_k 1",
    "warps cooperative tile 128x160x64 cluster 1x2 swap yes split_k 1",
    "warps cooperative tile 256x64x64 cluster 1x2 swap yes split_k 1",
)
"""Rows that do not fill a tile: what the zeros beyond an edge cost, with and without multicast."""

_STREAMED = (
    "warps cooperative tile 128x128x64 cluster 2x1 swap no split_k 2",
    "warps cooperative tile 128x128x64 cluster 2x1 swap no split_k stream",
    "warps cooperative tile 256x128x64 cluster 1x1 swap no split_k 2",
    "warps cooperative tile 256x128x64 cluster 1x1 swap no split_k 4",
    "warps cooperative tile 256x128x64 cluster 1x1 swap no split_k stream",
    "warps pingpong tile 128x128x64 cluster 2x1 swap no",
    "warps cooperative tile 128x112x64 cluster 2x1 swap no split_k 1",
)
"""One wave of tiles or less: splitting K against a narrower tile."""

_VECTORS = (
    "warps gemv swap yes",
    "warps gemv swap yes rows 8",
    "warps pingpong tile 64x16x128 cluster 1x1 swap yes",
    "warps pingpong tile 64x16x128 cluster 2x1 swap yes",
    "warps pingpong tile 64x16x64 cluster 1x1 swap yes",
    "warps cooperative tile 128x16x128 cluster 2x1 swap yes split_k 1",
)
"""Few rows: the matrix-vector kernel's loads of the short operand, and steps of K with little work."""

_SKINNY = (
    "warps pingpong tile 64x32x128 cluster 1x1 swap no",
    "warps pingpong tile 64x32x128 cluster 1x2 swap no",
    "warps pingpong tile 64x32x64 cluster 1x1 swap no",
    "warps pingpong tile 64x64x128 cluster 1x2 swap no",
    "warps cooperative tile 128x64x64 cluster 1x1 swap yes split_k 2",
    "warps cooperative tile 128x64x64 cluster 2x1 swap yes split_k 2",
    "warps cooperative tile 128x64x64 cluster 2x1 swap yes split_k 4",
)
"""DRAM, L2 and an SM's loads all near their limits: how far they overlap."""

_WAVES = (
    "warps cooperative tile 128x256x64 cluster 2x1 swap no split_k 1",
    "warps cooperative tile 256x128x64 cluster 1x2 swap no split_k 1",
    "warps cooperative tile 256x96x64 cluster 2x1 swap no split_k 1",
    "warps pingpong tile 128x128x64 cluster 2x1 swap no",
    "warps pingpong tile 128x128x64 cluster 1x2 swap no",
)
"""Tiles of several sizes where waves are few: power, quantisation and epilogue."""

PROBE: tuple[tuple[Shape, tuple[str, ...]], ...] = (
    (("304 rows", 1, 304, 5120, 5120), _EDGES),
    (("384 rows", 1, 384, 5120, 5120), _EDGES),
    (("400 rows", 1, 400, 4096, 8192), _EDGES),
    (("M 256", 1, 256, 7168, 7168), _EDGES[:6] + _STREAMED),
    (("M 192", 1, 192, 8192, 8192), _EDGES[:6] + _STREAMED[:2]),
    (("M 1 long", 1, 1, 8192, 8192), _VECTORS),
    (("M 2", 1, 2, 8192, 8192), _VECTORS),
    (("M 4", 1, 4, 8192, 8192), _VECTORS),
    (("M 8", 1, 8, 8192, 8192), _VECTORS),
    (("M 4 short", 1, 4, 4096, 4096), _VECTORS),
    (("M 64 deep", 1, 64, 4096, 14336), _SKINNY),
    (("M 48", 1, 48, 8192, 8192), _SKINNY),
    (("M 32", 1, 32, 8192, 8192), _SKINNY[:3]),
    (("2048 rows", 1, 2048, 11008, 4096), _WAVES),
    (("K 1408", 1, 4096, 2048, 1408), _WAVES),
    (("tall thin", 1, 65536, 512, 1024), _WAVES),
    (("3072 square", 1, 3072, 3072, 3072), _WAVES),
)
"""Shapes beside those of benchmarks.speed vary what each group of schedules is about."""

SHAPE_SECONDS = 240.0
"""What all schedules of one shape may take."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A schedule that is legal for a shape."""

    text: str
    planned: Planned
    source: Source


def plans(shape: Shape, dtype: str, schedules: Iterable[str]) -> dict[str, Plan]:
    """By schedule, as the program writes it; without those that are not legal for the shape."""
    base = (PLAIN if shape[1] == 1 else BATCHED).format(t=dtype)
    found = {}
    for schedule in schedules:
        text = base.removesuffix("}") + f" schedule sm90a {{ {schedule} }} }}"
        checked = frontend.read_text(text)
        program = frontend.kernel(checked)
        try:
            planned = frontend.plan_kernel(
                checked, program, complete(program, extents_of(shape)), "sm90a"
            ).planned
        except ProgramError:
            continue
        found[schedule] = Plan(text, planned, source_of(checked, program, planned))
    return found


def build(wanted: Sequence[dict[str, Plan]], deadline: Deadline) -> dict[str, Artifact | Failure]:
    """What became of each distinct source, by its code."""
    plans = (plan for share in wanted for plan in share.values())
    pairs = list({p.source.code: (p.source, p.planned.plan) for p in plans}.values())
    results = build_sources(pairs, cancel=deadline.event())
    return {source.code: result for (source, _), result in zip(pairs, results, strict=True)}


def main() -> None:
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dtype", default="bf16", choices=DTYPES)
    parser.add_argument("--only", default="", help="names of shapes, with commas")
    parser.add_argument("--probe", action="store_true", help="a few telling pairs instead of all schedules")
    budget.add_option(parser)
    options = parser.parse_args()
    deadline, only = budget.after(options.seconds), list(filter(None, options.only.split(",")))
    pairs = PROBE if options.probe else [(shape, SCHEDULES) for shape in SHAPES]
    wanted = {shape: schedules for shape, schedules in pairs if not only or shape[0] in only}
    shapes = list(wanted)
    journal = options.out.with_suffix(".jsonl")
    known = {row["name"] for row in budget.lines(journal)}
    fresh = {s: plans(s, options.dtype, wanted[s]) for s in shapes if s[0] not in known}
    results = build(list(fresh.values()), deadline)
    items = []
    for shape, found in fresh.items():
        made = {schedule: results[plan.source.code] for schedule, plan in found.items()}
        if any(isinstance(r, BuildCancelled) for r in made.values()):
            continue
        built = {s: found[s].text for s, r in made.items() if isinstance(r, Artifact)}
        unbuilt = {s: str(r)[:500] for s, r in made.items() if s not in built}
        item = {"name": shape[0], "shape": shape, "dtype": options.dtype, "texts": built}
        items.append(item | {"unbuilt": unbuilt})
    target = "benchmarks.record:shapes_here"
    relay.run(target, items, journal, item_seconds=SHAPE_SECONDS, deadline=deadline)
    rows = {row["name"]: row for row in budget.lines(journal)}
    report = report_of([rows[s[0]] for s in shapes if s[0] in rows], options.dtype)
    budget.write(options.out, report)
    print(len(report["failures"]), "failures")
    if left := [s[0] for s in shapes if s[0] not in rows]:
        print(f"not timed for lack of time: {', '.join(left)}; the same command goes on")
        sys.exit(budget.OUT_OF_TIME)


def report_of(shapes: Sequence[relay.Row], dtype: str) -> dict[str, Any]:
    failures: dict[str, str] = {}
    for shape in shapes:
        if not shape["ok"]:
            failures[shape["name"]] = f"{shape['error']}: {shape['detail']}"
        failures |= {f"{shape['name']}: {what}": why for what, why in shape.get("failures", {}).items()}
    rows = [row for shape in shapes for row in shape.get("rows", ())]
    return {"machine": machine(), "dtype": dtype, "rows": rows, "failures": failures}


# --- in the other process ----------------------------------------------------------------


def shapes_here(items: list[relay.Item], rows: str, item_seconds: float) -> int:
    """In the child of `relay.run`."""
    return relay.serve(shape_row, items, rows, item_seconds)


def shape_row(item: relay.Item) -> relay.Row:
    """Times every schedule that was built, and torch's product. A CUDA error that stays with the
    process ends the shape; what was timed before it is kept."""
    name, b, m, n, k = item["shape"]
    dtype, planned = DTYPES[item["dtype"]], plans(item["shape"], item["dtype"], item["texts"])
    sets = sets_for((m * k + n * k + m * n) * 2 * b)
    lead = () if b == 1 else (b,)
    x, w, y = (tensors((*lead, *s), dtype, sets) for s in ((m, k), (n, k), (m, n)))
    product = torch.mm if b == 1 else torch.bmm
    candidates: dict[str, Any] = {"mm": lambda i: product(x[i], w[i].mT, out=y[i])}
    for schedule, text in item["texts"].items():
        kernel = ucutlass.loads(text)
        candidates[schedule] = lambda i, kernel=kernel: kernel(x[i], w[i], out=y[i])
    failures, rows, lost = dict(item["unbuilt"]), [], False
    for schedule, launch in candidates.items():
        try:
            (timing,) = compare({schedule: launch}, sets, rounds=3, window_us=1500).values()
        except Exception as error:
            failures[schedule] = f"{type(error).__name__}: {error}"[:500]
            if lost := relay.sticky(error):
                break
            continue
        chosen = planned[schedule].planned if schedule != "mm" else None
        rows.append(
            {
                "shape": name,
                "sizes": [b, m, n, k],
                "schedule": schedule,
                "us": timing.median,
                "spread": timing.spread,
                "request": asdict(chosen.request) if chosen else None,
                "estimate_us": chosen.estimate.seconds * 1e6 if chosen else None,
            }
        )
    return {"rows": rows, "failures": failures, "sticky": lost}


if __name__ == "__main__":
    main()
