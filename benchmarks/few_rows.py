"""GEMM of some hundreds of rows that fill no tile, as the planner schedules it, against cuBLAS.

    python -m benchmarks.few_rows --out FILE [--seed N] [--drawn N] [--only NAME,..] [--quick]

Claim: over shapes drawn by the seed (200 to 800 rows, N of 1.5k to 2.5k, K of 7k to 10k) in bf16 and f16 in turn, at
least 1.03 times as fast in the geomean, and none below 0.92. A row counts where no element errs by more than its type rounds.
"""

from __future__ import annotations

import random
from dataclasses import asdict
from typing import Any

import torch

import ucutlass
from benchmarks import harness
from benchmarks.gemm_cases import Product
from benchmarks.harness import Item, Row
from ucutlass.runtime.timing import compare

ROW_SECONDS = 30.0

ROUNDING = {"bf16": 2.0**-8, "f16": 2.0**-11}
"""Of a result, beside what f32 sums err: `_SUM` of the sum of magnitudes."""

_SUM = 2.0**-18


def drawn(count: int, seed: int) -> dict[str, Product]:
    """Returns the products of a seed by name."""
    draw = random.Random(seed)
    products = [
        Product(
            ("bf16", "f16")[i % 2],
            draw.randrange(200, 801, 8),
            draw.randrange(1536, 2561, 8),
            draw.randrange(7168, 10241, 64),
        )
        for i in range(count)
    ]
    return {f"{product.element} {product.extents}": product for product in products}


def row(item: Item) -> Row:
    torch.manual_seed(item["seed"])
    product = Product(**item["product"])
    kernel: Any = ucutlass.loads(product.text)
    x, w = product.operands()
    exact, magnitude = x[0].double() @ w[0].double().mT, x[0].double().abs() @ w[0].double().abs().mT
    bound = ROUNDING[product.element] * exact.abs() + _SUM * magnitude
    y = torch.full((product.m, product.n), torch.nan, device="cuda", dtype=x[0].dtype)
    kernel(x[0], w[0], out=y)
    if not bool(((y - exact).abs() <= bound).all()):
        raise ArithmeticError(f"it errs by more than {product.element} rounds")
    times = compare({"ours": lambda i: kernel(x[i], w[i]), "cublas": lambda i: x[i] @ w[i].mT}, len(x))
    over = times["cublas"].median / times["ours"].median
    return {**harness.summary_of(times), "schedule": item["schedule"], "over cublas": over}


def main() -> None:
    options = harness.parser_of(__doc__, drawn=24).parse_args()
    products = drawn(options.drawn, options.seed)
    chosen = {name: products[name] for name in harness.selected(products, options, str)}
    harness.report(
        "benchmarks.few_rows:row",
        {name: (product.text, product.sizes) for name, product in chosen.items()},
        options,
        _line,
        lambda rows: {"over cublas": [r["over cublas"] for r in rows]},
        row_seconds=ROW_SECONDS,
        more={name: {"product": asdict(product)} for name, product in chosen.items()},
    )


def _line(r: Row) -> str:
    us = r["microseconds"]
    return (
        f"{r['name']:22} {us['ours']:7.1f} us  cublas {us['cublas']:7.1f}  ratio {r['over cublas']:.3f}  "
        f"spread {r['spread']:.3f}  {r['schedule']}"
    )


if __name__ == "__main__":
    main()
