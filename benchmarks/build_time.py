"""Seconds from a program to a kernel: a new one, another epilogue of it, and sixteen schedules at once.

    python -m benchmarks.build_time [--out build_time.json] [--rounds 3] [--schedule "warps ..."]

Claim: a new TMA kernel is built in seconds, where one run of nvcc takes tens of them. Each round builds, from
empty caches and one after the other, in turns of order:

    nvcc         the kernel by one run of nvcc
    new          the kernel as it is built by default
    epilogue     another epilogue, in the cache that `new` left
    schedules    16 schedules of the kernel, as many compilers at once as the machine has cores

What a machine's kernels share of the host's side is built before. A ratio is of one round's builds, so that what
else the machine does weighs on both. Nothing is launched; run it on an idle machine.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from unittest import mock

from benchmarks import harness
from benchmarks.harness import Plan
from ucutlass.backend import build_sources, source_of, toolchain
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.switches import CACHE_DIR, BuildPath

SIZES = {"M": 4096, "N": 4096, "K": 4096}

PROGRAM = """\
kernel linear(x: bf16[M, K], w: bf16[N, K], bias: bf16[N]) -> bf16[M, N] {{
  return {epilogue}

  schedule sm90a {{ {schedule} }}
}}
"""
FIRST = "gelu(dot[K](x, w) + bias)"
EDITED = "silu(0.5 * dot[K](x, w) + bias)"

SCHEDULE = "warps cooperative  tile 128x256x64  cluster 2x1  stages 4"
SCHEDULES = tuple(
    f"warps {warps}  tile {tile}  cluster {cluster}"
    for warps, tiles in (
        ("cooperative", ("128x256x64", "256x128x64", "128x128x64", "128x192x64")),
        ("pingpong", ("64x128x64", "64x256x64", "128x128x64", "64x192x64")),
    )
    for tile in tiles
    for cluster in ("2x1", "1x2")
)
"""Schedules of one kernel, as a tuner builds them."""

WARMUP = "warps pingpong  tile 64x64x64  cluster 1x1"
"""None of those that are timed."""

STEPS = ("nvcc", "new", "epilogue", "schedules")

NVCC: BuildPath = "nvcc"


def plan(epilogue: str, schedule: str = SCHEDULE) -> Plan:
    return harness.planned(PROGRAM.format(epilogue=epilogue, schedule=schedule), SIZES)


def build(plans: Sequence[Plan], folder: Path, build_path: BuildPath | None = None) -> None:
    """Builds with the cache of a folder. Raises SystemExit where a kernel is not built."""
    with mock.patch.dict(os.environ, {CACHE_DIR: str(folder)}):
        results = build_sources([(source_of(*p), p[2].plan) for p in plans], build_path=build_path)
    if failed := [result for result in results if not isinstance(result, Artifact)]:
        raise SystemExit(f"a kernel was not built: {failed[0]}")


def timed(work: Callable[[], object]) -> dict[str, float]:
    """Returns wall seconds, and CPU seconds of this process with its children's."""
    wall, cpu = time.monotonic(), _cpu()
    work()
    return {"wall": time.monotonic() - wall, "cpu": _cpu() - cpu}


def _cpu() -> float:
    both = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, both))


def build_round(schedule: str, forwards: bool) -> dict[str, dict[str, float]]:
    """Returns the seconds of each step."""
    first, edited, warmup = plan(FIRST, schedule), plan(EDITED, schedule), plan(FIRST, WARMUP)
    schedules = [plan(FIRST, text) for text in SCHEDULES]
    with tempfile.TemporaryDirectory() as root:
        caches = {name: Path(root) / name for name in ("nvcc", "new", "schedules")}
        for name in ("new", "schedules"):
            build([warmup], caches[name])
        groups: list[list[tuple[str, Callable[[], None]]]] = [
            [("nvcc", lambda: build([first], caches["nvcc"], NVCC))],
            [
                ("new", lambda: build([first], caches["new"])),
                ("epilogue", lambda: build([edited], caches["new"])),
            ],
            [("schedules", lambda: build(schedules, caches["schedules"]))],
        ]
        ordered = groups if forwards else groups[::-1]
        return {name: timed(work) for group in ordered for name, work in group}


def table_of(rounds: Sequence[Mapping[str, Mapping[str, float]]]) -> str:
    lines = [f"{'build':12} {'wall s':>8} {'least':>8} {'most':>8} {'cpu s':>8} {'of nvcc':>9}"]
    for name in STEPS:
        walls = [seconds[name]["wall"] for seconds in rounds]
        cpu = statistics.median(seconds[name]["cpu"] for seconds in rounds)
        ratio = statistics.median(seconds[name]["wall"] / seconds["nvcc"]["wall"] for seconds in rounds)
        lines.append(
            f"{name:12} {statistics.median(walls):8.2f} {min(walls):8.2f} {max(walls):8.2f} "
            f"{cpu:8.2f} {ratio:9.3f}"
        )
    return "\n".join(lines)


def main() -> None:
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--schedule", default=SCHEDULE, help="of `nvcc`, `new` and `epilogue`")
    options = parser.parse_args()
    tools = toolchain()
    versions = {"nvcc": tools.nvcc.version, "host": tools.host.version, "cutlass": tools.cutlass.version}
    rounds = [build_round(options.schedule, forwards=n % 2 == 0) for n in range(options.rounds)]
    if options.out is not None:
        harness.write(options.out, {"versions": versions, "cores": os.cpu_count(), "rounds": rounds})
    print(f"{versions}, {os.cpu_count()} cores, {len(rounds)} rounds\n{table_of(rounds)}")


if __name__ == "__main__":
    main()
