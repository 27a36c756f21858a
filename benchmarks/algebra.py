"""What algebra derives of KernelBench's problems, and what the cost model expects of it. Needs no GPU.

    python -m benchmarks.algebra ROOT [--levels 1,2] [--only 14,18] [--draw N --seed S] [--device H200] [--out FILE.jsonl]
    python -m benchmarks.algebra --table FILE.jsonl

`--draw` takes the problems that `ucc kernelbench --draw` does. Each problem is imported at its own extents and searched by `ucutlass.algebra`, in a process of its own. A row has
the estimates of the imported program and of the best candidate, the rules of its derivation, and which results
depend on no input: those are flaws of the problem, which the audit refuses (`flawed-problem`), and no gain. The
gain of the others is the cost model's until it is measured.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import bars, harness
from benchmarks.harness import geomean
from benchmarks.import_kernelbench import attempt, problems
from ucutlass.agent.kernelbench import drawn, selected
from ucutlass.files import put
from ucutlass.ir.hardware import DEVICES
from ucutlass.runtime import isolation

GAIN = "gain by the cost model"

LIMIT_SECONDS = 240.0
MEMORY = 8 * 2**30


def derived(text: str, name: str, device: str) -> dict[str, Any]:
    """Returns a row's part of one program; runs in a process of its own."""
    from ucutlass import frontend
    from ucutlass.algebra.derivation import derive

    checked = frontend.read_text(text)
    derivation = derive(checked, frontend.program(checked, name), {}, device=DEVICES[device])
    row: dict[str, Any] = {
        "before": derivation.seconds,
        "terms": derivation.saturation.terms,
        "stopped": derivation.saturation.stopped,
    }
    for candidate in derivation.candidates[:1]:
        row |= {
            "after": candidate.seconds,
            "rules": [rule.name for rule in candidate.rules],
            "constants": list(candidate.constants),
            "text": candidate.text,
        }
    return row


def problem_row(
    process: isolation.WarmProcess, level: int, number: int, path: Path, device: str
) -> dict[str, Any]:
    start = time.monotonic()
    row: dict[str, Any] = {"level": level, "problem": number, "file": path.name}
    program = attempt(process, path, "constructed")
    if "text" not in program:
        program = attempt(process, path, "eval")
    if "text" not in program:
        return row | {"why": "not imported"}
    outcome = process.call(
        "benchmarks.algebra:derived",
        {"text": program["text"], "name": program["name"], "device": device},
        limit_seconds=LIMIT_SECONDS,
        memory_bytes=MEMORY,
    )
    if isinstance(outcome, isolation.Returned):
        row |= outcome.value
    else:
        row["why"] = isolation.failure_text(outcome, "the search")
    return row | {"wall": round(time.monotonic() - start, 1)}


def verdict(row: Mapping[str, Any]) -> str:
    if "why" in row:
        return "failed"
    if "after" not in row:
        return "nothing"
    return "constant" if row["constants"] else "derived"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the rows as a Markdown table, those with a derivation alone, and their counts."""
    lines = ["| problem | before, us | after, us | gain | rules |", "|---|---|---|---|---|"]
    for row in rows:
        if "after" not in row:
            continue
        name = _name(row)
        before = row["before"]
        gain = "constant result" if row["constants"] else f"{before / row['after']:.2f}" if before else "-"
        shown = f"{before * 1e6:.1f}" if before else "-"
        rules = ", ".join(row["rules"])
        lines.append(f"| {name} | {shown} | {row['after'] * 1e6:.1f} | {gain} | {rules} |")
    for level in sorted({row["level"] for row in rows}):
        of_level = [row for row in rows if row["level"] == level]
        gains = [r["before"] / r["after"] for r in of_level if verdict(r) == "derived" and r["before"]]
        mean = f", geometric mean of the gains {geomean(gains):.2f}" if gains else ""
        lines.append(f"\nlevel {level}: {dict(Counter(map(verdict, of_level)))}{mean}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, nargs="?")
    parser.add_argument("--levels", default="1,2")
    parser.add_argument("--only", default="")
    parser.add_argument("--draw", type=int, help="problems of each level, by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="H200", choices=tuple(DEVICES))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    if options.table is not None:
        print(table([json.loads(line) for line in options.table.read_text(encoding="utf-8").splitlines()]))
        return 0
    if options.root is None:
        parser.error("give a checkout of KernelBench, or its folder that has level1")
    levels, only = ([int(n) for n in text.split(",") if n] for text in (options.levels, options.only))
    rows: list[dict[str, Any]] = []
    process = isolation.WarmProcess()
    root = options.root if (options.root / "level1").is_dir() else options.root / "KernelBench"
    chosen = list(problems(root, levels, only))
    if options.draw is not None:
        _, names = selected(root, ",".join(f"level{level}/*" for level in levels))
        taken = {*drawn(names, options.draw, options.seed)}
        chosen = [row for row in chosen if f"level{row[0]}/{row[2].name}" in taken]
    for level, number, path in chosen:
        rows.append(problem_row(process, level, number, path, options.device))
        print(json.dumps({k: v for k, v in rows[-1].items() if k != "text"}), file=sys.stderr, flush=True)
        if options.out:
            put(options.out, "".join(json.dumps(row) + "\n" for row in rows))
    process.close()
    print(table(rows))
    failed = [_name(row) for row in rows if "search" in row.get("why", "")]
    every = bars.figures(
        {GAIN: {_name(r): r["before"] / r["after"] for r in rows if verdict(r) == "derived" and r["before"]}}
    )
    if options.out:
        bars.write_summary(options.out, every, harness.machine(), wrong=failed)
    return bars.status(every, failed, ())


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['level']}/{Path(row['file']).stem}"


if __name__ == "__main__":
    sys.exit(main())
