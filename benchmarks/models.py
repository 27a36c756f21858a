"""Models of torchvision, timm and transformers through torch.compile: our backend beside TorchInductor and eager.

    python -m benchmarks.models [--suite torchvision,timm,transformers] [--dtype bf16,f32] [--batch 1,16]
    python -m benchmarks.models --table FILE.jsonl

Architectures have random weights; those of transformers have real widths and few layers. Each row is a model, an
element type and a batch: results against the model in float64, within a small multiple of eager's own error;
times of `torch.compile(model, backend="ucutlass")`, eager, TorchInductor's default mode and, with
`--max-autotune`, that mode, in turns, both in CUDA graphs (`us`) and as a user calls them (`call_us`); where the
backend chose the fallback for a graph, its programs are a candidate of their own; the share of the device's time
in our kernels; what went to the fallback; and the seconds of each first call, ours by part, with `--warm`
once more in a fresh process.

A row is one line of `--out`, written as soon as it is known; a run that was cut off goes on where it was. Each
row has processes of its own and time limits.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from benchmarks import bars, gpu_queue, harness
from benchmarks.bars import Bar, Figure
from benchmarks.gpu_queue import GpuJob, GpuQueue, finished
from benchmarks.harness import Row, geomean
from benchmarks.kernelbench_modules import ended
from ucutlass.runtime import system
from ucutlass.runtime.process_template import ProcessTemplate

ROW_SECONDS = 560.0
HOLD_SECONDS = 120.0
BUILD_SECONDS = 420.0
COMPILE_SECONDS = 180.0
HOST_BYTES = 48 * 2**30
MOST_SLOTS, CORES_OF_A_SLOT = 8, 2
"""Rows at once on a GPU. Half of a row's time is one core's, in Python; in the other half compilers take what is free."""

JOB_BYTES = 2 * 2**30
IMPORTED = (
    "torch._dynamo.backends.common",
    "torch._inductor.compile_fx",
    "torchvision",
    "timm",
    "transformers",
    "benchmarks.model_measure",
    "ucutlass.dynamo.backend",
)
"""What each row's process would import for some ten seconds."""

COLUMNS = ("inductor", "max-autotune", "eager")


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What every row of a run shares. `deadline` is a time of the monotonic clock."""

    devices: tuple[int, ...]
    slots: int
    compile: bool
    max_autotune: bool
    warm: bool
    kernels: bool
    folder: Path
    out: Path
    deadline: float | None
    fake: bool
    run: str
    choose: str = "time"
    template: ProcessTemplate | None = None


def run(rows: Sequence[Row], settings: RunSettings) -> None:
    """Adds a row for each of these, which have `name`, `model`, `dtype` and `batch`, to the settings' file."""
    each = JOB_BYTES + gpu_queue.PROCESS_BYTES
    queue = GpuQueue(settings.devices, settings.slots * each)
    for row in rows:
        queue.put(GpuJob(row["name"], row, JOB_BYTES))
    queue.close()
    gpus = gpu_queue.serve(
        queue, settings.devices, settings.slots, lambda job, at: measure(job, at, settings)
    )
    gpus.shutdown()


def measure(job: GpuJob, device: int, settings: RunSettings) -> None:
    start = time.monotonic()
    row = attempt(job, device, settings, settings.compile)
    if "lost" in row and row["stage"] in ("inductor", "max-autotune"):
        row = attempt(job, device, settings, False) | {"first_loss": f"{row['stage']}: {row['lost']}"}
    if settings.warm and row["status"] == "right":
        columns = ("ucutlass", *(("inductor",) if settings.compile else ()))
        row["warm_seconds"] = {c: warm(job, device, settings, c) for c in columns}
    row = (
        job.facts
        | row
        | {"run": settings.run, "gpu": device, "row_seconds": round(time.monotonic() - start, 1)}
    )
    harness.append(settings.out, row)
    print(line_of(row), flush=True)


def attempt(job: GpuJob, device: int, settings: RunSettings, compile: bool) -> Row:
    return gpu_queue.called(
        "benchmarks.model_measure:measured",
        {
            **_about(job, device, settings),
            "exact": True,
            "compile": compile,
            "max_autotune": settings.max_autotune,
            "kernels": settings.kernels,
            "choose": settings.choose,
            "hold_seconds": HOLD_SECONDS if not settings.max_autotune else COMPILE_SECONDS,
            "build_seconds": BUILD_SECONDS,
            "compile_seconds": COMPILE_SECONDS,
            "deadline": settings.deadline,
        },
        _note(job, settings),
        limit_seconds=ROW_SECONDS,
        deadline=settings.deadline,
        environ=_environment(device, settings),
        memory_bytes=HOST_BYTES,
        template=settings.template,
    )


