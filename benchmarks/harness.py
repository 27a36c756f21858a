"""What the scripts of this folder share: their options, their processes, their reports.

Every timing script compares candidates in turns in one process, in CUDA graphs over rotated buffers
(`ucutlass.runtime.timing.compare`), and states the spread. A row is a JSON object, made by a function of an
item, which is another. Items are worked off in processes of their own, so that a hang, a crash or a broken
CUDA context costs one row.

    python -m benchmarks.NAME --out FILE [--only NAME,..] [--seed N] [--quick]

A script of kernels beside their rivals has a function from an item to a row, and calls `report` with its programs,
the line of a row and the groups of which means are printed.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar

from ucutlass import files, frontend
from ucutlass.backend import build_sources, source_of
from ucutlass.ir.hardware import Device, device_named
from ucutlass.runtime import isolation
from ucutlass.runtime.build import Artifact
from ucutlass.shapes import complete

if TYPE_CHECKING:
    from ucutlass.runtime.timing import LaunchTiming

Item: TypeAlias = dict[str, Any]
Row: TypeAlias = dict[str, Any]
Plan: TypeAlias = tuple[Any, Any, Any]
"""A checked text, its kernel, and that kernel planned."""

T = TypeVar("T")

ARCH = "sm90a"

START_SECONDS = 120.0
"""What a fresh process may take before its first item: importing torch, a CUDA context."""

QUICK = 4
"""`--quick` measures one row of so many."""


# --- options and reports -----------------------------------------------------------------


def parser_of(
    doc: str | None, *, compiles: bool = False, drawn: int | None = None
) -> argparse.ArgumentParser:
    """Returns a parser with the options of every timing script; `compiles` adds `--no-compile`, and `drawn`, by
    default so many, how many cases the seed draws."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the report, JSON")
    parser.add_argument("--only", default="", metavar="NAME,..", help="rows of these names or beginnings")
    parser.add_argument("--seed", type=int, default=0, help="of the operands")
    parser.add_argument("--quick", action="store_true", help=f"one row of {QUICK}, without torch.compile")
    if drawn is not None:
        parser.add_argument("--drawn", type=int, default=drawn, metavar="N", help="cases that the seed draws")
    if compiles:
        parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    else:
        parser.set_defaults(no_compile=True)
    return parser


def selected(rows: Iterable[T], options: argparse.Namespace, name: Callable[[T], str]) -> list[T]:
    """Returns the rows that the options choose. A word of `--only` is a row's name, or else the beginning of
    some. Raises SystemExit for a word that is neither."""
    every = list(rows)
    names = {name(row) for row in every}
    words = [word for word in options.only.split(",") if word]
    beginnings = tuple(word for word in words if word not in names)
    if unknown := [word for word in beginnings if not any(n.startswith(word) for n in names)]:
        raise SystemExit(f"no row is named {', '.join(unknown)}; rows are {', '.join(sorted(names))}")
    if words:
        every = [row for row in every if name(row) in words or name(row).startswith(beginnings or ("\0",))]
    return every[::QUICK] if options.quick else every


def compiles(options: argparse.Namespace) -> bool:
    """Returns whether torch.compile is timed."""
    return not (options.no_compile or options.quick)


def geomean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def machine() -> dict[str, str]:
    """Returns device, driver, versions and commit, for a report's head."""
    import torch

    query = "name,driver_version,clocks.sm,clocks.max.sm,power.limit"
    gpu = _said("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader")
    return {
        "gpu": gpu.splitlines()[0] if gpu else torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
        "commit": _said("git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"),
    }


def _said(*command: str) -> str:
    """Returns what a command prints, or nothing where it is not there."""
    try:
        ended = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", check=False)
    except FileNotFoundError:
        return ""
    return ended.stdout.strip()


def summary_of(times: Mapping[str, LaunchTiming]) -> Row:
    """Returns the microseconds of a launch by candidate, and the largest spread."""
    return {
        "microseconds": {name: t.median for name, t in times.items()},
        "spread": max(t.spread for t in times.values()),
    }


