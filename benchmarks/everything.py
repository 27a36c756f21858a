"""Everything that is to be shown, in order of importance within a number of seconds, and one table of bars and figures.

    python -m benchmarks.everything --out FOLDER --seconds S [--devices N] [--seed N] [--root KERNELBENCH] [--only NAME,..]
    python -m benchmarks.everything --out FOLDER --seconds S --plan
    python -m benchmarks.everything --out FOLDER --table

Each item is a script of this folder with `--out FOLDER/NAME.json`, which ends by itself when its share of the time is
over and goes on behind its rows in the next run; one that is whole for this seed, these programs, this device and these versions is
not run again. So several runs that are too short for everything make one table. `--host` runs what needs no GPU
instead. Items that need a checkout of KernelBench are left out without `--root`.

The table has a line for each class of rows: the bar, the geometric mean or median, the worst row, how many rows, the
largest spread, and device, versions and commit of the run. The exit status is 1 where a bar is missed, a row is wrong or a
script failed, 3 where something was not reached, else 0.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks import bars, harness
from benchmarks.harness import Row

LEAST_SECONDS = 40.0
"""What a script needs to have a row: imports, builds, a process on a GPU."""

GRACE_SECONDS = 45.0
"""What a script may take beyond its time before it is ended."""


@dataclass(frozen=True, slots=True)
class Item:
    """What is to be shown under a point of an issue: a script and its options, and about how many seconds of one GPU its
    rows take; none of a GPU where it needs none. In the options `{root}` is KernelBench's folder. A script that `ends`
    by itself has `--seconds`; one that `spreads` has `--devices`, and takes so many GPUs' share of its time."""

    name: str
    point: str
    words: str
    script: str
    options: str = ""
    seconds: float = 120.0
    ends: bool = True
    spreads: bool = True
    seeded: bool = True

    @property
    def on_host(self) -> bool:
        return not self.seconds


ITEMS: tuple[Item, ...] = (
    Item("layers", "21.5", "convolutions and gradients of networks", "network_layers", "--drawn 120", 270),
    Item(
        "products",
        "21.1",
        "products, nothing tuned",
        "products",
        "--kinds bf16,f16,tf32,int8,int4,fp8,batched,grouped --drawn 16 --no-compile",
        90,
    ),
    Item(
        "kernelbench",
        "20.1",
        "KernelBench as it stands, f32",
        "kernelbench_modules",
        "{root} --levels 1,2,3",
        1200,
        seeded=False,
    ),
    Item(
        "kernelbench_tf32",
        "20.1",
        "KernelBench as it stands, TF32",
        "kernelbench_modules",
        "{root} --levels 2,1,3 --lane tf32",
        1200,
        seeded=False,
    ),
    Item("models", "20.2", "models against Inductor", "models", "--choose always", 1200),
    Item("rows", "21.2", "norms, softmax, cross entropy", "rows", "--quack --drawn 32", 290),
    Item("f32_products", "21.4", "f32 products in four orders", "f32_products", "--drawn 36", 120),
    Item(
        "sessions",
        "22.1, 22.2",
        "verdicts and what is delivered",
        "sessions",
        "{root} --draw 20",
        2400,
        spreads=False,
    ),
    Item(
        "sessions_tf32",
        "22.2",
        "what is delivered in TF32",
        "sessions",
        "{root} --draw 20 --lane tf32",
        2400,
        spreads=False,
    ),
    Item("recompiles", "20.5", "recompiles over 50 shapes", "recompiles", "", 240, spreads=False),
    Item("pointwise", "21.3", "pointwise", "pointwise", "--drawn 24", 40),
    Item(
        "fused",
        "21.6",
        "products with an epilogue",
        "products",
        "--kinds bf16+gelu,bf16+residual,f16+gated,tf32+gelu --drawn 8",
        600,
    ),
    Item("norms", "21.6", "norms after products", "norm_after_product", "--drawn 16", 180),
    Item("attention_f32", "21.8", "f32 attention", "attention_f32", "--drawn 12 --only drawn", 30),
    Item("attention", "21.8", "attention", "attention", "--no-compile", 60),
    Item(
        "first_choice",
        "21",
        "first choice within 5 %",
        "products",
        "--kinds bf16,f16,f32,tf32,fp8,batched,grouped --drawn 16 --candidates 12 --no-compile",
        600,
    ),
    Item("tuned", "21.1", "products, tuned", "products", "--kinds bf16,f16 --drawn 8 --tune 8 --quack", 900),
    Item("searches", "22.4", "rules against random search", "searches", "--drawn 3", 900, spreads=False),
    Item("drawn_on_gpu", "20.3", "drawn modules on a GPU", "drawn_on_gpu", "--count 400", 300, spreads=False),
    Item(
        "mutants",
        "22.1",
        "mutants and honest kernels",
        "mutants",
        "--gpu --honest 100",
        900,
        ends=False,
        spreads=False,
    ),
    Item(
        "max_autotune",
        "20.2",
        "models with max-autotune",
        "models",
        "--choose always --max-autotune --warm",
        2400,
    ),
    Item("tuning_wall", "21.7", "wall time of tuning", "tuning_wall", "--drawn 4", 480, spreads=False),
    Item(
        "convolution",
        "21.5",
        "convolutions of 1 to 3 dimensions",
        "convolution",
        "--kinds plain --drawn 54 --no-compile",
        240,
    ),
    Item("family_builds", "21.7", "cold build of every family", "family_builds", "", 0, spreads=False),
    Item(
        "drawn_modules",
        "20.3",
        "importing is the inverse",
        "drawn_modules",
        "--count 2000",
        0,
        ends=False,
        spreads=False,
    ),
    Item(
        "algebra",
        "22.3",
        "what algebra brings",
        "algebra",
        "{root} --levels 1,2,3",
        0,
        ends=False,
        spreads=False,
    ),
)
"""In order of importance: what holds most classes, and what was last seen below its bar, stands first."""

