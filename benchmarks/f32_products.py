"""f32 products in every memory order as the planner schedules them, against eager f32 and eager TF32.

    python -m benchmarks.f32_products --out FILE [--seed N] [--drawn N] [--only NAME,..] [--quick]

Claim: over shapes drawn by the seed they are at least 2.2 times as fast as eager f32 in the geomean and err no more;
products of at most 256 rows take at most twice the time of eager TF32. A row is named by the operands' contiguous
modes and the extents, as in `KN 128x4096x8192`. `over eager` and `over tf32` are eager's times over ours, `error` is
ours over eager f32's, each the root mean square of differences from float64.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

import ucutlass
from benchmarks import bars, campaign, harness
from benchmarks.bars import Bar
from benchmarks.campaign import Case
from benchmarks.harness import Item, Row
from ucutlass.runtime.timing import compare, sets_for

ORDERS = ("KK", "KN", "MK", "MN")

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


@dataclass(frozen=True, slots=True)
class Product:
    """A plain product of drawn extents; `order` has the contiguous modes of the left and of the right operand."""

    m: int
    n: int
    k: int
    order: str = "KK"

    @property
    def extents(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def text(self) -> str:
        x, w = ("M, K" if self.order[0] == "K" else "K, M"), ("N, K" if self.order[1] == "K" else "K, N")
        return f"kernel k(x: f32[{x}], w: f32[{w}]) -> f32[M, N] {{ return dot[K](x, w) }}"

    @property
    def sizes(self) -> dict[str, int]:
        return {"M": self.m, "N": self.n, "K": self.k}

    def operands(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Returns left and right operands that rotate through more than twice the L2."""
        sets = sets_for(4 * (self.m * self.k + self.n * self.k + self.m * self.n))
        x = (self.m, self.k) if self.order[0] == "K" else (self.k, self.m)
        w = (self.n, self.k) if self.order[1] == "K" else (self.k, self.n)
        return [torch.randn(x, device="cuda") for _ in range(sets)], [
            torch.randn(w, device="cuda") for _ in range(sets)
        ]

    def eager(self, x: torch.Tensor, w: torch.Tensor, tf32: bool = False) -> torch.Tensor:
        """Returns eager's product, its operands as views of their memory."""
        torch.backends.cuda.matmul.allow_tf32 = tf32
        return (x if self.order[0] == "K" else x.mT) @ (w.mT if self.order[1] == "K" else w)


def drawn(count: int, seed: int) -> dict[str, Product]:
    """Returns products of a seed by name, two of three of few rows, in each order in turn."""
    draw = random.Random(seed)

    def extent(low: float, high: float, step: int) -> int:
        return int(2 ** draw.uniform(low, high)) // step * step

    products = {}
    for i in range(count):
        many = i % 3 == 2
        m = extent(8, 13, 4) if many else extent(3.6, 8, 4)
        n, k = (extent(10.5, 12.5 if many else 14, 8) for _ in range(2))
        product = Product(m, n, k, ORDERS[i % 4])
        products[f"{product.order} {product.extents}"] = product
    return products


def error(product: Product, y: Tensor, x: Tensor, w: Tensor) -> float:
    part = w[:PROBED] if product.order[1] == "K" else w[:, :PROBED]
    exact = product.eager(x.double(), part.double())
    return float((y[:, :PROBED] - exact).square().mean().sqrt())


def row(item: Item) -> Row:
    torch.manual_seed(item["seed"])
    product = Product(**item["product"])
    kernel: Any = ucutlass.loads(product.text)
    x, w = product.operands()
    errors = [error(product, y, x[0], w[0]) for y in (kernel(x[0], w[0]), product.eager(x[0], w[0]))]
    times = compare(
        {
            "ours": lambda i: kernel(x[i], w[i]),
            "eager": lambda i: product.eager(x[i], w[i]),
            "tf32": lambda i: product.eager(x[i], w[i], tf32=True),
        },
        len(x),
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
    products = drawn(options.drawn, options.seed)
    chosen = {name: products[name] for name in harness.selected(products, options, str)}
    campaign.report(
        "benchmarks.f32_products:row",
        [Case(name, p.text, p.sizes, {"product": asdict(p)}) for name, p in chosen.items()],
        options,
        _line,
        classes,
        row_seconds=ROW_SECONDS,
        held=BARS,
    )


def _line(r: Row) -> str:
    return (
        f"{r['name']:20} {r['microseconds']['ours']:9.1f} us  eager {r['over eager']:.2f}  tf32 {r['over tf32']:.2f}  "
        f"error {r['error']:.2f}  spread {r['spread']:.3f}  {r['schedule']}"
    )


def classes(rows: list[Row]) -> dict[str, dict[str, float]]:
    few = [r for r in rows if int(r["name"].split()[1].split("x")[0]) <= FEW]
    return {
        "over eager": {r["name"]: r["over eager"] for r in rows},
        f"over tf32, at most {FEW} rows": {r["name"]: r["over tf32"] for r in few},
        "error over eager's": {r["name"]: r["error"] for r in rows},
    } | bars.classed(rows, lambda r: r["over eager"], lambda r: f"over eager, {r['name'].split()[0]}")


if __name__ == "__main__":
    main()
