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
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from benchmarks import harness, tuned_wall
from benchmarks.harness import Row, geomean, machine
from benchmarks.tuned_rows import ARCH, GROUPS, KINDS, MAIN, OTHERS, SEED, Task, tasks
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
            {"request": member.request.given(), "us": seconds * 1e6}
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
    return row | {"request": kernel.request.given(), "schedule": show(kernel.request)}


def _final(final: FinalistResult) -> dict[str, Any]:
    row: dict[str, Any] = {"request": final.kernel.request.given(), "search": final.search * 1e6}
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

TABLES = {
    "plain": ("gemm",),
    "fused": ("bias+gelu", "residual+relu"),
    "tf32x3": ("tf32x3",),
    "fp8": ("fp8", "fp8 fast"),
}


def table(report: Mapping[str, Any]) -> str:
    """Returns the tables in Markdown: every row of every group, with what the groups come to."""
    lines = []
    for group, kinds in TABLES.items():
        rows = [row for row in report["rows"] if row["kind"] in kinds]
        if rows:
            lines += [f"**{group}**", "", *_rows(rows, KINDS[kinds[0]].rival), *_totals(group, rows), ""]
    if report["wall"]:
        lines += ["**wall**", "", *_wall(report["wall"]), ""]
    return "\n".join([*lines, *harness.lost_lines(report["lost"], {})])


def _rows(rows: Sequence[Mapping[str, Any]], rival: str) -> Iterable[str]:
    compiled = any("compile" in row for row in rows)
    exact = any("error ours" in row for row in rows)
    head = ["kernel", "M x N x K", "tuned us", f"{rival} us", *(["compile us"] if compiled else [])]
    head += ["best / tuned", "interval", "builds", *(["error, eager's"] if exact else []), "schedule"]
    yield _line(head)
    yield "|" + "---|" * len(head)
    for row in rows:
        _, low, high = row["ratios"][row["best"]]
        cells = [f"{row['kind']} {row['dtype']}", sizes(row["shape"]), f"{row['ours']:.1f}"]
        cells += [f"{row[rival]:.1f}", *([_us(row, "compile")] if compiled else [])]
        cells += [f"{row['ratio']:.3f}", f"{low:.3f} to {high:.3f}"]
        cells += [str(row["builds"])]
        cells += [f"{row['error ours']:.2g}, {row['error eager']:.2g}"] if exact else []
        yield _line([*cells, " ".join(row["schedule"].replace("raster heuristic", "").split())])


def _us(row: Mapping[str, Any], name: str) -> str:
    return f"{row[name]:.1f}" if name in row else "-"


def sizes(shape: Sequence[Any]) -> str:
    _, b, m, n, k = shape
    return ("" if b == 1 else f"{b} of ") + f"{m} x {n} x {k}"


def _totals(group: str, rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    yield ""
    yield from (_total(label, mine) for label, mine in _parts(group, rows) if mine)


def _parts(group: str, rows: Sequence[Mapping[str, Any]]) -> Iterable[tuple[str, list[Mapping[str, Any]]]]:
    for name in dict.fromkeys((row["kind"], row["dtype"]) for row in rows):
        yield " ".join(name), [row for row in rows if (row["kind"], row["dtype"]) == name]
    if group == "plain":
        for label, shapes in (("the 16 main shapes", MAIN), ("16 more", OTHERS)):
            names = {s[0] for s in shapes}
            yield label, [row for row in rows if row["shape"][0] in names]
    yield "all", list(rows)


def _total(label: str, rows: Sequence[Mapping[str, Any]]) -> str:
    worst = min(rows, key=lambda row: row["ratio"])
    over = {name for row in rows for name in row["ratios"]}
    each = ", ".join(
        f"{geomean([r['ratios'][name][0] for r in rows if name in r['ratios']]):.3f} of {name}"
        for name in sorted(over)
    )
    return (
        f"- {label}: geomean of best rival / tuned {geomean([r['ratio'] for r in rows]):.3f} over "
        f"{len(rows)} rows ({each}), worst {worst['ratio']:.3f} ({worst['name']}), largest spread "
        f"{max(r['spread'] for r in rows):.1%}"
    )


def _wall(rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    head = ["kernel", "`ucc tune` s", "of it the search", "builds", "torch.compile s"]
    head += ["of it the call", "ratio"]
    yield _line(head)
    yield "|" + "---|" * len(head)
    for row in rows:
        numbers = [f"{row['ours']:.1f}", f"{row['search']:.1f}", str(row["built"])]
        numbers += [f"{row['compile']:.1f}", f"{row['call']:.1f}", f"{row['ratio']:.2f}"]
        yield _line([row["name"], *numbers])
    yield ""
    yield f"- geomean of torch.compile / `ucc tune`: {geomean([row['ratio'] for row in rows]):.2f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
