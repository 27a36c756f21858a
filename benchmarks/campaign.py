"""Works off the rows of a script: plans and builds on the host, then times on every GPU, and holds the rows against
bars.

A script has cases, which are programs with what its function of a row needs, and calls `report`. All kernels are
planned in `--jobs` processes and built by as many compilers before anything is timed. Rows are then taken by one
process a GPU, whichever is free, and written to `FILE.jsonl` as soon as they are known; a hang, a crash or a broken
CUDA context costs one row. A run with the same programs on the same kind of device with the same versions goes on
behind the rows that stand there. `--seconds` ends a run with what it has: of that time building may take half, what
was not reached is told, and the next run goes on with it.

The exit status is 1 where a row is wrong or lost or a bar is missed, 3 where rows were not reached, else 0.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import multiprocessing
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, TypeAlias, TypeVar

from benchmarks import bars, gpu_queue, harness
from benchmarks.bars import Bar, Classes
from benchmarks.harness import Item, Row, append, lines
from ucutlass.backend import build_sources, source_of
from ucutlass.emit.text import Source
from ucutlass.runtime import isolation
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.errors import BuildCancelled
from ucutlass.runtime.parallel import jobs as compilers

T = TypeVar("T")
R = TypeVar("R")

Program: TypeAlias = tuple[str, Mapping[str, int]]
"""A kernel's text and its extents."""

Environ: TypeAlias = Mapping[str, str] | None

START_SECONDS = 120.0
"""What a fresh process may take before its first item: importing torch, a CUDA context."""

BUILD_SHARE = 0.5
"""Of `--seconds`, what planning and building may take."""

NOT_REACHED = "NotReached"

WRONG = ("ArithmeticError", "AssertionError")
"""What a function of a row raises where a result is wrong."""


@dataclass(frozen=True, slots=True)
class Case:
    """A row to be: the program whose schedule the row's item has, what else the item has, and programs that the row
    launches besides; those that no kernel serves are left to the row."""

    name: str
    text: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    facts: Item = field(default_factory=dict)
    also: tuple[Program, ...] = ()


@dataclass(frozen=True, slots=True)
class Emitted:
    """A program's kernel, ready to be built."""

    source: Source
    plan: Any
    schedule: str


def parser_of(doc: str | None, **more: Any) -> argparse.ArgumentParser:
    """Returns `harness.parser_of` with the options of scripts whose rows are prepared and then shared out."""
    parser = harness.parser_of(doc, **more)
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="planners and compilers at once, by default as fit"
    )
    parser.add_argument("--devices", type=int, metavar="N", help="GPUs to use, by default all")
    parser.add_argument(
        "--dry", action="store_true", help="draw, plan and emit every row alone; needs no GPU"
    )
    return parser


# --- on the host -------------------------------------------------------------------------


def emitted(program: Program) -> Emitted | str:
    """Returns the kernel that the planner chooses, or why there is none."""
    try:
        plan = harness.planned(*program)
        return Emitted(source_of(*plan), plan[2].plan, str(plan[2].plan.schedule))
    except Exception as failure:  # a finding of its row; the other rows go on
        return f"{type(failure).__name__}: {failure}"[:2000]


def side_by_side(function: Callable[[T], R], arguments: Sequence[T], jobs: int) -> list[R]:
    """Returns the results of a function of a module, called in so many processes."""
    harness.device()  # once, for all of them
    if min(jobs, len(arguments)) <= 1:
        return [function(argument) for argument in arguments]
    # Nothing here has a CUDA context, and a fork has what is imported.
    forked = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(min(jobs, len(arguments)), mp_context=forked) as pool:
        return list(pool.map(function, arguments))


def emit(programs: Sequence[Program], jobs: int | None) -> list[Emitted | str]:
    """Plans and emits programs."""
    return side_by_side(emitted, programs, compilers(jobs))


def build(kernels: Sequence[Emitted], jobs: int | None, deadline: float | None = None) -> list[str]:
    """Builds kernels side by side. Returns for each why it was not built, empty where it was; NOT_REACHED where the
    deadline, a time of the monotonic clock, came first."""
    cancel = threading.Event()
    timer = threading.Timer(max(0.0, (deadline or 0.0) - time.monotonic()), cancel.set)
    timer.daemon = True
    if deadline is not None:
        timer.start()
    try:
        results = build_sources([(k.source, k.plan) for k in kernels], max_jobs=jobs, cancel=cancel)
    finally:
        timer.cancel()
    return [_why(result) for result in results]


