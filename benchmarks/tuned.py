"""Speed of tuned kernels against cuBLAS, eager and torch.compile's max-autotune; and how long tuning takes.

    python -m benchmarks.tuned --out tuned.json [--groups plain,fused,tf32x3,fp8] [--only SHAPE,..] [--wall 6]

Claim: kernels that `ucc tune` finds with at most 8 builds a shape are faster than the fastest rival, and are
found sooner than torch.compile's max-autotune ends. First every row is tuned by the search of `ucc tune`,
several at once on one GPU. Then each winner is timed in turns with its rivals in a process that took no part in
that. `--wall` runs `ucc tune` and a first call of torch.compile one after the other, each in a process and with
caches of its own, and nothing beside them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from benchmarks import harness, tuned_wall
from benchmarks.harness import Row, machine
from benchmarks.tuned_rows import ARCH, GROUPS, MAIN, OTHERS, SEED, Task, tasks
from ucutlass import frontend
from ucutlass.engine.local import LocalEngine
from ucutlass.engine.work import Engine
from ucutlass.ir.hardware import ARCHES, default_device, device_named
from ucutlass.ir.schedule import show
from ucutlass.runtime.parallel import jobs
from ucutlass.runtime.switches import BUILD_PATH, BuildPath
from ucutlass.tune.job import TuningSettings, job_of
from ucutlass.tune.parallel import Ended, FinishedSearch, tune_many
from ucutlass.tune.policy import SearchLimits
from ucutlass.tune.space import ScheduleSpace
from ucutlass.tune.tune import FailedTrial, FinalistResult, SearchResult, TimedGroup

ROW_SECONDS = 150.0
"""What one comparison may take; torch.compile tries out its kernels within it."""


# --- tuning ------------------------------------------------------------------------------


def tune_all(chosen: Sequence[Task], engine: Engine, gpu: str, builds: int, journal: Path) -> dict[str, Row]:
    """Searches for every task; returns the searches by the tasks' names."""
    device = device_named(gpu) or default_device(ARCHES[ARCH])
    every = []
    for task in chosen:
        checked = frontend.read_text(task.text)
        every.append(job_of(checked, frontend.kernel(checked), task.sizes, ARCH, device))
    rows: dict[str, Row] = {}

    def note(number: int, ended: Ended) -> None:
        name = chosen[number].name
        if isinstance(ended, FinishedSearch):
            row = described(every[number].space, ended.tuned)
        else:
            row = {"ok": False, "error": type(ended).__name__, "detail": str(ended)[:1500]}
        rows[name] = {"name": name, **row}
        harness.append(journal, rows[name])

    tune_many(every, engine, TuningSettings(SearchLimits(builds=builds), seed=SEED), on_done=note)
    return rows


def described(space: ScheduleSpace, tuned: SearchResult) -> Row:
    """Returns a search as JSON values; times in microseconds."""
    winner = tuned.winner
    row: Row = {
        "ok": winner is not None,
        "binaries": len(space.groups),
        "bound": space.bound * 1e6,
        "builds": len(tuned.trials),
        "stopped": tuned.stopped,
        "seconds": tuned.seconds,
        "shrinkage": tuned.shrinkage,
        "gain": None if tuned.gain is None else asdict(tuned.gain),
        "timed": [
            {"request": member.request.fixed(), "us": seconds * 1e6}
            for trial in tuned.trials
            if isinstance(trial.result, TimedGroup)
            for member, seconds in zip(space.groups[trial.group].members, trial.result.seconds, strict=True)
            if seconds is not None
        ],
        "finals": [_final(final) for final in tuned.finals],
        "failures": [
            {"schedule": show(space.groups[t.group].request), **asdict(t.result)}
            for t in tuned.trials
            if isinstance(t.result, FailedTrial)
        ],
    }
    if winner is None:
        words = "; ".join(f["words"] for f in row["failures"]) or "no finalist was right"
        return row | {"error": "NothingTuned", "detail": words[:1500]}
    kernel = winner.kernel
    return row | {"request": kernel.request.fixed(), "schedule": show(kernel.request)}


def _final(final: FinalistResult) -> dict[str, Any]:
    row: dict[str, Any] = {"request": final.kernel.request.fixed(), "search": final.search * 1e6}
    if isinstance(final.result, FailedTrial):
        return row | {"lost": final.result.words}
    return row | {"us": final.result * 1e6}


# --- the whole run -----------------------------------------------------------------------


