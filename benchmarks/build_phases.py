"""Cold build of a kernel with nvcc: wall seconds, and how they split between compiler phases.

    python -m benchmarks.build_phases [--out build_phases.json] [--repeats 5] [--seconds 120]
    python -m benchmarks.build_phases --schedule "warps pingpong  tile 64x128x64"

The flags are those of every build, with `--time` for nvcc's own account of its phases; nothing
is taken from the cache. One build at a time; run it on an idle machine.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import budget
from ucutlass import frontend
from ucutlass.backend import source_of, toolchain
from ucutlass.emit.text import Source
from ucutlass.files import put
from ucutlass.ir.schedule import show
from ucutlass.runtime import nvcc
from ucutlass.runtime.build_timings import NVCC_PHASES, REST, nvcc_phases
from ucutlass.runtime.toolchain import Toolchain
from ucutlass.shapes import complete

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "linear_gelu.ucu"
SIZES = {"M": 4096, "N": 4096, "K": 4096}

PHASES = (*(phase for phase, _ in NVCC_PHASES), REST)
"""Lines of the table."""


def source(schedule: str | None) -> tuple[Source, str]:
    """The kernel's file and its schedule; `schedule` replaces the program's own blocks."""
    text = EXAMPLE.read_text(encoding="utf-8")
    if schedule is not None:
        text = text[: text.index("  schedule")] + f"  schedule sm90a {{ {schedule} }}\n}}\n"
    checked = frontend.read_text(text)
    program = frontend.kernel(checked)
    planned = frontend.plan_kernel(checked, program, complete(program, SIZES), "sm90a").planned
    return source_of(checked, program, planned), show(planned.request)


def command(made: Source, tools: Toolchain) -> list[str]:
    home = tools.cutlass.home
    return [
        str(tools.nvcc.path),
        *nvcc.flags(made.arch, tools.nvcc.version),
        f"-ccbin={tools.host.path}",
        f"-I{home / 'include'}",
        f"-I{home / 'tools/util/include'}",
        *(f"-L{folder}" for folder in tools.nvcc.library_folders),
        "--time=phases.csv",
        "-o",
        nvcc.LIBRARY,
        nvcc.SOURCE,
    ]


def cold_build(made: Source, tools: Toolchain) -> dict[str, float]:
    """Seconds of one build: `wall`, and each phase. Raises CalledProcessError where nvcc fails."""
    with tempfile.TemporaryDirectory() as folder:
        put(Path(folder) / nvcc.SOURCE, made.text)
        start = time.monotonic()
        subprocess.run(command(made, tools), cwd=folder, check=True, capture_output=True)
        wall = time.monotonic() - start
        said = dict(nvcc_phases((Path(folder) / "phases.csv").read_text(encoding="utf-8")))
        return {"wall": wall, **{phase: said.get(phase, 0.0) for phase in PHASES}}


def table_of(runs: Sequence[dict[str, float]]) -> str:
    wall = statistics.median([run["wall"] for run in runs])
    lines = [f"{'phase':14} {'median s':>9} {'least':>8} {'most':>8} {'share':>7}"]
    for label in runs[0]:
        values = [run[label] for run in runs]
        middle = statistics.median(values)
        lines.append(f"{label:14} {middle:9.2f} {min(values):8.2f} {max(values):8.2f} {middle / wall:7.1%}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--schedule", help='in place of the example\'s own: "warps pingpong  tile 64x128x64"')
    budget.add_option(parser)
    options = parser.parse_args()
    deadline = budget.after(options.seconds)
    made, schedule = source(options.schedule)
    tools = toolchain()
    versions = {"nvcc": tools.nvcc.version, "host": tools.host.version, "cutlass": tools.cutlass.version}
    runs: list[dict[str, float]] = []
    # At least one; then only what the last one says there is time for.
    while len(runs) < options.repeats and (not runs or runs[-1]["wall"] < deadline.left()):
        runs.append(cold_build(made, tools))
        if options.out is not None:
            report = {"schedule": schedule, "arch": made.arch, "versions": versions, "runs": runs}
            budget.write(options.out, report)
    print(f"linear_gelu, {made.arch}, {schedule}\n{versions}, {len(runs)} builds\n{table_of(runs)}")


if __name__ == "__main__":
    main()
