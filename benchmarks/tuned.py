"""Speed of tuned kernels against cuBLAS, eager and torch.compile's max-autotune; and how long tuning takes.

    python -m benchmarks.tuned --out DIR/tuned.json [--stage b] [--seconds 540] [--resume BEFORE/tuned.json]
    python -m benchmarks.tuned --out DIR/tuned.json --groups fused,tf32x3,fp8
    python -m benchmarks.tuned --out DIR/tuned.json --groups "" --wall 6

Groups of rows: `plain` (32 shapes, f16 and bf16), `fused`, `tf32x3`, `fp8`. First every row is tuned
by the loop of `ucc tune`, many at once: all cores build while one process times. Then each winner is timed
in turns with its rivals in a process that took no part in that. `--wall` runs `ucc tune` and a first call of
torch.compile one after the other, each in a process and with caches of its own, and nothing beside them.

Rows lie in tuned.*.jsonl beside the report as soon as they are known; the same command goes on where it
stopped, and `--resume` takes over the rows of another call. `--dry` plays the whole without a GPU: its
times are the cost model's and mean nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from benchmarks import budget, relay, tuned_shop, tuned_wall
from benchmarks.budget import Deadline, append, lines
from benchmarks.report import machine
from benchmarks.tuned_rows import ARCH, GROUPS, KINDS, SEED, Task, task_of, tasks
from benchmarks.tuned_shop import Dry, OutOfTime, Shops
from benchmarks.tuned_table import table
from ucutlass import frontend
from ucutlass.backend import build_kernel
from ucutlass.ir.hardware import ARCHES, default_device, device_named
from ucutlass.ir.schedule import request_of_json, scheduled, show
from ucutlass.runtime import switches
from ucutlass.runtime.parallel import jobs
from ucutlass.runtime.switches import BUILD_STAGE, Stage
from ucutlass.shapes import complete
from ucutlass.tune.policy import SearchLimits
from ucutlass.tune.space import ScheduleSpace, explore
from ucutlass.tune.tune import FailedTrial, FinalistResult, SearchResult, TimedGroup, search

ROW_SECONDS = 150.0
"""What one comparison may take; torch.compile tries out its kernels within it."""

AT_ONCE = 12
"""Searches under way: enough that a kernel is always ready to be timed."""

PARTS = ("tuned", "compared", "wall")

DRY_GPU = "none (dry run)"


# --- tuning ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Means:
    """What a run works with: workshops for tasks, for as long as it tunes; where rows are compared; the
    wall clock; the machine. A dry run has others. `compiled` is whether torch.compile is a rival, `untuned`
    the types whose rows take the other 16-bit type's winners."""

    shops: Callable[[], AbstractContextManager[Shops]]
    rows: str
    wall: tuned_wall.Clock
    machine: Callable[[], dict[str, str]]
    prebuild: Callable[[Sequence[relay.Item]], Mapping[str, str]]
    compiled: bool = True
    untuned: frozenset[str] = frozenset()


def tune(task: Task, shops: Shops, gpu: str, builds: int) -> relay.Row:
    """One search: its winner, and everything that it timed."""
    checked = frontend.read_text(task.text)
    program = frontend.kernel(checked)
    sizes = complete(program, task.sizes)
    device = device_named(gpu) or default_device(ARCHES[ARCH])
    space = explore(checked, program, sizes, ARCH, device)
    with closing(shops(task)) as shop:
        shop.prepare()
        tuned = search(space, shop, "guided", SearchLimits(builds=builds), seed=SEED, jobs=jobs())
    return described(space, tuned)


def described(space: ScheduleSpace, tuned: SearchResult) -> relay.Row:
    """A search as JSON values; times in microseconds."""
    winner = tuned.winner
    row: relay.Row = {
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


def tune_all(
    wanted: Sequence[Task], shops: Shops, journal: Path, deadline: Deadline, gpu: str, builds: int
) -> None:
    """A row for each task that has no good one, `AT_ONCE` searches at a time."""
    known = {row["name"] for row in lines(journal) if row["ok"]}

    def one(task: Task) -> None:
        if deadline.passed:
            return
        try:
            row = tune(task, shops, gpu, builds)
        except OutOfTime:
            return
        except Exception as error:  # the row is the report, whatever went wrong
            row = {"ok": False, "error": type(error).__name__, "detail": str(error)[:1500]}
        if not row["ok"] and deadline.passed:
            return  # its builds were cancelled: it did not fail
        append(journal, {"name": task.name, **row})

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, [task for task in wanted if task.name not in known]))


