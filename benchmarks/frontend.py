"""Milliseconds of the front end a kernel, and of a warm-cache load in a fresh process.

    python -m benchmarks.frontend [--out frontend.json] [--load] [--repeats 20] [FILE ...]

Claim: the front end takes milliseconds, and a kernel of the cache some tens of them. Front end: parse, check, plan and emit of every kernel of the files (the examples by default), in a
process in which each ran once; every repeat plans a shape that was not planned before. `first` is
the first kernel's in a fresh process, imports apart.

`--load` adds what a program pays before its first launch when the cache has the kernel (it is
built first if not: nvcc): the grammar's tables, front end, cache look-up, dlopen, workspace
query, all in a fresh process with torch imported and, where there is a GPU, its context made.
`first launch` is the whole of `load` and the first call again, in the process that by then has
done all the other steps once. Without a GPU the query and the launch are left out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from ucutlass import frontend, ir
from ucutlass.backend import build_artifact, build_stage, source_of
from ucutlass.check import check_tree
from ucutlass.emit.text import Source
from ucutlass.grammar.parse import parse
from ucutlass.kernels.gemm.plan import GemmPlan
from ucutlass.runtime import isolation
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.cache import Cache
from ucutlass.shapes import complete, free_dims

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
LOADED = EXAMPLES / "linear_gelu.ucu"
ARCH = "sm90a"
TRIVIAL = "kernel k(x: f32[M]) -> f32[M] { return x }"
STAGES = ("parse", "check", "plan", "emit")
STEPS = ("grammar", "front end", "cache", "dlopen", "query", "first launch")

Milliseconds = dict[str, float]


def shape_of(program: ir.Kernel, number: int) -> tuple[int, ...]:
    """Another ordinary shape for every number."""
    names = free_dims(program)
    return complete(program, {name: 64 * (number + 1) + 256 * i for i, name in enumerate(names)})


def front_end(text: str, name: str, number: int) -> Milliseconds:
    """One kernel through the front end. Parse and check are the file's, shared by its kernels."""
    marks = [time.perf_counter()]

    def mark() -> None:
        marks.append(time.perf_counter())

    tree = parse(text)
    mark()
    module, _ = check_tree(tree)
    mark()
    checked = frontend.Checked(module, text, "<text>")
    program = frontend.kernel(checked, name)
    sizes = shape_of(program, number)
    planned = frontend.plan_kernel(checked, program, sizes, ARCH).planned
    mark()
    source_of(checked, program, planned)
    mark()
    return {stage: 1e3 * (b - a) for stage, a, b in zip(STAGES, marks, marks[1:], strict=False)}


