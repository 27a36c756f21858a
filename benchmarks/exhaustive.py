"""Times every kernel of small spaces: tables that searches and stop rules are held against.

    python -m benchmarks.exhaustive --out exhaustive.json [--only l1_88,l2_53] [--free] [--seconds S] [--dry]
    python -m benchmarks.exhaustive --plan [--free]           # no GPU: problems and how many kernels each has
    ucc replay --tables exhaustive.json --stops               # what the searches would do on them
    python -m benchmarks.search_constants exhaustive.json

A problem's space is every kernel that its program denotes with all fields left open, as the planner weighs
them, or with `--free` as `ucc tune --free` does: one kernel a binary, launch knobs as the estimate would have
them, which is what the agent proposes. All cores build while the GPU times one kernel at a time, alone, in
CUDA graphs over rotated buffers (`ucutlass.tasks.tune.timed`, five rounds). A kernel that does not build or
run has no time, and says why.

A row lies in FILE.jsonl as soon as it is known; the same command goes on where it stopped, with exit status
75 where work is left. A table is complete where its rows are as many as its space has binaries.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks import budget, optimise_dry
from benchmarks.budget import Deadline
from benchmarks.optimise_cases import ARCH, TASKS, Task
from benchmarks.report import machine
from ucutlass import ir
from ucutlass.engine.local import LocalEngine
from ucutlass.engine.work import Engine
from ucutlass.ir.hardware import Device
from ucutlass.kernels.planned import Planned
from ucutlass.runtime import isolation
from ucutlass.runtime.gpu import at_hand
from ucutlass.shapes import complete
from ucutlass.tune.space import explore

SMALL = (
    "l1_88_new_gelu f32",
    "l1_01_square_matmul bf16",
    "l1_93_masked_cumsum f32",
    "l2_53",
    "l1_12",
    "l1_09",
    "l1_16",
    "l1_17_transposed_b tf32",
    "l1_71",
    "l1_89",
    "l1_17_transposed_b f32",
    "l1_88_new_gelu bf16",
    "l2_86_matmul_divide_gelu tf32",
)
"""Problems of small spaces, 33 to 75 binaries, in the order in which they are recorded."""

LIMIT_SECONDS = 120.0

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Item:
    """One kernel of a problem's space."""

    task: Task
    planned: Planned
    own: bool
    """Whether the compiler chooses it by itself."""

    @property
    def request(self) -> dict[str, Any]:
        return self.planned.request.given()

    @property
    def name(self) -> str:
        digest = sha256(json.dumps(self.request, sort_keys=True).encode()).hexdigest()
        return f"{self.task.name} {digest[:16]}"


def wanted(only: str) -> list[Task]:
    """Kernels alone: a pipeline's space is no list of schedules. Raises ValueError for what names none."""
    found: list[Task] = []
    for start in filter(None, only.split(",")) if only else SMALL:
        named = [t for t in TASKS if t.name.startswith(start) and isinstance(t.checked[1], ir.Kernel)]
        if not named:
            raise ValueError(f"no kernel of benchmarks.optimise_cases is called {start}")
        found += named
    return found


def items_of(task: Task, device: Device | None, free: bool) -> list[Item]:
    """Of each binary the kernel that is cheapest by estimate, and the compiler's own choice of its binary."""
    checked, program = task.checked
    assert isinstance(program, ir.Kernel)
    space = explore(checked, program, complete(program, task.sizes), ARCH, device, free)
    at, member = space.start
    return [Item(task, g.members[member if i == at else 0], i == at) for i, g in enumerate(space.groups)]


# --- one kernel -----------------------------------------------------------------------------