def warm(job: GpuJob, device: int, settings: RunSettings, column: str) -> float | None:
    """Returns the seconds of a first call in a fresh process, None where it is lost."""
    answer = gpu_queue.called(
        "benchmarks.model_measure:compiled_once",
        {**_about(job, device, settings), "column": column, "limit_seconds": COMPILE_SECONDS},
        _note(job, settings),
        limit_seconds=COMPILE_SECONDS + 60.0,
        deadline=settings.deadline,
        environ=_environment(device, settings),
        memory_bytes=HOST_BYTES,
        template=settings.template,
    )
    return answer.get("warm")


def _about(job: GpuJob, device: int, settings: RunSettings) -> Row:
    return {
        "name": job.facts["model"],
        "dtype": job.facts["dtype"],
        "batch": job.facts["batch"],
        "lock": str(settings.folder / f"gpu{device}.lock"),
        "device": "cpu" if settings.fake else "cuda",
    }


def _note(job: GpuJob, settings: RunSettings) -> Path:
    return settings.folder / f"{job.name.replace(' ', '_')}.jsonl"


def _environment(device: int, settings: RunSettings) -> dict[str, str]:
    count = settings.slots * max(1, len(settings.devices))
    return gpu_queue.environment(None if settings.fake else device, gpu_queue.compilers_of(count))


def line_of(row: Row) -> str:
    """Returns a row in a line."""
    words = [row["name"], row["status"]]
    for kind in ("us", "call_us"):
        if us := row.get(kind):
            ratios = (f"{n} {us[n] / us['ucutlass']:.2f}" for n in COLUMNS if n in us)
            words.append(f"{us['ucutlass']:.0f} {kind}, {', '.join(ratios)}")
    if "programs" in row:
        words.append(
            f"{row['programs']} programs, {row['outside']} operators outside, share {row.get('share')}"
        )
    for key in ("wrong", "lost", "first_loss", "uncompiled", "unbuilt", "reasons"):
        if row.get(key):
            words.append(f"{key}: {row[key]}"[:300])
    words.append(f"first calls {row.get('seconds')}, ours {row.get('parts')}, warm {row.get('warm_seconds')}")
    return "; ".join(words)


# --- the table -------------------------------------------------------------------------------------


def ratio(row: Row, kind: str, column: str, own: str = "ucutlass") -> float | None:
    """Returns a column's time over ours, None where either is missing or ours is not right. Ours is the
    backend's, or its programs', which are the same where it chose them."""
    us = row.get(kind) or {}
    if row["status"] != "right" or column not in us or "ucutlass" not in us:
        return None
    return float(us[column] / us.get(own, us["ucutlass"]))


def table(rows: Iterable[Row]) -> list[str]:
    """Returns the lines of the table: by element type and batch, then the worst rows."""
    latest = list({row["name"]: row for row in rows}.values())
    lines = []
    groups = sorted({(row["dtype"], row["batch"]) for row in latest})
    for dtype, batch in groups:
        lines += _group(
            f"{dtype}, batch {batch}", [r for r in latest if (r["dtype"], r["batch"]) == (dtype, batch)]
        )
    if len(groups) > 1:
        lines += _group("all", latest)
    for kind in ("us", "call_us"):
        known = sorted(
            ((r, row) for row in latest if (r := ratio(row, kind, "inductor")) is not None),
            key=lambda pair: pair[0],
        )
        if known:
            lines.append(f"slowest beside inductor by {kind}:")
            lines += [f"  {r:.3f} {line_of(row)}" for r, row in known[:10]]
    lines += ["", "| model | " + " | ".join(_HEAD) + " |", "|---" * (len(_HEAD) + 1) + "|"]
    lines += [_markdown(row) for row in sorted(latest, key=lambda r: r["name"])]
    return lines


def figures(rows: Iterable[Row]) -> list[Figure]:
    """Returns how many architectures are right, and ratios in CUDA graphs and as called, with their bars."""
    latest = list({row["name"]: row for row in rows}.values())
    found = {
        f"{words} over {column}": {
            row["name"]: r for row in latest if (r := ratio(row, kind, column)) is not None
        }
        for kind, words in (("us", "in graphs"), ("call_us", "as called"))
        for column in COLUMNS
    }
    right = {row["model"] for row in latest if row["status"] == "right"}
    found["architectures"] = {"right": float(len(right))} if right else {}
    held = {"in graphs over inductor": Bar(geomean=1.1, least=0.95), "architectures": Bar(least=30)}
    return bars.figures(found, held)


