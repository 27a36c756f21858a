"""KernelBench's problems as their modules stand: imported, planned, built, checked and timed, without a program.

    python -m benchmarks.kernelbench_modules ROOT [--levels 1,2,3] [--lane f32|tf32] [--out FILE.jsonl]
    python -m benchmarks.kernelbench_modules --table FILE.jsonl

Each problem is imported at its own extents, in the mode that its file constructs (in eval mode where that one
draws random numbers), and its kernels are built, side by side on the CPU's cores; meanwhile each GPU takes what
is built. There the module is made with its own inputs, and the program's results are compared with an oracle:
the module itself in float64, or in f32 without TF32 where float64 would take too long or too much memory. They
are right where their error, in the Euclidean norm and in the maximum, is at most a small multiple of eager's own
in the compute type. Then the program, eager with PyTorch's defaults (TF32 in convolutions), eager with TF32,
torch.compile by its default mode and, where a module convolves, both without TF32, are timed in turns, in CUDA
graphs over rotated arguments.

A row is one line of `--out`, written as soon as it is known; a run that was cut off goes on where it was. Each
problem has processes of its own, forks of one that has imported what they need, and time limits. `--devices 0`
builds without a GPU, `--dry` does not build.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import bars, gpu_queue, harness, turns
from benchmarks.bars import Bar, Figure
from benchmarks.gpu_queue import GpuJob, GpuQueue, finished
from benchmarks.harness import Row, geomean
from benchmarks.import_kernelbench import problems
from benchmarks.kernel_builds import KernelBuilder, build
from ucutlass.agent.module_processes import AHEAD, EXPORT, MODULES
from ucutlass.emit.text import Source
from ucutlass.ir.hardware import ARCHES, DEVICES
from ucutlass.runtime import system
from ucutlass.runtime.gpu import at_hand
from ucutlass.runtime.process_template import ProcessTemplate

IMPORT_SECONDS = 240.0
GPU_SECONDS = 300.0
HOLD_SECONDS = 90.0
COMPILE_SECONDS = 120.0
GRACE_SECONDS = 10.0
HOST_BYTES = 40 * 2**30
ORDER = (1, 3, 2)
"""Levels as they are built: GPUs are busy with the first while the kernels of the third are built, and the third
takes long to trace and compile."""

SLOTS = 12
"""Problems at once on a GPU: one launches, the others load, trace and compile, each on one core."""

TORCH_SHARE = 0.05
"""A function of torch that takes a larger share of the time counts."""

COLUMNS = ("eager", "eager-tf32", "eager-f32", "compile", "compile-tf32", "compile-f32")


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What every problem of a run shares. `deadline` is a time of the monotonic clock."""

    run: str
    lane: str
    arch: str
    device: str | None
    devices: tuple[int, ...]
    jobs: int
    slots: int
    held_bytes: int
    depth: str
    compile: bool
    kernels: bool
    folder: Path
    out: Path
    deadline: float | None
    fake: bool


@dataclass(frozen=True, slots=True)
class Problem:
    level: int
    number: int
    file: Path

    @property
    def name(self) -> str:
        return f"{self.level}/{self.file.stem}"

    @property
    def place(self) -> str:
        """A name for files."""
        return f"{self.level}_{self.number}"


# --- a run --------------------------------------------------------------------------------


def run(every: Sequence[Problem], settings: RunSettings) -> None:
    """Adds a row a problem to the settings' file."""
    queue = GpuQueue(settings.devices, settings.held_bytes)
    # Most threads of `preparers` wait for kernels: all problems' are known to the compilers early.
    with (
        ThreadPoolExecutor(settings.jobs, thread_name_prefix="compiler") as compilers,
        ThreadPoolExecutor(max(1, len(every)), thread_name_prefix="problem") as preparers,
        closing(template()) as forks,
    ):
        builder = KernelBuilder(compilers, _no_build) if settings.fake else KernelBuilder(compilers)
        importers = threading.Semaphore(settings.jobs)
        gpus = gpu_queue.serve(
            queue, settings.devices, settings.slots, lambda job, at: measure(job, at, settings, forks)
        )
        try:
            ordered = sorted(every, key=lambda p: ORDER.index(p.level))
            list(preparers.map(lambda p: prepare(p, settings, importers, forks, builder, queue), ordered))
        finally:
            queue.close()
            gpus.shutdown()


def template() -> ProcessTemplate:
    """Returns what forks the problems' processes: importing torch, its exporter and its compiler takes each more of
    a core than all else that it does. With one thread TorchInductor starts no processes, which would import torch."""
    first = (*MODULES, *EXPORT, AHEAD)
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    return ProcessTemplate(first, (*turns.COMPILERS, "benchmarks.module_measure"), environ)


