"""Runs Nsight Compute for exactly the metrics of a table, on a command that launches the kernel once.

The command brackets that launch with cudaProfilerStart and cudaProfilerStop, so warm-up and
set-up are not profiled. Clocks are left as they are (`--clock-control none`). What the tool says
against it (no permission, no library) is kept in its own words.
"""

from __future__ import annotations

import csv
import io
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from ucutlass.advice import Counters
from ucutlass.runtime import process
from ucutlass.runtime.errors import MachineError
from ucutlass.runtime.profile import metrics

CacheControl: TypeAlias = Literal["all", "none"]
"""`all`: caches are flushed before each pass, so the kernel starts cold; `none`: they are not."""


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One profiled launch: the kernel, and a value for each metric; None where the tool had none.
    Percentages are fractions, times seconds, bytes bytes."""

    kernel: str
    values: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class NcuOutput:
    """What a run of the tool wrote: rows, and its own error and warning lines without the marks."""

    rows: tuple[MetricRow, ...]
    errors: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KernelCounters:
    """Counters of the kernel that took longest of the launch. `dropped`: metrics that the tool did
    not know; `command` is what was run."""

    kernel: str
    counters: Counters
    dropped: tuple[str, ...]
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoCounters:
    """Why there are none, with the tool's words where it had any."""

    reason: str


# --- calling ---------------------------------------------------------


def command(
    ncu: Path,
    names: Sequence[str],
    kernels: Sequence[str],
    log: Path,
    cache: CacheControl,
    target: Sequence[str],
) -> tuple[str, ...]:
    """The call. `kernels` are mangled names, of which every launch in the bracketed range counts."""
    pattern = "|".join(re.escape(k) for k in kernels)
    which = ("--kernel-name-base", "mangled", "--kernel-name", f"regex:^({pattern})$") if kernels else ()
    return (
        str(ncu),
        "--csv",
        "--page",
        "raw",
        "--print-units",
        "base",
        "--metrics",
        ",".join(names),
        *which,
        "--profile-from-start",
        "off",
        "--launch-skip",
        "0",
        "--launch-count",
        str(max(1, len(kernels))),
        "--clock-control",
        "none",
        "--cache-control",
        cache,
        "--target-processes",
        "all",
        "--log-file",
        str(log),
        *target,
    )


RunTool: TypeAlias = Callable[[Sequence[str], Path], tuple[str, str]]
"""Runs a command in a folder; gives how it ended ("0", another status, "timed out") and what it printed."""


def runner(environ: Mapping[str, str], limit_seconds: float) -> RunTool:
    """Runs in a process group of its own, killed as a whole at the limit."""

    def run(line: Sequence[str], folder: Path) -> tuple[str, str]:
        log = folder / "output.txt"
        # A decimal comma would change the numbers.
        env = {**environ, "LC_ALL": "C"}
        status = process.run(line, folder=folder, env=env, log=log, limit_seconds=limit_seconds, cancel=None)
        return str(status), log.read_text(encoding="utf-8", errors="replace")

    return run


_TRIES = 4
"""A metric that the tool does not know is dropped and the rest tried again, so often at most."""


def count(
    ncu: Path,
    table: str,
    kernels: Sequence[str],
    target: Sequence[str],
    run: RunTool,
    cache: CacheControl = "all",
) -> KernelCounters | NoCounters:
    """Returns counters of a command. Raises nothing for what the tool or the command does wrong."""
    names, dropped = list(metrics.metric_names(table)), list[str]()
    for _ in range(_TRIES):
        with tempfile.TemporaryDirectory(prefix="ucutlass-ncu-") as scratch:
            folder = Path(scratch)
            line = command(ncu, names, kernels, folder / "ncu.csv", cache, target)
            try:
                status, printed = run(line, folder)
            except MachineError as error:
                return NoCounters(str(error))
            written = folder / "ncu.csv"
            text = written.read_text(encoding="utf-8", errors="replace") if written.exists() else ""
        output = parse(text or printed)
        missing = _unknown(output.errors, names)
        if not missing:
            return _counted(output, table, status, printed, line, tuple(dropped))
        names = [n for n in names if n not in missing]
        dropped += missing
    return NoCounters(f"ncu knows too few of the metrics of {table}: not {', '.join(dropped[:4])}, ..")


