"""A run of `ucc kernelbench` over drawn problems, without a model: seconds until verdicts, and what is delivered.

    python -m benchmarks.sessions ROOT --out FILE [--draw N] [--seed N] [--lane tf32] [--attempts N] [--seconds S]

Claims, over the problems that the seed draws of each level: in the median a first verdict with a time at most 10 s after a
session starts, a confirmed one at most 20 s, 40 attempts at most 90 s; what is delivered is 2.1, 2.9 and 2.2 times as fast
as eager PyTorch on levels 1, 2 and 3, with `--lane tf32` 2.6, 4.5 and 3.0 times. ROOT is a checkout of KernelBench.

The journal stands beside `--out`, and what a run says of its steps goes to stderr as they end; a run that was cut off goes
on where it was. With `--seconds` it ends by then, and what it has is read from the journal. A session that goes on has no
figure yet where it has spent less than the bar, and never where it has spent more. The exit status is 1 where a bar is
missed, 3 where problems were not reached.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import bars, harness
from benchmarks.bars import Bar, Classes, Figure
from ucutlass.agent.journal import RUN_PREFIX, Journal

EAGER = {"": {1: 2.1, 2: 2.9, 3: 2.2}, "tf32": {1: 2.6, 2: 4.5, 3: 3.0}}
"""Of eager's speed by lane and level."""

SECONDS = {"first time": 10.0, "confirmed": 20.0, "40 attempts": 90.0}

LAST_STEPS_SECONDS = 25.0
"""Of `--seconds`, what the start of a run and steps that have begun when its own seconds are over may take."""

ENDING_SECONDS = 10.0
"""What a run that is told to end may take."""


def called(words: Sequence[str]) -> dict[str, Any]:
    """Returns what a command of `ucc` prints. Raises SystemExit where it prints no JSON."""
    command = [sys.executable, "-m", "ucutlass.cli", *words, "--json"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    try:
        document: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise SystemExit(f"ucc {' '.join(words)}: {(done.stderr or done.stdout)[-1500:]}") from None
    return document


def worked(words: Sequence[str], limit: float | None) -> None:
    """Has a command of `ucc` work, which says on stderr what it does, and ends it after so many seconds: what it did by
    then stands in its journal."""
    command = [sys.executable, "-m", "ucutlass.cli", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    for signaled, seconds in ((signal.SIGTERM, limit), (signal.SIGKILL, ENDING_SECONDS)):
        try:
            process.wait(seconds)
            return
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signaled)
    process.wait()


def words_of(options: argparse.Namespace, journal: Path, run: str) -> list[str]:
    """Returns the command of a run, or of going on with one."""
    words = ["kernelbench", "--journal", str(journal)]
    if options.seconds is not None:
        own = max(options.seconds - LAST_STEPS_SECONDS, options.seconds / 2)
        words += ["--run-seconds", f"{own:.0f}"]
    if run:
        return [*words, "--resume", run]
    words += ["--root", str(options.root), "--draw", str(options.draw), "--seed", str(options.seed)]
    words += ["--attempts", str(options.attempts), "--never-stop"]
    return [*words, "--compute-type", options.lane] if options.lane else words


def run_in(journal: Path) -> str:
    """Returns the run that a journal was last given, "" where it has none."""
    return next((id for id in reversed(Journal.open(journal).sessions()) if id.startswith(RUN_PREFIX)), "")


def classes(problems: Sequence[Mapping[str, Any]], times: Mapping[str, Mapping[str, Any]]) -> Classes:
    """Returns the seconds until each of SECONDS, infinite where a session did not reach it, and speed-ups by level and
    baseline. A session whose search ended before 40 attempts had its last one then."""
    found: dict[str, dict[str, float]] = {}
    for problem in problems:
        if (time := times.get(problem["name"])) is None:
            continue
        attempts, name = time["attempts"], problem["name"]
        last = attempts[39] if len(attempts) >= 40 else None
        if problem["ended"] and problem["right"] and attempts and last is None:
            last = attempts[-1]
        for label, seconds in zip(SECONDS, (time["first"], time["confirmed"], last), strict=True):
            if seconds is not None:
                found.setdefault(label, {})[name] = seconds
            elif problem["ended"] or time["wall"] > SECONDS[label]:
                found.setdefault(label, {})[name] = math.inf
        for baseline, ratio in problem["versus"].items():
            found.setdefault(f"level {problem['level']} over {baseline}", {})[name] = ratio
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
    options.out.parent.mkdir(parents=True, exist_ok=True)
    worked(words_of(options, journal, "" if options.again else run_in(journal)), options.seconds)
    run = run_in(journal)
    if not run:
        raise SystemExit("no run was begun")
    document = called(["kernelbench", "--journal", str(journal), "--resume", run, "--show"])
    harness.write(options.out, document)
    times = called(["sessions", "--time", run, "--journal", str(journal)])["problems"]
    problems = document["problems"]
    every = figures(classes(problems, times), options.lane)
    unusable = {p["name"]: p["words"] for p in problems if p["code"] and not p["session"]}
    unreached = [p["name"] for p in problems if not (p["right"] or p["ended"] or p["name"] in unusable)]
    failed = {
        p["name"]: p["words"]
        for p in problems
        if not p["right"] and p["name"] not in unreached and p["name"] not in unusable
    }
    bars.write_summary(options.out, every, harness.machine(), wrong=list(failed), unreached=unreached)
    print("\n".join(bars.lines(every)))
    for what, named in (("cannot be used", unusable), ("nothing delivered", failed)):
        print("".join(f"{what}: {name}: {why}\n" for name, why in named.items()), end="")
    print(f"{len(problems)} problems, {len(unreached)} not reached")
    return bars.status(every, (), unreached)


if __name__ == "__main__":
    sys.exit(main())
