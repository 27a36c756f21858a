"""Recompiles over random shapes: one compiled model for every batch, and for every length of a text.

    python -m benchmarks.recompiles [--models hf_bert,hf_llama,resnet18,vit_b_16] [--count 50] [--seed N] --out FILE

Claim: after the first call no other batch or length compiles anything, by TorchDynamo or by us, and every result is
right. Models are those of `benchmarks.models`, with random weights, without gradients; their batch is marked dynamic,
and the length of a text. A line for each model and backend says how many graphs TorchDynamo has made after the first
call and after all, the seconds in which programs were planned and built after the first call, the seconds of the first
call and of the longest after it, the microseconds of the host in a later call, and what is wrong beside the model in
float64.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor

from benchmarks import campaign, harness, turns
from benchmarks.bars import Bar, Classes
from benchmarks.harness import Item, Row
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


def row(item: Item) -> Row:
    """Raises ArithmeticError where a result is wrong."""
    found = measured(*(item[name] for name in ("model", "backend", "dtype", "count", "seed")))
    if found["wrong"]:
        raise ArithmeticError(str(found["wrong"]))
    return found


def main() -> None:
    parser = harness.parser_of(__doc__)
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--dtype", default="bf16", choices=tuple(DTYPES))
    parser.add_argument("--count", type=int, default=50, help="shapes after the first")
    options = parser.parse_args()
    about = {name: getattr(options, name) for name in ("dtype", "count", "seed")}
    items = [
        {"name": f"{model} {backend}", "model": model, "backend": backend} | about
        for model in options.models.split(",")
        for backend in BACKENDS
    ]
    items = harness.selected(items, options, lambda item: str(item["name"]))
    rows = campaign.in_turn("benchmarks.recompiles:row", items, options, row, str)
    campaign.concluded(rows, options, str, classes, BARS)


def classes(every: Sequence[Row]) -> Classes:
    """Returns what was made anew by the names of models, and Inductor's host time over ours."""
    ours, theirs = ({r["model"]: r for r in every if r["backend"] == backend} for backend in BACKENDS)
    return {
        GRAPHS: {name: float(r["graphs"][1] - r["graphs"][0]) for name, r in ours.items()},
        MAKING: {name: sum(r["making_later"].values()) for name, r in ours.items()},
        HOST: {name: theirs[name]["host_us"] / r["host_us"] for name, r in ours.items() if name in theirs},
    }


if __name__ == "__main__":
    main()
