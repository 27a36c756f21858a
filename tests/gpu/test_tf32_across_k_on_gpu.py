"""TF32 whose operands lie across K on a GPU: A passes through registers, B is turned in shared memory."""

from __future__ import annotations

import pytest
import torch

import ucutlass
from ucutlass.runtime import switches

pytestmark = [pytest.mark.gpu, pytest.mark.nvcc]

SCHEDULES = (
    "warps cooperative  tile 128x128x32  cluster 2x2",
    "warps cooperative  tile 128x96x32  cluster 4x1  stages 3",
    "warps cooperative  tile 256x160x32  cluster 1x2",
    "warps cooperative  tile 128x64x32  split_k 3  partials cluster",
    "warps cooperative  tile 128x192x32  split_k stream",
    "warps pingpong  tile 64x32x32  cluster 1x4",
    "warps cooperative  tile 128x32x64  cluster 2x1",
    "warps pingpong  tile 64x32x64",
    "warps pingpong  tile 192x32x32  cluster 4x1",
)

ORDERS = (("B, M, K", "B, K, N"), ("B, K, M", "B, N, K"), ("B, K, M", "B, K, N"))

SHAPES = ((1, 128, 256, 96), (3, 300, 212, 100), (1, 1000, 520, 2052), (7, 4, 4, 4))


def rounded(x: torch.Tensor) -> torch.Tensor:
    """Returns f64 of the operand to the nearest number of 10 explicit bits."""
    bits = x.view(torch.int32)
    return ((bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFF).view(torch.float32).double()


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("first", "second"), ORDERS)
def test_products_are_those_of_rounded_operands(
    schedule: str, first: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma is of compute capability 9.0")
    monkeypatch.setenv(switches.BUILD_PATH, "auto")
    kernel = ucutlass.loads(
        f"kernel k(x: f32[{first}], w: f32[{second}], bias: f32[N]) -> f32[B, M, N] {{\n"
        f"  return dot[K](tf32(x), tf32(w)) + bias\n  schedule sm90a {{ {schedule}  swap no }}\n}}\n"
    )
    for b, m, n, k in SHAPES:
        if "split_k 3" in schedule and k < 96:
            continue
        torch.manual_seed(k)
        x, w = torch.randn(b, m, k, device="cuda"), torch.randn(b, n, k, device="cuda")
        bias = torch.randn(n, device="cuda")
        exact = rounded(x) @ rounded(w).mT + bias.double()
        bound = 2.0**-18 * (x.double().abs() @ w.double().abs().mT + bias.double().abs())
        given = (
            x.mT.contiguous() if first == "B, K, M" else x,
            w.mT.contiguous() if second == "B, K, N" else w,
        )
        for _ in range(2):
            assert bool(((kernel(*given, bias).double() - exact).abs() <= bound).all())
