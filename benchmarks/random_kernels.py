"""Random kernels of a family against the float64 reference, emulated on the host or run on a GPU.

    python -m benchmarks.random_kernels --family convolution --first 0 --count 100 [--processes 2]
    python -m benchmarks.random_kernels --family grouped_gemm --count 100 --gpu

Claim: every accepted program's kernel computes it. On the host the emitted CUDA file runs behind the emulator of
tests/emit; on a GPU every program's planned kernel is built and launched. Each is judged on integers and on
normal numbers, with the reference's bounds. Prints how many of each kind were right, and all others. Random
GEMMs are `benchmarks.soundness` and `benchmarks.emulated`.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

import ucutlass
from benchmarks import random_attention, random_convolutions, random_products, random_sweeps
from benchmarks.emulated import Job, Row, emulate, failed
from ucutlass import frontend
from ucutlass.backend import build_sources, source_of
from ucutlass.diagnostics import ProgramError
from ucutlass.reference import expect
from ucutlass.runtime import verify
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.inputs import generate
from ucutlass.shapes import complete


def composed(seed: int) -> Job:
    """Returns a composition of reductions, scans and windows."""
    return random_sweeps.job(seed, random_sweeps.COMPOSED)


def large_product(seed: int) -> Job:
    """Returns the program of a seed with extents that only a GPU serves in time."""
    drawn = random_products.program(seed)
    return Job(f"{seed} {drawn.kind}", drawn.text, "k", drawn.sizes, None, seed)


FAMILIES: Mapping[str, Callable[[int], Job]] = MappingProxyType(
    {
        "reduction": random_sweeps.job,
        "composed": composed,
        "grouped_gemm": random_products.job,
        "convolution": random_convolutions.job,
        "attention": random_attention.job,
    }
)


def on_host(jobs: Sequence[Job], processes: int) -> list[Row]:
    with ThreadPoolExecutor(processes) as pool:
        return list(pool.map(emulate, jobs))


def on_gpu(jobs: Sequence[Job]) -> Iterator[Row]:
    """Builds every accepted program's planned kernel and judges it on a GPU."""
    ready, pairs = [], []
    for job in jobs:
        try:
            checked = frontend.read_text(job.text)
            kernel = frontend.kernel(checked)
            planned = frontend.plan_kernel(checked, kernel, complete(kernel, job.sizes), "sm90a").planned
        except ProgramError as error:
            yield Row(job, "rejected", str(error))
            continue
        ready.append((job, str(planned.plan.schedule)))
        pairs.append((source_of(checked, kernel, planned), planned.plan))
    built = build_sources(pairs)
    for (job, schedule), artifact in zip(ready, built, strict=True):
        if not isinstance(artifact, Artifact):
            yield Row(job, "wrong", f"not built: {artifact}", schedule)
            continue
        verdicts = {}
        for distribution in ("integer", "normal"):
            loaded = ucutlass.loads(job.text)
            arguments = generate(loaded.program, job.sizes, distribution, seed=job.seed, device="cuda")

            def launch(inputs: Any, outputs: Any, loaded: Any = loaded) -> None:
                loaded(*inputs, out=outputs[0] if len(outputs) == 1 else tuple(outputs))

            expected = expect(loaded.program, arguments)
            verdicts[distribution] = verify.check(loaded.program, launch, arguments, expected=expected)
        detail = "\n".join(f"{d}: {v}" for d, v in verdicts.items() if not v.ok)
        yield Row(job, verify.worst(v.state for v in verdicts.values()), detail, schedule)


def table(rows: Sequence[Row]) -> str:
    """Returns counts by kind and outcome, then what was not right."""
    counted = Counter((row.job.name.split(" ", 1)[1], row.status) for row in rows)
    lines = [f"{kind:14} {status:12} {n}" for (kind, status), n in sorted(counted.items())]
    lines += [
        f"{r.job.name}: {r.status}: {r.schedule} {r.detail[:900]}\n{r.job.text}{r.job.sizes}"
        for r in rows
        if r.status != "right"
    ]
    return "\n".join(lines)


def main() -> None:
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    parser.add_argument("--family", choices=FAMILIES, required=True)
    parser.add_argument("--first", type=int, default=0, help="seed of the first program")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--processes", type=int, default=2, help="emulations side by side")
    parser.add_argument("--gpu", action="store_true", help="on a GPU, not emulated")
    options = parser.parse_args()
    draw = FAMILIES[options.family]
    if options.gpu and options.family == "grouped_gemm":
        draw = large_product
    jobs = [draw(seed) for seed in range(options.first, options.first + options.count)]
    rows = list(on_gpu(jobs)) if options.gpu else on_host(jobs, options.processes)
    print(table(rows))
    sys.exit(failed(rows))


if __name__ == "__main__":
    main()
