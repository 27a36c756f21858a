"""Chains and blocks of KernelBench as pipelines, against the same in eager torch and torch.compile.

    python -m benchmarks.pipelines --out pipelines.json [--lanes bf16,tf32] [--only l2_99,l3_01]
    python -m benchmarks.pipelines --plan            # no GPU: which plan, and what stops the others

Every kernel of every pipeline is built first, all at once. A row is verified at the benchmark's own shape
against the float64 reference, each element within its derived bound, then timed in turns with its twin and
what torch.compile makes of that, all in CUDA graphs over rotated buffers; `torch_share` is what torch
functions take of its stages' time, `overlap` the stages one after the other over the pipeline as it runs.
Rows lie in the file's .jsonl as soon as they are known.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.pipeline_cases import CASES, LANES, Case, arguments, checked
from benchmarks.report import geomean, machine
from ucutlass.api import LoadedPipeline
from ucutlass.backend import build_sources, source_of
from ucutlass.diagnostics import ProgramError
from ucutlass.pipeline.planning import PipelinePlan, plan_pipeline
from ucutlass.reference.errors import UnsupportedError
from ucutlass.runtime import verify
from ucutlass.runtime.bench.workload import far
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.stage_times import torch_share
from ucutlass.runtime.timing import compare, sets_for
from ucutlass.shapes import complete

ARCH = "sm90a"
Row = dict[str, Any]


def planned(case: Case, lane: str) -> PipelinePlan:
    """Raises ProgramError where a stage has no kernel."""
    found, program = checked(case, lane)
    return plan_pipeline(found, program, complete(program, case.sizes), ARCH)


def build_all(wanted: Sequence[tuple[Case, str]]) -> dict[tuple[str, str], str]:
    """Builds every kernel of these; what stops a pipeline, by name and lane."""
    stopped: dict[tuple[str, str], str] = {}
    pairs, owners = [], []
    for case, lane in wanted:
        try:
            plan = planned(case, lane)
        except ProgramError as problem:
            d = problem.diagnostics[0]
            stopped[case.name, lane] = f"{d.message} [{d.code}]"
            continue
        found, _ = checked(case, lane)
        for stage in plan.stages:
            kernel, chosen = stage.step.kernel, stage.chosen
            if kernel is not None and chosen is not None:
                pairs.append((source_of(found, kernel, chosen.planned), chosen.planned.plan))
                owners.append((case.name, lane))
    for owner, made in zip(owners, build_sources(pairs), strict=True):
        if not isinstance(made, Artifact):
            stopped[owner] = str(made)[:500]
    return stopped


# --- a row -------------------------------------------------------------------------


def measured(case: Case, lane: str, compiled: bool) -> Row:
    """Raises whatever a build, a launch or torch does."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = lane == "tf32"
    found, program = checked(case, lane)
    ours = LoadedPipeline(found, program, ARCH)
    first = arguments(program, case.sizes, "cuda")
    row: Row = {"name": case.name, "lane": lane, "stages": len(program.stages)}
    row |= _right(case, ours, first)
    moved = sum(a.numel() * a.element_size() for a in first)
    sets = [[a.clone() for a in first] for _ in range(sets_for(moved))]
    launches: dict[str, Callable[[int], object]] = {
        "ours": lambda i: ours(*sets[i]), "eager": lambda i: case.twin(*sets[i])
    }  # fmt: skip
    if compiled:
        twin = torch.compile(case.twin, fullgraph=True, dynamic=False, mode="max-autotune-no-cudagraphs")
        launches["compile"] = lambda i: twin(*sets[i])
    with torch.no_grad():
        times = compare(launches, len(sets), rounds=5)
        stages = ours.stage_times(*first, repeats=5)
    (built,) = ours.built.values()
    row |= {"us": {name: t.median for name, t in times.items()}, "spread": times["ours"].spread}
    row |= {
        "lanes": built.plan.lanes.count, "torch_share": torch_share(stages),
        "overlap": sum(s.seconds for s in stages) * 1e6 / times["ours"].median,
        "stage_us": {s.name: s.seconds * 1e6 for s in stages},
    }  # fmt: skip
    best = min(t.median for name, t in times.items() if name != "ours")
    own = times["ours"].median
    return row | {"of_best": best / own, "of_eager": times["eager"].median / own}