def _why(result: object) -> str:
    match result:
        case Artifact():
            return ""
        case BuildCancelled():
            return NOT_REACHED
        case _:
            return str(result)[:2000]


# --- rows that are there ------------------------------------------------------------------


def key_of(target: str, item: Item, machine: Mapping[str, str]) -> str:
    """Returns what tells a row from others in a file: its function, its item, the programs, device and versions."""
    text = json.dumps([target, item, harness.identity(machine)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def known_rows(path: Path) -> dict[str, Row]:
    """Returns the rows of a file that need not be measured again, by their keys."""
    return {row["key"]: row for row in lines(path) if row.get("ok") and "key" in row}


# --- on the GPUs --------------------------------------------------------------------------


def environments(devices: int) -> list[Environ]:
    """Returns the environment of a process for each GPU; one that is this process's where there is none."""
    each = gpu_queue.compilers_of(devices)
    return [gpu_queue.environment(number, each) for number in range(devices)] or [None]


def run(
    target: str,
    items: Sequence[Item],
    rows: Path,
    *,
    item_seconds: float,
    environs: Sequence[Environ] = (None,),
    deadline: float | None = None,
) -> list[Row]:
    """Returns the rows of these items, in their order, and adds each to `rows` as soon as it is known.

    `target` (`package.module:function`) makes a row of an item, in a process of its own; there is one for each of
    the environments at a time, which takes the next item as soon as it is free. A lost item's row has `ok` False,
    `error` and `detail`. So have those that the deadline came before, which are not written.
    """
    rows.parent.mkdir(parents=True, exist_ok=True)
    keyed = [{"key": item["name"]} | item for item in items]
    with tempfile.TemporaryDirectory(prefix="claims-") as folder:
        work = partial(_serving, target, keyed, rows, Path(folder), item_seconds, deadline)
        with ThreadPoolExecutor(len(environs)) as pool:
            list(pool.map(work, range(len(environs)), environs))
    known = {row["key"]: row for row in lines(rows) if "key" in row}
    return [known.get(item["key"]) or unreached(item["name"]) for item in keyed]


def unreached(name: str) -> Row:
    """Returns the row of a case that the deadline came before."""
    return {"name": name, "ok": False, "error": NOT_REACHED, "detail": "the run's time was over"}


def claim(folder: Path, item: Item, worker: int) -> bool:
    """Returns whether an item is this worker's: whoever comes first has it."""
    try:
        (folder / f"{item['number']}").symlink_to(str(worker))
    except FileExistsError:
        return False
    return True


def _claimed(folder: Path, worker: int | None = None) -> set[int]:
    """Returns the numbers of the items that a worker has claimed, or any."""
    return {int(p.name) for p in folder.iterdir() if worker is None or str(p.readlink()) == str(worker)}


def _serving(
    target: str,
    items: Sequence[Item],
    rows: Path,
    folder: Path,
    item_seconds: float,
    deadline: float | None,
    worker: int,
    environ: Environ,
) -> None:
    """Starts processes of one environment, one after the other, until every item is claimed or time is over."""
    numbered = [item | {"number": number} for number, item in enumerate(items)]
    while True:
        claimed = _claimed(folder)
        pending = [item for item in numbered if item["number"] not in claimed]
        limit = START_SECONDS + item_seconds * len(pending)
        if deadline is not None:
            limit = min(limit, deadline - time.monotonic())
        if not pending or limit <= 0:
            return
        outcome = isolation.run(
            f"{__name__}:serve",
            {
                "target": target,
                "items": pending,
                "rows": str(rows),
                "folder": str(folder),
                "worker": worker,
                "item_seconds": item_seconds,
            },
            limit_seconds=limit,
            environ=environ,
        )
        if deadline is not None and time.monotonic() >= deadline:
            return
        done = {row.get("key") for row in lines(rows)}
        own = _claimed(folder, worker)
        lost = [item for item in numbered if item["number"] in own and item["key"] not in done]
        started = any(item["number"] in own for item in pending)
        if not started and not isinstance(outcome, isolation.Returned):
            # It cannot be started: so it would be with the others where it raised.
            rest = pending if isinstance(outcome, isolation.Raised) else pending[:1]
            lost = [item for item in rest if claim(folder, item, worker)]
        for item in lost:
            append(rows, _lost(item, outcome))


def _lost(item: Item, outcome: isolation.CallOutcome) -> Row:
    match outcome:
        case isolation.Crashed("SIGALRM"):
            error, detail = "TimedOut", outcome.output
        case isolation.Raised(kind, message):
            error, detail = kind, message
        case _:
            error, detail = type(outcome).__name__, str(outcome)
    return {"name": item["name"], "key": item["key"], "ok": False, "error": error, "detail": detail[-1500:]}


def serve(
    target: str, items: Sequence[Item], rows: str, folder: str, worker: int, item_seconds: float
) -> int:
    """Runs in the process: a row for each item that no other worker has claimed, written at once. Returns 1 and ends
    early after a row that is `sticky`: the CUDA context is lost, and the next process takes the rest.

    An item that takes longer than `item_seconds` ends the process by SIGALRM, even while it waits for
    a device; the first one may take as much longer as a start takes. What `target` raises becomes a row.
    """
    module, _, function = target.partition(":")
    row_of: Callable[[Item], Row] = getattr(import_module(module), function)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    more = START_SECONDS
    for item in items:
        if not claim(Path(folder), item, worker):
            continue
        signal.setitimer(signal.ITIMER_REAL, item_seconds + more)
        row = _row(row_of, item)
        signal.setitimer(signal.ITIMER_REAL, 0)
        append(Path(rows), row)
        more = 0.0
        if row.get("sticky"):
            return 1
    return 0


def _row(row_of: Callable[[Item], Row], item: Item) -> Row:
    about = {"name": item["name"], "key": item["key"]}
    try:
        return about | {"ok": True} | row_of(item)
    except Exception as error:  # the row is the report, whatever went wrong
        return about | {
            "ok": False,
            "error": type(error).__name__,
            "detail": str(error)[:1500],
            "sticky": sticky(error),
        }


def sticky(error: Exception) -> bool:
    """Returns whether a CUDA error stays with the process (illegal address and the like)."""
    return "CUDA error" in str(error)


# --- a script's run -----------------------------------------------------------------------


Prepared: TypeAlias = tuple[Mapping[str, Row], Mapping[str, Item]]
"""By the names of cases the rows of those that are lost, and what the items of the others have besides."""

Prepare: TypeAlias = Callable[[Sequence[Case], argparse.Namespace, "float | None"], Prepared]
"""Readies cases for the GPU; the last argument is a time of the monotonic clock by which it ends."""


def measured(
    target: str,
    cases: Sequence[Case],
    options: argparse.Namespace,
    *,
    row_seconds: float,
    prepare: Prepare | None = None,
) -> list[Row]:
    """Prepares, by default plans and builds, and measures what `--out` lacks. Returns the rows of all cases, in their
    order."""
    deadline = None if options.seconds is None else time.monotonic() + options.seconds
    at_most = None if options.seconds is None else time.monotonic() + BUILD_SHARE * options.seconds
    written, machine = options.out.with_suffix(".jsonl"), harness.machine()
    if options.again:
        harness.fresh(written)
    every = {"seed": options.seed, "compile": harness.compiles(options)}
    items = [{"name": case.name, **every, **case.facts} for case in cases]
    keys = [key_of(target, item, machine) for item in items]
    known = known_rows(written)
    absent = [number for number, key in enumerate(keys) if key not in known]
    lost, facts = (prepare or chosen)([cases[number] for number in absent], options, at_most)
    due = [
        items[number] | {"key": keys[number]} | facts[cases[number].name]
        for number in absent
        if cases[number].name not in lost
    ]
    timed = run(
        target,
        due,
        written,
        item_seconds=row_seconds,
        environs=environments(harness.gpus(options)),
        deadline=deadline,
    )
    rows = {**lost, **{row["name"]: row for row in timed}}
    return [known.get(key) or rows[case.name] for key, case in zip(keys, cases, strict=True)]


def in_turn(
    target: str,
    items: Sequence[Item],
    options: argparse.Namespace,
    measure: Callable[[Item], Row],
    tell: Callable[[Row], str],
) -> list[Row]:
    """Returns the rows of items that one process measures one after the other, since each has the machine to itself,
    and prints what it tells of each; goes on behind what `--out` has, and ends as `measured` does."""
    deadline = math.inf if options.seconds is None else time.monotonic() + options.seconds
    written, machine = options.out.with_suffix(".jsonl"), harness.machine()
    if options.again:
        harness.fresh(written)
    written.parent.mkdir(parents=True, exist_ok=True)
    known = known_rows(written)
    rows = []
    for item in items:
        key = key_of(target, item, machine)
        if key not in known:
            if time.monotonic() >= deadline:
                rows.append(unreached(item["name"]))
                continue
            known[key] = _row(measure, item | {"key": key})
            append(written, known[key])
            print(tell(known[key]) if known[key]["ok"] else lost_line(known[key]), flush=True)
            if known[key].get("sticky"):
                deadline = -math.inf  # no other row of this process can be believed
        rows.append(known[key])
    return rows


def chosen(cases: Sequence[Case], options: argparse.Namespace, deadline: float | None) -> Prepared:
    """Builds the kernels that the planner chooses."""
    programs = [(case.text, case.sizes) for case in cases]
    more = [program for case in cases for program in case.also]
    kernels = emit([*programs, *more], options.jobs)
    known = [kernel for kernel in kernels if isinstance(kernel, Emitted)]
    failures = iter(build(known, options.jobs, deadline) if known else ())
    why = [kernel if isinstance(kernel, str) else next(failures) for kernel in kernels]
    lost: dict[str, Row] = {}
    facts: dict[str, Item] = {}
    for case, kernel, failure in zip(cases, kernels, why, strict=False):
        if isinstance(kernel, Emitted) and not failure:
            facts[case.name] = {"schedule": kernel.schedule}
        else:
            lost[case.name] = unbuilt(case.name, failure)
    return lost, facts


def unbuilt(name: str, why: str) -> Row:
    """Returns the row of a case without its kernel."""
    error = NOT_REACHED if why == NOT_REACHED else "NotBuilt"
    return {"name": name, "ok": False, "error": error, "detail": why}


def report(
    target: str,
    cases: Sequence[Case],
    options: argparse.Namespace,
    line: Callable[[Row], str],
    classes: Callable[[list[Row]], Classes],
    *,
    row_seconds: float,
    held: Mapping[str, Bar] = MappingProxyType({}),
    prepare: Prepare | None = None,
) -> NoReturn:
    """Measures the cases, prints the `line` of each row, what the `classes` of rows come to beside their bars, and what
    was lost, writes report and summary, and ends the process with the status of the module's docstring. With `--dry`
    plans and emits every case alone."""
    if options.dry:
        dry(cases, options.jobs)
    rows = measured(target, cases, options, row_seconds=row_seconds, prepare=prepare)
    concluded(rows, options, line, classes, held)


def dry(cases: Sequence[Case], jobs: int | None) -> NoReturn:
    """Plans and emits the cases; ends the process, with status 1 where one has no kernel."""
    kernels = emit([(case.text, case.sizes) for case in cases], jobs)
    refused = [f"{c.name}: {k[:300]}" for c, k in zip(cases, kernels, strict=True) if isinstance(k, str)]
    distinct = len({k.source.code for k in kernels if isinstance(k, Emitted)})
    print("\n".join([*refused, f"{len(cases)} rows, {distinct} kernels, {len(refused)} rows without one"]))
    sys.exit(bool(refused))


def concluded(
    rows: Sequence[Row],
    options: argparse.Namespace,
    line: Callable[[Row], str],
    classes: Callable[[list[Row]], Classes],
    held: Mapping[str, Bar] = MappingProxyType({}),
    more: Mapping[str, Any] = MappingProxyType({}),
) -> NoReturn:
    """Prints, writes and ends as `report` does, of rows that are there; `more` goes into the report."""
    right = [row for row in rows if row["ok"]]
    absent = [row["name"] for row in rows if row.get("error") == NOT_REACHED]
    failed = [row for row in rows if not row["ok"] and row["error"] != NOT_REACHED]
    known = classes(right)
    every = bars.figures(known, {label: bar for label, bar in held.items() if label in known}, right)
    machine = harness.machine()
    harness.write(options.out, {"machine": machine, "rows": list(rows), **more})
    names = [row["name"] for row in failed]
    bars.write_summary(options.out, every, machine, wrong=names, unreached=absent)
    print("\n".join([*map(line, right), *bars.lines(every), *map(lost_line, failed)]))
    if undecided := [row["name"] for row in right if row.get("verdict") == "undecided"]:
        print(f"undecided, within bounds too wide to tell: {len(undecided)} rows: {', '.join(undecided[:8])}")
    if absent:
        print(f"not reached: {len(absent)} of {len(rows)} rows")
    sys.exit(bars.status(every, names, absent))


def lost_line(row: Row) -> str:
    how = "wrong" if row["error"] in WRONG else "lost"
    return f"{how}: {row['name']}: {row['error']}: {str(row['detail'])[:300]}"