Start: TypeAlias = Callable[[Sequence[str], float], int | None]
"""Runs a command for at most so many seconds. Returns its exit status, None where it was ended."""


@dataclass(frozen=True, slots=True)
class Run:
    """What every item of a run shares."""

    folder: Path
    devices: int
    seed: int
    root: Path | None


def needs(item: Item, devices: int) -> float:
    """Returns the seconds that an item takes on so many GPUs."""
    return LEAST_SECONDS + item.seconds / (max(1, devices) if item.spreads else 1)


def out_of(item: Item, run: Run) -> Path:
    """Scripts that write lines as they go write them where others write their report."""
    return run.folder / (f"{item.name}-{run.seed}.json" if item.seeded else f"{item.name}.json")


def command_of(item: Item, run: Run, seconds: float) -> list[str]:
    words = [word.format(root=run.root) for word in item.options.split()]
    words += ["--out", str(out_of(item, run))]
    if item.seeded:
        words += ["--seed", str(run.seed)]
    if item.ends:
        words += ["--seconds", f"{seconds:.0f}"]
    if item.spreads:
        words += ["--devices", str(run.devices)]
    return [sys.executable, "-m", f"benchmarks.{item.script}", *words]


def due(items: Sequence[Item], run: Run, machine: Mapping[str, str]) -> list[Item]:
    """Returns the items that are not whole for these programs, this device and these versions."""
    return [
        item
        for item in items
        if (run.root is not None or "{root}" not in item.options) and not whole(item, run, machine)
    ]


def whole(item: Item, run: Run, machine: Mapping[str, str]) -> bool:
    summary = summary_of(item, run)
    if summary is None or summary["not reached"] or summary["wrong"]:
        return False
    return harness.identity(summary["machine"]) == harness.identity(machine)


def summary_of(item: Item, run: Run) -> Row | None:
    path = bars.summary_path(out_of(item, run))
    found: Row | None = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    return found


def planned(items: Sequence[Item], devices: int, seconds: float) -> Iterator[tuple[Item, float]]:
    """Yields the items that so many seconds reach, and the seconds that each is given."""
    for item in items:
        own = min(needs(item, devices), seconds)
        if own < LEAST_SECONDS:
            return
        yield item, own
        seconds -= own


def worked_off(
    items: Sequence[Item], run: Run, seconds: float, start: Start, now: Callable[[], float]
) -> dict[str, int | None]:
    """Runs the items one after the other while there is time; what one leaves is there for the next. Returns their
    exit statuses."""
    deadline = now() + seconds
    statuses: dict[str, int | None] = {}
    for item in items:
        own = min(needs(item, run.devices), deadline - now())
        if own < LEAST_SECONDS:
            break
        begun = now()
        statuses[item.name] = start(command_of(item, run, own), own + GRACE_SECONDS)
        print(f"{item.name}: {now() - begun:.0f} s, exit status {statuses[item.name]}", flush=True)
    return statuses


def started(command: Sequence[str], limit: float) -> int | None:
    """Runs a script beside which nothing else runs, and ends it with all that it started when its time is over."""
    print(" ".join(command[2:]), flush=True)
    process = subprocess.Popen(command, start_new_session=True)
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