def _right(case: Case, ours: LoadedPipeline, given: Sequence[torch.Tensor]) -> Row:
    """Held against the float64 reference, or, where that has no bound or no room, against the twin."""

    def launch(args: Sequence[Any], outs: Sequence[torch.Tensor]) -> None:
        ours(*args, out=outs[0])

    start = time.monotonic()
    try:
        verdict = verify.check(ours.program, launch, given)
        judged, ok = str(verdict), verdict.ok
    except (UnsupportedError, torch.OutOfMemoryError) as problem:
        torch.cuda.empty_cache()
        words = far(ours(*given), case.twin(*(g.float() for g in given)))
        judged, ok = f"{type(problem).__name__}: against the twin: {words or 'near'}", not words
    torch.cuda.empty_cache()
    return {"ok": ok, "judged": judged[:400], "judged_seconds": round(time.monotonic() - start, 1)}


# --- the command ---------------------------------------------------------------------


def _wanted(lanes: Sequence[str], only: Sequence[str]) -> list[tuple[Case, str]]:
    return [
        (case, lane)
        for lane in lanes
        for case in CASES
        if not only or any(case.name.startswith(o) for o in only)
    ]


def _summary(rows: Sequence[Mapping[str, Any]]) -> Row:
    fine = [r for r in rows if "us" in r]
    by_lane = {}
    for lane in dict.fromkeys(r["lane"] for r in fine):
        mine = [r for r in fine if r["lane"] == lane]
        by_lane[lane] = {
            "rows": len(mine), "wrong": [r["name"] for r in mine if not r["ok"]],
            "of_eager": geomean([r["of_eager"] for r in mine]),
            "of_best": geomean([r["of_best"] for r in mine]),
            "torch_share": max(r["torch_share"] for r in mine),
        }  # fmt: skip
    stopped = {f"{r['name']} {r['lane']}": r["error"] for r in rows if "error" in r}
    return {"by_lane": by_lane, "stopped": stopped}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("pipelines.json"))
    parser.add_argument("--lanes", default="bf16")
    parser.add_argument("--only", default="", help="Beginnings of names.")
    parser.add_argument("--seconds", type=float, default=1e9, help="No row is begun later.")
    parser.add_argument("--no-compile", action="store_true", help="Leave torch.compile out: it takes long.")
    parser.add_argument("--plan", action="store_true", help="Only say what plans.")
    options = parser.parse_args(argv)
    lanes = options.lanes.split(",")
    if unknown := set(lanes) - set(LANES):
        parser.error(f"no lane is named {', '.join(unknown)}")
    wanted = _wanted(lanes, [o for o in options.only.split(",") if o])
    if options.plan:
        return _plans(wanted)
    start = time.monotonic()
    stopped = build_all(wanted)
    print(f"built in {time.monotonic() - start:.1f} s; {len(stopped)} have no kernels", flush=True)
    rows: list[Row] = []
    journal = options.out.with_suffix(".jsonl")
    journal.write_text("")
    for case, lane in wanted:
        if time.monotonic() - start > options.seconds:
            break
        row: Row = {"name": case.name, "lane": lane, "error": stopped.get((case.name, lane), "")}
        if not row["error"]:
            try:
                row = measured(case, lane, not options.no_compile)
            except Exception as error:  # one row's loss, in its words
                row["error"] = f"{type(error).__name__}: {str(error)[:400]}"
        rows.append(row)
        with journal.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(_words(row), flush=True)
        torch.cuda.empty_cache()
    report = {"machine": machine(), **_summary(rows), "rows": rows}
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report["by_lane"], indent=1))
    return 0 if all(r.get("ok", True) for r in rows) else 1


def _words(row: Row) -> str:
    if "error" in row:
        return f"{row['lane']:5} {row['name'][:48]:48} {row['error'][:120]}"
    times = "  ".join(f"{n} {t:.1f}" for n, t in row["us"].items())
    verdict = "right" if row["ok"] else f"WRONG {row['judged'][:80]}"
    head = f"{row['lane']:5} {row['name'][:48]:48} {times}"
    return f"{head}  x{row['of_best']:.2f}  torch {row['torch_share']:.0%}  {verdict}"


def _plans(wanted: Sequence[tuple[Case, str]]) -> int:
    for case, lane in wanted:
        try:
            plan = planned(case, lane)
            seconds = sum(s.chosen.planned.seconds for s in plan.stages if s.chosen is not None)
            print(f"{lane:5} {case.name:52} {len(plan.stages)} stages, {plan.lanes.count} streams, "
                  f"{seconds * 1e6:.0f} us estimated")  # fmt: skip
        except ProgramError as problem:
            d = problem.diagnostics[0]
            print(f"{lane:5} {case.name:52} {d.message} [{d.code}]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