_HEAD = (
    "result",
    "us",
    "eager",
    "inductor",
    "max-autotune",
    "called: inductor",
    "programs: inductor",
    "share",
    "outside",
    "error / eager's",
    "first call s",
    "inductor's",
)


def _markdown(row: Row) -> str:
    cells = [row["status"], _number((row.get("us") or {}).get("ucutlass"), 0)]
    cells += [_number(ratio(row, "us", c)) for c in ("eager", "inductor", "max-autotune")]
    cells += [
        _number(ratio(row, "call_us", "inductor")),
        _number(ratio(row, "us", "inductor", "programs")),
        _number(row.get("programs_share", row.get("share"))),
        str(row.get("outside", "-")),
    ]
    error, eager = row.get("error"), row.get("eager_error")
    cells.append(_number(error / eager if error and eager else None))
    seconds = row.get("seconds") or {}
    cells += [_number(seconds.get(c), 1) for c in ("ucutlass", "inductor")]
    return f"| {row['name']} | {' | '.join(cells)} |"


def _number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _group(name: str, rows: Sequence[Row]) -> list[str]:
    counted = Counter(row["status"] for row in rows)
    shares = [row["programs_share"] for row in rows if row.get("programs_share") is not None]
    mean = f", mean share of programs {sum(shares) / len(shares):.3f}" if shares else ""
    lines = [f"{name}: {len(rows)} rows of {len({r['model'] for r in rows})} models, {dict(counted)}{mean}"]
    for kind in ("us", "call_us"):
        for column in COLUMNS:
            ratios = [r for row in rows if (r := ratio(row, kind, column)) is not None]
            if ratios:
                below = sum(r < 0.95 for r in ratios)
                lines.append(
                    f"  {kind:7} against {column:12} {len(ratios):3} rows, geomean {geomean(ratios):.3f}, "
                    f"least {min(ratios):.3f}, below 0.95: {below}"
                )
        programs = [r for row in rows if (r := ratio(row, kind, "inductor", "programs")) is not None]
        if programs:
            lines.append(
                f"  {kind:7} of programs alone against inductor: geomean {geomean(programs):.3f}, "
                f"least {min(programs):.3f}"
            )
    chosen = Counter(server for row in rows for server in row.get("choices", ()))
    known = [row["parts"] for row in rows if row.get("parts")]
    names = dict.fromkeys(name for parts in known for name in parts)
    parts = (f"{name} {sum(parts.get(name, 0.0) for parts in known) / len(known):.1f}" for name in names)
    return [*lines, f"  served by {dict(chosen)}", f"  mean seconds of a first call: {', '.join(parts)}"]


