"""Norms and softmax in a product's own epilogue, on a GPU: within the rounding of their result, whatever part of the
tiles lies beyond an edge, and the same bits in every run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ucutlass
from ucutlass.runtime import switches

pytestmark = [pytest.mark.gpu, pytest.mark.nvcc]


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("clusters are of compute capability 9.0")
    monkeypatch.setenv(switches.BUILD_PATH, "auto")


VALUE = "v = dot[K](x, w) + b + r"

NORMS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "layer norm": ("(v - mean[N](v)) * rsqrt(var[N](v) + 1e-5)", lambda v: F.layer_norm(v, v.shape[-1:])),
    "rms norm": ("v * rsqrt(mean[N](v * v) + 1e-5)", lambda v: F.rms_norm(v, v.shape[-1:], None, 1e-5)),
    "softmax": ("softmax[N](v)", lambda v: torch.softmax(v, -1)),
    "log softmax": ("log_softmax[N](v)", lambda v: torch.log_softmax(v, -1)),
    "range": ("(v - min[N](v)) / (max[N](v) - min[N](v))", lambda v: (v - v.amin(-1, True)) / _range(v)),
}


def _range(v: Tensor) -> Tensor:
    return v.amax(-1, True) - v.amin(-1, True)


SCHEDULES = {
    "warps cooperative  tile 128x256x64  cluster 1x1": 248,
    "warps cooperative  tile 128x128x64  cluster 1x4": 504,
    "warps cooperative  tile 128x256x64  cluster 1x8": 2048,
    "warps pingpong  tile 64x128x64  cluster 2x4": 392,
    "warps pingpong  tile 64x64x64  cluster 1x8": 264,  # of which three blocks have nothing
    "warps pingpong  tile 128x128x64  cluster 1x8": 1000,
}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rows_are_normed(norm: str, schedule: str) -> None:
    value, exact = NORMS[norm]
    kernel: Any = ucutlass.loads(
        "kernel k(x: bf16[M, K], w: bf16[N, K], b: bf16[N], r: bf16[M, N]) -> f32[M, N] {\n"
        f"  {VALUE}\n  return {value}\n  schedule sm90a {{ {schedule} }}\n}}\n"
    )
    m, n, k = 5000, SCHEDULES[schedule], 328  # several tiles a block
    x, w, b, r = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in ((m, k), (n, k), (n,), (m, n))
    )
    results = [torch.full((m, n), torch.nan, device="cuda") for _ in range(20)]
    for result in results:
        kernel(x, w, b, r, out=result)
    assert all(torch.equal(result, results[0]) for result in results)
    expected = exact(x.double() @ w.double().mT + b + r)
    # Sums of K products and of N terms in f32, of values of some tens.
    assert bool(((results[0] - expected).abs() <= 2.0**-13 * (1 + expected.abs())).all())


def test_what_is_not_finite_stays_in_its_row() -> None:
    kernel: Any = ucutlass.loads(
        "kernel k(x: bf16[M, K], w: bf16[N, K]) -> f32[M, N] {\n  return softmax[N](dot[K](x, w))\n"
        "  schedule sm90a { warps cooperative  tile 128x128x64  cluster 1x4 }\n}\n"
    )
    x, w = (torch.randn(s, 64, device="cuda", dtype=torch.bfloat16) for s in (300, 400))
    x[3, 5], x[200, 7] = torch.nan, torch.inf
    y = kernel(x, w)
    lost = torch.zeros(300, dtype=torch.bool, device="cuda")
    lost[[3, 200]] = True
    assert bool(y[lost].isnan().all()) and bool(y[~lost].isfinite().all())


def test_a_block_of_masked_columns_adds_nothing() -> None:
    kernel: Any = ucutlass.loads(
        "kernel k(x: bf16[M, K], w: bf16[N, K], r: f32[M, N]) -> f32[M, N] {\n"
        "  return softmax[N](dot[K](x, w) + r)\n"
        "  schedule sm90a { warps cooperative  tile 128x128x64  cluster 1x4 }\n}\n"
    )
    x, w = (torch.randn(s, 64, device="cuda", dtype=torch.bfloat16) for s in (300, 400))
    mask = torch.zeros(300, 400, device="cuda")
    mask[:100, :200] = mask[200] = -torch.inf
    expected = torch.softmax(x.double() @ w.double().mT + mask, -1)
    assert torch.allclose(kernel(x, w, mask).double(), expected, rtol=2.0**-13, atol=2.0**-13, equal_nan=True)