def compare_all(
    chosen: Sequence[Task], searches: Mapping[str, Row], with_compile: bool, journal: Path
) -> tuple[list[Row], list[Row]]:
    """Returns the rows of tasks that have a winner, each with its search, and those that were lost."""
    tuned = [task for task in chosen if searches[task.name]["ok"]]
    items = [
        task.item() | {"request": searches[task.name]["request"], "compiled": with_compile} for task in tuned
    ]
    compared = harness.run("benchmarks.tuned_rows:rows_here", items, journal, item_seconds=ROW_SECONDS)
    right = [
        searches[task.name] | row | {"kind": task.kind, "shape": task.shape, "dtype": task.dtype}
        for task, row in zip(tuned, compared, strict=True)
        if row["ok"]
    ]
    lost = [searches[task.name] for task in chosen if not searches[task.name]["ok"]]
    return right, lost + [row for row in compared if not row["ok"]]


def main() -> None:
    parser = harness.parser_of(__doc__, compiles=True)
    parser.add_argument("--groups", default=",".join(GROUPS), help="of plain,fused,tf32x3,fp8; with commas")
    parser.add_argument("--dtypes", default="bf16,f16", help="of the group plain")
    parser.add_argument("--wall", type=int, default=0, help="so many programs are clocked, after the rest")
    parser.add_argument(
        "--build-path", choices=get_args(BuildPath), help=f"how kernels are built, as {BUILD_PATH}"
    )
    parser.add_argument("--builds", type=int, default=SearchLimits().builds, help="most binaries a shape")
    options = parser.parse_args()
    if unknown := set(options.groups.split(",")) - {*GROUPS, ""}:
        parser.error(f"no group is named {', '.join(sorted(unknown))}")
    every = tasks(options.groups.split(","), options.dtypes.split(","))
    chosen = harness.selected(every, options, lambda task: task.shape[0])
    if options.build_path:
        os.environ[BUILD_PATH] = options.build_path  # for every process that builds or loads
    about, journal = machine(), harness.fresh(options.out.with_suffix(".jsonl"))
    with closing(LocalEngine(cpus=jobs(), on_wait=print)) as engine:
        searches = tune_all(chosen, engine, about["gpu"].split(",")[0], options.builds, journal)
    compared = harness.fresh(options.out.with_suffix(".compared.jsonl"))
    rows, lost = compare_all(chosen, searches, harness.compiles(options), compared)
    clocked = [
        tuned_wall.clocked(task, options.builds, n) for n, task in enumerate(tuned_wall.tasks(options.wall))
    ]
    report = {
        "machine": about,
        "builds": options.builds,
        "rows": rows,
        "wall": [row for row in clocked if row["ok"]],
        "lost": lost + [row for row in clocked if not row["ok"]],
    }
    harness.write(options.out, report)
    print(table(report))
    sys.exit(bool(report["lost"]))


# --- as text -----------------------------------------------------------------------------


def table(report: Mapping[str, Any]) -> str:
    """Returns a line for each row, what each group comes to, and the wall times."""
    rows, wall = report["rows"], report["wall"]
    halves = {"the 16 main shapes": MAIN, "16 more": OTHERS}
    groups = {label: {shape[0] for shape in shapes} for label, shapes in halves.items()}
    ratios = {
        f"{kind} {dtype}, best rival / tuned": [
            row["ratio"] for row in rows if (row["kind"], row["dtype"]) == (kind, dtype)
        ]
        for kind, dtype in dict.fromkeys((row["kind"], row["dtype"]) for row in rows)
    }
    ratios |= {
        label: [row["ratio"] for row in rows if row["kind"] == "gemm" and row["shape"][0] in names]
        for label, names in groups.items()
    }
    ratios["wall time, torch.compile / `ucc tune`"] = [row["ratio"] for row in wall]
    lines = [*map(_line, rows), *map(_wall_line, wall), *harness.means(ratios)]
    return "\n".join([*lines, *harness.lost_lines(report["lost"], {})])


def _line(row: Mapping[str, Any]) -> str:
    _, batch, m, n, k = row["shape"]
    _, low, high = row["ratios"][row["best"]]
    rivals = "  ".join(f"{name} {row[name]:.1f}" for name in row["ratios"])
    error = (
        f"  error {row['error ours']:.2g}, eager's {row['error eager']:.2g}" if "error ours" in row else ""
    )
    schedule = " ".join(row["schedule"].replace("raster heuristic", "").split())
    return (
        f"{row['name']:34} {'' if batch == 1 else f'{batch} of '}{m} x {n} x {k}  {row['ours']:.1f} us  {rivals}  "
        f"ratio {row['ratio']:.3f} ({low:.3f} to {high:.3f})  {row['builds']} builds{error}  {schedule}"
    )


def _wall_line(row: Mapping[str, Any]) -> str:
    return (
        f"{row['name']:34} `ucc tune` {row['ours']:.1f} s, of it the search {row['search']:.1f}, {row['built']} "
        f"builds; torch.compile {row['compile']:.1f} s, of it the call {row['call']:.1f}; ratio {row['ratio']:.2f}"
    )


if __name__ == "__main__":
    main()