def _no_build(source: Source, plan: Mapping[str, Any]) -> str:
    """For tests, which have no compiler's time."""
    return source.entry


def prepare(
    problem: Problem,
    settings: RunSettings,
    importers: threading.Semaphore,
    forks: ProcessTemplate,
    builder: KernelBuilder,
    queue: GpuQueue,
) -> None:
    """Imports, plans and builds a problem; its row ends here, or goes on to a GPU."""
    payload = settings.folder / f"{problem.place}.json"
    with importers:
        row = gpu_queue.called(
            "benchmarks.module_program:prepared",
            {
                "file": str(problem.file),
                "lane": settings.lane,
                "arch": settings.arch,
                "device": settings.device,
                "payload": str(payload),
            },
            settings.folder / f"{problem.place}.prepared.jsonl",
            limit_seconds=IMPORT_SECONDS,
            deadline=settings.deadline,
            environ=gpu_queue.environment(None, 1),
            memory_bytes=HOST_BYTES,
            template=forks,
        )
    identity: Row = {"name": problem.name, "level": problem.level, "asked_lane": settings.lane}
    row = identity | row
    if "status" in row or settings.depth == "plan":
        tell({"status": "planned"} | row, settings)
        return
    row |= build(payload, builder, settings.deadline)
    if "status" in row or not settings.devices:
        tell({"status": "built"} | row, settings)
        return
    facts = row | {"file": str(problem.file), "payload": str(payload), "place": problem.place}
    queue.put(GpuJob(problem.name, facts, row["held_bytes"]))


def measure(job: GpuJob, device: int, settings: RunSettings, forks: ProcessTemplate) -> None:
    """Measures a built problem on a GPU, once more in a smaller way where that failed, and writes its row."""
    start = time.monotonic()
    ways: Row = {"exact": True, "compile": settings.compile}
    row = attempt(job, device, settings, forks, ways)
    fewer = smaller(row, ways)
    if fewer != ways:
        first = f"{row.get('stage')}: {row['lost']}"
        row = attempt(job, device, settings, forks, fewer) | {"first_loss": first}
    known = {k: v for k, v in job.facts.items() if k not in ("file", "payload", "place", "stage")}
    tell(known | row | {"gpu": device, "gpu_seconds": round(time.monotonic() - start, 1)}, settings)


def smaller(row: Row, ways: Row) -> Row:
    """Returns what a lost row is tried again without: float64 where it was lost before its check ended,
    torch.compile where it was lost after that."""
    if "lost" not in row or row["stage"] in ("start", "load", "end", "stages"):
        return ways
    return ways | ({"exact": False} if row["stage"] in ("module", "check") else {"compile": False})


def attempt(job: GpuJob, device: int, settings: RunSettings, forks: ProcessTemplate, ways: Row) -> Row:
    facts = job.facts
    return gpu_queue.called(
        "benchmarks.module_measure:measured",
        {
            "file": facts["file"],
            "mode": facts["mode"],
            "lane": facts["asked_lane"],
            "own_lane": facts["lane"],
            "payload": facts["payload"],
            "arch": None if settings.fake else settings.arch,
            "lock": str(settings.folder / f"gpu{device}.lock"),
            "device": "cpu" if settings.fake else "cuda",
            "convolves": facts["convolves"],
            "kernels": settings.kernels,
            "hold_seconds": HOLD_SECONDS,
            "compile_seconds": COMPILE_SECONDS,
            **ways,
        },
        settings.folder / f"{facts['place']}.measured.jsonl",
        limit_seconds=GPU_SECONDS,
        deadline=settings.deadline,
        environ=gpu_queue.environment(None if settings.fake else device, 1),
        memory_bytes=HOST_BYTES,
        template=forks,
    )


def tell(row: Row, settings: RunSettings) -> None:
    harness.append(settings.out, row | {"run": settings.run})
    print(line_of(row), flush=True)


def line_of(row: Row) -> str:
    """Returns a row in a line."""
    words = [row["name"], row["status"]]
    if us := row.get("us"):
        ratios = (f"{n} {us[n] / us['ucutlass']:.2f}" for n in COLUMNS if n in us)
        words += [f"{us['ucutlass']:.1f} us", *ratios]
    for key in ("why", "wrong", "lost", "first_loss", "uncompiled"):
        if row.get(key):
            words.append(f"{key}: {row[key]}"[:300])
    seconds = (row.get("import_seconds"), row.get("build_seconds"), row.get("gpu_seconds"))
    return "; ".join([*words, f"{row.get('kernels', '-')} kernels, seconds {seconds}"])


# --- the table ------------------------------------------------------------------------------


