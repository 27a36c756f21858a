"""Speed of matrix products against cuBLAS, eager and torch.compile, nothing tuned or tuned.

    python -m benchmarks.speed --out speed.json [--fused] [--dtypes bf16,f16] [--only SHAPE,..] [--quick]
    python -m benchmarks.speed --out tuned.json --tune 8 [--groups plain,fused,tf32x3,fp8]

Claim: schedules that the cost model chooses are as fast as cuBLAS over 28 shapes, 8 of which it was not fitted
to; fused kernels (`--fused`) are as fast as eager and torch.compile. With `--tune`, what the search of `ucc tune`
finds with at most so many builds a shape, several shapes at once on one GPU, is faster than the fastest rival; it is
timed in turns with its rivals in a process that took no part in the search.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks import harness
from benchmarks.gemm_cases import GROUPS, HELD_OUT, KINDS, SHAPES, UNRECORDED, Run, Task, task_of, tasks
from benchmarks.harness import ARCH, Item, Row
from ucutlass import frontend
from ucutlass.api import LoadedKernel
from ucutlass.engine.local import LocalEngine
from ucutlass.engine.work import Engine
from ucutlass.ir import Kernel
from ucutlass.ir.hardware import ARCHES, default_device
from ucutlass.ir.schedule import partial_schedule_of_json, scheduled, show
from ucutlass.runtime.inputs import generate
from ucutlass.runtime.parallel import jobs
from ucutlass.runtime.statistics import paired_ratio
from ucutlass.runtime.timing import compare, sets_for
from ucutlass.tasks.tune import FINAL_ROUNDS
from ucutlass.tune.job import TuningSettings, job_of
from ucutlass.tune.parallel import Ended, FinishedSearch, tune_many
from ucutlass.tune.policy import SearchLimits
from ucutlass.tune.tune import FailedTrial, SearchResult

SEED = 7

ROW_SECONDS = 150.0
"""What one row may take; torch.compile tries out its kernels within it."""


# --- schedules ---------------------------------------------------------------------------


def chosen_schedules(every: Sequence[Task]) -> dict[str, Row]:
    """Plans and builds. Returns by the tasks' names the schedule, or why there is none."""
    plans = {task.name: harness.planned(task.text, task.sizes) for task in every}
    unbuilt = harness.prebuild(plans)
    return {
        name: _failed(name, "NotBuilt", unbuilt[name])
        if name in unbuilt
        else {"ok": True, "request": {}, "schedule": show(plan[2].request)}
        for name, plan in plans.items()
    }


def tuned_schedules(every: Sequence[Task], engine: Engine, builds: int, journal: Path) -> dict[str, Row]:
    """Searches. Returns the same, and writes each to `journal` once it is known."""
    device = harness.device() or default_device(ARCHES[ARCH])
    searches = []
    for task in every:
        checked = frontend.read_text(task.text)
        searches.append(job_of(checked, frontend.kernel(checked), task.sizes, ARCH, device))
    rows: dict[str, Row] = {}

    def note(number: int, ended: Ended) -> None:
        name = every[number].name
        row = found(ended.tuned) if isinstance(ended, FinishedSearch) else {}
        rows[name] = row or _failed(name, type(ended).__name__, str(ended)[:1500])
        harness.append(journal, {"name": name, **rows[name]})

    settings = TuningSettings(SearchLimits(builds=builds), seed=SEED)
    tune_many(searches, engine, settings, on_done=note)
    return rows


def found(tuned: SearchResult) -> Row:
    """Returns what a search came to; nothing where no finalist was right."""
    if tuned.winner is None:
        return {}
    return {
        "ok": True,
        "request": tuned.winner.kernel.request.fixed(),
        "schedule": show(tuned.winner.kernel.request),
        "builds": len(tuned.trials),
        "stopped": tuned.stopped,
        "seconds": tuned.seconds,
        "failures": [asdict(t.result) for t in tuned.trials if isinstance(t.result, FailedTrial)],
    }