# --- the table ----------------------------------------------------------------------------

HEAD = ("point", "class", "bar", "figure", "worst", "rows", "spread", "missed", "on")


def table(items: Sequence[Item], run: Run) -> list[str]:
    """Returns the lines of the table, and which items have nothing to show."""
    lines = [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
    absent = []
    for item in items:
        summary = summary_of(item, run)
        if summary is None:
            absent.append(item)
            continue
        lines += [
            f"| {' | '.join(cells(item, figure, summary['machine']))} |" for figure in summary["classes"]
        ]
        for what in ("wrong", "not reached"):
            if names := summary[what]:
                lines.append(f"| {item.point} | {item.name}: {what} | | {len(names)} | {names[0]} | | | | |")
    return [*lines, *(f"nothing of {item.point}: {item.words} ({item.name})" for item in absent)]


def cells(item: Item, figure: Mapping[str, Any], machine: Mapping[str, str]) -> list[str]:
    upper = any(word in figure["bar"] for word in ("median", "most"))
    mean = figure["median"] if upper or figure["geomean"] is None else figure["geomean"]
    worst, name = figure["most"] if upper else figure["least"]
    words = f"{'median' if upper else 'geomean'} {mean:.3f}"
    if figure["share"] is not None:
        words += f", {figure['share']:.0%}"
    if figure["below"]:
        words += f", {figure['below']} below"
    versions = (machine.get("gpu", ""), f"torch {machine.get('torch', '')}", machine.get("commit", ""))
    return [
        item.point,
        f"{item.name}: {figure['class']}",
        figure["bar"] or "none",
        words,
        f"{worst:.3f}, {name}",
        str(figure["rows"]),
        "-" if figure["spread"] is None else f"{figure['spread']:.3f}",
        "; ".join(figure["missed"]) or "-",
        ", ".join(word for word in versions if word),
    ]


def status(items: Sequence[Item], run: Run, statuses: Mapping[str, int | None]) -> int:
    """Returns the exit status of a run, or of a table alone."""
    known = [summary for item in items if (summary := summary_of(item, run)) is not None]
    missed = any(figure["missed"] for summary in known for figure in summary["classes"])
    failed = any(code not in (0, 1, 3, None) for code in statuses.values())
    if missed or failed or any(summary["wrong"] for summary in known):
        return 1
    cut = None in statuses.values() or any(summary["not reached"] for summary in known)
    return 3 if cut or len(known) < len(items) else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="reports and rows")
    parser.add_argument("--seconds", type=float, default=540.0, metavar="S", help="that the run may take")
    parser.add_argument("--devices", type=int, metavar="N", help="GPUs to use, by default all")
    parser.add_argument("--seed", type=int, default=0, help="of every draw")
    parser.add_argument("--root", type=Path, metavar="KERNELBENCH", help="a checkout of KernelBench")
    parser.add_argument("--only", default="", metavar="NAME,..", help="items of these names")
    parser.add_argument("--host", action="store_true", help="what needs no GPU")
    parser.add_argument("--plan", action="store_true", help="print what would run, and for how long")
    parser.add_argument("--table", action="store_true", help="print the table of what is there alone")
    options = parser.parse_args()
    only = [name for name in options.only.split(",") if name]
    if unknown := set(only) - {item.name for item in ITEMS}:
        parser.error(
            f"no item is named {', '.join(sorted(unknown))}; items are {', '.join(i.name for i in ITEMS)}"
        )
    items = [item for item in ITEMS if (item.name in only if only else item.on_host == options.host)]
    devices = options.devices if options.plan and options.devices else harness.gpus(options)
    run = Run(options.out, max(1, devices), options.seed, options.root)
    if options.table:
        items = [item for item in ITEMS if not only or item.name in only]
        print("\n".join(table(items, run)))
        return status(items, run, {})
    left = due(items, run, harness.machine())
    if options.plan:
        for item, seconds in planned(left, run.devices, options.seconds):
            print(f"{item.point:10} {seconds:6.0f} s  {' '.join(command_of(item, run, seconds)[2:])}")
        return 0
    if not devices and not options.host and not only:
        parser.error("no NVIDIA GPU is here; --host runs what needs none")
    options.out.mkdir(parents=True, exist_ok=True)
    statuses = worked_off(left, run, options.seconds, started, time.monotonic)
    print("\n".join(table(items, run)))
    return status(items, run, statuses)


if __name__ == "__main__":
    sys.exit(main())
