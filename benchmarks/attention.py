"""Attention forward against each of torch's scaled-dot-product backends, and torch.compile, in one run.

    python -m benchmarks.attention --out attention.json [--only NAME,..] [--dtypes bf16,f16] [--no-compile]

Claim: attention forward is as fast as the best of torch's backends, for rectangles of 1k to 16k tokens, packed
sequences, and few queries with many keys. Rectangles and packed rows have 16,384 tokens in all and 2,048
elements of all heads together; schedules are the compiler's own. FLOP/s count both products, half of them where
the mask is causal. Bytes are those of all tensors, read or written once. `over_best` is the fastest rival's time
over ours; `error` and `theirs` are the errors' norms over the result's, of one head, against float64. A rival
that refuses a row, or errs by more than 0.02, is left out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

import ucutlass
from benchmarks import campaign, harness
from benchmarks.attention_cases import DTYPES, KINDS, Packed, Problem, Whole, problems
from benchmarks.bars import Bar
from benchmarks.campaign import Case
from benchmarks.harness import Item, Row
from ucutlass.runtime.timing import LaunchTiming, compare, launches_for, sets_for, summary

ROW_SECONDS = 150.0
MOST_ERROR = 0.02
"""Of the norm of a result, beyond which ours is wrong and a rival is left out."""

USUAL = "heads of 64 and 128"


def row(item: Item) -> Row:
    p = KINDS[item["kind"]](**item["problem"])
    random = torch.Generator("cuda").manual_seed(p.head + item["seed"])

    def draw(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, device="cuda", generator=random).to(DTYPES[p.dtype])

    first = p.arguments(draw)
    bytes_ = sum(x.numel() * x.element_size() for x in first) + first[0].numel() * 2
    sets = [first, *(p.arguments(draw) for _ in range(sets_for(bytes_) - 1))]
    out = [torch.full_like(s[0], torch.nan) for s in sets]
    kernel = ucutlass.loads(p.text)
    candidates: dict[str, Callable[[int], Any]] = {"ours": lambda i: kernel(*sets[i], out=out[i])}
    expected, part = p.expected(first)
    rivals = dict(p.rivals(sets))
    if item["compile"] and isinstance(p, Whole) and p.head in (64, 128):
        fast = harness.compiled(p.eager, *first)
        rivals["compile"] = lambda i: fast(*sets[i])
    errors = {}
    for name, launch in rivals.items():
        try:
            result = part(launch(0)).double()
            torch.cuda.synchronize()
        except Exception as refusal:  # torch has many ways to say no
            errors[name] = str(refusal)[:200]
            continue
        error = float((result - expected).norm() / expected.norm())
        if error < MOST_ERROR:
            candidates[name] = launch
        errors[name] = f"{error:.2e}"
    candidates["ours"](0)
    error = float((part(out[0]).double() - expected).norm() / expected.norm())
    if not error < MOST_ERROR:
        raise ArithmeticError(f"it errs by {error:.2g} of the norm")
    times = timed(p, candidates, len(sets))
    best = min((t.median, n) for n, t in times.items() if n != "ours")
    ours = times["ours"].median
    return {
        **harness.summary_of(times),
        "best": best[1],
        "over_best": best[0] / ours,
        "tflops": p.work / ours * 1e-6,
        "their_tflops": p.work / best[0] * 1e-6,
        "gigabytes_a_second": bytes_ / ours * 1e-3,
        "error": error,
        "theirs": float(errors[best[1]]),
        "others": errors,
    }


def timed(p: Problem, candidates: Mapping[str, Callable[[int], Any]], sets: int) -> dict[str, LaunchTiming]:
    match p:
        case Whole():
            return compare(candidates, sets, rounds=7)
        case Packed():
            return streamed(candidates, sets, rounds=5, window_us=2000.0)
        case _:
            return compare(candidates, sets, rounds=5, window_us=2000.0)


def streamed(
    candidates: Mapping[str, Callable[[int], Any]], sets: int, *, rounds: int, window_us: float
) -> dict[str, LaunchTiming]:
    """Returns what `compare` does, of launches one after another: not all of torch's kernels of packed
    sequences stand in a graph. Launches are longer than what the host does for them."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    counts = {name: launches_for(launch, sets, window_us) for name, launch in candidates.items()}
    for turn in range(rounds):
        for name in list(candidates)[:: 1 if turn % 2 else -1]:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            for i in range(counts[name]):
                candidates[name](i % sets)
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end) * 1000.0 / counts[name])
    return {name: summary(values) for name, values in times.items()}


def main() -> None:
    parser = campaign.parser_of(__doc__, compiles=True)
    parser.add_argument("--dtypes", default="bf16,f16", help="of rectangles")
    options = parser.parse_args()
    chosen = harness.selected(problems(options.dtypes.split(",")), options, lambda p: p.name)
    campaign.report(
        "benchmarks.attention:row",
        [Case(p.name, p.text, p.sizes, {"problem": asdict(p), "kind": p.kind}) for p in chosen],
        options,
        _line,
        _classes,
        row_seconds=ROW_SECONDS,
        held={USUAL: Bar(geomean=1.09)},
    )


def _line(r: Row) -> str:
    return (
        f"{r['name']:32} {r['microseconds']['ours']:8.1f} us {r['tflops']:6.1f} TFLOP/s  {r['best']:9} "
        f"{r['their_tflops']:6.1f}  over best {r['over_best']:.3f}  spread {r['spread']:.3f}  "
        f"error {r['error']:.2e} theirs {r['theirs']:.2e}"
    )


def _classes(rows: list[Row]) -> dict[str, dict[str, float]]:
    words = {r["name"]: r["name"].split() for r in rows}
    usual = [r for r in rows if words[r["name"]][0] in DTYPES and words[r["name"]][1] in ("64", "128")]
    groups = {
        "packed": [r for r in rows if r["name"].startswith("packed")],
        "few": [r for r in rows if r["name"].startswith("few")],
        USUAL: [r for r in usual if "shared" not in r["name"]],
    }
    return {label: {r["name"]: r["over_best"] for r in group} for label, group in groups.items()}


if __name__ == "__main__":
    main()
