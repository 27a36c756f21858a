"""Milliseconds of the front end a kernel, and of a warm-cache load in a fresh process.

    python -m benchmarks.frontend [--repeats 20] [--load] [FILE ...]

Claim: the front end takes milliseconds, and a kernel of the cache some tens of them. Front end: parse, check,
plan and emit of every kernel of the files (the examples by default), in a process in which each ran once; every
repeat plans a shape that was not planned before.

`--load` adds what a program pays before its first launch when the cache has the kernel (it is built first if
not): the grammar's tables, front end, cache look-up, dlopen, and where there is a GPU the workspace query and
the first launch, each the median of fresh processes with torch imported and the GPU's context made. `first
launch` is the whole of `load` and the first call again, in the process that by then has done all other steps.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ucutlass import frontend, ir
from ucutlass.backend import build_artifact, build_stage, source_of
from ucutlass.check import check_tree
from ucutlass.grammar.parse import parse
from ucutlass.runtime import isolation
from ucutlass.runtime.cache import Cache
from ucutlass.shapes import complete, free_dims
from ucutlass.typical_sizes import typical_sizes

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
LOADED = EXAMPLES / "linear_gelu.ucu"
SIZES = {"M": 4096, "N": 4096, "K": 4096}
ARCH = "sm90a"
TRIVIAL = "kernel k(x: f32[M]) -> f32[M] { return x }"
STAGES = ("parse", "check", "plan", "emit")
STEPS = ("grammar", "front end", "cache", "dlopen", "query", "first launch")


class Clock:
    """Milliseconds between marks."""

    def __init__(self) -> None:
        self.spans: list[float] = []
        self._last = time.perf_counter()

    def mark(self) -> None:
        now = time.perf_counter()
        self.spans.append(1e3 * (now - self._last))
        self._last = now


def front_end(text: str, name: str, number: int) -> list[float]:
    """Returns the time of each of STAGES, for another ordinary shape with every number. Parse and check are the
    file's, shared by its kernels."""
    clock = Clock()
    tree = parse(text)
    clock.mark()
    module, _ = check_tree(tree)
    clock.mark()
    checked = frontend.Checked(module, text, "<text>", tree)
    program = frontend.kernel(checked, name)
    ordinary = typical_sizes(program, None)
    assert ordinary is not None, f"{name} has no ordinary extents"
    every = dict(zip(program.dims, ordinary, strict=True))
    free = {dim: every[dim] + (8 * number if i == 0 else 0) for i, dim in enumerate(free_dims(program))}
    planned = frontend.plan_kernel(checked, program, complete(program, free), ARCH).planned
    clock.mark()
    source_of(checked, program, planned)
    clock.mark()
    return clock.spans


def kernels(files: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """Yields text and name of every kernel of the files."""
    for file in files:
        text = file.read_text(encoding="utf-8")
        for program in frontend.read_text(text).module.programs:
            if isinstance(program, ir.Kernel):
                yield text, program.name


def load_here() -> list[float]:
    """Runs in a fresh process: from a file to a kernel that can be launched, and launched. Returns the time of
    each of STEPS, of the last two where there is a GPU."""
    import torch

    import ucutlass
    from ucutlass.backend import Built, bind
    from ucutlass.runtime.inputs import generate
    from ucutlass.runtime.library import load_entry

    gpu = torch.cuda.is_available()
    if gpu:
        torch.zeros(1, device="cuda")
    clock = Clock()
    parse(TRIVIAL)
    clock.mark()
    checked = frontend.read(LOADED)
    program = frontend.kernel(checked)
    chosen = frontend.plan_kernel(checked, program, complete(program, SIZES), ARCH)
    source = source_of(checked, program, chosen.planned)
    clock.mark()
    artifact = build_artifact(source, chosen.planned.plan, build_stage(None), Cache.from_switches())
    clock.mark()
    load_entry(artifact.library, artifact.entry)
    clock.mark()
    if gpu:
        bind(Built(chosen, source, artifact), program.name)
        clock.mark()
        arguments = generate(program, SIZES, device="cuda")
        torch.cuda.synchronize()
        launch = Clock()
        ucutlass.load(LOADED, arch=ARCH)(*arguments)
        torch.cuda.synchronize()
        launch.mark()
        clock.spans += launch.spans
    return clock.spans


def loads(count: int) -> list[list[float]]:
    """Returns the times of so many fresh processes; one before them builds what the cache lacks. Raises
    RuntimeError where one failed."""
    runs = []
    for _ in range(1 + count):
        outcome = isolation.run("benchmarks.frontend:load_here", {}, limit_seconds=300)
        if not isinstance(outcome, isolation.Returned):
            raise RuntimeError(f"a load in a fresh process: {outcome}")
        runs.append(outcome.value)
    return runs[1:]


def medians(runs: Sequence[Sequence[float]]) -> list[float]:
    """Returns the median of each step."""
    return [statistics.median(step) for step in zip(*runs, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, default=sorted(EXAMPLES.glob("*.ucu")), metavar="FILE")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--processes", type=int, default=5, help="fresh processes of `--load`")
    parser.add_argument("--load", action="store_true")
    options = parser.parse_args()
    wholes = []
    print(f"{'milliseconds':20}" + "".join(f"{stage:>9}" for stage in (*STAGES, "all")))
    for text, name in kernels(options.files):
        front_end(text, name, 0)
        runs = [front_end(text, name, 1 + i) for i in range(options.repeats)]
        wholes.append(statistics.median(map(sum, runs)))
        print(f"{name:20}" + "".join(f"{value:9.2f}" for value in (*medians(runs), wholes[-1])))
    print(f"median over kernels {statistics.median(wholes):.2f} ms, largest {max(wholes):.2f} ms")
    if options.load:
        print(f"\nwarm-cache load of {LOADED.name} in a fresh process, milliseconds")
        runs = loads(options.processes)
        for step, value in zip(STEPS, medians(runs), strict=False):
            print(f"{step:20}{value:9.2f}")
        print(f"{'until ready':20}{statistics.median(sum(run[:5]) for run in runs):9.2f}")


if __name__ == "__main__":
    main()
