"""Chains and blocks of KernelBench as pipelines, against the same in eager torch and torch.compile.

    python -m benchmarks.pipelines --out pipelines.json [--compute-types bf16,tf32] [--only l2_99,l3] [--no-compile]
    python -m benchmarks.pipelines --plan            # no GPU: which plan, and what stops the others

Claim: whole programs of several kernels are right, and faster than eager and torch.compile.

Every kernel of every pipeline is built at once, in the rows' order, while rows whose kernels are there are
measured. A row is verified at the benchmark's own shape stage by stage, each launch on what the ones before it
stored, every element within its derived bound of the stage's float64 reference; the pipeline must give the
same bits, and is held against the reference of the whole beside (`ucutlass.runtime.verify.stages`). `stages`
and `end_to_end` have the worst error over its bound, and of how many elements the bound says nothing. `error`
and `theirs` need no bound: the Euclidean norm of the error over the result's, of ours and of eager torch in
the same compute type, against the twin in float64. Then it is timed in turns with its twin and what
torch.compile makes of that, all in CUDA graphs over rotated buffers. `torch_share` is what torch functions take
of its stages' time, `overlap` the stages one after the other over the pipeline as it runs.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import harness
from benchmarks.harness import Item, Row, geomean, machine
from benchmarks.pipeline_cases import CASES, COMPUTE_TYPES, Case, arguments, checked
from ucutlass.api import LoadedPipeline
from ucutlass.backend import build_sources, source_of
from ucutlass.diagnostics import ProgramError
from ucutlass.pipeline.planning import PipelinePlan, plan_pipeline
from ucutlass.runtime import system, verify
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.stage_times import torch_share
from ucutlass.runtime.timing import compare, sets_for
from ucutlass.shapes import complete

ARCH = "sm90a"
ROW_SECONDS = 180.0
"""Of which torch.compile's tuning of matrix products takes most."""


@dataclass(frozen=True, slots=True)
class Task:
    case: Case
    compute_type: str

    @property
    def name(self) -> str:
        return f"{self.compute_type} {self.case.name}"


def planned(case: Case, compute_type: str) -> PipelinePlan:
    """Raises ProgramError where a stage has no kernel."""
    text, program = checked(case, compute_type)
    return plan_pipeline(text, program, complete(program, case.sizes), ARCH)


Plans = Mapping[str, PipelinePlan]


def all_planned(chosen: Sequence[Task]) -> tuple[Plans, dict[str, str]]:
    """By the tasks' names: plans, and what stops the others."""
    plans, stopped = {}, {}
    for task in chosen:
        try:
            plans[task.name] = planned(task.case, task.compute_type)
        except ProgramError as problem:
            d = problem.diagnostics[0]
            stopped[task.name] = f"{d.message} [{d.code}]"
    return plans, stopped


def prebuild(chosen: Sequence[Task], plans: Plans) -> dict[str, str]:
    """Builds every kernel of these, in their order, with two cores left to the process that measures rows.
    Returns what stops a pipeline, by its task's name."""
    pairs, owners = [], []
    for task in chosen:
        text, _ = checked(task.case, task.compute_type)
        for stage in plans[task.name].stages:
            kernel, choice = stage.step.kernel, stage.chosen
            if kernel is not None and choice is not None:
                pairs.append((source_of(text, kernel, choice.planned), choice.planned.plan))
                owners.append(task.name)
    results = build_sources(pairs, max_jobs=max(1, system.cores() - 2))
    built = zip(owners, results, strict=True)
    return {o: str(result)[:500] for o, result in built if not isinstance(result, Artifact)}


# --- a row -------------------------------------------------------------------------


def rows_here(items: list[Item], rows: str, item_seconds: float) -> int:
    """Runs in the child of `harness.run`."""
    return harness.serve(_row, items, rows, item_seconds)


