"""Builds in stages against one-shot nvcc: wall seconds and ratios of a new kernel and of a new epilogue.

    python -m benchmarks.build_stages [--out build_stages.json] [--rounds 3] [--seconds 600]

Each round builds, each from an empty cache and one after the other, in turns of order:

    plain        the kernel by one run of nvcc
    new a, b     the kernel in stages: its skeleton, its arithmetic, the link
    epilogue ..  another epilogue for the skeleton that `new` left
    sweep b      16 schedules of the kernel, as many compilers at once as the machine has cores

What all lean kernels share of the host's side (0.8 s of g++) is built before: once a machine. A ratio is of
one round's builds, so that what else the machine does weighs on both. Run it on an idle machine. Nothing
is launched.
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
from typing import TypeAlias

from benchmarks import budget
from ucutlass import frontend
from ucutlass.backend import LEAN_BYTES, source_of, toolchain
from ucutlass.emit.text import Source
from ucutlass.kernels.gemm.plan import GemmPlan
from ucutlass.runtime.build import Artifact, Recipe, build, make
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.jit import link, nvrtc_build
from ucutlass.runtime.parallel import make_many
from ucutlass.shapes import complete

SIZES = {"M": 4096, "N": 4096, "K": 4096}

PROGRAM = """\
kernel linear(x: bf16[M, K], w: bf16[N, K], bias: bf16[N]) -> bf16[M, N] {{
  return {epilogue}

  schedule sm90a {{ warps {schedule} }}
}}
"""
FIRST = "gelu(dot[K](x, w) + bias)"
EDITED = "silu(0.5 * dot[K](x, w) + bias)"

SWEEP = tuple(
    f"{warps}  tile {tile}  cluster {cluster}"
    for warps, tiles in (
        ("cooperative", ("128x256x64", "256x128x64", "128x128x64", "128x192x64")),
        ("pingpong", ("64x128x64", "64x256x64", "128x128x64", "64x192x64")),
    )
    for tile in tiles
    for cluster in ("2x1", "1x2")
)
"""Schedules of one kernel, as a tuner builds them."""

STEPS = ("plain", "new a", "epilogue a", "new b", "epilogue b", "sweep b")

Parts: TypeAlias = tuple[Source, GemmPlan]


def parts(epilogue: str, schedule: str = "cooperative  tile 128x256x64  cluster 2x1  stages 4") -> Parts:
    checked = frontend.read_text(PROGRAM.format(epilogue=epilogue, schedule=schedule))
    program = frontend.kernel(checked)
    planned = frontend.plan_kernel(checked, program, complete(program, SIZES), "sm90a").planned
    return source_of(checked, program, planned), planned.plan


def timed(work: Callable[[], object]) -> dict[str, float]:
    """Wall seconds, and CPU seconds of this process with its children's."""
    wall, cpu = time.monotonic(), _cpu()
    work()
    return {"wall": time.monotonic() - wall, "cpu": _cpu() - cpu}


def _cpu() -> float:
    both = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, both))


def one_round(forwards: bool) -> dict[str, dict[str, float]]:
    first, edited = parts(FIRST), parts(EDITED)
    sweep = [parts(FIRST, schedule) for schedule in SWEEP]
    tools = toolchain()
    with tempfile.TemporaryDirectory() as folder:
        caches = {name: Cache(Path(folder) / name, 2**34) for name in ("plain", "a", "b", "sweep")}
        for name in ("b", "sweep"):
            nvrtc_build.driver(tools, caches[name])

        def staged(one: Parts, stage: link.InParts, cache: Cache) -> Recipe:
            return link.recipe(one[0], link.parts(one[1], stage), tools, cache)

        def build_staged(one: Parts, stage: link.InParts) -> object:
            return make(staged(one, stage, caches[stage]), caches[stage])

        def build_sweep() -> None:
            recipes = [staged(one, "b", caches["sweep"]) for one in sweep]
            made = make_many(recipes, caches["sweep"], compiler_bytes=LEAN_BYTES)
            if failed := [one for one in made if not isinstance(one, Artifact)]:
                raise SystemExit(f"a schedule of the sweep was not built: {failed[0]}")

        groups: list[list[tuple[str, Callable[[], object]]]] = [
            [("plain", lambda: build(first[0], tools, caches["plain"]))],
            [("new a", lambda: build_staged(first, "a")), ("epilogue a", lambda: build_staged(edited, "a"))],
            [("new b", lambda: build_staged(first, "b")), ("epilogue b", lambda: build_staged(edited, "b"))],
            [("sweep b", build_sweep)],
        ]
        ordered = groups if forwards else groups[::-1]
        return {name: timed(work) for group in ordered for name, work in group}


def table_of(rounds: Sequence[Mapping[str, Mapping[str, float]]]) -> str:
    lines = [f"{'build':12} {'wall s':>8} {'least':>8} {'most':>8} {'cpu s':>8} {'of plain':>9}"]
    for name in STEPS:
        walls = [one[name]["wall"] for one in rounds]
        cpu = statistics.median(one[name]["cpu"] for one in rounds)
        ratio = statistics.median(one[name]["wall"] / one["plain"]["wall"] for one in rounds)
        lines.append(
            f"{name:12} {statistics.median(walls):8.2f} {min(walls):8.2f} {max(walls):8.2f} "
            f"{cpu:8.2f} {ratio:9.3f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    budget.add_option(parser)
    options = parser.parse_args()
    deadline = budget.after(options.seconds)
    tools = toolchain()
    versions = {"nvcc": tools.nvcc.version, "host": tools.host.version, "cutlass": tools.cutlass.version}
    rounds: list[dict[str, dict[str, float]]] = []
    longest = 0.0
    # At least one; then only what the longest so far says there is time for.
    while len(rounds) < options.rounds and (not rounds or longest < deadline.left()):
        start = time.monotonic()
        rounds.append(one_round(forwards=len(rounds) % 2 == 0))
        longest = max(longest, time.monotonic() - start)
        if options.out is not None:
            budget.write(options.out, {"versions": versions, "cores": os.cpu_count(), "rounds": rounds})
    print(f"{versions}, {os.cpu_count()} cores, {len(rounds)} rounds\n{table_of(rounds)}")


if __name__ == "__main__":
    main()
