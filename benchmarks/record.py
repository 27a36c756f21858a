"""Measures many schedules on many shapes: the table that the cost model is fitted to.

    python -m benchmarks.record --out recorded.json [--dtype bf16] [--only SHAPE,..] [--quick]

A shape's rows are timed in a process that may be lost with them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

import ucutlass
from benchmarks import campaign, harness
from benchmarks.campaign import Case, Prepared
from benchmarks.gemm_cases import BATCHED, DTYPES, PLAIN, SHAPES, Shape, extents_of
from benchmarks.harness import Item, Row, machine
from ucutlass import frontend
from ucutlass.backend import source_of
from ucutlass.diagnostics import ProgramError
from ucutlass.emit.text import Source
from ucutlass.kernels.planned import Planned
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
    base = text_of(shape, dtype)
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


def text_of(shape: Shape, dtype: str) -> str:
    return (PLAIN if shape[1] == 1 else BATCHED).format(t=dtype)


def main() -> None:
    parser = campaign.parser_of(__doc__)
    parser.add_argument("--dtype", default="bf16", choices=DTYPES)
    options = parser.parse_args()
    shapes = harness.selected(SHAPES, options, lambda shape: shape[0])
    cases = [
        Case(
            shape[0],
            text_of(shape, options.dtype),
            extents_of(shape),
            {"shape": shape, "dtype": options.dtype},
        )
        for shape in shapes
    ]
    if options.dry:
        campaign.dry(cases, options.jobs)
    rows = campaign.measured(
        "benchmarks.record:shape_row", cases, options, row_seconds=SHAPE_SECONDS, prepare=prepared
    )
    report = report_of(rows, options.dtype)
    harness.write(options.out, report)
    print(len(report["failures"]), "failures")


def prepared(cases: Sequence[Case], options: argparse.Namespace, deadline: float | None) -> Prepared:
    """Builds every legal schedule of all shapes."""
    legal = {c.name: plans(c.facts["shape"], c.facts["dtype"], SCHEDULES) for c in cases}
    every = {plan.source.code: plan for own in legal.values() for plan in own.values()}
    kernels = [campaign.Emitted(p.source, p.planned.plan, "") for p in every.values()]
    why = dict(zip(every, campaign.build(kernels, options.jobs, deadline), strict=True))
    facts: dict[str, Item] = {}
    for name, own in legal.items():
        unbuilt = {schedule: w[:500] for schedule, plan in own.items() if (w := why[plan.source.code])}
        texts = {schedule: plan.text for schedule, plan in own.items() if schedule not in unbuilt}
        facts[name] = {"texts": texts, "unbuilt": unbuilt}
    return {}, facts


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
