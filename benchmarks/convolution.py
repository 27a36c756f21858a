"""Convolutions against cuDNN (torch, channels last, benchmark mode) and torch.compile in the same run.

    python -m benchmarks.convolution --out convolution.json [--only NAME,...] [--no-compile] [--seconds S]

Default schedules, nothing tuned; rows in turns on rotated buffers as `runtime/timing.py` describes. `plain`
rows are a convolution alone, `fused` ones have a bias and an activation, which eager runs as kernels of
their own. Tensors lie channels last on both sides. Errors are those of fresh inputs against float64, ours
and cuDNN's, on a sample of results; ours must be within the derived bound. Rows of lane f32 have cuDNN
without tf32, those of tf32 with it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import ucutlass
from benchmarks import budget, relay
from benchmarks.budget import Deadline
from benchmarks.convolution_cases import CASES, NOT_FUSED, Case, eager, given, sampled, tensors
from benchmarks.report import geomean, machine
from ucutlass import frontend
from ucutlass.backend import build_sources, source_of
from ucutlass.reference import expect
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.errors import BuildCancelled
from ucutlass.runtime.timing import compare, sets_for
from ucutlass.runtime.verify import compare as compare_with
from ucutlass.shapes import complete

ROW_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Task:
    case: Case
    fused: bool

    @property
    def name(self) -> str:
        return f"{'fused' if self.fused else 'plain'} {self.case.name}"


def tasks() -> list[Task]:
    plain = [Task(case, False) for case in CASES]
    return plain + [Task(case, True) for case in CASES if case.kind not in NOT_FUSED]


# --- one row ------------------------------------------------------------------------


def row(item: relay.Item) -> relay.Row:
    torch.backends.cudnn.benchmark = True
    task = next(t for t in tasks() if t.name == item["name"])
    case = task.case
    torch.backends.cudnn.allow_tf32 = case.t == "tf32"
    kernel = ucutlass.loads(case.text(task.fused))
    one = tensors(case, task.fused, 1)[0]
    sets = sets_for(sum(t.numel() * t.element_size() for t in one))
    ours = [one, *tensors(case, task.fused, sets - 1)]
    theirs = [given(case, tensors_) for tensors_ in ours]
    torch_way = eager(case, task.fused)
    erring = errors(case, task.fused, kernel, torch_way)
    candidates: dict[str, Callable[[int], object]] = {
        "ours": lambda i: kernel(*ours[i][:-1], out=ours[i][-1]),
        "cudnn": lambda i: torch_way(*theirs[i]),
        "cudnn again": lambda i: torch_way(*theirs[i]),
    }
    if item["compile"]:
        torch._dynamo.reset()
        compiled = torch.compile(torch_way, mode="max-autotune-no-cudagraphs")
        compiled(*theirs[0])
        candidates["compile"] = lambda i: compiled(*theirs[i])
    times = compare(candidates, sets)
    mine = times["ours"].median
    best = min(times["cudnn"].median, times["cudnn again"].median)
    found: dict[str, Any] = {
        "fused": task.fused,
        "kernel": item["kernel"],
        "error": erring.ours,
        "cudnn error": erring.theirs,
        "of bound": erring.of_bound,
        "ours": mine,
        "cudnn": best,
        "ratio": best / mine,
        "tflops": 1e-6 * case.flops / mine,
        "spread": max(t.spread for t in times.values()),
        "noise": times["cudnn"].median / times["cudnn again"].median,
    }
    if item["compile"]:
        found |= {"compile": times["compile"].median, "over compile": times["compile"].median / mine}
    return found


@dataclass(frozen=True, slots=True)
class Errors:
    """Of a sample of results on fresh inputs, against float64: `ours` and `theirs`, the largest difference
    over the largest value; `of_bound`, ours over what an honest kernel may err by, element by element."""

    ours: float
    theirs: float
    of_bound: float


def errors(
    case: Case, fused: bool, kernel: Any, torch_way: Callable[..., torch.Tensor], seed: int = 0
) -> Errors:
    """One image's results, of gradients of weights those of eight columns; the whole result is poisoned
    first. Raises AssertionError where ours is beyond its bound, or not written."""
    torch.manual_seed(1000 + seed)
    one = tensors(case, fused, 1)[0]
    one[-1].fill_(float("nan"))
    kernel(*one[:-1], out=one[-1])
    theirs = torch_way(*given(case, one)).movedim(1, -1)
    assert bool(one[-1].isfinite().all()), "results that nothing wrote, or no numbers"
    at = int(torch.randint(case.n, ()).item()) if case.kind != "weights" else case.k // 2
    sample = sampled(case, one, at)
    (expected,) = expect(kernel.program, list(sample[:-1]))
    reference, result = expected.reference, sample[-1]
    largest = float(reference.abs().max())
    judged = compare_with(result, reference, expected.bound, overflows=expected.overflows, free=expected.free)
    mine, other = (
        float((x.double() - reference).abs().max()) / largest
        for x in (result, sampled(case, (*one[:-1], theirs), at)[-1])
    )
    found = Errors(mine, other, judged.worst)
    assert found.of_bound <= 1, f"ours errs by {found.of_bound:.3g} of the bound: {found}"
    return found


# --- the run ------------------------------------------------------------------------


def prebuild(wanted: Sequence[Task], deadline: Deadline) -> tuple[dict[str, str], dict[str, str]]:
    """Builds every kernel in parallel: what was built, by task, and why others were not."""
    sources, shown = [], []
    for task in wanted:
        checked = frontend.read_text(task.case.text(task.fused))
        program = frontend.kernel(checked)
        planned = frontend.plan_kernel(
            checked, program, complete(program, task.case.sizes()), "sm90a"
        ).planned
        sources.append((source_of(checked, program, planned), planned.plan))
        shown.append(str(planned.plan.schedule))
    built, unbuilt = {}, {}
    for task, schedule, result in zip(
        wanted, shown, build_sources(sources, cancel=deadline.event()), strict=True
    ):
        match result:
            case Artifact():
                built[task.name] = schedule
            case BuildCancelled():
                pass
            case failure:
                unbuilt[task.name] = str(failure)[:2000]
    return built, unbuilt


def rows_here(items: list[relay.Item], rows: str, item_seconds: float) -> int:
    """In the child of `relay.run`."""
    return relay.serve(row, items, rows, item_seconds)


def run(wanted: Sequence[Task], journal: Path, deadline: Deadline, compiles: bool) -> Mapping[str, Any]:
    """Builds, times and sorts: the report."""
    known = {r["name"] for r in budget.lines(journal)}
    fresh = [task for task in wanted if task.name not in known]
    built, unbuilt = prebuild(fresh, deadline)
    items = [{"name": t.name, "kernel": built[t.name], "compile": compiles} for t in fresh if t.name in built]
    relay.run("benchmarks.convolution:rows_here", items, journal, item_seconds=ROW_SECONDS, deadline=deadline)
    found = {r["name"]: r for r in budget.lines(journal)}
    done = [found[t.name] for t in wanted if t.name in found]
    return {
        "machine": machine(),
        "rows": [r for r in done if r["ok"]],
        "lost": [r for r in done if not r["ok"]],
        "unbuilt": unbuilt,
        "left": [t.name for t in wanted if t.name not in found and t.name not in unbuilt],
    }


def table(report: Mapping[str, Any]) -> str:
    lines = [_line(r) for r in report["rows"]]
    for fused in (False, True):
        rows = [r for r in report["rows"] if r["fused"] == fused]
        if rows:
            label = "bias and relu" if fused else "plain"
            lines.append(
                f"{label}: geomean of cudnn / ours {geomean([r['ratio'] for r in rows]):.3f}, worst "
                f"{min(r['ratio'] for r in rows):.3f}, {len(rows)} shapes"
            )
            compiled = [r["over compile"] for r in rows if "over compile" in r]
            if compiled:
                lines.append(
                    f"{label}: geomean over torch.compile {geomean(compiled):.3f}, worst {min(compiled):.3f}"
                )
    lines += [f"lost: {r['name']}: {r['error']}: {r['detail'][:300]}" for r in report["lost"]]
    lines += [f"not built: {name}: {why[:600]}" for name, why in report["unbuilt"].items()]
    return "\n".join(lines)


def _line(row: Mapping[str, Any]) -> str:
    compiled = f"  over compile {row['over compile']:.3f}" if "over compile" in row else ""
    return (
        f"{row['name']:38} {row['ours']:8.1f} us {row['tflops']:6.1f} TF  cudnn {row['cudnn']:8.1f}  ratio "
        f"{row['ratio']:.3f}{compiled}  spread {row['spread']:.3f}  error "
        f"{row['error']:.1e} (cudnn {row['cudnn error']:.1e}, bound {row['of bound']:.2f})  "
        f"{row['kernel'].partition('(')[0]} {_tile(row['kernel'])}"
    )


def _tile(kernel: str) -> str:
    return kernel.partition("tile=")[2].partition(")")[0] + ")" if "tile=" in kernel else ""


def main() -> None:
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="names of shapes, with commas")
    parser.add_argument("--kinds", default="plain,fused")
    parser.add_argument(
        "--no-compile", action="store_true", help="without torch.compile, which takes the time"
    )
    budget.add_option(parser)
    options = parser.parse_args()
    only = list(filter(None, options.only.split(",")))
    kinds = options.kinds.split(",")
    wanted = [t for t in tasks() if (not only or t.case.name in only) and t.name.split()[0] in kinds]
    report = run(
        wanted, options.out.with_suffix(".jsonl"), budget.after(options.seconds), not options.no_compile
    )
    budget.write(options.out, report)
    print(table(report))
    if report["left"]:
        print(f"{len(report['left'])} rows not timed for lack of time; the same command goes on")
        sys.exit(budget.OUT_OF_TIME)
    sys.exit(bool(report["lost"] or report["unbuilt"]))


if __name__ == "__main__":
    main()