def measured(engine: Engine, item: Item, seed: int = 0) -> Row:
    """Raises MachineError: a compiler that is missing is no kernel's fault."""
    task = item.task
    _, program = task.checked
    where = {
        "text": task.text,
        "file": f"{task.name}.ucu",
        "name": program.name,
        "arch": ARCH,
        "sizes": dict(task.sizes),
        "requests": [item.request],
    }
    about: Row = {"name": item.name, "task": task.name, "request": item.request, "us": None}
    outcome = engine.submit("build", {**where, "stage": None}).result()
    if not isinstance(outcome, isolation.Returned):
        return about | {"words": isolation.lost(outcome, "the build")[:400]}
    (key,), (words,) = outcome.value["made"], outcome.value["words"]
    if not key:
        return about | {"words": words[:400]}
    outcome = engine.submit(
        "timed",
        {**where, "keys": [key], "seed": seed, "counts": [1], "best": None},
        artifacts=[key],
        limit_seconds=LIMIT_SECONDS,
    ).result()
    if not isinstance(outcome, isolation.Returned):
        return about | {"words": isolation.lost(outcome, "the timing")[:400]}
    (seconds,), (words,) = outcome.value["seconds"], outcome.value["words"]
    return about | {"us": None if seconds is None else seconds * 1e6, "words": words[:400]}


def record(engine: Engine, items: Sequence[Item], rows: Path, deadline: Deadline) -> None:
    """Builds as many at once as the engine has compilers, and times each as soon as it is built."""
    rows.parent.mkdir(parents=True, exist_ok=True)
    known = {row["name"] for row in budget.lines(rows)}

    def one(item: Item) -> None:
        if not deadline.passed:
            budget.append(rows, measured(engine, item))

    fresh = [item for item in items if item.name not in known]
    # Twice as many as compilers: what waits for the GPU holds none.
    with ThreadPoolExecutor(2 * engine.cpus) as pool:
        for done in [pool.submit(one, item) for item in fresh]:
            done.result()


def tables(items: Sequence[Item], rows: Sequence[Row], free: bool) -> list[Row]:
    """A table a problem, as `ucutlass.tune.tables` reads it."""
    by_name = {row["name"]: row for row in rows}
    found: dict[str, Row] = {}
    for item in items:
        task = item.task
        table = found.setdefault(
            task.name,
            {
                "shape": task.name,
                "text": task.text,
                "sizes": dict(task.sizes),
                "arch": ARCH,
                "free": free,
                "own": None,
                "of": 0,
                "rows": [],
            },
        )
        table["of"] += 1
        if item.own:
            table["own"] = item.request
        if (row := by_name.get(item.name)) is not None:
            table["rows"].append({name: row[name] for name in ("request", "us", "words")})
    return [{**t, "complete": len(t["rows"]) == t["of"]} for t in found.values()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help="how names begin, by commas")
    parser.add_argument("--free", action="store_true")
    parser.add_argument("--dry", action="store_true", help="a made-up GPU")
    parser.add_argument("--plan", action="store_true")
    budget.add_option(parser)
    options = parser.parse_args()
    try:
        tasks = wanted(options.only)
    except ValueError as strange:
        parser.error(str(strange))
    found = None if options.dry or options.plan else at_hand()
    if found is None and not (options.dry or options.plan):
        parser.error("there is no NVIDIA GPU here that a compile target serves; --dry needs none")
    device = optimise_dry.H200 if found is None else found.device
    items = [item for task in tasks for item in items_of(task, device, options.free)]
    if options.plan or options.out is None:
        for task in tasks:
            print(f"{task.name:42} {sum(i.task is task for i in items):5} binaries")
        return
    rows = options.out.with_suffix(".jsonl")
    engine = LocalEngine([optimise_dry.UUID], table=optimise_dry.TABLE) if options.dry else LocalEngine()
    with closing(engine):
        engine.submit("prepare", {})
        record(engine, items, rows, budget.after(options.seconds))
    made = tables(items, budget.lines(rows), options.free)
    about = {"gpu": "NVIDIA H200"} if options.dry else machine()
    budget.write(options.out, {"machine": about, "tables": made})
    for one in made:
        print(
            f"{one['shape']:42} {len(one['rows']):4} of {one['of']:4}, "
            f"{sum(r['us'] is not None for r in one['rows'])} with a time"
        )
    sys.exit(0 if all(one["complete"] for one in made) else budget.OUT_OF_TIME)


if __name__ == "__main__":
    main()