def _counted(
    output: NcuOutput, table: str, status: str, printed: str, line: tuple[str, ...], dropped: tuple[str, ...]
) -> KernelCounters | NoCounters:
    if not output.rows:
        messages = output.errors or output.warnings
        words = "; ".join(messages) or printed.strip()[-300:] or "nothing was written"
        return NoCounters(f"ncu ended with {status}: {words}")
    longest = max(output.rows, key=lambda r: r.values.get(_TIME) or 0.0)
    return KernelCounters(longest.kernel, metrics.counters(table, longest.values), dropped, line)


_TIME = "gpu__time_duration.sum"


def _unknown(errors: Sequence[str], names: Sequence[str]) -> list[str]:
    """Returns the metrics that `Failed to find metric regex:^NAME(..)` is about; the tool escapes dots."""
    about = [e.replace("\\", "") for e in errors if "find metric" in e]
    return [n for n in names if any(re.search(rf"\b{re.escape(n.partition('.')[0])}\b", e) for e in about)]


# --- reading ---------------------------------------------------------------------

_MARK = re.compile(r"^==(ERROR|WARNING)==\s*(.*)")

_UNITS: Mapping[str, float] = {
    "": 1.0,
    "%": 0.01,
    "byte": 1.0,
    "Kbyte": 1e3,
    "Mbyte": 1e6,
    "Gbyte": 1e9,
    "Tbyte": 1e12,
    "ns": 1e-9,
    "nsecond": 1e-9,
    "us": 1e-6,
    "usecond": 1e-6,
    "ms": 1e-3,
    "msecond": 1e-3,
    "s": 1.0,
    "second": 1.0,
    "inst": 1.0,
    "sector": 1.0,
    "request": 1.0,
    "cycle": 1.0,
    "warp": 1.0,
    "cluster": 1.0,
    "block": 1.0,
    "inst/inst": 1.0,
    "cycle/inst": 1.0,
}
"""What a value in that unit is multiplied by. A unit that is not here makes a value unknown."""

_NUMBER = re.compile(r"[-+]?(\d[\d,]*(\.\d*)?|\.\d+)([eE][-+]?\d+)?")

_PLAIN = ("K", "M", "G")


def parse(text: str) -> NcuOutput:
    """Reads `--csv --page raw`: a header that begins with "ID", a row of units, a row a launch; lines of
    the tool (`==PROF==`) and of the program may stand between them."""
    marks = [m for line in text.splitlines() if (m := _MARK.match(line.strip()))]
    errors = tuple(m[2] for m in marks if m[1] == "ERROR")
    warnings = tuple(m[2] for m in marks if m[1] == "WARNING")
    table = "\n".join(line for line in text.splitlines() if line.startswith('"'))
    header: list[str] | None = None
    units: dict[str, str] = {}
    rows: list[MetricRow] = []
    for cells in csv.reader(io.StringIO(table)):
        if cells and cells[0] == "ID":
            header, units = cells, {}
        elif header is None or len(cells) != len(header):
            continue  # a quoted line of the program's own
        elif cells[0] == "":
            units = dict(zip(header, cells, strict=True))
        else:
            rows.append(_row(dict(zip(header, cells, strict=True)), units))
    return NcuOutput(tuple(rows), errors, warnings)


def _row(cells: Mapping[str, str], units: Mapping[str, str]) -> MetricRow:
    values = {name: number(cell, units.get(name, "")) for name, cell in cells.items() if "__" in name}
    return MetricRow(cells.get("Kernel Name", ""), values)


def number(cell: str, unit: str) -> float | None:
    """Returns a cell in base units; None for `n/a`, an empty cell, or a unit that is not known."""
    m = _NUMBER.fullmatch(cell.strip())
    scale = _scale(unit.strip())
    if m is None or scale is None:
        return None
    return float(cell.replace(",", "")) * scale


def _scale(unit: str) -> float | None:
    if unit in _UNITS:
        return _UNITS[unit]
    if unit[:1] in _PLAIN and unit[1:] in _UNITS:
        return 1000.0 ** (1 + _PLAIN.index(unit[0])) * _UNITS[unit[1:]]
    return None


def queried(text: str) -> frozenset[str]:
    """Returns Base names in the output of `ncu --query-metrics`: the first word of each line that has
    `__`."""
    words = (line.split()[0] for line in text.splitlines() if line.strip())
    return frozenset(w for w in words if "__" in w)
