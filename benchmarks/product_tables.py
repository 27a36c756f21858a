"""What the tables of products share: options, builds, rows in turn, torch.compile for rows that are named."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch

from benchmarks.report import geomean, machine
from ucutlass import frontend
from ucutlass.backend import build_sources, source_of
from ucutlass.files import write
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.timing import Timing
from ucutlass.shapes import complete

Planned: TypeAlias = tuple[Any, Any, Any]
Row: TypeAlias = dict[str, Any]


def planned(text: str, sizes: Mapping[str, int]) -> Planned:
    """A text's kernel, checked and planned by default for these extents."""
    checked = frontend.read_text(text)
    program = frontend.kernel(checked)
    extents = complete(program, dict(sizes))
    return checked, program, frontend.plan_kernel(checked, program, extents, "sm90a").planned


def compiled(call: Callable[..., Any], *args: Any) -> Callable[..., Any]:
    """torch.compile's own best for a call."""
    torch._dynamo.reset()
    made: Callable[..., Any] = torch.compile(call, mode="max-autotune-no-cudagraphs")
    made(*args)
    return made


def finished(
    name: str,
    error: float,
    plan: Planned,
    operations: float,
    times: Mapping[str, Timing],
    rivals: tuple[str, ...] = (),
) -> Row:
    """A row. `rivals` are the candidates that count; without them all but ours."""
    ours = times["ours"].median
    others = [n for n in times if n != "ours" and (not rivals or n in rivals)]
    return {
        "name": name,
        "error": error,
        "schedule": str(plan[2].plan.schedule),
        "tflops": operations / ours * 1e-6,
        "over_best": min(times[n].median for n in others) / ours,
        "spread": max(t.spread for t in times.values()),
        "microseconds": {n: t.median for n, t in times.items()},
    }


def table(doc: str | None, plans: Mapping[str, Planned], measure: Callable[[str, bool], Row]) -> None:
    """A benchmark's command. `measure(name, compile)` gives a row; rows with torch.compile come last, so that
    a run that is cut short has the others."""
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=doc, formatter_class=style)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="parts of names, separated by semicolons")
    parser.add_argument(
        "--compile",
        nargs="?",
        const="",
        metavar="PARTS",
        help="torch.compile too, of rows with such a part in their names, or of all: half a minute a row",
    )
    options = parser.parse_args()
    chosen = _named(plans, options.only)
    sources = [(source_of(*plans[name]), plans[name][2].plan) for name in chosen]
    built = zip(chosen, build_sources(sources), strict=True)
    unbuilt = [f"{name}: {made}" for name, made in built if not isinstance(made, Artifact)]
    slow = _named(chosen, options.compile) if options.compile is not None else []
    rows: dict[str, Row] = {}
    for name, compile_too in [*((n, False) for n in chosen), *((n, True) for n in slow)]:
        rows[name] = measure(name, compile_too)
        print(line(rows[name]), flush=True)
        content = {"machine": machine(), "rows": list(rows.values()), "unbuilt": unbuilt}
        write(options.out, json.dumps(content, indent=1))
    ratios = [r["over_best"] for r in rows.values()]
    print(f"geomean over best {geomean(ratios):.3f}, least {min(ratios):.3f}, {len(rows)} rows")
    print("\n".join(unbuilt))
    sys.exit(bool(unbuilt) or any(not r["error"] < 0.01 for r in rows.values()))


def _named(names: Mapping[str, Any] | list[str], parts: str) -> list[str]:
    wanted = list(filter(None, parts.split(";")))
    return [n for n in names if not wanted or any(part in n for part in wanted)]


def line(r: Row) -> str:
    others = "  ".join(f"{name} {us:.1f}" for name, us in r["microseconds"].items() if name != "ours")
    return (
        f"{r['name']:34} {r['microseconds']['ours']:9.1f} us {r['tflops']:6.1f} TFLOP/s  over best "
        f"{r['over_best']:.3f}  ({others})  spread {r['spread']:.3f}  error {r['error']:.1e}  "
        f"{r['schedule'].removeprefix('WgmmaSchedule')}"
    )