def table(rows: Iterable[Row], counts: Mapping[int, int] | None = None) -> list[str]:
    """Returns the lines of the table by level. `counts` are problems by level, by default those with a row:
    shares are of these."""
    latest = list({row["name"]: row for row in rows}.values())
    lines = []
    for level in sorted({row["level"] for row in latest}):
        of_level = [row for row in latest if row["level"] == level]
        lines += _level(f"level {level}", of_level, (counts or {}).get(level, len(of_level)))
    lines += _level("all", latest, sum(counts.values()) if counts else len(latest))
    return lines + worst(latest)


def ratio(row: Row, column: str) -> float | None:
    """Returns a column's time over ours, None where either is missing or ours is not right."""
    us = row.get("us") or {}
    if row["status"] != "right" or column not in us or "ucutlass" not in us:
        return None
    return float(us[column] / us["ucutlass"])


def _level(name: str, rows: Sequence[Row], count: int) -> list[str]:
    counted = Counter(row["status"] for row in rows)
    without = sum(map(clean, rows))
    oracles = Counter(row["oracle"] for row in rows if "oracle" in row)
    lines = [
        f"{name}: {count} problems, {dict(counted)}, {without} without a torch node of more than "
        f"{TORCH_SHARE:.0%}, oracles {dict(oracles)}"
    ]
    for column in COLUMNS:
        ratios = [r for row in rows if (r := ratio(row, column)) is not None]
        if ratios:
            fast = sum(r > 1 for r in ratios) / count
            lines.append(
                f"  against {column:12} {len(ratios):3} timed, geomean {geomean(ratios):.3f}, "
                f"fast_1 {fast:.1%}, least {min(ratios):.3f}"
            )
    return lines


OF_EAGER = {1: 1.9, 2: 2.4, 3: 1.6}
OF_COMPILE = 1.25
CLEAN_SHARE = 198 / 210
"""Of all problems, those that must have no torch node of more than TORCH_SHARE of the time."""


def figures(rows: Iterable[Row], lane: str) -> list[Figure]:
    """Returns speed-ups by level and column, and which problems are clean, with the bars of a lane."""
    latest = list({row["name"]: row for row in rows}.values())
    found = {
        f"level {level} over {column}": {
            row["name"]: r
            for row in latest
            if row["level"] == level and (r := ratio(row, column)) is not None
        }
        for level in OF_EAGER
        for column in COLUMNS
    }
    found["without a torch node that costs"] = {row["name"]: float(clean(row)) for row in latest}
    fast = "compile" if lane == "f32" else "compile-tf32"
    held = {f"level {level} over eager": Bar(geomean=bar) for level, bar in OF_EAGER.items()}
    held |= {f"level {level} over {fast}": Bar(geomean=OF_COMPILE) for level in OF_EAGER}
    held["without a torch node that costs"] = Bar(share=(1.0, CLEAN_SHARE))
    return bars.figures(found, held)


def clean(row: Row) -> bool:
    """Returns whether a problem is imported without a torch node of more than TORCH_SHARE of the time."""
    share = row.get("torch_share", float(bool(row.get("torch_stages"))))
    return row["status"] != "not imported" and row.get("stages") is not None and share <= TORCH_SHARE


def worst(rows: Sequence[Row], count: int = 10) -> list[str]:
    """Returns the rows that are slowest beside eager and beside torch.compile."""
    lines = []
    for column in ("eager", "compile", "compile-tf32"):
        known = sorted(
            ((r, row) for row in rows if (r := ratio(row, column)) is not None), key=lambda pair: pair[0]
        )
        if known:
            lines.append(f"slowest beside {column}:")
            lines += [
                f"  {r:.3f} {row['name']}, {row['us']['ucutlass']:.1f} us, stages {row.get('slowest', '-')}"
                for r, row in known[:count]
            ]
    bad = [row for row in rows if row["status"] not in ("right", "planned", "built")]
    return lines + [line_of(row) for row in bad]