# --- options ---------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--suite", default="torchvision,timm,transformers")
    options.add_argument("--dtype", default="bf16,f32", help="of bf16, f16, f32")
    options.add_argument("--batch", default="1,16")
    options.add_argument("--devices", type=int, help="GPUs to use, by default all")
    options.add_argument("--slots", type=int, help="rows at once on a GPU, by default as the cores allow")
    options.add_argument("--only", default="", metavar="NAME,..", help="models of these names")
    options.add_argument(
        "--rows", default="", metavar="'NAME DTYPE BATCH,..'", help="these rows, in this order"
    )
    options.add_argument("--every", type=int, default=1, help="one row of so many")
    options.add_argument("--offset", type=int, default=0, help="the first of them")
    options.add_argument(
        "--seed", type=int, help="shuffle: each model once in a drawn element type and batch, then the rest"
    )
    options.add_argument(
        "--choose",
        default="time",
        choices=("time", "always"),
        help="the backend's option; always compiles no fallback beside TorchInductor's own column",
    )
    options.add_argument("--out", type=Path, default=Path("models.jsonl"), help="rows, JSON")
    options.add_argument("--again", action="store_true", help="forget the rows that --out has")
    options.add_argument("--seconds", type=float, help="end the run after so many, with the rows it has")
    options.add_argument("--no-compile", action="store_true", help="leave TorchInductor out")
    options.add_argument("--max-autotune", action="store_true", help="time that mode too")
    options.add_argument("--warm", action="store_true", help="first calls with warm caches too")
    options.add_argument(
        "--kernels", action="store_true", help="add what is launched to rows where ours takes longer"
    )
    options.add_argument("--fake", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--table", type=Path, metavar="FILE", help="print the table of these rows alone")
    options.add_argument("--list", action="store_true", help="print the models")
    return options


def selected(options: argparse.Namespace) -> list[Row]:
    """Returns the rows that the options choose. Raises SystemExit where there are none, or for an unknown
    model."""
    from benchmarks.model_cases import CASES

    if options.rows:
        named = [row.split() for row in options.rows.split(",")]
        if unknown := [" ".join(row) for row in named if len(row) != 3 or row[0] not in CASES]:
            raise SystemExit(f"no row is {', '.join(unknown)}; a row is a model, an element type and a batch")
        return [{"name": " ".join(r), "model": r[0], "dtype": r[1], "batch": int(r[2])} for r in named]
    suites, only = options.suite.split(","), [n for n in options.only.split(",") if n]
    if unknown := [name for name in only if name not in CASES]:
        raise SystemExit(f"no model is named {', '.join(unknown)}; models are {', '.join(CASES)}")
    names = [n for n, case in CASES.items() if (n in only if only else case.suite in suites)]
    rows = [
        {"name": f"{n} {dtype} {batch}", "model": n, "dtype": dtype, "batch": int(batch)}
        for dtype in options.dtype.split(",")
        for batch in options.batch.split(",")
        for n in names
    ][options.offset :: options.every]
    if not rows:
        raise SystemExit("no model is chosen")
    return rows if options.seed is None else shuffled(rows, options.seed)


def shuffled(rows: Sequence[Row], seed: int) -> list[Row]:
    """Returns the rows in rounds of one row a model, so that a run that is cut off is a fair sample of both the
    models and the element types and batches."""
    random = Random(seed)
    names = list(dict.fromkeys(row["model"] for row in rows))
    random.shuffle(names)
    by_model: dict[str, list[Row]] = {name: [] for name in names}
    for row in rows:
        by_model[row["model"]].append(row)
    places = {name: number for number, name in enumerate(names)}
    ordered = [
        (turn, places[name], own[(turn + places[name]) % len(own)])
        for name, own in by_model.items()
        for turn in range(len(own))
    ]
    return [row for _, _, row in sorted(ordered, key=lambda entry: entry[:2])]


def main() -> int:
    start = time.monotonic()
    options = parser().parse_args()
    if options.table:
        print("\n".join(table(harness.lines(options.table))))
        return 0
    every = selected(options)
    if options.list:
        print("\n".join(row["name"] for row in every))
        return 0
    if options.again:
        harness.fresh(options.out)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    driver = None if options.fake else system.driver()
    count = 1 if options.fake else len(driver.gpus) if driver is not None else 0
    if not count:
        raise SystemExit("no NVIDIA GPU is here")
    machine = harness.machine()
    identity = f"{harness.identity(machine)} {options.choose} {options.max_autotune}"
    known = {r["name"] for r in harness.lines(options.out) if finished(r) and r.get("run") == identity}
    with tempfile.TemporaryDirectory(prefix="models-") as folder:
        gpus = min(count, options.devices or count)
        slots = options.slots or max(1, min(MOST_SLOTS, system.cores() // (CORES_OF_A_SLOT * gpus)))
        # TorchInductor takes the number of its compilers from the environment as it is imported.
        environ = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": str(gpu_queue.compilers_of(slots * gpus))}
        settings = RunSettings(
            tuple(range(gpus)),
            slots,
            not options.no_compile,
            options.max_autotune,
            options.warm,
            options.kernels,
            Path(folder),
            options.out,
            None if options.seconds is None else start + options.seconds,
            options.fake,
            identity,
            options.choose,
            None if options.fake else ProcessTemplate(IMPORTED, environ=environ),
        )
        print(f"{len(every)} rows, GPUs {settings.devices}", flush=True)
        left = [row for row in every if row["name"] not in known]
        unfinished = ended(lambda: run(left, settings), settings.deadline)
        names = {row["name"] for row in every}
        rows = [r for r in harness.lines(options.out) if r["name"] in names and r.get("run") == identity]
        every_figure = figures(rows)
        wrong = [row["name"] for row in rows if row["status"] == "wrong"]
        reached = {row["name"] for row in rows if finished(row)}
        unreached = sorted(names - reached - {*wrong})
        bars.write_summary(options.out, every_figure, machine, wrong=wrong, unreached=unreached)
        print("\n".join([*table(rows), *bars.lines(every_figure)]))
        print(f"{time.monotonic() - start:.0f} s{', cut off' if unfinished else ''}", flush=True)
        status = bars.status(every_figure, wrong, unreached)
        if unfinished:
            os._exit(status)  # threads wait for processes, which end with them
    return status


if __name__ == "__main__":
    sys.exit(main())
