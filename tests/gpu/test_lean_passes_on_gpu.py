"""f32 by wgmma in three passes of TF32, with A split in registers, or of f16, on a GPU: as exact as f32 in every memory
order, batched, with epilogues and parts of K, over all of f32's range, and infinities and NaNs where f32 has them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch

import ucutlass
from ucutlass.runtime import switches

pytestmark = [pytest.mark.gpu, pytest.mark.nvcc]

Passes = Literal["tf32x3_rs", "f16x3"]

X_ORDERS, W_ORDERS = ("M, K", "K, M"), ("N, K", "K, N")

SCHEDULES: dict[Passes, tuple[str, ...]] = {
    "tf32x3_rs": (
        "",
        "tile 128x128x32  cluster 2x1  swap yes",
        "tile 128x128x32  cluster 1x2  swap no",
        "tile 128x64x32  split_k 3  swap yes",
        "tile 128x16x64  split_k stream  swap yes",
        "tile 256x32x32  swap yes",
        "tile 128x144x32  swap no",
        "tile 128x48x16  cluster 2x2  swap yes",
    ),
    "f16x3": (
        "",
        "tile 128x128x64  cluster 2x1  swap yes",
        "tile 128x128x32  cluster 1x2  swap no",
        "tile 128x64x64  split_k 3  swap yes",
        "tile 128x32x64  split_k stream  swap yes",
        "tile 128x64x64  split_k 4  partials cluster",
        "tile 256x64x64  swap no",
    ),
}
ERRORS: dict[Passes, float] = {"tf32x3_rs": 2.0**-18, "f16x3": 2.0**-20}
"""Of a sum's products without their signs."""


def scheduled(*which: int) -> pytest.MarkDecorator:
    """Some of the schedules of each of the passes, by default all."""
    cases = [(p, s) for p, all_ in SCHEDULES.items() for i, s in enumerate(all_) if not which or i in which]
    return pytest.mark.parametrize(("passes", "schedule"), cases)


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma is of compute capability 9.0")
    monkeypatch.setenv(switches.BUILD_PATH, "auto")


def loaded(text: str, passes: Passes, schedule: str) -> Callable[..., Any]:
    kernel: Callable[..., Any] = ucutlass.loads(
        f"{text}  schedule sm90a {{ warps cooperative  math {passes}  {schedule} }}\n}}\n"
    )
    return kernel


def product(x_order: str, w_order: str, batch: str = "") -> str:
    return (
        f"kernel k(x: f32[{batch}{x_order}], w: f32[{batch}{w_order}]) -> f32[{batch}M, N] {{\n"
        "  return dot[K](x, w)\n"
    )


PRODUCT = product("M, K", "N, K")


def judged(y: torch.Tensor, a: torch.Tensor, b: torch.Tensor, error: float, least: float = 0.0) -> None:
    exact, magnitude = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    assert bool(((y - exact).abs() <= error * magnitude + least).all())


@scheduled()
@pytest.mark.parametrize("seed", range(4))
def test_products_of_every_order_are_those_of_f32(passes: Passes, schedule: str, seed: int) -> None:
    draw = random.Random(f"{schedule} {seed}")
    x_order, w_order = X_ORDERS[seed % 2], W_ORDERS[seed // 2]
    batch = draw.choice(("", "B, "))
    sizes = {
        "B": 3,
        "M": 4 * draw.randint(1, 90),
        "N": 4 * draw.randint(1, 300),
        "K": 4 * draw.randint(200, 900),
    }
    kernel = loaded(product(x_order, w_order, batch), passes, schedule)
    torch.manual_seed(seed)

    def operand(order: str) -> torch.Tensor:
        return torch.randn([sizes[name] for name in f"{batch}{order}".split(", ")], device="cuda")

    x, w = operand(x_order), operand(w_order)
    y, again = kernel(x, w), kernel(x, w)
    assert torch.equal(y, again)
    judged(y, x if x_order == "M, K" else x.mT, w if w_order == "K, N" else w.mT, ERRORS[passes])


@pytest.mark.parametrize(
    ("passes", "schedule"),
    [
        ("tf32x3_rs", "tile 128x32x32  swap yes"),
        ("tf32x3_rs", "tile 128x32x32  split_k 2  swap no"),
        ("f16x3", "tile 128x32x64"),
    ],
)
def test_epilogues_read_and_write_in_both_orientations(passes: Passes, schedule: str) -> None:
    kernel = loaded(
        "kernel k(x: f32[M, K], w: f32[K, N], b: f32[N], r: f32[M, N]) -> (y: f32[M, N], s: f32[N], t: f32[M]) {\n"
        "  d = relu(dot[K](x, w) + b) + r\n  return y = d, s = sum[M](d), t = max[N](d)\n",
        passes,
        schedule,
    )
    torch.manual_seed(0)
    x, w, b, r = (torch.randn(shape, device="cuda") for shape in ((52, 1000), (1000, 392), (392,), (52, 392)))
    y, s, t = kernel(x, w, b, r)
    exact = torch.relu(x.double() @ w.double() + b) + r
    for actual, expected in ((y, exact), (s, exact.sum(0)), (t, exact.amax(1))):
        torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=2e-3)


