"""Seconds of a cold build of every kind of kernel, by build path.

    python -m benchmarks.family_builds --out FILE [--rounds 1] [--paths auto,nvcc]

Claim: a kernel of every family is built in at most 4 s. Each kernel is built into an empty cache, one after the other, the
build paths in turns. What a machine's kernels share of the host's side is built before. Nothing is launched; run it on an
idle machine.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from unittest import mock

from benchmarks import build_time, harness
from benchmarks.build_time import timed
from benchmarks.harness import Row
from tests.emit import divided_kernels
from ucutlass.backend import build_sources, toolchain
from ucutlass.emit.text import Source
from ucutlass.kernels.planned import Plan
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.switches import CACHE_DIR, BuildPath, build_path_named

PROGRAMS: Mapping[str, str] = MappingProxyType(
    {
        **divided_kernels.KERNELS,
        "product by wgmma": build_time.PROGRAM.format(
            epilogue=build_time.FIRST, schedule=build_time.SCHEDULE
        ),
    }
)

OF_NVCC = frozenset({"product by wgmma"})
"""Kernels of which nvcc builds a form of CUTLASS's collectives, in half a minute."""


def build(source: Source, plan: Plan, path: BuildPath, folder: Path) -> str:
    """Returns the builder. Raises SystemExit where the kernel is not built."""
    with mock.patch.dict(os.environ, {CACHE_DIR: str(folder)}):
        (result,) = build_sources([(source, plan)], build_path=path)
    if not isinstance(result, Artifact):
        raise SystemExit(f"a kernel was not built: {result}")
    return result.builder


def row(name: str, path: BuildPath) -> Row:
    source, plan = divided_kernels.planned(PROGRAMS[name])
    builders: list[str] = []
    with tempfile.TemporaryDirectory() as root:
        if name == "product by wgmma" and path != "nvcc":  # what all of them share on a machine
            build_time.build([build_time.plan(build_time.FIRST, build_time.WARMUP)], Path(root))
        seconds = timed(lambda: builders.append(build(source, plan, path, Path(root))))
    return {"kernel": name, "path": path, "builder": builders[0], **seconds}


def table(rows: Sequence[Row]) -> str:
    lines = [f"{'kernel':34} {'path':6} {'builder':10} {'wall s':>8} {'most':>8} {'cpu s':>8}"]
    for name, path in dict.fromkeys((one["kernel"], one["path"]) for one in rows):
        own = [one for one in rows if (one["kernel"], one["path"]) == (name, path)]
        walls = [one["wall"] for one in own]
        cpu = statistics.median(one["cpu"] for one in own)
        lines.append(
            f"{name:34} {path:6} {own[0]['builder']:10} {statistics.median(walls):8.2f} {max(walls):8.2f} {cpu:8.2f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = harness.parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--paths", default="auto", help="of auto, nvrtc and nvcc, with commas")
    options = parser.parse_args()
    tools = toolchain()
    versions = {"nvcc": tools.nvcc.version, "host": tools.host.version, "cutlass": tools.cutlass.version}
    paths = [path for path in map(build_path_named, options.paths.split(",")) if path is not None]
    rows: list[Row] = []
    for number in range(options.rounds):
        for name in harness.selected(PROGRAMS, options, str):
            for path in paths[:: 1 if number % 2 == 0 else -1]:
                if path != "nvcc" or name not in OF_NVCC:
                    rows.append(row(name, path))
                    harness.write(options.out, {"versions": versions, "cores": os.cpu_count(), "rows": rows})
    print(f"{versions}, {os.cpu_count()} cores\n{table(rows)}")


if __name__ == "__main__":
    main()
