"""f32 by wgmma in three tf32 passes on a GPU: as exact as f32, and infinities and NaNs where f32 has them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import ucutlass
from ucutlass.runtime import switches

pytestmark = [pytest.mark.gpu, pytest.mark.nvcc]

SCHEDULES = (
    "math tf32x3  warps cooperative  tile 128x192x32  cluster 2x1",
    "math tf32x3  warps cooperative  tile 128x128x32  split_k stream",
    "math tf32x3  warps cooperative  tile 128x128x32  cluster 2x2",
    "math tf32x3  warps pingpong  tile 64x128x32  cluster 1x2",
    "math tf32x3  warps pingpong  tile 64x64x64",
)


@pytest.fixture(params=SCHEDULES)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., torch.Tensor]:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma is of compute capability 9.0")
    monkeypatch.setenv(switches.BUILD_PATH, "auto")
    made: Callable[..., torch.Tensor] = ucutlass.loads(
        "kernel k(x: f32[B, M, K], w: f32[B, N, K]) -> f32[B, M, N] {\n"
        f"  return dot[K](x, w)\n  schedule sm90a {{ {request.param} }}\n}}\n"
    )
    return made


def operands(b: int, m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(k)
    return torch.randn(b, m, k, device="cuda"), torch.randn(b, n, k, device="cuda")


@pytest.mark.parametrize("shape", [(1, 128, 256, 32), (3, 300, 212, 100), (1, 1000, 520, 2048), (7, 1, 4, 4)])
def test_errors_are_those_of_f32(
    shape: tuple[int, int, int, int], kernel: Callable[..., torch.Tensor]
) -> None:
    x, w = operands(*shape)
    y, again = kernel(x, w), kernel(x, w)
    assert torch.equal(y, again)
    exact, magnitude = (a @ b.mT for a, b in ((x.double(), w.double()), (x.abs(), w.abs())))
    assert bool(((y - exact).abs() <= 2.0**-18 * magnitude).all())


@pytest.mark.parametrize("special", [False, True])
def test_long_sums_drift_no_more_than_ffmas(special: bool, kernel: Callable[..., torch.Tensor]) -> None:
    """In the root mean square, against the product that torch takes of the same operands by FFMA. Sums that
    tensor cores added would be off by 60 times that. Also in the loop for what is not finite."""
    assert not torch.backends.cuda.matmul.allow_tf32
    x, w = operands(1, 513, 512, 8192)
    if special:
        x[0, 512, 77] = torch.inf
    y, eager, exact = (a[0, :512].double() for a in (kernel(x, w), x @ w.mT, x.double() @ w.double().mT))
    ours, theirs = ((a - exact).square().mean().sqrt() for a in (y, eager))
    assert ours <= theirs


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_is_where_f32_has_it(value: float, kernel: Callable[..., torch.Tensor]) -> None:
    x, w = operands(2, 300, 212, 320)
    finite = kernel(x, w)
    x[0, 7, 5], x[1, 299, 319], w[1, 3, 9], w[1, 211, 319] = value, -value, value, torch.inf
    y, expected = kernel(x, w), x @ w.mT
    for test in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(test(y), test(expected))
    there = expected.isfinite()
    assert torch.allclose(y[there], finite[there], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("first", "second"), [("B, M, K", "B, K, N"), ("B, K, M", "B, N, K"), ("B, K, M", "B, K, N")]
)
@pytest.mark.parametrize("shape", [(3, 300, 212, 100), (1, 516, 1032, 260)])
def test_operands_along_their_rows_are_turned(
    first: str, second: str, shape: tuple[int, int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma is of compute capability 9.0")
    monkeypatch.setenv(switches.BUILD_PATH, "auto")
    k = ucutlass.loads(
        f"kernel k(x: f32[{first}], w: f32[{second}]) -> f32[B, M, N] {{\n"
        "  return dot[K](x, w)\n  schedule sm90a { math tf32x3  warps cooperative  tile 128x128x32 }\n}\n"
    )
    x, w = operands(*shape)
    x[0, 5, 7], w[0, 3, 9] = torch.inf, torch.nan
    y = k(x.mT.contiguous() if first.endswith("M") else x, w.mT.contiguous() if second.endswith("N") else w)
    exact, magnitude = (a @ b.mT for a, b in ((x.double(), w.double()), (x.abs(), w.abs())))
    for test in (torch.isnan, torch.isinf):
        assert torch.equal(test(y), test(exact))
    finite = exact.isfinite()
    assert bool(((y - exact).abs() <= 2.0**-18 * magnitude)[finite].all())
