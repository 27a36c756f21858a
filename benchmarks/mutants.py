"""The kill rate: bugs seeded into lowerings and harness, and honest kernels that must pass.

    python -m benchmarks.mutants [--out FILE] [--processes 2] [--only NAME] [--honest 100]
    python -m benchmarks.mutants --gpu [--out FILE] [--honest 100]
    python -m benchmarks.mutants --list [--gpu]

Claim: every mutant is killed, and no honest kernel is objected to. The first compiles each mutant of the
multistage and matrix-vector kernels with g++ behind the emulator of tests/emit, and puts judge, timing protocol
and emitter out of order one guard at a time. The second builds the same lowerings, and those of the wgmma
kernels, with nvcc and runs them on the GPU; those that the judge does not see go under racecheck and memcheck,
where compute-sanitizer is installed. Honest kernels are random programs, judged and audited; a time is no part
of it. Exit status 1 where a mutant survives, an honest kernel does not pass, or the campaign failed at one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks import bars, harness, honest
from benchmarks.bars import Bar
from benchmarks.honest import Honest, Job
from tests.mutants import emulated, gpu, injection, judging, keeping, timing
from tests.mutants.emulated import Row
from tests.mutants.guards import noticed
from tests.mutants.hopper import HOPPER, HOPPER_BASES
from tests.mutants.lowering import BASES, LOWERINGS

B_ROWS = (6, 10, 11, 12, 17, 18, 23, 25, 26, 27, 32, 33, 48, 64)
"""Rows of the gaming catalogue that only a bug of ours can open, those that are so in part included."""

SURVIVE, OBJECTED = "mutants that survive", "honest kernels that are objected to"
BARS = {SURVIVE: Bar(most=0), OBJECTED: Bar(most=0)}

HOST_PROCESSES = 2
GPU_BASES = {**BASES, **HOPPER_BASES}
GUARDS = {"judge": judging, "timing": timing, "emitter": injection, "kept": keeping}


@dataclass(frozen=True, slots=True)
class Result:
    """One mutant, or one unchanged kernel (`honest`), which must not be killed."""

    part: str
    row: Row
    honest: bool = False

    @property
    def fine(self) -> bool:
        return self.row.killed != self.honest

    def as_json(self) -> dict[str, Any]:
        return {"part": self.part, "honest": self.honest} | emulated.as_json(self.row)

    @staticmethod
    def from_json(row: Mapping[str, Any]) -> Result:
        lists = {key: tuple(row[key]) for key in ("patterns", "killed_by")}
        mutant = Row(row["name"], **lists, flat_check=row["flat_check"], detail=row["detail"])
        return Result(row["part"], mutant, row["honest"])


def on_host(names: Sequence[str], processes: int) -> Iterable[Result]:
    """Yields results as they come."""
    return chain(guards(names), lowerings(names, processes))


def lowerings(names: Sequence[str], processes: int) -> Iterator[Result]:
    known = {*BASES, *(m.name for m in LOWERINGS)}
    with ThreadPoolExecutor(processes) as pool:
        for row in pool.map(emulated.run, [n for n in names if n in known]):
            yield Result("lowering", row, row.name in BASES)


def guards(names: Sequence[str]) -> Iterator[Result]:
    for part, module in GUARDS.items():
        for mutant in module.MUTANTS:
            if mutant.name in names:
                by = (f"trial: {mutant.lets}",) if noticed(mutant, module.TRIALS) else ()
                yield Result(part, Row(mutant.name, mutant.patterns, by, False))


def names_of(device: str) -> list[str]:
    """Returns the mutants and unchanged kernels that a device can run."""
    if device == "cuda":
        return [*GPU_BASES, *(m.name for m in (*LOWERINGS, *HOPPER))]
    return [*(m.name for g in GUARDS.values() for m in g.MUTANTS), *BASES, *(m.name for m in LOWERINGS)]


def on_gpu(names: Sequence[str], jobs: Sequence[Job], rows: Path, processes: int) -> dict[str, str]:
    """Builds and judges, the one beside the other: each mutant in a process of its own, honest kernels
    of one run of the compiler in one. Rows go to the file as they come.

    Returns what went wrong with the campaign itself, by the mutant or honest kernel that it met.
    """
    honest_jobs = {job.name: job for job in jobs}
    units = [
        *gpu.units({name: gpu.prepared(name).source for name in names}),
        *gpu.units({name: honest.prepared(job).source for name, job in honest_jobs.items()}),
    ]

    def mutant(name: str, library: str) -> None:
        keep(Result("lowering on the GPU", gpu.judged(name, library), name in GPU_BASES), rows)

    def unchanged(libraries: Mapping[str, str]) -> None:
        for kernel in honest.judge([honest_jobs[name] for name in libraries], libraries, rows):
            show_honest(kernel)

    futures: dict[Future[None], list[str]] = {}
    with ThreadPoolExecutor(processes) as pool:
        for libraries in gpu.built(units):
            if honest_jobs.keys() >= libraries.keys():
                futures[pool.submit(unchanged, libraries)] = list(libraries)
            else:
                futures |= {pool.submit(mutant, n, library): [n] for n, library in libraries.items()}
    errors = {name: future.exception() for future, names in futures.items() for name in names}
    return {name: f"{type(error).__name__}: {error}" for name, error in errors.items() if error}


def keep(result: Result, rows: Path) -> None:
    harness.append(rows, result.as_json())
    show(result)


def show(result: Result) -> None:
    row = result.row
    rows = ",".join(str(p) for p in row.patterns)
    state = "fine" if result.fine else "FALSE ALARM" if result.honest else "SURVIVES"
    how = ", ".join(row.killed_by[:3]) or "not objected to"
    why = f"            {row.detail[:300]}\n" if not result.fine and row.detail else ""
    _print(f"{state:11} {result.part:9} {row.name:38} {rows:9} {how}{_flat(result)}\n{why}")


def show_honest(kernel: Honest) -> None:
    bound = f"worst {kernel.worst:.2f}, rms {kernel.rms:.2f} of the bound {kernel.words[:160]}"
    state = (
        "FALSE ALARM" if not kernel.ok else kernel.verdict if kernel.verdict == honest.UNDECIDED else "fine"
    )
    _print(f"{state:11} honest    {kernel.name:38} {kernel.verdict}; {bound}\n")


def _print(lines: str) -> None:
    """By one write, so that lines of several threads do not mix."""
    print(lines, end="", flush=True)


def _flat(result: Result) -> str:
    mutant = result.part.startswith("lowering") and not result.honest
    return "; the flat check passes it" if mutant and result.row.flat_check else ""


def summary(results: Sequence[Result], passed: Sequence[Honest]) -> dict[str, Any]:
    """The table of the report: by part, and by row of the catalogue."""
    mutants = [r for r in results if not r.honest]
    unchanged = [r for r in results if r.honest]
    killed = [r for r in mutants if r.row.killed]
    return {
        "mutants": len(mutants),
        "killed": len(killed),
        "flat_check_passes": sum(r.row.flat_check for r in mutants if r.part.startswith("lowering")),
        "parts": {
            part: [sum(r.row.killed for r in mutants if r.part == part), sum(r.part == part for r in mutants)]
            for part in dict.fromkeys(r.part for r in mutants)
        },
        "rows": {
            str(b): [sum(b in r.row.patterns for r in killed), sum(b in r.row.patterns for r in mutants)]
            for b in B_ROWS
        },
        "honest": len(unchanged) + len(passed),
        "undecided": sum(h.verdict == honest.UNDECIDED for h in passed),
        "false_alarms": sum(not r.fine for r in unchanged) + sum(not h.ok for h in passed),
    }


def main() -> int:
    options = _options()
    began = time.monotonic()
    device = "cuda" if options.gpu else "cpu"
    processes = options.processes or (gpu.PROCESSES if options.gpu else HOST_PROCESSES)
    names = [n for n in names_of(device) if options.only in n]
    if options.list:
        mutants = [n for n in names if n not in GPU_BASES]
        print(*names, sep="\n")
        print(f"{len(mutants)} mutants, {len(names) - len(mutants)} unchanged kernels")
        return 0
    jobs = honest.jobs(options.honest, options.seed, device)
    with tempfile.TemporaryDirectory() as folder:
        rows = harness.fresh((options.out or Path(folder) / "mutants.json").with_suffix(f".{device}.jsonl"))
        failed: dict[str, str] = {}
        if options.gpu:
            failed = on_gpu(names, jobs, rows, processes)
        else:
            for result in on_host(names, processes):
                keep(result, rows)
            for kernel in honest.judge(jobs, {}, rows, processes):
                show_honest(kernel)
        known = {row["name"]: row for row in harness.lines(rows)}
    results = [Result.from_json(known[n]) for n in names if n in known]
    passed = [honest.from_row(known[j.name]) for j in jobs if j.name in known]
    table = summary(results, passed)
    print(json.dumps(table, indent=1))
    for name, words in failed.items():
        print(f"FAILED      {name}: {words}")
    every = bars.figures(
        {
            SURVIVE: {r.row.name: float(not r.row.killed) for r in results if not r.honest},
            OBJECTED: {h.name: float(not h.ok) for h in passed}
            | {r.row.name: float(r.row.killed) for r in results if r.honest},
        },
        BARS,
    )
    if options.out:
        bars.write_summary(options.out, every, harness.machine(), wrong=list(failed))
        report = {
            "summary": table,
            "results": [r.as_json() for r in results],
            "honest": [h.as_json() for h in passed],
            "failed": failed,
            "seconds": round(time.monotonic() - began),
        }
        harness.write(options.out, report)
    return int(table["killed"] < table["mutants"] or table["false_alarms"] > 0 or bool(failed))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FILE", help="the report, JSON")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--list", action="store_true", help="print the names and run nothing")
    parser.add_argument("--only", default="", help="mutants whose name holds this")
    parser.add_argument("--honest", type=int, default=0, help="random programs that must pass")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--processes",
        type=int,
        help=f"judging side by side: {HOST_PROCESSES} by default, {gpu.PROCESSES} on a GPU",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
