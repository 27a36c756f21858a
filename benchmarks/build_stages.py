"""Builds in stages against one-shot nvcc: wall seconds and ratios of a new kernel and of a new epilogue.

    python -m benchmarks.build_stages [--out build_stages.json] [--rounds 3] [--seconds 600]

Each round builds, each from an empty cache and one after the other, in turns of order:

    plain      the kernel by one run of nvcc, as every build is by default
    new        the kernel in stages: its skeleton, its arithmetic, the link
    epilogue   another epilogue for the skeleton that `new` left

A ratio is of one round's builds, so that what else the machine does weighs on both. Run it on an idle
machine. Nothing is launched.
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

from benchmarks import budget
from ucutlass import frontend
from ucutlass.backend import source_of, toolchain
from ucutlass.emit.staged import Staged, stage
from ucutlass.emit.text import Source
from ucutlass.runtime.build import build, make
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.staged import link
from ucutlass.shapes import complete

SIZES = {"M": 4096, "N": 4096, "K": 4096}

PROGRAM = """\
kernel linear(x: bf16[M, K], w: bf16[N, K], bias: bf16[N]) -> bf16[M, N] {{
  return {epilogue}

  schedule sm90a {{ warps cooperative  tile 128x256x64  cluster 2x1  stages 4 }}
}}
"""
FIRST = "gelu(dot[K](x, w) + bias)"
EDITED = "silu(0.5 * dot[K](x, w) + bias)"

STEPS = ("plain", "new", "epilogue")


def parts(epilogue: str) -> tuple[Source, Staged]:
    checked = frontend.read_text(PROGRAM.format(epilogue=epilogue))
    program = frontend.kernel(checked)
    planned = frontend.plan_kernel(checked, program, complete(program, SIZES), "sm90a").planned
    return source_of(checked, program, planned), stage(planned.plan)


def timed(work: Callable[[], object]) -> dict[str, float]:
    """Wall seconds, and CPU seconds of this process with its children's."""
    wall, cpu = time.monotonic(), _cpu()
    work()
    return {"wall": time.monotonic() - wall, "cpu": _cpu() - cpu}


def _cpu() -> float:
    both = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, both))


def one_round(plain_first: bool) -> dict[str, dict[str, float]]:
    (source, staged), (edited, edited_staged) = parts(FIRST), parts(EDITED)
    if staged.skeleton != edited_staged.skeleton:
        raise SystemExit("the two epilogues share no skeleton: nothing to compare")
    tools = toolchain()
    with tempfile.TemporaryDirectory() as folder:
        apart, whole = (Cache(Path(folder) / name, 2**34) for name in ("staged", "plain"))
        plain = {"plain": lambda: build(source, tools, whole)}
        stages = {
            "new": lambda: make(link.recipe(source, staged, tools, apart), apart),
            "epilogue": lambda: make(link.recipe(edited, edited_staged, tools, apart), apart),
        }
        steps = {**plain, **stages} if plain_first else {**stages, **plain}
        return {name: timed(work) for name, work in steps.items()}


def table_of(rounds: Sequence[Mapping[str, Mapping[str, float]]]) -> str:
    lines = [f"{'build':10} {'wall s':>8} {'least':>8} {'most':>8} {'cpu s':>8} {'of plain':>9}"]
    for name in STEPS:
        walls = [one[name]["wall"] for one in rounds]
        cpu = statistics.median(one[name]["cpu"] for one in rounds)
        ratio = statistics.median(one[name]["wall"] / one["plain"]["wall"] for one in rounds)
        lines.append(
            f"{name:10} {statistics.median(walls):8.2f} {min(walls):8.2f} {max(walls):8.2f} "
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
        rounds.append(one_round(plain_first=len(rounds) % 2 == 0))
        longest = max(longest, time.monotonic() - start)
        if options.out is not None:
            budget.write(options.out, {"versions": versions, "cores": os.cpu_count(), "rounds": rounds})
    print(f"{versions}, {os.cpu_count()} cores, {len(rounds)} rounds\n{table_of(rounds)}")


if __name__ == "__main__":
    main()