# --- the whole run -------------------------------------------------------------------------


def run(
    wanted: Sequence[Task], walls: Sequence[Task], means: Means, out: Path, *, deadline: Deadline, builds: int
) -> dict[str, Any]:
    """Tunes, compares, clocks, sorts: the report."""
    journals = {part: journal(out, part) for part in PARTS}
    about = means.machine()
    fresh = [task for task in wanted if task.dtype not in means.untuned]
    with means.shops() as shops:
        tune_all(fresh, shops, journals["tuned"], deadline, about["gpu"].split(",")[0], builds)
    found = {row["name"]: row for row in lines(journals["tuned"])}
    known = {row["name"] for row in lines(journals["compared"])}
    items = [
        task.item()
        | {"request": row["request"], "compiled": means.compiled, "taken": row["name"] != task.name}
        for task in wanted
        if task.name not in known and (row := tuned_for(task, found)) is not None
    ]
    unbuilt = means.prebuild(items) if not deadline.passed else {}
    ready = [item for item in items if item["name"] not in unbuilt]
    relay.run(means.rows, ready, journals["compared"], item_seconds=ROW_SECONDS, deadline=deadline)
    tuned_wall.run(walls, journals["wall"], means.wall, builds, deadline)
    found_out = {"stage": switches.read().stage, "builds": builds, "unbuilt": dict(unbuilt)}
    return report(wanted, walls, journals, about) | found_out


def tuned_for(task: Task, found: Mapping[str, relay.Row]) -> relay.Row | None:
    """The search of the task, or else of the same shape in the other 16-bit type."""
    other = replace(task, dtype={"f16": "bf16", "bf16": "f16"}.get(task.dtype, task.dtype))
    for name in (task.name, other.name):
        if (row := found.get(name, {})).get("ok"):
            return row
    return None


def journal(out: Path, part: str) -> Path:
    return out.with_name(f"{out.stem}.{part}.jsonl")


def report(
    wanted: Sequence[Task], walls: Sequence[Task], journals: Mapping[str, Path], about: Mapping[str, str]
) -> dict[str, Any]:
    tuned, compared, wall = ({row["name"]: row for row in lines(path)} for path in journals.values())
    rows, lost, left = [], [], []
    for task in wanted:
        search_row, row = tuned_for(task, tuned) or tuned.get(task.name), compared.get(task.name)
        if search_row is not None and not search_row["ok"]:
            lost.append(search_row)
        elif row is not None and not row["ok"]:
            lost.append(row)
        elif search_row is None or row is None:
            left.append(task.name)
        else:
            rows.append(search_row | row | {"kind": task.kind, "shape": task.shape, "dtype": task.dtype})
    clocked = [wall[task.name] for task in walls if task.name in wall]
    return {
        "machine": dict(about),
        "rows": rows,
        "wall": [row for row in clocked if row["ok"]],
        "lost": lost + [row for row in clocked if not row["ok"]],
        "left": left + [f"wall {task.name}" for task in walls if task.name not in wall],
    }


def prebuild(items: Sequence[relay.Item]) -> dict[str, str]:
    """Builds the winners that this machine's cache lacks, all at once: why some could not be, by name."""

    def one(item: relay.Item) -> str:
        task = task_of(item)
        checked = frontend.read_text(task.text)
        program = scheduled(frontend.kernel(checked), ARCH, request_of_json(item["request"]))
        sizes = complete(program, task.sizes)
        try:
            build_kernel(checked, program, sizes, ARCH)
        except Exception as error:  # the report says which and why
            return f"{type(error).__name__}: {error}"[:1500]
        return ""

    with ThreadPoolExecutor(jobs()) as pool:
        words = list(pool.map(one, items))
    return {item["name"]: why for item, why in zip(items, words, strict=True) if why}