# --- options ----------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("root", type=Path, nargs="?", help="a checkout of KernelBench, or its problems")
    options.add_argument("--levels", default="1,2,3")
    options.add_argument("--lane", choices=("f32", "tf32"), default="f32")
    options.add_argument("--devices", type=int, help="GPUs to use, by default all; 0 builds alone")
    options.add_argument("--jobs", type=int, help="importers and compilers at once, by default a core each")
    options.add_argument("--slots", type=int, default=SLOTS, help="problems at once on a GPU")
    options.add_argument("--out", type=Path, default=Path("kernelbench_modules.jsonl"), help="rows, JSON")
    options.add_argument("--again", action="store_true", help="forget the rows that --out has")
    options.add_argument("--only", default="", metavar="NAME,..", help="beginnings of names such as 1/23_")
    options.add_argument("--first", default="", metavar="NAME,..", help="those that compile long, ahead")
    options.add_argument("--every", type=int, default=1, help="one problem of so many")
    options.add_argument("--offset", type=int, default=0, help="the first of them")
    options.add_argument("--seconds", type=float, help="end the run after so many, with the rows it has")
    options.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    options.add_argument("--kernels", action="store_true", help="add what each launches to its row")
    options.add_argument("--dry", action="store_true", help="import and plan alone")
    options.add_argument("--fake", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--arch", choices=tuple(ARCHES), help="by default the GPU's, else sm90a")
    options.add_argument("--device", choices=tuple(DEVICES), help="whose facts plans take")
    options.add_argument("--table", type=Path, metavar="FILE", help="print the table of these rows alone")
    return options


def selected(options: argparse.Namespace) -> list[Problem]:
    """Returns the problems that the options choose. Raises SystemExit where there are none."""
    root = options.root if (options.root / "level1").is_dir() else options.root / "KernelBench"
    levels = [int(level) for level in options.levels.split(",")]
    every = [Problem(*found) for found in problems(root, levels, ())]
    words, ahead = (tuple(filter(None, names.split(","))) for names in (options.only, options.first))
    chosen = [p for p in every if not words or p.name.startswith(words)][options.offset :: options.every]
    chosen.sort(key=lambda problem: not problem.name.startswith(ahead))
    if not chosen:
        raise SystemExit(f"no problem below {root} is chosen")
    return chosen


def ended(work: Callable[[], None], deadline: float | None) -> bool:
    """Runs something, no longer than GRACE_SECONDS beyond the deadline. Returns whether it is unfinished. Raises
    what it raises."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(work)
    try:
        future.result(None if deadline is None else deadline + GRACE_SECONDS - time.monotonic())
    except TimeoutError:
        return True
    return False


def settings_of(options: argparse.Namespace, folder: Path, start: float, identity: str) -> RunSettings:
    here = None if options.fake else at_hand()
    driver = None if options.fake else system.driver()
    gpus = driver.gpus if driver is not None else ()
    count = 1 if options.fake else len(gpus)
    if options.devices is not None and not options.fake:
        count = min(count, options.devices)
    device = options.device or (here.device.name if here is not None and here.device is not None else None)
    return RunSettings(
        run=identity,
        lane=options.lane,
        arch=options.arch or (here.arch.name if here is not None else "sm90a"),
        device=device,
        devices=() if options.dry else tuple(range(count)),
        jobs=options.jobs or system.cores(),
        slots=options.slots,
        held_bytes=min((gpu.memory for gpu in gpus), default=system.memory_total()) // gpu_queue.HELD_SHARE,
        depth="plan" if options.dry else "build",
        compile=not options.no_compile,
        kernels=options.kernels,
        folder=folder,
        out=options.out,
        deadline=None if options.seconds is None else start + options.seconds,
        fake=options.fake,
    )


def main() -> int:
    start = time.monotonic()
    options = parser().parse_args()
    if options.table:
        print("\n".join(table(harness.lines(options.table))))
        return 0
    if options.root is None:
        raise SystemExit("give ROOT, or --table FILE")
    if options.again:
        harness.fresh(options.out)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    machine = harness.machine()
    identity = f"{harness.identity(machine)} {options.lane} {options.dry}"
    known = {r["name"] for r in harness.lines(options.out) if finished(r) and r.get("run") == identity}
    every = selected(options)
    with tempfile.TemporaryDirectory(prefix="kernelbench-") as folder:
        settings = settings_of(options, Path(folder), start, identity)
        print(
            f"{len(every)} problems, {settings.arch}, {settings.device}, GPUs {settings.devices}", flush=True
        )
        unfinished = ended(
            lambda: run([p for p in every if p.name not in known], settings), settings.deadline
        )
        names = {p.name for p in every}
        rows = [r for r in harness.lines(options.out) if r["name"] in names and r.get("run") == identity]
        every_figure = figures(rows, options.lane)
        wrong = [row["name"] for row in rows if row["status"] == "wrong"]
        reached = {row["name"] for row in rows if finished(row)}
        unreached = [p.name for p in every if p.name not in reached and p.name not in wrong]
        bars.write_summary(options.out, every_figure, machine, wrong=wrong, unreached=unreached)
        print("\n".join([*table(rows, Counter(p.level for p in every)), *bars.lines(every_figure)]))
        print(f"{time.monotonic() - start:.0f} s{', cut off' if unfinished else ''}", flush=True)
        status = bars.status(every_figure, wrong, unreached)
        if unfinished:
            os._exit(status)  # threads wait for compilers, which end with them
    return status


if __name__ == "__main__":
    sys.exit(main())
