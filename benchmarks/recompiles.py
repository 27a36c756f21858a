"""Recompiles over random shapes: one compiled model for every batch, and for every length of a text.

    python -m benchmarks.recompiles [--models hf_bert,hf_llama,resnet18,vit_b_16] [--count 50] [--seed 1] [--out FILE.jsonl]

Claim: after the first call no other batch or length compiles anything, by TorchDynamo or by us, and every result is
right. Models are those of `benchmarks.models`, with random weights, without gradients; their batch is marked dynamic,
and the length of a text. A line for each model and backend says how many graphs TorchDynamo has made after the first
call and after all, the seconds in which programs were planned and built after the first call, the seconds of the first
call and of the longest after it, the microseconds of the host in a later call, and what is wrong beside the model in
float64.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from benchmarks import bars, harness, turns
from benchmarks.bars import Bar, Classes
from benchmarks.harness import Row
from benchmarks.model_cases import CASES, TOKENS, cast, settled
from benchmarks.model_measure import DTYPES, FLOORS, forwarded
from ucutlass import spans
from ucutlass.dynamo.backend import backend as backend_of
from ucutlass.dynamo.options import CompileOptions

MODELS = "hf_bert,hf_llama,resnet18,vit_b_16"
BACKENDS = ("ucutlass", "inductor")
MOST_BATCH = 12
ROUNDS, CALLS = 21, 4
"""Of calls whose host time is taken: so few that none waits for a full queue of launches."""

GRAPHS, MAKING, HOST = (
    "graphs made after the first call",
    "seconds of making programs after it",
    "Inductor's host time over ours",
)
BARS = {GRAPHS: Bar(most=0), MAKING: Bar(most=0)}

OF_PROGRAMS = ("importing", "front end", "planning", "emitting", "building")
"""Parts of a call in which a program is made."""


def measured(name: str, backend: str, dtype: str, count: int, seed: int) -> Row:
    """Returns a model's row, of so many shapes drawn after the first."""
    from torch._dynamo.utils import counters

    torch.manual_seed(0)
    torch._dynamo.reset()
    random, element = Random(seed), DTYPES[dtype]
    case = CASES[name]
    model = cast(settled(case.model().cuda(), tuple(x.cuda() for x in case.inputs(2))), element)
    exact = cast(copy.deepcopy(model), torch.float64)
    ours = backend == "ucutlass"
    fast = torch.compile(model, backend=backend_of(CompileOptions()) if ours else "inductor")
    graphs, seconds, wrong = [], [], []
    record_seconds: dict[str, float] = {}
    with torch.no_grad():
        for number in range(count + 1):
            inputs = drawn(case.inputs(random.randint(2, MOST_BATCH)), element, random)
            torch.cuda.synchronize()
            start = time.monotonic()
            with spans.recording() as record:
                result = forwarded(fast, inputs)
            torch.cuda.synchronize()
            seconds.append(time.monotonic() - start)
            graphs.append(int(counters["stats"]["unique_graphs"]))
            if number:
                for part in OF_PROGRAMS:
                    record_seconds[part] = record_seconds.get(part, 0.0) + record.seconds.get(part, 0.0)
            wide = [x.double() if x.is_floating_point() else x for x in inputs]
            wrong += turns.wrong(result, forwarded(model, inputs), forwarded(exact, wide), FLOORS[dtype])
        host = host_us(fast, inputs)
    return {
        "model": name,
        "backend": backend,
        "dtype": dtype,
        "shapes": count,
        "graphs": [graphs[0], graphs[-1]],
        "making_later": {part: round(s, 3) for part, s in record_seconds.items() if s},
        "first": round(seconds[0], 2),
        "longest_later": round(max(seconds[1:]), 3),
        "host_us": host,
        "wrong": wrong[:4],
    }


def host_us(fast: Callable[..., Any], inputs: Sequence[Tensor]) -> float:
    """Returns the microseconds that the host takes for a call: the median over rounds of calls that do not wait."""
    rounds = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS):
            forwarded(fast, inputs)
        rounds.append((time.perf_counter() - start) / CALLS * 1e6)
    torch.cuda.synchronize()
    return round(statistics.median(rounds), 1)


def drawn(inputs: Sequence[Tensor], element: torch.dtype, random: Random) -> list[Tensor]:
    """Returns inputs on the GPU, with texts cut to a drawn length, whose batch and length are marked dynamic."""
    length = random.randint(9, TOKENS)
    results = []
    for x in inputs:
        text = x.dim() == 2 and not x.is_floating_point()
        own = (x[:, :length] if text else x).to("cuda", element if x.is_floating_point() else x.dtype)
        own = own.contiguous()
        for axis in (0, 1) if text else (0,):
            torch._dynamo.mark_dynamic(own, axis)
        results.append(own)
    return results


def rows(models: str, dtype: str, count: int, seed: int) -> Iterator[Row]:
    for name in models.split(","):
        for backend in BACKENDS:
            try:
                yield measured(name, backend, dtype, count, seed)
            except Exception as problem:  # a model that fails is a row's finding
                if "CUDA error" in str(problem):
                    raise
                about = {"model": name, "backend": backend, "dtype": dtype}
                yield about | {"lost": f"{type(problem).__name__}: {problem}"[:400]}


def main() -> int:
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--dtype", default="bf16", choices=tuple(DTYPES))
    parser.add_argument("--count", type=int, default=50, help="shapes after the first")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, metavar="FILE")
    options = parser.parse_args()
    every_row = []
    for row in rows(options.models, options.dtype, options.count, options.seed):
        if options.out is not None:
            harness.append(options.out, row)
        print(row, flush=True)
        every_row.append(row)
    every = bars.figures(known := classes(every_row), {k: b for k, b in BARS.items() if k in known})
    wrong = [f"{r['model']} {r['backend']}" for r in every_row if r.get("wrong") or "lost" in r]
    print("\n".join(bars.lines(every)))
    if options.out is not None:
        bars.write_summary(options.out, every, harness.machine(), wrong=wrong)
    return bars.status(every, wrong, ())


def classes(every: Sequence[Row]) -> Classes:
    """Returns what was made anew by the names of models, and Inductor's host time over ours."""
    right = {(r["model"], r["backend"]): r for r in every if "lost" not in r}
    ours = {name: r for (name, backend), r in right.items() if backend == "ucutlass"}
    theirs = {name: r for (name, backend), r in right.items() if backend == "inductor"}
    return {
        GRAPHS: {name: float(r["graphs"][1] - r["graphs"][0]) for name, r in ours.items()},
        MAKING: {name: sum(r["making_later"].values()) for name, r in ours.items()},
        HOST: {name: theirs[name]["host_us"] / r["host_us"] for name, r in ours.items() if name in theirs},
    }


if __name__ == "__main__":
    sys.exit(main())