def _row(item: Item) -> Row:
    """`ok` is whether it is right. Raises whatever a build, a launch or torch does."""
    case = next(c for c in CASES if c.name == item["case"])
    compute_type: str = item["lane"]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = compute_type == "tf32"
    text, program = checked(case, compute_type)
    ours = LoadedPipeline(text, program, ARCH)
    first = arguments(program, case.sizes, "cuda", seed=item["seed"])
    row: Row = {"case": case.name, "lane": compute_type} | _judged(case, ours, first)
    moved = sum(a.numel() * a.element_size() for a in first)
    sets = [[a.clone() for a in first] for _ in range(sets_for(moved))]
    launches: dict[str, Callable[[int], object]] = {
        "ours": lambda i: ours(*sets[i]),
        "eager": lambda i: case.twin(*sets[i]),
    }
    if item["compile"]:
        twin = torch.compile(case.twin, fullgraph=True, dynamic=False, mode="max-autotune-no-cudagraphs")
        launches["compile"] = lambda i: twin(*sets[i])
    with torch.no_grad():
        times = compare(launches, len(sets), rounds=5)
        stages = ours.stage_times(*first, repeats=5)
    (built,) = ours.built.values()
    own = times["ours"].median
    return row | {
        "us": {name: t.median for name, t in times.items()},
        "spread": times["ours"].spread,
        "streams": built.plan.streams.count,
        "torch_share": torch_share(stages),
        "overlap": sum(s.seconds for s in stages) * 1e6 / own,
        "stage_us": {s.name: s.seconds * 1e6 for s in stages},
        "of_best": min(t.median for name, t in times.items() if name != "ours") / own,
        "of_eager": times["eager"].median / own,
    }


def _judged(case: Case, ours: LoadedPipeline, inputs: Sequence[torch.Tensor]) -> Row:
    """Stage by stage and end to end, and by norms."""
    launch = ours.judged(*inputs)  # waits for what is still being built
    start = time.monotonic()
    verdict = verify.check(ours.program, launch, inputs)
    torch.cuda.empty_cache()
    row = stated(verdict) | {"judged_seconds": round(time.monotonic() - start, 1)}
    row |= norms(case, ours(*inputs), inputs)
    torch.cuda.empty_cache()
    return row


def stated(verdict: verify.LaunchVerdict) -> Row:
    """A verdict as a row has it: strict JSON, so an infinite ratio is a string."""
    stages = [
        {"name": s.name, "state": s.state, "torch": s.torch} | _bounded(s.comparisons) for s in verdict.stages
    ]
    return {
        "ok": verdict.ok,
        "state": verdict.state,
        "rests_on_stages": verdict.rests_on_stages,
        "judged": str(verdict)[:600],
        "end_to_end": {"missing": verdict.missing} | _bounded(verdict.comparisons),
        "stages": stages,
    }


def _bounded(compared: Sequence[verify.Comparison]) -> Row:
    worst = max((c.worst for c in compared), default=None)
    return {
        "worst": worst if worst is None or math.isfinite(worst) else str(worst),
        "useless": sum(c.useless for c in compared),
        "unbounded": sum(c.unbounded for c in compared),
        "elements": sum(c.elements for c in compared),
    }


def norms(case: Case, result: torch.Tensor, inputs: Sequence[torch.Tensor]) -> Row:
    """`error` and `theirs`, the errors' norms over the result's against the twin in float64."""
    with torch.no_grad():
        theirs = case.twin(*inputs)
        expected = case.twin(*(g.double() for g in inputs))
    error, other = (
        float((y.double().reshape(expected.shape) - expected).norm() / expected.norm())
        for y in (result, theirs)
    )
    return {"error": error, "theirs": other}


# --- all of them ---------------------------------------------------------------------


def run(chosen: Sequence[Task], journal: Path, more: Item) -> Row:
    """Builds, verifies and times; returns the report. `more` is what every item has besides."""
    plans, stopped = all_planned(chosen)
    ready = [task for task in chosen if task.name in plans]
    items = [{"name": t.name, "case": t.case.name, "lane": t.compute_type, **more} for t in ready]
    with ThreadPoolExecutor(1) as beside:
        # A row waits, at its kernels' locks in the cache, for what is still being built.
        built = beside.submit(prebuild, ready, plans)
        rows = harness.run("benchmarks.pipelines:rows_here", items, journal, item_seconds=ROW_SECONDS)
        stopped |= built.result()
    return {"machine": machine(), "by_lane": summary(rows), "rows": rows, "stopped": stopped}


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Row]:
    """By compute type: how many were timed, what was wrong or lost, and baseline over ours, the geomean, least and
    most."""
    compute_types: dict[str, Row] = {}
    for compute_type in COMPUTE_TYPES:
        mine = [r for r in rows if r["name"].startswith(f"{compute_type} ")]
        timed = [r for r in mine if "us" in r and r["ok"]]
        if mine:
            compute_types[compute_type] = {
                "timed": len(timed),
                "not right": [r["name"] for r in mine if not r["ok"]],
                "of_eager": _ratios([r["us"]["eager"] / r["us"]["ours"] for r in timed]),
                "of_compile": _ratios(
                    [r["us"]["compile"] / r["us"]["ours"] for r in timed if "compile" in r["us"]]
                ),
                "of_best": _ratios([r["of_best"] for r in timed]),
                "torch_share": max((r["torch_share"] for r in timed), default=0.0),
                "rest_on_stages": [r["name"] for r in timed if r["rests_on_stages"]],
                "error_over_theirs": _ratios([r["error"] / r["theirs"] for r in timed if r["theirs"]]),
            }
    return compute_types