def on_gpu(deadline: Deadline) -> Means:
    rows = "benchmarks.tuned_rows:rows_here"
    return Means(partial(tuned_shop.on_gpu, deadline), rows, tuned_wall.clock, machine, prebuild)


# --- without a GPU -------------------------------------------------------------------------


def dry_rows(items: list[relay.Item], rows: str, item_seconds: float) -> int:
    """In the child of `relay.run`."""
    return relay.serve(dry_row, items, rows, item_seconds)


def dry_row(item: relay.Item) -> relay.Row:
    kind = KINDS[item["kind"]]
    rivals = [kind.rival, *(["compile"] if kind.compiled and item["compiled"] else [])]
    errors = {"error ours": 1e-6, "error eager": 1e-6} if item["dtype"] == "f32" else {}
    ratios = {name: [1.0, 1.0, 1.0] for name in rivals}
    return {
        "ours": 1.0,
        **dict.fromkeys(rivals, 1.0),
        "best": rivals[0],
        "taken": item["taken"],
        "ratio": 1.0,
        "ratios": ratios,
        "spread": 0.0,
        "distance": 0.0,
        **errors,
    }


DRY = Means(
    lambda: nullcontext(lambda task: Dry()),
    "benchmarks.tuned:dry_rows",
    tuned_wall.dry,
    lambda: {"gpu": DRY_GPU},
    lambda items: {},
)


# --- the command ---------------------------------------------------------------------------


def main() -> None:
    options = _options()
    groups, dtypes = options.groups.split(","), options.dtypes.split(",")
    only = [name for name in options.only.split(",") if name]
    wanted = [task for task in tasks(groups, dtypes) if not only or task.shape[0] in only]
    walls = tuned_wall.tasks(options.wall)
    if options.stage:
        os.environ[BUILD_STAGE] = options.stage  # for every process that builds or loads
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if options.resume is not None:
        take_over(options.resume, options.out)
    deadline = budget.after(options.seconds)
    means = replace(
        DRY if options.dry else on_gpu(deadline),
        compiled=not options.without_compile,
        untuned=frozenset(options.take.split(",")) - {""},
    )
    found = run(wanted, walls, means, options.out, deadline=deadline, builds=options.builds)
    budget.write(options.out, found)
    print(table(found))
    if found["left"]:
        sys.exit(budget.OUT_OF_TIME)
    sys.exit(bool(found["lost"] or found["unbuilt"]))


def take_over(before: Path, out: Path) -> None:
    """Adds the rows of another call to this one's journals, where they are not there yet."""
    for part in PARTS:
        known = {row["name"] for row in lines(journal(out, part))}
        for row in lines(journal(before, part)):
            if row["name"] not in known:
                append(journal(out, part), row)


def _options() -> argparse.Namespace:
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--groups", default=",".join(GROUPS), help="of plain,fused,tf32x3,fp8; with commas")
    parser.add_argument("--dtypes", default="bf16,f16", help="of the group plain")
    parser.add_argument("--only", default="", help="names of shapes, with commas")
    parser.add_argument("--wall", type=int, default=0, help="so many programs are clocked, after the rest")
    parser.add_argument("--stage", choices=get_args(Stage), help=f"how kernels are built, as {BUILD_STAGE}")
    parser.add_argument("--builds", type=int, default=SearchLimits().builds, help="most binaries a shape")
    parser.add_argument("--resume", type=Path, help="the --out of a call before, whose rows are taken over")
    parser.add_argument(
        "--without-compile", action="store_true", help="torch.compile is no rival: it takes most of the time"
    )
    parser.add_argument("--take", default="", help="types that take the other 16-bit type's winners: f16")
    parser.add_argument("--dry", action="store_true", help="without a GPU: times mean nothing")
    budget.add_option(parser)
    options = parser.parse_args()
    if unknown := set(options.groups.split(",")) - {*GROUPS, ""}:
        parser.error(f"no group is named {', '.join(sorted(unknown))}")
    return options


if __name__ == "__main__":
    main()
