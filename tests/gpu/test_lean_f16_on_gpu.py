"""f32 by wgmma in three passes of f16, on a GPU: as exact as f32 in every memory order, batched, with epilogues and
parts of K, over all of f32's range, and infinities and NaNs where f32 has them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ucutlass
from ucutlass.runtime import switches

pytestmark = [pytest.mark.gpu, pytest.mark.nvcc]

X_ORDERS, W_ORDERS = ("M, K", "K, M"), ("N, K", "K, N")

SCHEDULES = (
    "",
    "tile 128x128x64  cluster 2x1  swap yes",
    "tile 128x128x32  cluster 1x2  swap no",
    "tile 128x64x64  split_k 3  swap yes",
    "tile 128x32x64  split_k stream  swap yes",
    "tile 128x64x64  split_k 4  partials cluster",
    "tile 256x64x64  swap no",
)


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma is of compute capability 9.0")
    monkeypatch.setenv(switches.BUILD_PATH, "auto")


def loaded(text: str, schedule: str) -> Callable[..., Any]:
    kernel: Callable[..., Any] = ucutlass.loads(
        f"{text}  schedule sm90a {{ warps cooperative  math f16x3  {schedule} }}\n}}\n"
    )
    return kernel


PRODUCT = "kernel k(x: f32[M, K], w: f32[N, K]) -> f32[M, N] {\n  return dot[K](x, w)\n"


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("seed", range(4))
def test_products_of_every_order_are_those_of_f32(schedule: str, seed: int) -> None:
    draw = random.Random(f"{schedule} {seed}")
    x_order, w_order = X_ORDERS[seed % 2], W_ORDERS[seed // 2]
    batch = draw.choice(("", "B, "))
    sizes = {
        "B": 3,
        "M": 4 * draw.randint(1, 90),
        "N": 4 * draw.randint(1, 300),
        "K": 4 * draw.randint(200, 900),
    }
    kernel = loaded(
        f"kernel k(x: f32[{batch}{x_order}], w: f32[{batch}{w_order}]) -> f32[{batch}M, N] {{\n"
        "  return dot[K](x, w)\n",
        schedule,
    )
    torch.manual_seed(seed)

    def operand(order: str) -> torch.Tensor:
        return torch.randn([sizes[name] for name in f"{batch}{order}".split(", ")], device="cuda")

    x, w = operand(x_order), operand(w_order)
    y, again = kernel(x, w), kernel(x, w)
    assert torch.equal(y, again)
    a, b = x if x_order == "M, K" else x.mT, w if w_order == "K, N" else w.mT
    exact, magnitude = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    assert bool(((y - exact).abs() <= 2.0**-20 * magnitude).all())


def test_epilogues_read_and_write() -> None:
    kernel = loaded(
        "kernel k(x: f32[M, K], w: f32[K, N], b: f32[N], r: f32[M, N]) -> (y: f32[M, N], s: f32[N], t: f32[M]) {\n"
        "  d = relu(dot[K](x, w) + b) + r\n  return y = d, s = sum[M](d), t = max[N](d)\n",
        "tile 128x32x64",
    )
    torch.manual_seed(0)
    x, w, b, r = (torch.randn(shape, device="cuda") for shape in ((52, 1000), (1000, 392), (392,), (52, 392)))
    y, s, t = kernel(x, w, b, r)
    exact = torch.relu(x.double() @ w.double() + b) + r
    for actual, expected in ((y, exact), (s, exact.sum(0)), (t, exact.amax(1))):
        torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=2e-3)


def test_long_sums_drift_no_more_than_ffmas() -> None:
    assert not torch.backends.cuda.matmul.allow_tf32
    kernel = loaded(PRODUCT, "tile 128x128x64")
    torch.manual_seed(0)
    x, w = torch.randn(512, 8192, device="cuda"), torch.randn(512, 8192, device="cuda")
    y, eager, exact = (a.double() for a in (kernel(x, w), x @ w.mT, x.double() @ w.double().mT))
    ours, theirs = ((a - exact).square().mean().sqrt() for a in (y, eager))
    assert ours <= theirs


@pytest.mark.parametrize(("x_scale", "w_scale"), [(1e30, 1e-30), (1e-40, 1e37), (1e-20, 1e-21), (0.0, 1.0)])
def test_all_of_f32s_range_is_served(x_scale: float, w_scale: float) -> None:
    kernel = loaded(PRODUCT, "tile 128x128x64")
    torch.manual_seed(0)
    x, w = torch.randn(140, 1000, device="cuda") * x_scale, torch.randn(200, 1000, device="cuda") * w_scale
    exact, magnitude = x.double() @ w.double().mT, x.double().abs() @ w.double().abs().mT
    assert bool(((kernel(x, w) - exact).abs() <= 2.0**-20 * magnitude + 2.0**-148).all())


@pytest.mark.parametrize("schedule", SCHEDULES[1:])
@pytest.mark.parametrize("orders", [("M, K", "N, K"), ("K, M", "K, N")])
def test_an_outlier_takes_no_bits_from_what_it_does_not_meet(orders: tuple[str, str], schedule: str) -> None:
    kernel = loaded(
        f"kernel k(x: f32[{orders[0]}], w: f32[{orders[1]}]) -> f32[M, N] {{\n  return dot[K](x, w)\n",
        schedule,
    )
    torch.manual_seed(0)
    x, w = torch.randn(300, 1320, device="cuda") * 1e-3, torch.randn(212, 1320, device="cuda")
    x[7, 5], w[:, 9] = 1e30, w[:, 9] * 1e-30
    x, w = (t if order[-1] == "K" else t.mT.contiguous() for t, order in zip((x, w), orders, strict=True))
    y = kernel(x, w)
    a, b = x if orders[0] == "M, K" else x.mT, w.mT if orders[1] == "N, K" else w
    exact, magnitude = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    assert bool(((y - exact).abs() <= 2.0**-19 * magnitude).all())


@pytest.mark.parametrize("schedule", SCHEDULES[1:4])
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_is_where_f32_has_it(value: float, schedule: str) -> None:
    kernel = loaded("kernel k(x: f32[M, K], w: f32[K, N]) -> f32[M, N] {\n  return dot[K](x, w)\n", schedule)
    torch.manual_seed(0)
    x, w = torch.randn(300, 320, device="cuda"), torch.randn(320, 212, device="cuda")
    finite = kernel(x, w)
    x[7, 5], x[299, 319], w[9, 3], w[319, 211] = value, -value, value, torch.inf
    y, expected = kernel(x, w), x @ w
    for test in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(test(y), test(expected))
    there = expected.isfinite()
    assert torch.allclose(y[there], finite[there], rtol=1e-4, atol=1e-3)


def test_streams_have_exponents_of_their_own() -> None:
    kernel = loaded(PRODUCT, "tile 128x128x64")
    operands = [torch.randn(512, 2048, device="cuda") * 10.0**i for i in range(4)]
    expected = [kernel(x, x) for x in operands]
    streams = [torch.cuda.Stream() for _ in operands]
    torch.cuda.synchronize()
    results: list[list[torch.Tensor]] = [[] for _ in operands]
    for _ in range(20):
        for stream, x, result in zip(streams, operands, results, strict=True):
            with torch.cuda.stream(stream):
                result.append(kernel(x, x))
    torch.cuda.synchronize()
    for one, result in zip(expected, results, strict=True):
        assert all(torch.equal(one, y) for y in result)