def _ratios(ratios: list[float]) -> Row | None:
    if not ratios:
        return None
    return {"of": len(ratios), "geomean": geomean(ratios), "least": min(ratios), "most": max(ratios)}


def table(report: Mapping[str, Any]) -> str:
    lines = [_words(row) for row in report["rows"]]
    lines += [f"{name:57} {why[:100]}" for name, why in report["stopped"].items()]
    for compute_type, of in report["by_lane"].items():
        ratios = [
            f"{r['geomean']:.3f} ({r['least']:.2f} to {r['most']:.2f}, {r['of']}) of {name}"
            for name in ("eager", "compile", "best")
            if (r := of[f"of_{name}"]) is not None
        ]
        rest = f"{len(of['rest_on_stages'])} by their stages alone"
        lines.append(
            f"{compute_type}: {of['timed']} right and timed, {rest}, {len(of['not right'])} not; {'; '.join(ratios)}"
        )
        if (errors := of["error_over_theirs"]) is not None:
            lines.append(
                f"{compute_type}: error over eager's {errors['geomean']:.3f} (at most {errors['most']:.2f})"
            )
    return "\n".join(lines)


def _words(row: Mapping[str, Any]) -> str:
    if "us" not in row:
        return f"{row['name']:57} {row['error']}: {row['detail'][:100]}"
    times = "  ".join(f"{n} {t:.1f}" for n, t in row["us"].items())
    verdict = "right" if row["ok"] else f"{row['state'].upper()} {row['judged'][:160]}"
    errors = f"error {row['error']:.2e} theirs {row['theirs']:.2e}"
    share = f"torch {row['torch_share']:.0%}"
    return f"{row['name']:57} {times}  x{row['of_best']:.2f}  {share}  {errors}  {verdict}"


def plans(chosen: Sequence[Task]) -> str:
    """Returns what the compiler says of each, without a GPU."""
    lines = []
    for task in chosen:
        try:
            plan = planned(task.case, task.compute_type)
        except ProgramError as problem:
            d = problem.diagnostics[0]
            lines.append(f"{task.name:57} {d.message} [{d.code}]")
            continue
        seconds = sum(s.chosen.planned.seconds for s in plan.stages if s.chosen is not None)
        what = f"{len(plan.stages)} stages, {plan.streams.count} streams, {seconds * 1e6:.0f} us estimated"
        lines.append(f"{task.name:57} {what}")
    return "\n".join(lines)


def main() -> None:
    parser = harness.parser_of(__doc__, compiles=True, out_needed=False)
    parser.add_argument(
        "--compute-types", "--lanes", default="bf16", help=f"compute types, of {', '.join(COMPUTE_TYPES)}"
    )
    parser.add_argument("--plan", action="store_true", help="only say what plans")
    options = parser.parse_args()
    compute_types = options.compute_types.split(",")
    if unknown := set(compute_types) - set(COMPUTE_TYPES):
        parser.error(f"no compute type is named {', '.join(unknown)}")
    cases = harness.selected(CASES, options, lambda case: case.name)
    chosen = [Task(case, compute_type) for compute_type in compute_types for case in cases]
    if options.plan:
        print(plans(chosen))
        return
    if options.out is None:
        parser.error("--out FILE is needed, or --plan")
    journal = harness.fresh(options.out.with_suffix(".jsonl"))
    report = run(chosen, journal, {"seed": options.seed, "compile": harness.compiles(options)})
    harness.write(options.out, report)
    print(table(report))
    sys.exit(bool(report["stopped"] or any(not row["ok"] for row in report["rows"])))


if __name__ == "__main__":
    main()