def _failed(name: str, error: str, detail: str) -> Row:
    return {"name": name, "ok": False, "error": error, "detail": detail}


# --- one row, on the GPU ------------------------------------------------------------------


def row(item: Item) -> Row:
    """Times a kernel and its rivals in turns. `distance` says whether they computed the same thing."""
    task, kind = task_of(item), KINDS[item["kind"]]
    torch.backends.cuda.matmul.allow_tf32 = False
    checked = frontend.read_text(task.text)
    program = frontend.kernel(checked)
    if item["request"]:
        program = scheduled(program, ARCH, partial_schedule_of_json(item["request"]))
    kernel = LoadedKernel(checked, program, ARCH)
    sets = _sets(program, task.sizes, item["seed"])
    rivals: dict[str, Run] = {kind.rival: kind.eager}
    if kind.compiled and item["compile"]:
        rivals["compile"] = harness.compiled(kind.eager, *sets[0])
    outs = [kernel(*arguments) for arguments in sets]
    candidates: dict[str, Callable[[int], object]] = {"ours": lambda i: kernel(*sets[i], out=outs[i])}
    candidates |= {name: _keeping(run, sets) for name, run in rivals.items()}
    times = compare(candidates, len(sets), rounds=FINAL_ROUNDS)
    best = min(rivals, key=lambda name: times[name].median)
    ratios = {name: paired_ratio(times[name].rounds, times["ours"].rounds, SEED) for name in rivals}
    _, b, m, n, k = task.shape
    return {
        "kind": task.kind,
        "dtype": task.dtype,
        "shape": task.shape[0],
        "sizes": [b, m, n, k],
        "schedule": item["schedule"],
        **{name: time.median for name, time in times.items()},
        "best": best,
        "ratio": ratios[best].median,
        "ratios": {name: [r.median, r.low, r.high] for name, r in ratios.items()},
        "spread": max(t.spread for t in times.values()),
        "distance": distance(outs[0], kind.eager(*sets[0])),
        **(errors(sets[0], outs[0], kind.eager) if task.dtype == "f32" else {}),
    }


def _sets(program: Kernel, sizes: Mapping[str, int], seed: int) -> list[list[Any]]:
    """Returns argument sets that rotate through more than twice the L2."""
    first = generate(program, sizes, "normal", seed=seed, device="cuda", generator_device="cuda")
    moved = sum(a.numel() * a.element_size() for a in first if isinstance(a, torch.Tensor))
    return [[a.clone() if isinstance(a, torch.Tensor) else a for a in first] for _ in range(sets_for(moved))]


def _keeping(run: Run, sets: Sequence[Sequence[Any]]) -> Callable[[int], object]:
    """Returns launches whose results rotate as ours do: one that is freed at once would be written to the same
    place each time, and stay in L2."""
    results: list[torch.Tensor | None] = [None] * len(sets)

    def launch_one(i: int) -> object:
        results[i] = run(*sets[i])
        return results[i]

    return launch_one


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Returns the distance of two results as a share of theirs."""
    a, b = ours.double(), theirs.double()
    return float((a - b).norm() / b.norm())


def errors(arguments: Sequence[Any], ours: torch.Tensor, eager: Run) -> dict[str, float]:
    """Returns largest and root-mean-square error against float64, as shares of the result's root mean square."""
    exact = eager(*(a.double() for a in arguments))
    size = exact.square().mean().sqrt()
    shares = {}
    for name, result in (("ours", ours), ("eager", eager(*arguments))):
        off = (result.double() - exact).abs()
        shares[f"error {name}"] = float(off.max() / size)
        shares[f"rms error {name}"] = float(off.square().mean().sqrt() / size)
    return shares


# --- the whole run -----------------------------------------------------------------------


