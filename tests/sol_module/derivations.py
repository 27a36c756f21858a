"""Two derivations of the work of KernelBench problems against each other: our graph counter, and the
independent closed forms of kernelbench_sol.json.

    python -m tests.sol_module.derivations [--device H200] [--only L1-1,L2-88] [--json FILE]

Each problem is a small module of our own (tests/sol_module/problems.py), exported in a process of its
own without the memory of its tensors. Contraction operations and bytes must agree to the last unit, or
differ by exactly what the problem's line explains; then the bounds are compared on the
device. Needs no GPU. Exit status 1 where any problem disagrees without an explanation.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.sol_module.problems import PROBLEMS, Problem
from ucutlass.cli.sol_module import module_work
from ucutlass.files import put, write
from ucutlass.ir.hardware import DEVICES, Device
from ucutlass.runtime.module.work import ModuleWork
from ucutlass.sol.bounds import data_sheet, fused_bound

DATA = Path(__file__).parent / "kernelbench_sol.json"


@dataclass(frozen=True, slots=True)
class Row:
    """One problem. `flops` and `bytes` are ours, `their_flops` (None: no contraction) and `their_bytes`
    the independent ones; milliseconds are bounds on the device, ours as counted, theirs rescaled
    from peaks of an H100 SXM; `given_ms` is theirs there. `verdict` is `agrees`, `explained` or
    `DISAGREES`."""

    problem: str
    name: str
    flops: int
    their_flops: int | None
    bytes: int
    their_bytes: int
    our_ms: float
    their_ms: float
    given_ms: float
    verdict: str
    why: str


def work_of(problem: Problem) -> ModuleWork:
    """Exports and counts a problem in compute type tf32. Raises ModuleLost."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{problem.key}.py"
        put(file, problem.source)
        return module_work(file, "tf32")


def compare(problem: Problem, work: ModuleWork, theirs: dict[str, Any], device: Device) -> Row:
    """Our numbers beside theirs; a difference counts as explained only where it is exact."""
    their_flops: int = theirs["flops"] or 0
    more = (work.products - their_flops, work.fused.bytes - theirs["bytes"])
    expected = (problem.flops_more, problem.bytes_more)
    verdict = "DISAGREES" if more != expected else "explained" if any(more) else "agrees"
    their_seconds = max(their_flops / device.peaks["tf32"], theirs["bytes"] / device.bandwidth)
    return Row(
        problem.key,
        theirs["name"],
        work.products,
        theirs["flops"],
        work.fused.bytes,
        theirs["bytes"],
        fused_bound(work.fused, device, data_sheet(device)).seconds * 1e3,
        their_seconds * 1e3,
        theirs["sol_ms"],
        verdict,
        problem.why,
    )


def _given() -> dict[tuple[int, int], dict[str, Any]]:
    return {(p["level"], p["id"]): p for p in json.loads(DATA.read_text(encoding="utf-8"))["problems"]}


def _line(row: Row) -> str:
    why = f": {row.why}" if row.verdict == "explained" else ""
    flops = "-" if row.their_flops is None else f"{row.flops / row.their_flops:.4f}"
    return (
        f"{row.problem:7s} {row.name[:38]:38s} {row.flops / 1e9:9.1f} {flops:>7s} {row.bytes / 1e6:9.1f} "
        f"{row.bytes / row.their_bytes:7.4f} {row.given_ms:8.4g} {row.their_ms:8.4g} {row.our_ms:8.4g} "
        f"{row.our_ms / row.their_ms:7.4f}  {row.verdict}{why}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="H200", choices=list(DEVICES))
    parser.add_argument("--only", default="", help="problems such as L1-1,L2-88")
    parser.add_argument("--json", type=Path, help="where to write the rows")
    options = parser.parse_args(arguments)
    names = set(filter(None, options.only.split(",")))
    device, theirs = DEVICES[options.device], _given()
    rows = []
    print(
        f"{'':7s} {'':38s} {'GFLOP':>9s} {'/theirs':>7s} {'MB':>9s} {'/theirs':>7s} {'H100 ms':>8s} "
        f"{'rescaled':>8s} {'ours':>8s} {'ratio':>7s}"
    )
    for problem in PROBLEMS:
        if not names or problem.key in names:
            rows.append(compare(problem, work_of(problem), theirs[problem.level, problem.number], device))
            print(_line(rows[-1]), flush=True)
    counts = {v: sum(r.verdict == v for r in rows) for v in ("agrees", "explained", "DISAGREES")}
    print(f"{len(rows)} problems on {device.name}: " + ", ".join(f"{n} {v}" for v, n in counts.items()))
    if options.json:
        record = {"device": device.name, "counts": counts, "rows": [asdict(row) for row in rows]}
        write(options.json, json.dumps(record, indent=1) + "\n")
    return 1 if counts["DISAGREES"] else 0


if __name__ == "__main__":
    sys.exit(main())
