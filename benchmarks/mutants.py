"""The kill rate: bugs seeded into lowerings and harness, and honest kernels that must pass.

    python -m benchmarks.mutants [--json FILE] [--processes 2] [--only NAME] [--honest 100]
    python -m benchmarks.mutants --gpu [--json FILE] [--honest 100] [--seconds 500]

The first compiles each mutant of the multistage and matrix-vector kernels with g++ behind the emulator
of tests/emit, and puts judge, timing protocol and emitter out of order one guard at a time. The second
builds the same lowerings, and those of the wgmma kernels, with nvcc and runs them on the GPU; those that
the judge does not see go under racecheck and memcheck, where compute-sanitizer is installed. Honest
kernels are random programs, judged and audited; a time is no part of it.

With --json FILE.json each row is added to FILE.cpu.jsonl or FILE.cuda.jsonl as soon as it is known, and
what has a row there is not run again: the same command goes on where it was stopped, and a campaign is
begun anew by removing that file. Exit status 75 where rows are missing; else 1 where a mutant survives,
an honest kernel does not pass, or the campaign itself failed at one.
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

from benchmarks import budget, honest
from benchmarks.budget import NEVER, OUT_OF_TIME, Deadline
from benchmarks.honest import Honest, Job
from tests.mutants import emulated, gpu, injection, judging, timing
from tests.mutants.emulated import Row
from tests.mutants.guards import noticed
from tests.mutants.hopper import HOPPER, HOPPER_BASES
from tests.mutants.lowering import BASES, LOWERINGS

B_ROWS = (6, 10, 11, 12, 17, 18, 23, 25, 26, 27, 32, 33, 48, 64)
"""Rows of the gaming catalogue that only a bug of ours can open, those that are so in part included."""

HOST_PROCESSES = 2
GPU_BASES = {**BASES, **HOPPER_BASES}
GUARDS = {"judge": judging, "timing": timing, "emitter": injection}


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
    def from_json(made: Mapping[str, Any]) -> Result:
        lists = {key: tuple(made[key]) for key in ("patterns", "killed_by")}
        row = Row(made["name"], **lists, flat_check=made["flat_check"], detail=made["detail"])
        return Result(made["part"], row, made["honest"])


def on_host(names: Sequence[str], processes: int, deadline: Deadline) -> Iterable[Result]:
    """Results as they come; what the deadline cuts off is left out."""
    return chain(guards(names, deadline), lowerings(names, processes, deadline))


def lowerings(names: Sequence[str], processes: int, deadline: Deadline) -> Iterator[Result]:
    known = {*BASES, *(m.name for m in LOWERINGS)}
    with ThreadPoolExecutor(processes) as pool:
        rows = pool.map(
            lambda name: None if deadline.passed else emulated.run(name), [n for n in names if n in known]
        )
        yield from (Result("lowering", row, row.name in BASES) for row in rows if row)


def guards(names: Sequence[str], deadline: Deadline) -> Iterator[Result]:
    for part, module in GUARDS.items():
        for mutant in module.MUTANTS:
            if mutant.name in names and not deadline.passed:
                by = (f"trial: {mutant.lets}",) if noticed(mutant, module.TRIALS) else ()
                yield Result(part, Row(mutant.name, mutant.patterns, by, False))


def names_of(device: str) -> list[str]:
    """Mutants and unchanged kernels that a device can run."""
    if device == "cuda":
        return [*GPU_BASES, *(m.name for m in (*LOWERINGS, *HOPPER))]
    return [*(m.name for g in GUARDS.values() for m in g.MUTANTS), *BASES, *(m.name for m in LOWERINGS)]


def on_gpu(
    names: Sequence[str], jobs: Sequence[Job], rows: Path, processes: int, deadline: Deadline = NEVER
) -> dict[str, str]:
    """Builds and judges, the one beside the other: each mutant in a process of its own, honest kernels
    of one run of the compiler in one. Rows go to the file as they come.

    Returns what went wrong with the campaign itself, by the mutant or honest kernel that it met.
    """
    honest_jobs = {job.name: job for job in jobs}
    wanted = [
        *gpu.units({name: gpu.prepared(name).source for name in names}),
        *gpu.units({name: honest.prepared(job).source for name, job in honest_jobs.items()}),
    ]

    def mutant(name: str, library: str) -> None:
        if row := gpu.judged(name, library, deadline):
            keep(Result("lowering on the GPU", row, name in GPU_BASES), rows)

    def unchanged(libraries: Mapping[str, str]) -> None:
        chosen = [honest_jobs[name] for name in libraries]
        for one in honest.judge(chosen, libraries, rows, deadline=deadline):
            show_honest(one)

    futures: dict[Future[None], list[str]] = {}
    with ThreadPoolExecutor(processes) as pool:
        for libraries in gpu.built(wanted, deadline):
            if honest_jobs.keys() >= libraries.keys():
                futures[pool.submit(unchanged, libraries)] = list(libraries)
            else:
                futures |= {pool.submit(mutant, n, found): [n] for n, found in libraries.items()}
    errors = {name: future.exception() for future, names in futures.items() for name in names}
    return {name: f"{type(error).__name__}: {error}" for name, error in errors.items() if error}


def keep(result: Result, rows: Path) -> None:
    budget.append(rows, result.as_json())
    show(result)


def show(result: Result) -> None:
    row = result.row
    rows = ",".join(str(p) for p in row.patterns)
    said = "fine" if result.fine else "FALSE ALARM" if result.honest else "SURVIVES"
    how = ", ".join(row.killed_by[:3]) or "not objected to"
    why = f"            {row.detail[:300]}\n" if not result.fine and row.detail else ""
    _say(f"{said:11} {result.part:9} {row.name:38} {rows:9} {how}{_flat(result)}\n{why}")


def show_honest(one: Honest) -> None:
    said = f"{one.verdict}; worst {one.worst:.2f}, rms {one.rms:.2f} of the bound {one.words[:160]}"
    _say(f"{'fine' if one.ok else 'FALSE ALARM':11} honest    {one.name:38} {said}\n")


def _say(lines: str) -> None:
    """By one write, so that what several threads say does not mix."""
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
        "false_alarms": sum(not r.fine for r in unchanged) + sum(not h.ok for h in passed),
    }


def main() -> int:
    options = _options()
    began, deadline = time.monotonic(), budget.after(options.seconds)
    device = "cuda" if options.gpu else "cpu"
    processes = options.processes or (gpu.PROCESSES if options.gpu else HOST_PROCESSES)
    names = [n for n in names_of(device) if options.only in n]
    jobs = honest.jobs(options.honest, options.seed, device)
    with tempfile.TemporaryDirectory() as folder:
        rows = (options.json or Path(folder) / "mutants.json").with_suffix(f".{device}.jsonl")
        rows.parent.mkdir(parents=True, exist_ok=True)
        known = {row["name"] for row in budget.lines(rows)}
        names_left = [n for n in names if n not in known]
        jobs_left = [j for j in jobs if j.name not in known]
        failed: dict[str, str] = {}
        if options.gpu:
            failed = on_gpu(names_left, jobs_left, rows, processes, deadline)
        else:
            for result in on_host(names_left, processes, deadline):
                keep(result, rows)
            for one in honest.judge(jobs_left, {}, rows, processes, deadline):
                show_honest(one)
        found = {row["name"]: row for row in budget.lines(rows)}
    results = [Result.from_json(found[n]) for n in names if n in found]
    passed = [honest.from_row(found[j.name]) for j in jobs if j.name in found]
    table = summary(results, passed)
    left = [n for n in (*names, *(j.name for j in jobs)) if n not in found]
    print(json.dumps(table | {"left": len(left)}, indent=1))
    for name, words in failed.items():
        print(f"FAILED      {name}: {words}")
    if options.json:
        made = {
            "summary": table,
            "results": [r.as_json() for r in results],
            "honest": [h.as_json() for h in passed],
            "left": left,
            "failed": failed,
            "seconds": round(time.monotonic() - began),
        }
        budget.write(options.json, made)
    if set(left) - set(failed):
        return OUT_OF_TIME
    return int(table["killed"] < table["mutants"] or table["false_alarms"] > 0 or bool(failed))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--only", default="", help="mutants whose name holds this")
    parser.add_argument("--honest", type=int, default=0, help="random programs that must pass")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--processes",
        type=int,
        help=f"judging side by side: {HOST_PROCESSES} unless told, {gpu.PROCESSES} on a GPU",
    )
    budget.add_option(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
