"""The agent without a model on KernelBench's problems: against torch, random search and default schedules.

    python -m benchmarks.optimise --out optimise.json [--attempts 40] [--only l2_86,l1_88] [--lanes tf32,f32]
    python -m benchmarks.optimise --plan                # no GPU: problems, default schedules, spaces
    python -m benchmarks.optimise --table optimise.json # no GPU: the tables again
    python -m benchmarks.optimise --out dry.json --dry  # compilers, and a GPU that is made up

Problems are those of `benchmarks.optimise_cases`, in its order: classes, levels and lanes in turns, so a run
that ends early has seen most kinds. For each, two sessions of the agent of `--attempts` attempts run side by
side, each in a journal of its own: `rules`, which draws by the tuner's ranking, and `random`, which draws
evenly from the same legal space. No stop rule is used. Every candidate is checked, built, held against the
problem's float64 reference at the problem's extents on two kinds of numbers, and timed. Nobody is confirmed
meanwhile: when both have ended, the compiler's own choice, the best of each search, eager torch by its
defaults, eager torch with TF32 allowed, and torch.compile(mode="max-autotune-no-cudagraphs") (with TF32
allowed in lane tf32) are timed in turns in one process, in CUDA graphs over rotated buffers, and the
fastest of `default` and `rules`, which is what would be delivered, is held against the reference on `--cases`
distributions of its suite, drawn on the GPU; with `--full` it goes through so many cases of the suite proper.

`--processes` problems are worked on at once, each with its share of the cores as compilers, and one lane of
the GPU for all. What an answer proposes (`--programs`) is built at once, before its turn to be judged.

A row lies in FILE.jsonl as soon as it is known, sessions in FILE.sessions. The same command goes on where it
stopped, with exit status 75 where work is left; with more `--attempts` the sessions go on up to those.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import budget, relay
from benchmarks.budget import Deadline
from benchmarks.optimise_cases import TASKS, Task
from benchmarks.optimise_row import DRAWS
from benchmarks.optimise_table import latest, summary, table
from benchmarks.report import machine
from ucutlass import ir
from ucutlass.agent.proposers import cuts
from ucutlass.ir.hardware import DEVICES, Device
from ucutlass.ir.schedule import show
from ucutlass.pipeline.planning import plan_pipeline
from ucutlass.runtime import system
from ucutlass.shapes import complete
from ucutlass.tune.space import explore

ITEM_SECONDS = 1200.0
"""A problem that takes longer is lost: a compiler hangs, or a GPU."""

OVER = 1.5
"""Compilers for each core: while a problem begins, or is compared, its share of them is idle."""


def chosen(only: str, lanes: str) -> list[Task]:
    """In the order of `only`, where that names some. Raises ValueError for what names no problem."""
    starts, wanted = _words(only) or [""], _words(lanes)
    strange = [s for s in starts if not any(t.name.startswith(s) for t in TASKS)]
    if strange:
        raise ValueError(f"no problem is called {', '.join(strange)}; see --plan")
    named = {t.name: t for s in starts for t in TASKS if t.name.startswith(s)}
    return [t for t in named.values() if not wanted or t.lane in wanted]


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def items_of(tasks: Sequence[Task], options: argparse.Namespace) -> list[relay.Item]:
    """More attempts, or torch.compile beside, are another row of the same problem."""
    builders = max(1, round(system.cores() * OVER / options.processes))
    kind = f"x{options.attempts}{'' if options.no_compile else ' compile'}"
    return [
        {
            "name": f"{task.name} {kind}",
            "task": task.name,
            "attempts": options.attempts,
            "searches": _words(options.searches),
            "compile": not options.no_compile,
            "cases": options.cases,
            "full": options.full,
            "programs": options.programs,
            "builders": builders,
            "seed": options.seed,
            "dry": options.dry,
            "journals": str(options.out.with_suffix(".sessions")),
        }
        for task in tasks
    ]


def run(tasks: Sequence[Task], options: argparse.Namespace, deadline: Deadline) -> dict[str, Any]:
    items, rows = items_of(tasks, options), options.out.with_suffix(".jsonl")
    Path(items[0]["journals"]).mkdir(parents=True, exist_ok=True)
    made = relay.run(
        "benchmarks.optimise_row:rows_here",
        items,
        rows,
        item_seconds=ITEM_SECONDS,
        processes=options.processes,
        deadline=deadline,
    )
    known = {row["name"] for row in made}
    every = latest(budget.lines(rows))
    return {
        "machine": {} if options.dry else machine(),
        "attempts": options.attempts,
        "left": [item["name"] for item in items if item["name"] not in known],
        "summary": summary(every),
        "rows": every,
    }


# --- without a GPU ----------------------------------------------------------------------


def planned(tasks: Sequence[Task], device: Device) -> Iterator[str]:
    """A line a problem."""
    for task in tasks:
        checked, program = task.checked
        sizes = complete(program, task.sizes)
        match program:
            case ir.Kernel():
                space = explore(checked, program, sizes, task.problem.arch, device, free=True)
                own = space.groups[space.start[0]].members[space.start[1]]
                what = f"{len(space.groups):5} binaries of {space.kernels:5} kernels: {show(own.request)}"
            case ir.Pipeline():
                made = plan_pipeline(checked, program, sizes, task.problem.arch, device)
                other = len(cuts.neighbours(task.text, task.problem, device))
                what = f"{len(made.stages):5} stages, {other} other cuts"
        yield f"{task.name:42} level {task.level} class {task.letter} lane {task.lane:4} {what}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help="how names begin, by commas, in that order")
    parser.add_argument("--lanes", default="")
    parser.add_argument("--attempts", type=int, default=40)
    parser.add_argument("--searches", default="rules,random")
    parser.add_argument("--programs", type=int, default=8, help="of one answer, built at once")
    parser.add_argument("--processes", type=int, default=max(1, system.cores() // 2))
    parser.add_argument("--cases", type=int, default=12, help="of the suite, for what is delivered")
    parser.add_argument("--full", action="store_true", help="those cases as ucc verify has them, slower")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--dry", action="store_true", help="a made-up GPU")
    parser.add_argument("--plan", action="store_true")
    parser.add_argument("--table", type=Path, metavar="FILE")
    budget.add_option(parser)
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(options.table.read_text(encoding="utf-8"))["rows"]))
        return
    try:
        tasks = chosen(options.only, options.lanes)
    except ValueError as strange:
        parser.error(str(strange))
    if options.plan:
        for line in planned(tasks, next(d for d in DEVICES.values() if "H200" in d.name)):
            print(line, flush=True)
        return
    unknown = [s for s in _words(options.searches) if s not in DRAWS]
    if options.out is None or unknown or not options.searches:
        parser.error(f"--out FILE is needed, and --searches of {', '.join(DRAWS)}")
    report = run(tasks, options, budget.after(options.seconds))
    budget.write(options.out, report)
    print(table(report["rows"]))
    if report["left"]:
        print(f"left: {', '.join(report['left'])}")
        sys.exit(budget.OUT_OF_TIME)
    sys.exit(not all(row["ok"] for row in report["rows"]))


if __name__ == "__main__":
    main()
