"""The kill rate: bugs seeded into lowerings and harness, and honest kernels that must pass.

    python -m benchmarks.mutants [--json FILE] [--processes 2] [--only NAME] [--honest 100]
    python -m benchmarks.mutants --gpu [--json FILE] [--honest 100]

The first compiles each mutant of the multistage and matrix-vector kernels with g++ behind the emulator
of tests/emit, and puts judge, timing protocol and emitter out of order one guard at a time. The second
builds the same lowerings, and those of the wgmma kernels, with nvcc and runs them on the GPU; those that
the judge does not see go under racecheck and memcheck, where compute-sanitizer is installed. Honest
kernels are random programs, judged and audited; a time is no part of it. Exit status 1 where a mutant
survives or an honest kernel does not pass.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks import honest
from benchmarks.honest import Honest
from tests.mutants import emulated, gpu, injection, judging, timing
from tests.mutants.emulated import Row
from tests.mutants.guards import noticed
from tests.mutants.hopper import HOPPER, HOPPER_BASES
from tests.mutants.lowering import BASES, LOWERINGS

B_ROWS = (6, 10, 11, 12, 17, 18, 23, 25, 26, 27, 32, 33, 48, 64)
"""Rows of the gaming catalogue that only a bug of ours can open, those that are so in part included."""

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


def lowerings(only: str, processes: int) -> Iterable[Result]:
    names = [m.name for m in LOWERINGS if only in m.name]
    bases = [b for b in BASES if only in b]
    with ThreadPoolExecutor(processes) as pool:
        for row in pool.map(emulated.run, [*bases, *names]):
            yield Result("lowering", row, row.name in BASES)


def guards(only: str) -> Iterable[Result]:
    for part, module in GUARDS.items():
        for mutant in module.MUTANTS:
            if only in mutant.name:
                by = (f"trial: {mutant.lets}",) if noticed(mutant, module.TRIALS) else ()
                yield Result(part, Row(mutant.name, mutant.patterns, by, False))


def on_gpu(only: str) -> Iterable[Result]:
    bases = {**BASES, **HOPPER_BASES}
    names = [*bases, *(m.name for m in (*LOWERINGS, *HOPPER))]
    for row in gpu.run([n for n in names if only in n]):
        yield Result("lowering on the GPU", row, row.name in bases)


def show(result: Result) -> None:
    row = result.row
    rows = ",".join(str(p) for p in row.patterns)
    said = "fine" if result.fine else "FALSE ALARM" if result.honest else "SURVIVES"
    how = ", ".join(row.killed_by[:3]) or "not objected to"
    print(f"{said:11} {result.part:9} {row.name:38} {rows:9} {how}" + _flat(result), flush=True)
    if not result.fine and row.detail:
        print(f"            {row.detail[:300]}", flush=True)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--only", default="", help="mutants whose name holds this")
    parser.add_argument("--honest", type=int, default=0, help="random programs that must pass")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    began = time.monotonic()
    results: list[Result] = []
    on_host = chain(guards(options.only), lowerings(options.only, options.processes))
    for result in on_gpu(options.only) if options.gpu else on_host:
        results.append(result)
        show(result)
    passed: list[Honest] = []
    device = "cuda" if options.gpu else "cpu"
    jobs = honest.jobs(options.honest, options.seed, device)
    for one in honest.judged(jobs, options.processes, device):
        passed.append(one)
        said = f"{one.verdict}; worst {one.worst:.2f}, rms {one.rms:.2f} of the bound {one.words[:160]}"
        print(f"{'fine' if one.ok else 'FALSE ALARM':11} honest    {one.name:38} {said}", flush=True)
    table = summary(results, passed)
    print(json.dumps(table, indent=1))
    if options.json:
        made = {
            "summary": table,
            "results": [r.as_json() for r in results],
            "honest": [h.as_json() for h in passed],
            "seconds": round(time.monotonic() - began),
        }
        options.json.write_text(json.dumps(made, indent=1))
    sys.exit(table["killed"] < table["mutants"] or table["false_alarms"] > 0)


if __name__ == "__main__":
    main()
