"""The agent without a model on KernelBench's problems: against torch, random search and default schedules.

    python -m benchmarks.optimise --out optimise.json [--attempts 40] [--only l2_86,l1_88] [--compute-types tf32,f32]
    python -m benchmarks.optimise --table optimise.json # no GPU: the tables again

Claim: in 40 attempts the agent's `rules` deliver a right kernel that is faster than the compiler's own choice,
random legal search, eager torch and torch.compile. Problems are those of `benchmarks.optimise_cases`. For each,
two sessions of the agent of `--attempts` attempts run side by side: `rules`, which draws by the tuner's ranking,
and `random`, which draws evenly from the same legal space. No stop rule is used. Every candidate is checked,
built, held against the problem's float64 reference at the problem's extents on two kinds of numbers, and timed.
When both have ended, the compiler's own choice, the best of each search, eager torch by its defaults, eager
torch with TF32 allowed, and torch.compile(mode="max-autotune-no-cudagraphs") (with TF32 allowed in tf32) are
timed in turns in one process, in CUDA graphs over rotated buffers, and the fastest of `default` and `rules`,
which is what would be delivered, is held against the reference on `--cases` distributions of its suite, drawn on
the GPU.

`--processes` problems are worked on at once, each with its share of the cores as compilers, and one GPU lock for
all. What an answer proposes (`--programs`) is built at once, before its turn to be judged. The sessions' journals
lie in FILE.sessions.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import Item, Row, geomean, machine
from benchmarks.optimise_cases import TASKS, Task
from benchmarks.optimise_row import DRAWS
from ucutlass.runtime import system

ITEM_SECONDS = 1200.0
"""A problem that takes longer is lost: a compiler hangs, or a GPU."""

OVER = 1.5
"""Compilers for each core: while a problem begins, or is compared, its share of them is idle."""


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def items_of(tasks: Sequence[Task], options: argparse.Namespace) -> list[Item]:
    builders = max(1, round(system.cores() * OVER / options.processes))
    begun = datetime.now().strftime("%Y%m%d-%H%M%S")
    return [
        {
            "name": task.name,
            "attempts": options.attempts,
            "searches": _words(options.searches),
            "compile": harness.compiles(options),
            "cases": options.cases,
            "programs": options.programs,
            "builders": builders,
            "seed": options.seed,
            "journals": str(options.out.with_suffix(".sessions") / begun),
        }
        for task in tasks
    ]


def run(tasks: Sequence[Task], options: argparse.Namespace) -> dict[str, Any]:
    items = items_of(tasks, options)
    Path(items[0]["journals"]).mkdir(parents=True, exist_ok=True)
    rows = harness.run(
        "benchmarks.optimise_row:rows_here",
        items,
        harness.fresh(options.out.with_suffix(".jsonl")),
        item_seconds=ITEM_SECONDS,
        processes=options.processes,
    )
    return {"machine": machine(), "attempts": options.attempts, "summary": summary(rows), "rows": rows}


def main() -> None:
    parser = harness.parser_of(__doc__, compiles=True, out_needed=False)
    parser.add_argument("--compute-types", "--lanes", default="", help="compute types, with commas")
    parser.add_argument("--attempts", type=int, default=40)
    parser.add_argument("--searches", default="rules,random")
    parser.add_argument("--programs", type=int, default=8, help="of one answer, built at once")
    parser.add_argument("--processes", type=int, default=max(1, system.cores() // 2))
    parser.add_argument("--cases", type=int, default=12, help="of the suite, for what is delivered")
    parser.add_argument("--table", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.table.read_text(encoding="utf-8"))["rows"]))
        return
    compute_types = _words(options.compute_types)
    tasks = [
        t
        for t in harness.selected(TASKS, options, lambda t: t.name)
        if not compute_types or t.compute_type in compute_types
    ]
    unknown = [s for s in _words(options.searches) if s not in DRAWS]
    if options.out is None or unknown or not options.searches or not tasks:
        parser.error(f"--out FILE is needed, a problem, and --searches of {', '.join(DRAWS)}")
    report = run(tasks, options)
    harness.write(options.out, report)
    print(table(report["rows"]))
    sys.exit(not all(row["ok"] for row in report["rows"]))


# --- the table ---------------------------------------------------------------------------

AGAINST = ("eager", "eager_tf32", "compile", "default", "random")
"""What is delivered is held against: times of each over ours."""


def delivered(row: Row) -> float:
    """Microseconds of what the agent would hand over: the fastest that `rules` found, or the compiler's own
    choice where nothing beats it turn by turn."""
    us = row["us"]
    return float(min(us[name] for name in ("rules", "default") if name in us))


def ratio(row: Row, name: str) -> float | None:
    """How many times as fast as `name` what is delivered is. Random search may keep the default, too."""
    us = row["us"]
    if us.get(name) is None:
        return None
    other = min(us[name], us["default"]) if name == "random" else us[name]
    return float(other / delivered(row))


def means(rows: Sequence[Row]) -> dict[str, Any]:
    by: dict[str, Any] = {"problems": len(rows), "right": sum(r["ok"] for r in rows)}
    for name in AGAINST:
        ratios = [x for r in rows if r["ok"] and (x := ratio(r, name)) is not None]
        by[name] = (
            None if not ratios else {"geomean": geomean(ratios), "least": min(ratios), "of": len(ratios)}
        )
    return by


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """By compute type, by class and of all."""
    timed = [r for r in rows if "us" in r]
    compute_types = sorted({r["lane"] for r in timed})
    letters = [x for x in "ERWMSAP" if any(r["letter"] == x for r in timed)]
    return {
        "lane": {x: means([r for r in timed if r["lane"] == x]) for x in compute_types},
        "class": {x: means([r for r in timed if r["letter"] == x]) for x in letters},
        "all": means(timed) if timed else None,
        "lost": [r["name"] for r in rows if "us" not in r],
    }


# --- as text --------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> str:
    groups = summary(rows)
    lines = [f"{'problem':42} {'class':5} {'tries':>5} {'us':>9} " + _heads() + "  bound  wall s  gpu s"]
    lines += [_line(r) for r in rows]
    lines += ["", f"{'geomeans':42} {'':5} {'n':>5} {'right':>9} " + _heads()]
    lines += [_mean(f"compute type {x}", m) for x, m in groups["lane"].items()]
    lines += [_mean(f"class {x}", m) for x, m in groups["class"].items()]
    if groups["all"]:
        lines.append(_mean("all", groups["all"]))
    return "\n".join(lines)


def _heads() -> str:
    return " ".join(f"{name:>10}" for name in AGAINST)


def _line(row: Row) -> str:
    if "us" not in row:
        why = f"{row.get('error')}: {row.get('detail')}"
        return f"{row['name']:42} lost: {why[:160]}"
    share = row["searches"].get("rules", {}).get("bound")
    bound = f"{share / delivered(row):6.2f}" if share else "     -"
    spent = sum(s["gpu_seconds"] for s in row["searches"].values()) + row["spent"]
    words = "" if row["ok"] else f"  WRONG: {'; '.join(row['wrong'])[:120]}"
    if open_ := row.get("verdicts", {}).get("undecided"):
        words += f"  {open_} of {row['cases']} cases undecided"
    return (
        f"{row['task']:42} {row['letter']:5} {row['attempts']:5} {delivered(row):9.1f} "
        + " ".join(f"{_shown(ratio(row, name)):>10}" for name in AGAINST)
        + f" {bound} {row['wall_seconds']:7.1f} {spent:6.1f}{words}"
    )


def _mean(name: str, group: Row) -> str:
    ratios = " ".join(f"{_shown(m['geomean'] if (m := group[x]) else None):>10}" for x in AGAINST)
    return f"{name:42} {'':5} {group['problems']:5} {group['right']:9} {ratios}"


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    main()
