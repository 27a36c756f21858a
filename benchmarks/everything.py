"""Runs every benchmark that README and docs/measurements.md name, one after another, on a GPU machine.

    python -m benchmarks.everything --out DIR [--only correctness,speed] [--list]

Each writes DIR/NAME.txt (its output) and files of its own beside it. One that fails or passes its
limit loses only itself. Exit status 1 where any did.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_EXTENTS = ("--extent", "M=256", "--extent", "N=256", "--extent", "K=256")


@dataclass(frozen=True, slots=True)
class Step:
    """`arguments` makes the command behind `python -m` for a folder; `minutes` is its limit."""

    name: str
    arguments: Callable[[Path], tuple[str, ...]]
    minutes: float


STEPS: tuple[Step, ...] = (
    Step("tests", lambda _: ("pytest", "-q", "-m", "gpu", "-n", "8", "tests"), 10),
    Step("host_overhead", lambda d: (
        "benchmarks.host_overhead", "--program", "examples/linear_gelu.ucu", *_EXTENTS,
        "--json", str(d / "host_overhead.json"),
    ), 5),
    Step("speed", lambda d: ("benchmarks.speed", "--fused", "--out", str(d / "speed.json")), 20),
    Step("correctness", lambda d: ("benchmarks.correctness", "--out", str(d / "correctness")), 20),
    Step("soundness", lambda d: (
        "benchmarks.soundness", "--accepted", "300", "--out", str(d / "soundness")
    ), 40),
    Step("rule_edges", lambda d: ("benchmarks.rule_edges", "--out", str(d / "rule_edges")), 20),
    Step("frontend", lambda d: ("benchmarks.frontend", "--load", "--out", str(d / "frontend.json")), 10),
    Step("build_phases", lambda d: (
        "benchmarks.build_phases", "--repeats", "3", "--out", str(d / "build_phases.json")
    ), 10),
)  # fmt: skip
"""The quick ones first, so that a short lease still brings something home."""


def run(step: Step, folder: Path) -> bool:
    """Whether the step ended well; its output goes to a file."""
    start = time.monotonic()
    with (folder / f"{step.name}.txt").open("w") as log:
        try:
            command = [sys.executable, "-m", *step.arguments(folder)]
            limit = step.minutes * 60
            done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, timeout=limit, check=False)
            words = "done" if done.returncode == 0 else f"exit status {done.returncode}"
        except subprocess.TimeoutExpired:
            words = f"not done after {step.minutes:g} minutes"
    print(f"{step.name:14} {words}, {time.monotonic() - start:.0f} s", flush=True)
    return words == "done"


def main() -> int:
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--list", action="store_true", help="print the commands and run nothing")
    options = parser.parse_args()
    names = [name for name in options.only.split(",") if name]
    if unknown := set(names) - {s.name for s in STEPS}:
        parser.error(f"no step is named {', '.join(sorted(unknown))}")
    wanted = [s for s in STEPS if not names or s.name in names]
    if options.list:
        for step in wanted:
            print("python -m", *step.arguments(options.out or Path("DIR")))
        return 0
    if options.out is None:
        parser.error("--out DIR is needed, or --list")
    options.out.mkdir(parents=True, exist_ok=True)
    results = [run(step, options.out) for step in wanted]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
