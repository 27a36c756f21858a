"""Measures many schedules on many shapes: the table that the cost model is fitted to.

    python -m benchmarks.record --out recorded.json
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import ucutlass
from benchmarks.report import machine
from benchmarks.speed import BATCHED, DTYPES, PLAIN, SHAPES, extents_of, tensors
from ucutlass import frontend
from ucutlass.backend import source_of, toolchain
from ucutlass.diagnostics import ProgramError
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.parallel import build_many
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dtype", default="bf16")
    options = parser.parse_args()
    t = options.dtype
    plans: dict[tuple[str, str], Any] = {}
    for shape in SHAPES:
        base = (PLAIN if shape[1] == 1 else BATCHED).format(t=t)
        for schedule in SCHEDULES:
            text = base.removesuffix("}") + f" schedule sm90a {{ {schedule} }} }}"
            checked = frontend.read_text(text)
            program = frontend.kernel(checked)
            try:
                planned = frontend.plan_kernel(
                    checked, program, complete(program, extents_of(shape)), "sm90a"
                ).planned
            except ProgramError:
                continue
            plans[shape[0], schedule] = (text, planned, source_of(checked, program, planned))
    results = build_many([s for _, _, s in plans.values()], toolchain(), Cache.from_switches())
    built = {key for key, r in zip(plans, results, strict=True) if isinstance(r, Artifact)}
    failures = {
        str(key): str(r)[:500] for key, r in zip(plans, results, strict=True) if not isinstance(r, Artifact)
    }
    rows = []
    for name, b, m, n, k in SHAPES:
        sets = sets_for((m * k + n * k + m * n) * 2 * b)
        lead = () if b == 1 else (b,)
        x, w, y = (tensors((*lead, *s), DTYPES[t], sets) for s in ((m, k), (n, k), (m, n)))
        product = torch.mm if b == 1 else torch.bmm
        candidates: dict[str, Any] = {"mm": lambda i: product(x[i], w[i].mT, out=y[i])}
        for (shape_name, schedule), (text, _, _) in plans.items():
            if shape_name == name and (shape_name, schedule) in built:
                kernel = ucutlass.loads(text)
                candidates[schedule] = lambda i, kernel=kernel: kernel(x[i], w[i], out=y[i])
        times = {}
        for candidate, launch in candidates.items():
            try:
                times |= compare({candidate: launch}, sets, rounds=3, window_us=1500)
            except Exception as error:
                failures[f"{name}: {candidate}"] = str(error)[:500]
        for schedule, timing in times.items():
            planned = plans[name, schedule][1] if schedule != "mm" else None
            rows.append(
                {
                    "shape": name,
                    "sizes": [b, m, n, k],
                    "schedule": schedule,
                    "us": timing.median,
                    "spread": timing.spread,
                    "request": asdict(planned.request) if planned else None,
                    "estimate_us": planned.estimate.seconds * 1e6 if planned else None,
                }
            )
        best = min((r for r in rows if r["shape"] == name and r["schedule"] != "mm"), key=lambda r: r["us"])
        mm = next(r for r in rows if r["shape"] == name and r["schedule"] == "mm")
        print(f"{name:14} mm {mm['us']:9.1f}  best {best['us']:9.1f}  {best['schedule']}", flush=True)
        options.out.write_text(
            json.dumps({"machine": machine(), "dtype": t, "rows": rows, "failures": failures}, indent=1)
        )
    print(len(failures), "failures")


if __name__ == "__main__":
    main()