@scheduled(1, 2, 3)
def test_long_sums_drift_no_more_than_ffmas(passes: Passes, schedule: str) -> None:
    assert not torch.backends.cuda.matmul.allow_tf32
    kernel = loaded(PRODUCT, passes, schedule)
    torch.manual_seed(0)
    x, w = torch.randn(512, 8192, device="cuda"), torch.randn(512, 8192, device="cuda")
    drifted(kernel, x, w)


def drifted(kernel: Callable[..., Any], x: torch.Tensor, w: torch.Tensor) -> None:
    y, eager, exact = (a.double() for a in (kernel(x, w), x @ w.mT, x.double() @ w.double().mT))
    ours, theirs = ((a - exact).square().mean().sqrt() for a in (y, eager))
    assert ours <= theirs


@pytest.mark.parametrize("schedule", ["tile 128x128x64  cluster 2x1", "tile 256x64x64  swap no"])
def test_sums_of_positive_numbers_drift_no_more_than_ffmas(schedule: str) -> None:
    """Where each of the two has a sum's products one after another."""
    torch.manual_seed(0)
    x, w = torch.rand(2048, 2048, device="cuda"), torch.rand(2048, 2048, device="cuda")
    drifted(loaded(PRODUCT, "f16x3", f"{schedule}  split_k 1"), x, w)


@pytest.mark.parametrize(("x_scale", "w_scale"), [(1e30, 1e-30), (1e-40, 1e37), (1e-20, 1e-21), (0.0, 1.0)])
def test_all_of_f32s_range_is_served(x_scale: float, w_scale: float) -> None:
    kernel = loaded(PRODUCT, "f16x3", "tile 128x128x64")
    torch.manual_seed(0)
    x, w = torch.randn(140, 1000, device="cuda") * x_scale, torch.randn(200, 1000, device="cuda") * w_scale
    judged(kernel(x, w), x, w.mT, 2.0**-20, 2.0**-148)


@pytest.mark.parametrize("schedule", SCHEDULES["f16x3"][1:])
@pytest.mark.parametrize("orders", [("M, K", "N, K"), ("K, M", "K, N")])
@pytest.mark.parametrize("wide", ["one large element and a small column", "a small row"])
def test_a_wide_range_takes_no_bits(wide: str, orders: tuple[str, str], schedule: str) -> None:
    kernel = loaded(product(*orders), "f16x3", schedule)
    torch.manual_seed(0)
    x, w = torch.randn(300, 1320, device="cuda") * 1e-3, torch.randn(212, 1320, device="cuda")
    if wide == "a small row":
        x[77] *= 1e-12
    else:
        x[7, 5], w[:, 9] = 1e30, w[:, 9] * 1e-30
    a, b = (t if order[-1] == "K" else t.mT.contiguous() for t, order in zip((x, w), orders, strict=True))
    judged(kernel(a, b), x, w.mT, 2.0**-20)


@scheduled(1, 2, 3)
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_is_where_f32_has_it(value: float, passes: Passes, schedule: str) -> None:
    kernel = loaded(product("M, K", "K, N"), passes, schedule)
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
    kernel = loaded(PRODUCT, "f16x3", "tile 128x128x64")
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
