"""GEMM of some hundreds of rows that fill no tile, as the planner schedules it, against cuBLAS.

    python -m benchmarks.few_rows --out FILE [--seed N] [--drawn N] [--only NAME,..] [--quick]

Claim: over shapes drawn by the seed (200 to 800 rows, N of 1.5k to 2.5k, K of 7k to 10k) in bf16 and f16 in turn, at
least 1.03 times as fast in the geomean, and none below 0.92. A row counts where no element errs by more than its type rounds.
"""

from __future__ import annotations

import random
import sys
from dataclasses import asdict, dataclass
from typing import Any

import torch

import ucutlass
from benchmarks import harness
from benchmarks.harness import Item, Row
from ucutlass.runtime.timing import compare, sets_for

ROW_SECONDS = 30.0

ROUNDING = {"bf16": 2.0**-8, "f16": 2.0**-11}
"""Of a result, beside what f32 sums err: `_SUM` of the sum of magnitudes."""

_SUM = 2.0**-18

_TYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


@dataclass(frozen=True, slots=True)
class Task:
    """One product."""

    element: str
    m: int
    n: int
    k: int

    @property
    def name(self) -> str:
        return f"{self.element} {self.m}x{self.n}x{self.k}"

    @property
    def text(self) -> str:
        e = self.element
        return f"kernel k(x: {e}[M, K], w: {e}[N, K]) -> {e}[M, N] {{ return dot[K](x, w) }}"


def drawn(count: int, seed: int) -> list[Task]:
    draw = random.Random(seed)
    return [
        Task(
            ("bf16", "f16")[i % 2],
            draw.randrange(200, 801, 8),
            draw.randrange(1536, 2561, 8),
            draw.randrange(7168, 10241, 64),
        )
        for i in range(count)
    ]


def rows_here(items: list[Item], rows: str, item_seconds: float) -> int:
    """Runs in the child of `harness.run`."""
    return harness.serve(_row, items, rows, item_seconds)


def _row(item: Item) -> Row:
    torch.manual_seed(item["seed"])
    task = Task(item["element"], item["m"], item["n"], item["k"])
    kernel: Any = ucutlass.loads(task.text)
    sets = sets_for(2 * (task.m * task.k + task.n * task.k + task.m * task.n))
    like: dict[str, Any] = {"device": "cuda", "dtype": _TYPES[task.element]}
    x = [torch.randn(task.m, task.k, **like) for _ in range(sets)]
    w = [torch.randn(task.n, task.k, **like) for _ in range(sets)]
    exact, magnitude = x[0].double() @ w[0].double().mT, x[0].double().abs() @ w[0].double().abs().mT
    bound = ROUNDING[task.element] * exact.abs() + _SUM * magnitude
    y = torch.full((task.m, task.n), torch.nan, **like)
    kernel(x[0], w[0], out=y)
    if not bool(((y - exact).abs() <= bound).all()):
        raise ArithmeticError(f"it errs by more than {task.element} rounds")
    times = compare({"ours": lambda i: kernel(x[i], w[i]), "cublas": lambda i: x[i] @ w[i].mT}, sets)
    over = times["cublas"].median / times["ours"].median
    return {**harness.summary_of(times), "schedule": item["schedule"], "over cublas": over}


def main() -> None:
    parser = harness.parser_of(__doc__)
    parser.add_argument("--drawn", type=int, default=24, metavar="N", help="products that the seed draws")
    options = parser.parse_args()
    tasks = harness.selected(drawn(options.drawn, options.seed), options, lambda task: task.name)
    rows, unbuilt = harness.measured(
        "benchmarks.few_rows:rows_here",
        {task.name: (task.text, {"M": task.m, "N": task.n, "K": task.k}) for task in tasks},
        options,
        row_seconds=ROW_SECONDS,
        more={task.name: asdict(task) for task in tasks},
    )
    right = [row for row in rows if row["ok"]]
    for r in right:
        us = r["microseconds"]
        print(
            f"{r['name']:22} {us['ours']:7.1f} us  cublas {us['cublas']:7.1f}  ratio {r['over cublas']:.3f}  "
            f"spread {r['spread']:.3f}  {r['schedule']}"
        )
    ratios = {"over cublas": [r["over cublas"] for r in right]}
    print("\n".join([*harness.means(ratios), *harness.lost_lines(rows, unbuilt)]))
    sys.exit(bool(unbuilt) or any(not row["ok"] for row in rows))


if __name__ == "__main__":
    main()
