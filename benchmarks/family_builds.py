"""Seconds of a cold build of every kind of kernel, by build path.

    python -m benchmarks.family_builds --out FILE [--rounds 1] [--paths auto,nvcc]

Claim: a kernel of every family is built in at most 4 s. Each kernel is built into an empty cache, one after the other, the
build paths in turns, and a line says of which phases. What a machine's kernels share of the host's side is built before.
Nothing is launched; run it on an idle machine.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from unittest import mock

from benchmarks import campaign, harness
from benchmarks.bars import Bar
from benchmarks.build_time import timed
from benchmarks.harness import Item, Row
from tests.emit import divided_kernels
from ucutlass.backend import build_sources, toolchain
from ucutlass.emit import NotServed, emit, parts
from ucutlass.emit.text import Source
from ucutlass.ir.elements import F32
from ucutlass.ir.hardware import ARCHES, DEVICES
from ucutlass.kernels.planned import Plan
from ucutlass.kernels.recurrence import problem as recurrence
from ucutlass.kernels.recurrence.planner import plan_recurrence
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.jit import nvrtc_build
from ucutlass.runtime.switches import CACHE_DIR, BuildPath, build_path_named

PROGRAMS: Mapping[str, str] = MappingProxyType(
    {
        **divided_kernels.KERNELS,
        **{
            name: f"kernel k{text}"
            for name, text in {
                "product by wgmma": "(x: bf16[M=4096, K=4096], w: bf16[N=4096, K=4096], b: bf16[N=4096]) -> "
                "bf16[M=4096, N=4096] { return gelu(dot[K](x, w) + b) }",
                "product of f8": "(x: e4m3[M=4096, K=4096], w: e4m3[N=4096, K=4096]) -> bf16[M=4096, N=4096] "
                "{ return dot[K](x, w) }",
                "product of f32": "(x: f32[M=2048, K=2048], w: f32[N=2048, K=2048]) -> f32[M=2048, N=2048] "
                "{ return dot[K](x, w) }",
                "product of two batch dimensions": "(x: bf16[B=8, S=512, H=16, D=128], y: bf16[B=8, T=512, H=16, D=128]) -> "
                "bf16[B=8, H=16, S=512, T=512] { return dot[D](x, y) }",
                "contraction of two dimensions": "(x: bf16[B=512, H=16, D=128], w: bf16[H=16, D=128, N=2048]) -> "
                "bf16[B=512, N=2048] { return dot[H, D](x, w) }",
                "gated product": "(x: bf16[M=4096, K=2048], w: bf16[N=4096, K=2048], v: bf16[N=4096, K=2048]) -> "
                "bf16[M=4096, N=4096] { return silu(dot[K](x, w)) * dot[K](x, v) }",
                "narrow weights": "(x: bf16[M=64, (G J=128)], w: s8[N=4096, (G=32 J=128)], s: f32[N=4096, G=32]) -> "
                "bf16[M=64, N=4096] { return sum[G](dot[J](x, bf16(w)) * s) }",
                "attention of f32": "(q: f32[B=2, H=8, S=512, D=64], k: f32[B=2, H=8, T=512, D=64], "
                "v: f32[B=2, H=8, T=512, D=64]) -> f32[B=2, H=8, S=512, D=64] "
                "{ return dot[T](softmax[T](0.125 * dot[D](q, k)), v) }",
                "attention of one query": "(q: bf16[B=2, H=8, S=1, D=64], k: bf16[B=2, H=8, T=4096, D=64], "
                "v: bf16[B=2, H=8, T=4096, D=64]) -> bf16[B=2, H=8, S=1, D=64] "
                "{ return dot[T](bf16(softmax[T](0.125 * dot[D](q, k))), v) }",
                "rows of a megabyte": "(x: bf16[M=64, N=262144]) -> bf16[M=64, N=262144] { return softmax[N](x) }",
                "sums of columns": "(x: f32[M=65536, N=512]) -> f32[N=512] { return sum[M](x) }",
                "scan": "(x: f32[M=64, N=16384]) -> f32[M=64, N=16384] { return cumsum[N](x) }",
                "pointwise": "(x: f32[M=4096, N=4096], y: f32[M=4096, N=4096]) -> f32[M=4096, N=4096] "
                "{ return gelu(x) * y }",
            }.items()
        },
    }
)

RECURRENT = "recurrent layers"

KERNELS = (*PROGRAMS, RECURRENT)


def planned(name: str) -> tuple[Source, Plan]:
    """Returns a kernel; that of recurrent layers computes a torch function, and no program's text has it alone."""
    if name != RECURRENT:
        return divided_kernels.planned(PROGRAMS[name])
    gates, layers, hidden = 4, 2, 256
    weights = [
        (gates * hidden, hidden),
        (gates * hidden, hidden),
        (gates * hidden,),
        (gates * hidden,),
    ] * layers
    shapes = [(64, 10, hidden), (layers, 10, hidden), (layers, 10, hidden), *weights]
    problem = recurrence.problem_of("lstm", {"layers": layers}, (0,), [F32] * len(shapes), shapes)
    kernel = None if problem is None else plan_recurrence(problem, ARCHES["sm90a"], DEVICES["H100-SXM"])
    if kernel is None:
        raise SystemExit("no kernel serves the recurrent layers")
    return emit(kernel.plan, ""), kernel.plan


