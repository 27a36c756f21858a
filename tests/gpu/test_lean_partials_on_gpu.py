"""Parts of K that the blocks of a cluster add, on a GPU: exact in every result, whatever part of the tiles lies beyond
an edge, and the same bits in every run; and f32 whose B is split in shared memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ucutlass
from ucutlass.runtime import switches

pytestmark = [pytest.mark.gpu, pytest.mark.nvcc]


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("clusters are of compute capability 9.0")
    monkeypatch.setenv(switches.BUILD_PATH, "auto")


def loaded(signature: str, value: str, schedule: str) -> Callable[..., Any]:
    kernel: Callable[..., Any] = ucutlass.loads(
        f"kernel k{signature} {{\n  return {value}\n  schedule sm90a {{ {schedule} }}\n}}\n"
    )
    return kernel


def repeated(kernel: Callable[..., Any], arguments: list[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """The result, which 40 launches one after another give, over memory that holds NaN."""
    results = [torch.full_like(like, torch.nan) for _ in range(40)]
    for result in results:
        kernel(*arguments, out=result)
    assert all(torch.equal(result, results[0]) for result in results)
    return results[0]


SCHEDULES = [
    *(f"tile 128x128x64  cluster 1x1  split_k {parts}" for parts in range(2, 9)),
    "tile 128x128x64  cluster 2x1  split_k 4",
    "tile 128x256x64  cluster 2x2  split_k 2",
    "tile 256x128x64  cluster 1x2  split_k 3",
    "tile 128x208x64  cluster 1x1  split_k 8  swap yes",
    "tile 128x16x64  cluster 1x1  split_k 6  swap yes",
]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_parts_of_k_are_added(schedule: str) -> None:
    draw = random.Random(schedule)
    m, n, k = (8 * draw.randint(*bounds) for bounds in ((3, 100), (10, 250), (80, 1000)))
    kernel = loaded(
        "(x: bf16[M, K], w: bf16[N, K], b: bf16[N], r: bf16[M, N]) -> f32[M, N]",
        "relu(dot[K](x, w) + b) + r",
        f"warps cooperative  {schedule}  partials cluster",
    )
    x, w, b, r = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in ((m, k), (n, k), (n,), (m, n))
    )
    y = repeated(kernel, [x, w, b, r], torch.empty(m, n, device="cuda"))
    exact = torch.relu(x.double() @ w.double().mT + b) + r
    magnitude = x.double().abs() @ w.double().abs().mT + 1
    assert bool(((y - exact).abs() <= 2.0**-18 * magnitude).all())


@pytest.mark.parametrize("orders", [(x, w) for x in ("M, K", "K, M") for w in ("N, K", "K, N")])
@pytest.mark.parametrize("fields", ["", "partials cluster", "swap yes  partials cluster", "swap no"])
def test_f32_is_split_in_shared_memory(orders: tuple[str, str], fields: str) -> None:
    draw = random.Random(f"{orders} {fields}")
    sizes = {"M": 4 * draw.randint(1, 90), "N": 4 * draw.randint(10, 300), "K": 4 * draw.randint(100, 900)}
    x_order, w_order = orders
    kernel = loaded(
        f"(x: f32[{x_order}], w: f32[{w_order}]) -> f32[M, N]", "dot[K](x, w)", f"math tf32x3_fused  {fields}"
    )
    x, w = (torch.randn([sizes[name] for name in order.split(", ")], device="cuda") for order in orders)
    a, b = x if x_order == "M, K" else x.mT, w if w_order == "K, N" else w.mT
    y = repeated(kernel, [x, w], torch.empty(sizes["M"], sizes["N"], device="cuda"))
    exact, magnitude = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    assert bool(((y - exact).abs() <= 2.0**-18 * magnitude).all())


def test_what_is_not_finite_stays_where_it_is() -> None:
    kernel = loaded(
        "(x: f32[M, K], w: f32[N, K]) -> f32[M, N]", "dot[K](x, w)", "math tf32x3_fused  partials cluster"
    )
    x, w = torch.randn(24, 4096, device="cuda"), torch.randn(512, 4096, device="cuda")
    x[3, 100], x[5, 7], w[9, 4000] = torch.inf, torch.nan, -torch.inf
    y = kernel(x, w)
    finite = torch.ones_like(y, dtype=torch.bool)
    finite[3], finite[5], finite[:, 9] = False, False, False
    assert bool(y[finite].isfinite().all()) and bool(y[5].isnan().all())
    row = y[3][torch.arange(512, device="cuda") != 9]
    assert bool(row.isinf().all()) and torch.equal(row > 0, w[torch.arange(512, device="cuda") != 9, 100] > 0)