def main() -> None:
    parser = harness.parser_of(__doc__, compiles=True)
    parser.add_argument("--fused", action="store_true", help="the group fused too")
    parser.add_argument("--groups", default="plain", help=f"of {','.join(GROUPS)}; with commas")
    parser.add_argument(
        "--dtypes", default="bf16,f16", help="of the group plain; fused kernels are of the first"
    )
    parser.add_argument(
        "--tune", type=int, default=0, metavar="BUILDS", help="search, by at most so many builds"
    )
    options = parser.parse_args()
    groups = {*options.groups.split(","), *(["fused"] if options.fused else [])}
    if unknown := groups - {*GROUPS}:
        parser.error(f"no group is named {', '.join(sorted(unknown))}")
    every = tasks(sorted(groups), options.dtypes.split(","), tuned=bool(options.tune))
    chosen = harness.selected(every, options, lambda task: task.shape[0])
    report = run(chosen, options)
    harness.write(options.out, report)
    print(table(report))
    sys.exit(bool(report["lost"]))


def run(every: Sequence[Task], options: argparse.Namespace) -> dict[str, Any]:
    """Chooses or searches for schedules, and times them. Returns the report."""
    journal = harness.fresh(options.out.with_suffix(".jsonl"))
    if options.tune:
        with closing(LocalEngine(cpus=jobs(), on_wait=print)) as engine:
            schedules = tuned_schedules(every, engine, options.tune, journal)
        journal = harness.fresh(options.out.with_suffix(".compared.jsonl"))
    else:
        schedules = chosen_schedules(every)
    more = {"seed": options.seed, "compile": harness.compiles(options)}
    items = [
        task.item() | {key: schedules[task.name][key] for key in ("request", "schedule")} | more
        for task in every
        if schedules[task.name]["ok"]
    ]
    timed = harness.run("benchmarks.speed:row", items, journal, item_seconds=ROW_SECONDS)
    right = [schedules[r["name"]] | r for r in timed if r["ok"]]
    return {
        "machine": harness.machine(),
        "builds": options.tune,
        "gemm": [r for r in right if r["kind"] == "gemm"],
        "fused": [r for r in right if r["kind"] != "gemm"],
        "lost": [r for r in (*schedules.values(), *timed) if not r["ok"]],
    }


def table(report: Mapping[str, Any]) -> str:
    """Returns a line for each row, and what each kind and each group of shapes comes to."""
    rows = [*report["gemm"], *report["fused"]]
    groups = {"fitted": SHAPES, "held out": HELD_OUT, "unrecorded": UNRECORDED}
    ratios = {
        f"{kind} {dtype}, {rival} / ours": [
            r[rival] / r["ours"] for r in rows if (r["kind"], r["dtype"]) == (kind, dtype) and rival in r
        ]
        for kind, dtype in dict.fromkeys((r["kind"], r["dtype"]) for r in rows)
        for rival in (KINDS[kind].rival, "compile")
    }
    ratios |= {
        f"gemm {dtype} {label}, best rival / ours": [
            r["ratio"] for r in report["gemm"] if r["dtype"] == dtype and r["shape"] in {s[0] for s in shapes}
        ]
        for dtype in dict.fromkeys(r["dtype"] for r in report["gemm"])
        for label, shapes in groups.items()
    }
    lines = [*map(_line, rows), *harness.means(ratios)]
    return "\n".join([*lines, *harness.lost_lines(report["lost"], {})])


def _line(row: Row) -> str:
    b, m, n, k = row["sizes"]
    _, low, high = row["ratios"][row["best"]]
    rivals = "  ".join(f"{name} {row[name]:.1f}" for name in row["ratios"])
    error = (
        f"  error {row['error ours']:.2g}, eager's {row['error eager']:.2g}" if "error ours" in row else ""
    )
    builds = f"  {row['builds']} builds" if "builds" in row else ""
    return (
        f"{row['name']:34} {'' if b == 1 else f'{b} of '}{m} x {n} x {k}  {row['ours']:.1f} us  {rivals}  "
        f"ratio {row['ratio']:.3f} ({low:.3f} to {high:.3f})  spread {row['spread']:.3f}{builds}{error}  "
        f"{' '.join(row['schedule'].split())}"
    )


if __name__ == "__main__":
    main()
