"""What the scripts of this folder share: their options, their files, what they say of the machine.

Every timing script compares candidates in turns in one process, in CUDA graphs over rotated buffers
(`ucutlass.runtime.timing.compare`), and states the spread. A row is a JSON object, made by a function of an
item, which is another.

    python -m benchmarks.NAME --out FILE [--only NAME,..] [--seed N] [--drawn N] [--seconds S] [--again] [--quick]

A script of kernels beside their rivals has a function from an item to a row, and calls `benchmarks.campaign.report`
with its cases, the line of a row, its classes of rows and their bars.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import platform
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ucutlass import files, frontend
from ucutlass.ir.hardware import Device, device_named
from ucutlass.shapes import complete

if TYPE_CHECKING:
    from ucutlass.runtime.timing import LaunchTiming

Item: TypeAlias = dict[str, Any]
Row: TypeAlias = dict[str, Any]
Plan: TypeAlias = tuple[Any, Any, Any]
"""A checked text, its kernel, and that kernel planned."""

T = TypeVar("T")

ARCH = "sm90a"

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
    parser.add_argument(
        "--seconds", type=float, metavar="S", help="end after so many, with the rows there are"
    )
    parser.add_argument("--again", action="store_true", help="forget the rows that --out has")
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


PROGRAMS = ("ucutlass", "grammar", "emit", "runtime", "agent", "benchmarks")
"""Folders whose programs make a row what it is."""

RIVALS = ("triton", "quack-kernels", "torchvision", "timm", "transformers")
"""Packages whose versions tell a rival or a model from another."""


def machine() -> dict[str, str]:
    """Returns device, driver, versions and commit, for a report's head. `tree` is a digest of the programs, since a
    copy without git has no commit and a changed one not its own."""
    import torch

    query = "name,driver_version,clocks.max.sm,power.limit"
    gpu = _said("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader")
    return {
        "gpu": gpu.splitlines()[0] if gpu else "none",
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
        **{name: version for name in RIVALS if (version := _version(name))},
        "commit": _said("git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"),
        "tree": _tree(),
    }


def identity(machine: Mapping[str, str]) -> str:
    """Returns what tells runs apart whose rows do not stand beside each other: programs, device and versions."""
    facts = {name: value for name, value in machine.items() if name != "commit"}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


@cache
def _tree() -> str:
    root, digest = Path(__file__).parent.parent, hashlib.sha256()
    for folder in PROGRAMS:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and path.suffix not in (".pyc", ".so", ".json"):
                digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def gpus(options: argparse.Namespace) -> int:
    """Returns how many GPUs to use: those of the machine, at most as many as `--devices` says."""
    count = len(_said("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines())
    return count if options.devices is None else min(count, options.devices)


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


def check(kernel: Any, arguments: Sequence[Any]) -> str:
    """Judges a launch as `ucc verify` judges a case, and returns "right" or "undecided". Raises ArithmeticError where a
    result is wrong."""
    from ucutlass.runtime import verify

    verdict = verify.check(kernel.program, kernel.judged(*arguments), list(arguments))
    if verdict.state == "wrong":
        raise ArithmeticError(str(verdict)[:1500])
    return verdict.state


def compiled(call: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
    """Returns what torch.compile's max-autotune makes of a call, compiled for these arguments."""
    import torch

    torch._dynamo.reset()
    fast: Callable[..., Any] = torch.compile(call, mode="max-autotune-no-cudagraphs")
    fast(*arguments)
    return fast
