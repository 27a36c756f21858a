"""Measures many schedules on many shapes: the table that the cost model is fitted to.

    python -m benchmarks.record --out recorded.json [--dtype bf16] [--only SHAPE,..] [--quick]

A shape's rows are timed in a process that may be lost with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

import ucutlass
from benchmarks import campaign, harness
from benchmarks.gemm_cases import BATCHED, DTYPES, PLAIN, SHAPES, Shape, extents_of
from benchmarks.harness import Item, Row, machine
from ucutlass import frontend
from ucutlass.backend import build_sources, source_of
from ucutlass.diagnostics import ProgramError
from ucutlass.emit.text import Source
from ucutlass.kernels.planned import Planned
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.parallel import BuildFailure
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


SHAPE_SECONDS = 240.0
"""What all schedules of one shape may take."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A schedule that is legal for a shape."""

    text: str
    planned: Planned
    source: Source


def plans(shape: Shape, dtype: str, schedules: Iterable[str]) -> dict[str, Plan]:
    """Returns plans by schedule, as the program writes it; without those that are not legal for the shape."""
    base = (PLAIN if shape[1] == 1 else BATCHED).format(t=dtype)
    legal = {}
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
        legal[schedule] = Plan(text, planned, source_of(checked, program, planned))
    return legal


def build(shares: Sequence[dict[str, Plan]]) -> dict[str, Artifact | BuildFailure]:
    """Returns what became of each distinct source, by its code."""
    every = (plan for share in shares for plan in share.values())
    pairs = list({p.source.code: (p.source, p.planned.plan) for p in every}.values())
    results = build_sources(pairs)
    return {source.code: result for (source, _), result in zip(pairs, results, strict=True)}


def main() -> None:
    parser = harness.parser_of(__doc__)
    parser.add_argument("--dtype", default="bf16", choices=DTYPES)
    options = parser.parse_args()
    shapes = harness.selected(SHAPES, options, lambda shape: shape[0])
    legal = {shape: plans(shape, options.dtype, SCHEDULES) for shape in shapes}
    results = build(list(legal.values()))
    items = []
    for shape, share in legal.items():
        outcomes = {schedule: results[plan.source.code] for schedule, plan in share.items()}
        built = {s: share[s].text for s, r in outcomes.items() if isinstance(r, Artifact)}
        unbuilt = {s: str(r)[:500] for s, r in outcomes.items() if s not in built}
        item = {"name": shape[0], "shape": shape, "dtype": options.dtype, "seed": options.seed}
        items.append(item | {"texts": built, "unbuilt": unbuilt})
    journal = harness.fresh(options.out.with_suffix(".jsonl"))
    rows = campaign.run("benchmarks.record:shape_row", items, journal, item_seconds=SHAPE_SECONDS)
    report = report_of(rows, options.dtype)
    harness.write(options.out, report)
    print(len(report["failures"]), "failures")


def report_of(shapes: Sequence[Row], dtype: str) -> dict[str, Any]:
    failures: dict[str, str] = {}
    for shape in shapes:
        if not shape["ok"]:
            failures[shape["name"]] = f"{shape['error']}: {shape['detail']}"
        failures |= {f"{shape['name']}: {what}": why for what, why in shape.get("failures", {}).items()}
    rows = [row for shape in shapes for row in shape.get("rows", ())]
    return {"machine": machine(), "dtype": dtype, "rows": rows, "failures": failures}


# --- in the other process ----------------------------------------------------------------


def shape_row(item: Item) -> Row:
    """Times every schedule that was built, and torch's product. A CUDA error that stays with the
    process ends the shape; what was timed before it is kept."""
    torch.manual_seed(item["seed"])
    name, b, m, n, k = item["shape"]
    dtype, planned = DTYPES[item["dtype"]], plans(item["shape"], item["dtype"], item["texts"])
    sets = sets_for((m * k + n * k + m * n) * 2 * b)
    lead = () if b == 1 else (b,)
    x, w, y = (
        [torch.randn((*lead, *s), device="cuda", dtype=dtype) for _ in range(sets)]
        for s in ((m, k), (n, k), (m, n))
    )
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
            if lost := campaign.sticky(error):
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