def write(path: Path, value: Any) -> None:
    """Replaces a JSON file at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write(path, json.dumps(value, indent=1))


def append(path: Path, row: Any) -> None:
    """Adds a line of JSON by one write, so that lines of several processes do not mix."""
    files.append(path, f"{json.dumps(row)}\n")


def lines(path: Path) -> list[Row]:
    """Returns the rows of such a file, without a line that was cut short."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def fresh(path: Path) -> Path:
    """Empties a file of rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    return path


def lost_lines(rows: Iterable[Row], unbuilt: Mapping[str, str]) -> list[str]:
    """Returns a table's last lines: rows that were lost, kernels that were not built."""
    lost = [f"lost: {r['name']}: {r['error']}: {str(r['detail'])[:300]}" for r in rows if not r["ok"]]
    return [*lost, *(f"not built: {name}: {why[:300]}" for name, why in unbuilt.items())]


# --- kernels -----------------------------------------------------------------------------


@cache
def device() -> Device | None:
    """Returns what is known of this machine's GPU. None, for which plans are those of the target's default device,
    where there is none or it is unknown."""
    names = _said("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()
    return device_named(names[0]) if names else None


def planned(text: str, sizes: Mapping[str, int]) -> Plan:
    """Returns a text's kernel, checked and planned by default at these extents for this machine's GPU."""
    checked = frontend.read_text(text)
    program = frontend.kernel(checked)
    extents = complete(program, dict(sizes))
    return checked, program, frontend.plan_kernel(checked, program, extents, ARCH, device()).planned


def prebuild(plans: Mapping[str, Plan]) -> dict[str, str]:
    """Builds kernels in parallel. Returns why those that were not built were not, by name."""
    results = build_sources([(source_of(*plan), plan[2].plan) for plan in plans.values()])
    pairs = zip(plans, results, strict=True)
    return {name: str(result)[:2000] for name, result in pairs if not isinstance(result, Artifact)}


def measured(
    target: str,
    programs: Mapping[str, tuple[str, Mapping[str, int]]],
    options: argparse.Namespace,
    *,
    row_seconds: float,
    more: Mapping[str, Item] = MappingProxyType({}),
    at_once: int | None = None,
) -> tuple[list[Row], dict[str, str]]:
    """Builds programs, by name texts with extents, and measures each in a row of `target`. Returns the rows and
    why kernels were not built, and writes both to `--out`. An item has `name`, the `schedule`, `seed`, whether
    to `compile`, and what `more` has for the name. `at_once` programs are built and measured before the next are, so
    that a run that is cut short has written their rows; all where it is None."""
    every = {"seed": options.seed, "compile": compiles(options)}
    written = fresh(options.out.with_suffix(".jsonl"))
    rows: list[Row] = []
    unbuilt: dict[str, str] = {}
    for chunk in batched(programs, at_once or max(1, len(programs))):
        plans = {name: planned(*programs[name]) for name in chunk}
        unbuilt |= prebuild(plans)
        items = [
            {"name": name, "schedule": str(plan[2].plan.schedule), **every, **more.get(name, {})}
            for name, plan in plans.items()
            if name not in unbuilt
        ]
        rows += run(target, items, written, item_seconds=row_seconds)
        write(options.out, {"machine": machine(), "rows": rows, "unbuilt": unbuilt})
    return rows, unbuilt


def batched(values: Iterable[T], size: int) -> Iterable[tuple[T, ...]]:
    """Returns the values in order, so many at a time."""
    every = list(values)
    return [tuple(every[i : i + size]) for i in range(0, len(every), size)]


def report(
    target: str,
    programs: Mapping[str, tuple[str, Mapping[str, int]]],
    options: argparse.Namespace,
    line: Callable[[Row], str],
    groups: Callable[[list[Row]], Mapping[str, Sequence[float]]],
    *,
    row_seconds: float,
    more: Mapping[str, Item] = MappingProxyType({}),
    at_once: int | None = None,
) -> NoReturn:
    """Measures programs, prints the `line` of each row, the means of the `groups` of rows, and what was lost.
    Ends the process, with status 1 where anything was lost."""
    rows, unbuilt = measured(target, programs, options, row_seconds=row_seconds, more=more, at_once=at_once)
    print(table(rows, unbuilt, line, groups))
    sys.exit(bool(unbuilt) or any(not row["ok"] for row in rows))


def table(
    rows: Sequence[Row],
    unbuilt: Mapping[str, str],
    line: Callable[[Row], str],
    groups: Callable[[list[Row]], Mapping[str, Sequence[float]]],
) -> str:
    right = [row for row in rows if row["ok"]]
    return "\n".join([*map(line, right), *means(groups(right)), *lost_lines(rows, unbuilt)])


def means(ratios: Mapping[str, Sequence[float]]) -> list[str]:
    """Returns a line for each group that has rows: geometric mean, least, count."""
    return [
        f"{label}: geomean {geomean(values):.3f}, least {min(values):.3f}, {len(values)} rows"
        for label, values in ratios.items()
        if values
    ]


def compiled(call: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
    """Returns what torch.compile's max-autotune makes of a call, compiled for these arguments."""
    import torch

    torch._dynamo.reset()
    fast: Callable[..., Any] = torch.compile(call, mode="max-autotune-no-cudagraphs")
    fast(*arguments)
    return fast


# --- processes ---------------------------------------------------------------------------


def run(
    target: str, items: Sequence[Item], rows: Path, *, item_seconds: float, processes: int = 1
) -> list[Row]:
    """Returns the rows of these items, in their order, and adds each to `rows` as soon as it is known.

    `target` (`package.module:function`) makes a row of an item, in a process of its own. A lost item's row has
    `ok` False, `error` and `detail`.
    """
    rows.parent.mkdir(parents=True, exist_ok=True)
    shares = [items[i::processes] for i in range(processes)]
    work = partial(_share, target, rows=rows, item_seconds=item_seconds)
    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(work, [share for share in shares if share]))
    known = {row["name"]: row for row in lines(rows)}
    return [known[item["name"]] for item in items]


def _share(target: str, items: Sequence[Item], rows: Path, item_seconds: float) -> None:
    pending = list(items)
    while pending:
        outcome = isolation.run(
            f"{__name__}:serve",
            {"target": target, "items": pending, "rows": str(rows), "item_seconds": item_seconds},
            limit_seconds=START_SECONDS + item_seconds * len(pending),
        )
        done = {row["name"] for row in lines(rows)}
        left = [item for item in pending if item["name"] not in done]
        progress = len(left) < len(pending)
        match outcome:
            case isolation.Returned() if progress:
                lost = []
            case isolation.Raised() if not progress:
                lost = left  # it cannot even be started: so it would be with each
            case _:
                lost = left[:1]
        for item in lost:
            append(rows, _lost(item, outcome))
        pending = left[len(lost) :]


def _lost(item: Item, outcome: isolation.CallOutcome) -> Row:
    match outcome:
        case isolation.Crashed("SIGALRM"):
            error, detail = "TimedOut", outcome.output
        case isolation.Raised(kind, message):
            error, detail = kind, message
        case _:
            error, detail = type(outcome).__name__, str(outcome)
    return {"name": item["name"], "ok": False, "error": error, "detail": detail[-1500:]}


def serve(target: str, items: Sequence[Item], rows: str, item_seconds: float) -> int:
    """Runs in the process: a row an item, each written at once. Returns 1 and ends early after a row that is
    `sticky`: the CUDA context is lost, and the next process takes the rest.

    An item that takes longer than `item_seconds` ends the process by SIGALRM, even while it waits for
    a device; the first one may take as much longer as a start takes. What `target` raises becomes a row.
    """
    module, _, function = target.partition(":")
    row_of: Callable[[Item], Row] = getattr(import_module(module), function)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for number, item in enumerate(items):
        signal.setitimer(signal.ITIMER_REAL, item_seconds + (0 if number else START_SECONDS))
        row = _row(row_of, item)
        signal.setitimer(signal.ITIMER_REAL, 0)
        append(Path(rows), row)
        if row.get("sticky"):
            return 1
    return 0


def _row(row_of: Callable[[Item], Row], item: Item) -> Row:
    try:
        return {"name": item["name"], "ok": True} | row_of(item)
    except Exception as error:  # the row is the report, whatever went wrong
        return {
            "name": item["name"],
            "ok": False,
            "error": type(error).__name__,
            "detail": str(error)[:1500],
            "sticky": sticky(error),
        }


def sticky(error: Exception) -> bool:
    """Returns whether a CUDA error stays with the process (illegal address and the like)."""
    return "CUDA error" in str(error)