def spread(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "median": statistics.median(ordered),
        "p5": ordered[len(ordered) // 20],
        "p95": ordered[min(len(ordered) - 1, len(ordered) * 19 // 20)],
    }


def kernels(files: Sequence[Path]) -> list[tuple[str, str]]:
    """Text and name of every kernel of the files."""
    every = []
    for file in files:
        text = file.read_text(encoding="utf-8")
        every += [
            (text, p.name) for p in frontend.read_text(text).module.programs if isinstance(p, ir.Kernel)
        ]
    return every


def warm_table(files: Sequence[Path], repeats: int) -> list[dict[str, Any]]:
    rows = []
    for text, name in kernels(files):
        front_end(text, name, 0)
        runs = [front_end(text, name, 1 + i) for i in range(repeats)]
        row: dict[str, Any] = {"kernel": name, **{s: spread([run[s] for run in runs]) for s in STAGES}}
        rows.append(row | {"all": spread([sum(run.values()) for run in runs])})
    return rows


def fresh(function: str, arguments: dict[str, Any], repeats: int) -> list[dict[str, Any]]:
    """The function's answers from as many fresh processes. Raises RuntimeError where one failed."""
    answers = []
    for _ in range(repeats):
        outcome = isolation.run(f"benchmarks.frontend:{function}", arguments, limit_seconds=300)
        if not isinstance(outcome, isolation.Returned):
            raise RuntimeError(f"{function} in a fresh process: {outcome}")
        answers.append(outcome.value)
    return answers


def first_here(text: str, name: str) -> Milliseconds:
    return front_end(text, name, 0)


def load_here(path: str, sizes: dict[str, int]) -> dict[str, float | None]:
    """In a fresh process: from a file to a kernel that can be launched."""
    import torch

    import ucutlass
    from ucutlass.backend import Built, bind
    from ucutlass.runtime.inputs import generate
    from ucutlass.runtime.library import load_entry

    gpu = torch.cuda.is_available()
    if gpu:
        torch.zeros(1, device="cuda")
    marks = [time.perf_counter()]
    parse(TRIVIAL)
    marks.append(time.perf_counter())
    checked = frontend.read(Path(path))
    program = frontend.kernel(checked)
    chosen = frontend.plan_kernel(checked, program, complete(program, sizes), ARCH)
    source = source_of(checked, program, chosen.planned)
    marks.append(time.perf_counter())
    artifact = _made(source, chosen.planned.plan)
    marks.append(time.perf_counter())
    load_entry(artifact.library, artifact.entry)
    marks.append(time.perf_counter())
    if gpu:
        bind(Built(chosen, source, artifact), program.name)
        marks.append(time.perf_counter())
        arguments = generate(program, sizes, device="cuda")
        torch.cuda.synchronize()
        before = time.perf_counter()
        ucutlass.load(path, arch=ARCH)(*arguments)
        torch.cuda.synchronize()
        marks.append(marks[-1] + time.perf_counter() - before)
    steps: dict[str, float | None] = dict.fromkeys(STEPS)
    return steps | {s: 1e3 * (b - a) for s, a, b in zip(STEPS, marks, marks[1:], strict=False)}


def _made(source: Source, plan: GemmPlan) -> Artifact:
    """Built as UCUTLASS_BUILD_PATH says, or found."""
    return build_artifact(source, plan, build_stage(None), Cache.from_switches())


def load_table(repeats: int) -> dict[str, dict[str, float] | None]:
    sizes = {"M": 4096, "N": 4096, "K": 4096}
    checked = frontend.read(LOADED)
    program = frontend.kernel(checked)
    planned = frontend.plan_kernel(checked, program, complete(program, sizes), ARCH).planned
    _made(source_of(checked, program, planned), planned.plan)
    runs = fresh("load_here", {"path": str(LOADED), "sizes": sizes}, repeats)
    table = {s: None if runs[0][s] is None else spread([run[s] for run in runs]) for s in STEPS}
    table["until ready"] = spread([sum(run[s] or 0.0 for s in STEPS[:-1]) for run in runs])
    return table


def cell(value: dict[str, float] | None) -> str:
    return (
        f"{'-':>20}"
        if value is None
        else f"{value['median']:7.2f} ({value['p5']:.2f}-{value['p95']:.2f})".rjust(20)
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, default=sorted(EXAMPLES.glob("*.ucu")), metavar="FILE")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--processes", type=int, default=5, help="fresh processes for `first` and `--load`")
    parser.add_argument("--load", action="store_true")
    options = parser.parse_args()
    rows = warm_table(options.files, options.repeats)
    print(f"{'milliseconds':18}" + "".join(f"{s:>20}" for s in (*STAGES, "all")))
    for row in rows:
        print(f"{row['kernel']:18}" + "".join(cell(row[s]) for s in (*STAGES, "all")))
    medians = [row["all"]["median"] for row in rows]
    print(f"median over kernels {statistics.median(medians):.2f} ms, largest {max(medians):.2f} ms")
    text, name = kernels(options.files)[0]
    runs = fresh("first_here", {"text": text, "name": name}, options.processes)
    first = {s: spread([run[s] for run in runs]) for s in STAGES} | {
        "all": spread([sum(r.values()) for r in runs])
    }
    print(f"{'first: ' + name:18}" + "".join(cell(first[s]) for s in (*STAGES, "all")))
    report: dict[str, Any] = {
        "python": sys.version.split()[0],
        "warm": rows,
        "first": {"kernel": name, **first},
    }
    if options.out is not None:
        harness.write(options.out, report)
    if options.load:
        report["load"] = load_table(options.processes)
        print("\nwarm-cache load of linear_gelu in a fresh process, milliseconds")
        for step, value in report["load"].items():
            print(f"{step:18}{cell(value)}")
        if options.out is not None:
            harness.write(options.out, report)


if __name__ == "__main__":
    main()
