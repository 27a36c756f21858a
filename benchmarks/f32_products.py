"""f32 products in every memory order as the planner schedules them, against eager f32 and eager TF32.

    python -m benchmarks.f32_products --out FILE [--seed N] [--drawn N] [--only NAME,..] [--quick]

Claim: over shapes drawn by the seed they are at least 2.2 times as fast as eager f32 in the geomean and err no more;
products of at most 256 rows take at most twice the time of eager TF32. A row is named by the operands' contiguous
modes and the extents, as in `KN 128x4096x8192`. `over eager` and `over tf32` are eager's times over ours, `error` is
ours over eager f32's, each the root mean square of differences from float64.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

import ucutlass
from benchmarks import harness
from benchmarks.harness import Item, Row
from ucutlass.runtime.timing import compare, sets_for

ORDERS = ("KK", "KN", "MK", "MN")
"""The contiguous mode of the left and of the right operand."""

FEW = 256
"""Rows up to which a product counts as one of few rows."""

ROW_SECONDS = 60.0

PROBED = 256
"""Columns that are computed in float64."""


@dataclass(frozen=True, slots=True)
class Task:
    """One product."""

    order: str
    m: int
    n: int
    k: int

    @property
    def name(self) -> str:
        return f"{self.order} {self.m}x{self.n}x{self.k}"

    @property
    def text(self) -> str:
        x = "M, K" if self.order[0] == "K" else "K, M"
        w = "N, K" if self.order[1] == "K" else "K, N"
        return f"kernel k(x: f32[{x}], w: f32[{w}]) -> f32[M, N] {{ return dot[K](x, w) }}"


def drawn(count: int, seed: int) -> list[Task]:
    """Products of one seed, two of three of few rows, in each order in turn."""
    draw = random.Random(seed)

    def extent(low: float, high: float, step: int) -> int:
        return int(2 ** draw.uniform(low, high)) // step * step

    tasks = []
    for i in range(count):
        many = i % 3 == 2
        m = extent(8, 13, 4) if many else extent(3.6, 8, 4)
        n, k = (extent(10.5, 12.5 if many else 14, 8) for _ in range(2))
        tasks.append(Task(ORDERS[i % 4], m, n, k))
    return tasks


def operands(task: Task, sets: int) -> tuple[list[Tensor], list[Tensor]]:
    x = (task.m, task.k) if task.order[0] == "K" else (task.k, task.m)
    w = (task.n, task.k) if task.order[1] == "K" else (task.k, task.n)
    return [torch.randn(x, device="cuda") for _ in range(sets)], [
        torch.randn(w, device="cuda") for _ in range(sets)
    ]


def product(task: Task, x: Tensor, w: Tensor, tf32: bool = False) -> Tensor:
    """Eager's product, its operands as views of their memory."""
    torch.backends.cuda.matmul.allow_tf32 = tf32
    return (x if task.order[0] == "K" else x.mT) @ (w.mT if task.order[1] == "K" else w)


def error(task: Task, y: Tensor, x: Tensor, w: Tensor) -> float:
    part = w[:PROBED] if task.order[1] == "K" else w[:, :PROBED]
    exact = product(task, x.double(), part.double())
    return float((y[:, :PROBED] - exact).square().mean().sqrt())


def rows_here(items: list[Item], rows: str, item_seconds: float) -> int:
    """Runs in the child of `harness.run`."""
    return harness.serve(_row, items, rows, item_seconds)


def _row(item: Item) -> Row:
    torch.manual_seed(item["seed"])
    task = Task(item["order"], item["m"], item["n"], item["k"])
    kernel: Any = ucutlass.loads(task.text)
    sets = sets_for(4 * (task.m * task.k + task.n * task.k + task.m * task.n))
    x, w = operands(task, sets)
    errors = [error(task, y, x[0], w[0]) for y in (kernel(x[0], w[0]), product(task, x[0], w[0]))]
    times = compare(
        {
            "ours": lambda i: kernel(x[i], w[i]),
            "eager": lambda i: product(task, x[i], w[i]),
            "tf32": lambda i: product(task, x[i], w[i], tf32=True),
        },
        sets,
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
    parser = harness.parser_of(__doc__)
    parser.add_argument("--drawn", type=int, default=36, metavar="N", help="products that the seed draws")
    options = parser.parse_args()
    tasks = harness.selected(drawn(options.drawn, options.seed), options, lambda task: task.name)
    rows, unbuilt = harness.measured(
        "benchmarks.f32_products:rows_here",
        {task.name: (task.text, {"M": task.m, "N": task.n, "K": task.k}) for task in tasks},
        options,
        row_seconds=ROW_SECONDS,
        more={task.name: asdict(task) for task in tasks},
    )
    print(table([row for row in rows if row["ok"]]))
    print("\n".join(harness.lost_lines(rows, unbuilt)))
    sys.exit(bool(unbuilt) or any(not row["ok"] for row in rows))


def table(rows: Sequence[Row]) -> str:
    lines = [
        f"{r['name']:20} {r['microseconds']['ours']:9.1f} us  eager {r['over eager']:.2f}  tf32 {r['over tf32']:.2f}  "
        f"error {r['error']:.2f}  spread {r['spread']:.3f}  {r['schedule']}"
        for r in rows
    ]
    few = [r for r in rows if int(r["name"].split()[1].split("x")[0]) <= FEW]
    ratios = {
        "over eager": [r["over eager"] for r in rows],
        f"over tf32, at most {FEW} rows": [r["over tf32"] for r in few],
    }
    ratios |= {
        f"over eager, {order}": [r["over eager"] for r in rows if r["name"].startswith(order)]
        for order in ORDERS
    }
    return "\n".join([*lines, *harness.means(ratios)])


if __name__ == "__main__":
    main()
