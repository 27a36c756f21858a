"""A run of `ucc kernelbench` over drawn problems, without a model: seconds until verdicts, and what is delivered.

    python -m benchmarks.sessions ROOT --out FILE [--draw N] [--seed N] [--lane tf32] [--attempts N] [--seconds S]

Claims, over the problems that the seed draws of each level: in the median a first verdict with a time at most 10 s after a
session starts, a confirmed one at most 20 s, 40 attempts at most 90 s; what is delivered is 2.1, 2.9 and 2.2 times as fast
as eager PyTorch on levels 1, 2 and 3, with `--lane tf32` 2.6, 4.5 and 3.0 times. ROOT is a checkout of KernelBench.

The journal stands beside `--out`; a run that was cut off goes on where it was. The exit status is 1 where a bar is missed,
3 where problems were not reached.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import bars, harness
from benchmarks.bars import Bar, Classes, Figure

EAGER = {"": {1: 2.1, 2: 2.9, 3: 2.2}, "tf32": {1: 2.6, 2: 4.5, 3: 3.0}}
"""Of eager's speed by lane and level."""

SECONDS = {"first time": 10.0, "confirmed": 20.0, "40 attempts": 90.0}

GRACE_SECONDS = 60.0
"""What steps that have begun may take beyond `--seconds`."""


def called(words: Sequence[str], limit: float | None = None) -> dict[str, Any]:
    """Returns what a command of `ucc` prints. Raises SystemExit where it prints no JSON, TimeoutExpired."""
    command = [sys.executable, "-m", "ucutlass.cli", *words, "--json"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace", timeout=limit)
    try:
        document: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise SystemExit(f"ucc {' '.join(words)}: {(done.stderr or done.stdout)[-1500:]}") from None
    return document


def words_of(options: argparse.Namespace, journal: Path, run: str) -> list[str]:
    """Returns the command of a run, or of going on with one."""
    words = ["kernelbench", "--journal", str(journal)]
    if options.seconds is not None:
        words += ["--run-seconds", str(options.seconds)]
    if run:
        return [*words, "--resume", run]
    words += ["--root", str(options.root), "--draw", str(options.draw), "--seed", str(options.seed)]
    words += ["--attempts", str(options.attempts), "--never-stop"]
    return [*words, "--compute-type", options.lane] if options.lane else words


def classes(document: Mapping[str, Any], times: Mapping[str, Any]) -> Classes:
    """Returns the seconds until each of SECONDS, infinite where a session did not reach it, and speed-ups by level and
    baseline."""
    found: dict[str, dict[str, float]] = {}
    for name, problem in times["problems"].items():
        attempts = problem["attempts"]
        reached = (problem["first"], problem["confirmed"], attempts[39] if len(attempts) >= 40 else None)
        for label, seconds in zip(SECONDS, reached, strict=True):
            found.setdefault(label, {})[name] = math.inf if seconds is None else seconds
    for problem in document["problems"]:
        for baseline, ratio in problem["versus"].items():
            found.setdefault(f"level {problem['level']} over {baseline}", {})[problem["name"]] = ratio
    return found


def figures(known: Classes, lane: str) -> list[Figure]:
    held = {label: Bar(median=seconds) for label, seconds in SECONDS.items()}
    held |= {f"level {level} over eager": Bar(geomean=bar) for level, bar in EAGER[lane].items()}
    return bars.figures(known, {label: bar for label, bar in held.items() if label in known})


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--draw", type=int, default=20, metavar="N", help="problems of each level")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lane", default="", choices=tuple(EAGER), help="the least compute type")
    parser.add_argument("--attempts", type=int, default=40, metavar="N", help="candidates of each problem")
    parser.add_argument("--seconds", type=float, metavar="S", help="end after so many, with what there is")
    parser.add_argument("--again", action="store_true", help="begin a new run")
    options = parser.parse_args()
    journal = options.out.with_suffix(".sqlite")
    begun = options.out.exists() and not options.again
    run = json.loads(options.out.read_text(encoding="utf-8"))["run"] if begun else ""
    limit = None if options.seconds is None else options.seconds + GRACE_SECONDS
    document = called(words_of(options, journal, run), limit)
    harness.write(options.out, document)
    times = called(["sessions", "--time", document["run"], "--journal", str(journal)])
    known = classes(document, times)
    every = figures(known, options.lane)
    unreached = [p["name"] for p in document["problems"] if not p["session"] and not p["code"]]
    failed = [p["name"] for p in document["problems"] if not p["right"] and p["name"] not in unreached]
    bars.write_summary(options.out, every, harness.machine(), wrong=failed, unreached=unreached)
    print("\n".join([*bars.lines(every), *(f"nothing delivered: {name}" for name in failed)]))
    print(f"{len(document['problems'])} problems, {len(unreached)} not reached")
    return bars.status(every, (), unreached)


if __name__ == "__main__":
    sys.exit(main())