def build(source: Source, plan: Plan, path: BuildPath, folder: Path) -> Artifact:
    """Raises SystemExit where the kernel is not built."""
    with mock.patch.dict(os.environ, {CACHE_DIR: str(folder)}):
        (result,) = build_sources([(source, plan)], build_path=path)
    if not isinstance(result, Artifact):
        raise SystemExit(f"a kernel was not built: {result}")
    return result


def row(item: Item) -> Row:
    name, path = item["kernel"], item["path"]
    source, plan = planned(name)
    built: list[Artifact] = []
    with tempfile.TemporaryDirectory() as root:
        if path != "nvcc" and _is_lean(plan):  # what all of them share on a machine
            nvrtc_build.driver(toolchain(), Cache(Path(root), 2**33))
        seconds = timed(lambda: built.append(build(source, plan, path, Path(root))))
    return {
        "kernel": name,
        "path": path,
        "builder": built[0].builder,
        "phases": dict(built[0].phases),
        **seconds,
    }


def _is_lean(plan: Plan) -> bool:
    try:
        parts(plan)
    except NotServed:
        return False
    return True


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
    names = harness.selected(KERNELS, options, str)
    items = [
        {"name": f"{name} {path} {number}", "kernel": name, "path": path}
        | versions
        | {"cores": os.cpu_count()}
        for number in range(options.rounds)
        for name in names
        for path in paths[:: 1 if number % 2 == 0 else -1]
        if path != "nvcc" or not planned(name)[0].in_parts
    ]
    rows = campaign.in_turn("benchmarks.family_builds:row", items, options, row, _line)
    right = [r for r in rows if r["ok"]]
    print(f"{versions}, {os.cpu_count()} cores\n{table(right)}")
    campaign.concluded(rows, options, _line, classes, {f"seconds, {paths[0]}": Bar(most=4.0)})


def classes(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Returns the median seconds of each kernel by build path."""
    walls: dict[tuple[str, str], list[float]] = {}
    for r in rows:
        walls.setdefault((r["path"], r["kernel"]), []).append(r["wall"])
    paths = dict.fromkeys(path for path, _ in walls)
    return {
        f"seconds, {path}": {
            kernel: statistics.median(v) for (own, kernel), v in walls.items() if own == path
        }
        for path in paths
    }


def _line(r: Row) -> str:
    phases = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in r["phases"].items())
    return f"{r['kernel']:34} {r['path']:6} {r['wall']:6.2f} s: {phases}"


if __name__ == "__main__":
    main()
