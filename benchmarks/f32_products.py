"""f32 products in every memory order as the planner schedules them, against eager f32 and eager TF32.

    python -m benchmarks.f32_products --out FILE [--seed N] [--drawn N] [--only NAME,..] [--quick]

Claim: over shapes drawn by the seed they are at least 2.2 times as fast as eager f32 in the geomean and err no more;
products of at most 256 rows take at most twice the time of eager TF32. A row is named by the operands' contiguous
modes and the extents, as in `f32 KN 128x4096x8192`. `over eager` and `over tf32` are eager's times over ours, `error` is
ours over eager f32's, each the root mean square of differences from float64.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

import torch
from torch import Tensor

import ucutlass
from benchmarks import bars, campaign, harness
from benchmarks.bars import Bar
from benchmarks.campaign import Case
from benchmarks.harness import Item, Row
from benchmarks.product_cases import KINDS, Problem, product
from ucutlass.runtime.timing import compare, sets_for

FEW = 256
"""Rows up to which a product counts as one of few rows."""

ROW_SECONDS = 60.0

BARS = {
    "over eager": Bar(geomean=2.2),
    f"over tf32, at most {FEW} rows": Bar(least=0.5),
    "error over eager's": Bar(most=1.0),
}

PROBED = 256
"""Columns that are computed in float64."""


def drawn(count: int, seed: int) -> list[Problem]:
    """Returns products of a seed, two of three of few rows, in each order in turn."""
    draw = random.Random(seed)

    def extent(low: float, high: float, step: int) -> int:
        return int(2 ** draw.uniform(low, high)) // step * step

    orders = KINDS["f32"].orders
    products = []
    for i in range(count):
        many = i % 3 == 2
        m = extent(8, 13, 4) if many else extent(3.6, 8, 4)
        n, k = (extent(10.5, 12.5 if many else 14, 8) for _ in range(2))
        products.append(Problem("f32", orders[i % len(orders)], 1, m, n, k))
    return products


def operands(problem: Problem) -> list[list[Tensor]]:
    """Returns pairs of a left and a right operand that rotate through more than twice the L2."""
    m, n, k = problem.m, problem.n, problem.k
    x = (m, k) if problem.order[0] == "K" else (k, m)
    w = (n, k) if problem.order[1] == "K" else (k, n)
    return [
        [torch.randn(shape, device="cuda") for shape in (x, w)]
        for _ in range(sets_for(4 * (m * k + n * k + m * n)))
    ]


def eager(problem: Problem, given: Sequence[Tensor], tf32: bool = False) -> Tensor:
    torch.backends.cuda.matmul.allow_tf32 = tf32
    return product(problem, *given)


def error(problem: Problem, y: Tensor, x: Tensor, w: Tensor) -> float:
    part = w[:PROBED] if problem.order[1] == "K" else w[:, :PROBED]
    exact = product(problem, x.double(), part.double())
    return float((y[:, :PROBED] - exact).square().mean().sqrt())


def row(item: Item) -> Row:
    torch.manual_seed(item["seed"])
    problem = Problem(*item["problem"])
    kernel: Any = ucutlass.loads(problem.text)
    sets = operands(problem)
    errors = [error(problem, y, *sets[0]) for y in (kernel(*sets[0]), eager(problem, sets[0]))]
    times = compare(
        {
            "ours": lambda i: kernel(*sets[i]),
            "eager": lambda i: eager(problem, sets[i]),
            "tf32": lambda i: eager(problem, sets[i], tf32=True),
        },
        len(sets),
    )
    ours = times["ours"].median
    return {
        **harness.summary_of(times),
        "schedule": item["schedule"],
        "over eager": times["eager"].median / ours,
        "over tf32": times["tf32"].median / ours,
        "error": errors[0] / errors[1],
    }


def main() -> None:
    options = campaign.parser_of(__doc__, drawn=36).parse_args()
    chosen = harness.selected(drawn(options.drawn, options.seed), options, lambda problem: problem.name)
    campaign.report(
        "benchmarks.f32_products:row",
        [Case(p.name, p.text, p.sizes, {"problem": astuple(p)}) for p in chosen],
        options,
        _line,
        classes,
        row_seconds=ROW_SECONDS,
        held=BARS,
    )


def _line(r: Row) -> str:
    return (
        f"{r['name']:24} {r['microseconds']['ours']:9.1f} us  eager {r['over eager']:.2f}  tf32 {r['over tf32']:.2f}  "
        f"error {r['error']:.2f}  spread {r['spread']:.3f}  {r['schedule']}"
    )


def classes(rows: list[Row]) -> dict[str, dict[str, float]]:
    few = [r for r in rows if int(r["name"].split()[2].split("x")[0]) <= FEW]
    return {
        "over eager": {r["name"]: r["over eager"] for r in rows},
        f"over tf32, at most {FEW} rows": {r["name"]: r["over tf32"] for r in few},
        "error over eager's": {r["name"]: r["error"] for r in rows},
    } | bars.classed(rows, lambda r: r["over eager"], lambda r: f"over eager, {r['name'].split()[1]}")


if __name__ == "__main__":
    main()
