"""Draws modules of core ATen operators, imports them, and judges their kernels on a GPU.

    python -m benchmarks.drawn_on_gpu [--count 400] [--seed 0] [--steps 6] [--jobs N] [--devices N]
        [--seconds N] [--out FILE]

The modules are those of `benchmarks.drawn_modules`, with extents of several tiles and floating values in f32, bf16
or f16. Each program is planned and built for its own extents and judged as `ucc verify` judges one case: poisoned
and guarded results, the float64 reference with derived bounds, stage by stage. Prints every program that is wrong
or that failed, and counts the others by their verdict; exits with 1 where one is wrong or failed.

Modules are shared among `--jobs` processes; one that a kernel has ended is started again behind that module; they take the GPUs in turn.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import bars, campaign, harness
from benchmarks.harness import append, lines
from tests.importer.drawn_modules import SEVERAL_TILES, DrawnModule, draw
from ucutlass.api import LoadedProgram
from ucutlass.diagnostics import ProgramError
from ucutlass.importer.chain import ProgramChain
from ucutlass.importer.graph import Unsupported
from ucutlass.importer.program import from_torch
from ucutlass.runtime import verify

TYPES = (torch.float32, torch.bfloat16, torch.float16)

STALLED_SECONDS = 90.0
"""A process that has told nothing for so long is ended, and its module has failed."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A drawn module's verdict: `right`, `undecided`, `wrong`, `refused`, `not served` or `failed`, and why."""

    number: int
    verdict: str
    why: str = ""
    plan: str = ""
    text: str = ""
    seconds: float = 0.0


def judged(number: int, seed: int, most_steps: int) -> Judged | None:
    """Returns the verdict of the module of a seed, None for one without steps."""
    source = random.Random(f"{seed}:{number}")

    def pick(options: Sequence[Any]) -> Any:
        return source.choice(list(options))

    elem = pick(TYPES)
    plan, state = draw(pick, source.randint(1, most_steps), size=SEVERAL_TILES)
    if not plan.steps:
        return None
    start = time.monotonic()

    def verdict(state: str, why: str = "", text: str = "") -> Judged:
        return Judged(number, state, why, f"{elem}\n{plan}", text, round(time.monotonic() - start, 2))

    module = DrawnModule(plan, state).eval().to("cuda", elem)
    inputs = [x.to("cuda", elem if x.is_floating_point() else x.dtype) for x in plan.inputs]
    try:
        program = from_torch(module, *inputs)
    except Unsupported as refused:
        return verdict("refused", str(refused).splitlines()[0])
    verdicts: list[verify.LaunchVerdict] = []

    def call(loaded: LoadedProgram) -> Callable[..., Any]:
        def launched(*arguments: Any) -> Any:
            verdicts.append(verify.check(loaded.program, loaded.judged(*arguments), list(arguments)))
            return loaded(*arguments)

        return launched

    kernel, arguments = program.kernel, program.arguments(*inputs)
    try:
        if isinstance(kernel, ProgramChain):
            kernel.run([call(loaded) for loaded in kernel.programs], arguments)
        else:
            call(kernel)(*arguments)
        torch.cuda.synchronize()
    except ProgramError as refused:
        return verdict("not served", str(refused)[:2000], program.text)
    except Exception:  # a defect of the compiler, of a kernel or of the judge, to be reported
        return verdict("failed", traceback.format_exc()[-4000:], program.text)
    states = {v.state for v in verdicts}
    worst = next(s for s in ("wrong", "undecided", "right") if s in states)
    words = "; ".join(str(v) for v in verdicts if v.state == worst)
    return verdict(worst, "" if worst == "right" else words[:4000], program.text)


def work(seed: int, steps: int, first: int, stride: int, out: Path) -> None:
    """Judges every `stride`-th module until it is ended, and adds each verdict to the lines of `out`. Ends where a
    kernel has failed, since its process's context may be lost."""
    warnings.simplefilter("ignore")
    number = first
    while True:
        append(out, {"begun": number})
        result = judged(number, seed, steps)
        if result is not None:
            append(out, asdict(result))
            if result.verdict == "failed":
                sys.exit(1)
        number += stride


def run(options: argparse.Namespace, folder: Path) -> list[Judged]:
    """Runs the workers until there are as many verdicts as asked, or the time is over."""
    deadline = time.monotonic() + options.seconds
    environs = campaign.environments(harness.gpus(options))
    outs = [folder / f"{worker}.jsonl" for worker in range(options.jobs)]

    def started(worker: int, first: int) -> subprocess.Popen[bytes]:
        words = (options.seed, options.steps, first, options.jobs, outs[worker])
        command = [sys.executable, "-m", "benchmarks.drawn_on_gpu", "--worker", *map(str, words)]
        environ = environs[worker % len(environs)] or os.environ
        return subprocess.Popen(command, env={**environ, "UCUTLASS_BUILD_JOBS": "1"})

    children = {worker: started(worker, worker) for worker in range(options.jobs)}
    results: dict[int, Judged] = {}
    printed: set[int] = set()
    while len(results) < options.count and time.monotonic() < deadline:
        time.sleep(1)
        for worker, child in children.items():
            rows = lines(outs[worker])
            results |= {line["number"]: Judged(**line) for line in rows if "number" in line}
            last = max((line.get("begun", -1) for line in rows), default=worker)
            stalled = outs[worker].exists() and time.time() - outs[worker].stat().st_mtime > STALLED_SECONDS
            if child.poll() is None and not stalled:
                continue
            child.kill()
            child.wait()
            if last not in results:
                results[last] = Judged(last, "failed", "stalled" if stalled else f"ended: {child.returncode}")
                append(outs[worker], asdict(results[last]))
            children[worker] = started(worker, last + options.jobs)
        for result in results.values():
            if result.number in printed:
                continue
            if options.out:
                append(options.out, asdict(result))
            if result.verdict in ("wrong", "failed"):
                print(
                    f"module {result.number} {result.verdict}: {result.why}\n{result.plan}\n{result.text}",
                    flush=True,
                )
            printed.add(result.number)
    for child in children.values():
        child.kill()
        child.wait()
    return sorted(results.values(), key=lambda result: result.number)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=6, help="most steps of a module")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="processes, by default one for each core"
    )
    parser.add_argument("--devices", type=int, metavar="N", help="GPUs to use, by default all")
    parser.add_argument("--seconds", type=float, default=600.0, help="end after so many, with what there is")
    parser.add_argument("--out", type=Path, help="a file of one JSON line for each module")
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        seed, steps, first, stride = map(int, options.worker[:4])
        work(seed, steps, first, stride, Path(options.worker[4]))
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        results = run(options, Path(folder))
    for verdict in ("refused", "not served", "undecided"):
        for why, count in Counter(r.why[:160] for r in results if r.verdict == verdict).most_common(12):
            print(f"{verdict} {count}: {why}")
    counts = dict(Counter(r.verdict for r in results))
    print(
        f"{len(results)} modules in {time.monotonic() - start:.0f} s on {torch.cuda.get_device_name()}: {counts}"
    )
    faulty = {str(r.number): r.verdict in ("wrong", "failed") for r in results}
    return bars.held_to_none(faulty, options.count, options.out)


if __name__ == "__main__":
    sys.exit(main())
