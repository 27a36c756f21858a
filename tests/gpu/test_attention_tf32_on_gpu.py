"""Attention of f32 operands on a GPU: programs and heads stand the verifier, in three TF32 passes and in one."""

from __future__ import annotations

import pytest
import torch

import ucutlass
from tests.gpu.test_attention_on_gpu import SIZES, stands
from tests.programs_attention import PROGRAMS, in_tf32

pytestmark = [pytest.mark.gpu, pytest.mark.nvcc]

TILES = {
    "f32": {64: "128x64", 128: "128x64", 256: "128x32"},
    "tf32": {64: "128x128", 128: "128x128", 256: "128x64"},
}


@pytest.fixture(autouse=True)
def _hopper() -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma is of compute capability 9.0")


@pytest.mark.parametrize("name", [name for name in PROGRAMS if not name.startswith("packed")])
@pytest.mark.parametrize("compute_type", ["f32", "tf32"])
def test_programs_stand(name: str, compute_type: str) -> None:
    stands(in_tf32(name, compute_type, 64, TILES[compute_type][64]), SIZES, most=8)


@pytest.mark.parametrize("head", [8, 32, 72, 96, 128, 192, 256])
@pytest.mark.parametrize("compute_type", ["f32", "tf32"])
def test_heads_stand(head: int, compute_type: str) -> None:
    tile = next(tile for limit, tile in TILES[compute_type].items() if head <= limit)
    stands(in_tf32("causal at the end", compute_type, head, tile), SIZES | {"L": 333}, most=6)


@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("compute_type", ["f32", "tf32"])
def test_few_queries_stand(queries: int, compute_type: str) -> None:
    """Their keys are split among thread blocks."""
    sizes = {"B": 1, "H": 2, "G": 4, "L": queries, "S": 4099}
    stands(in_tf32("grouped causal at the end", compute_type, 64, "64x64"), sizes, most=6)


def test_three_passes_err_as_f32_does() -> None:
    """Against float64, beside what torch computes in f32 without TF32."""
    assert not torch.backends.cuda.matmul.allow_tf32
    kernel = ucutlass.loads(in_tf32("causal", "f32", 64, "128x64"))
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 8, 2048, 64, device="cuda") for _ in range(3))
    exact = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), is_causal=True
    )
    eager = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    ours, theirs = ((y.double() - exact).norm() for y in (kernel(q, k, v), eager))
    assert float(ours) <= 2.0 * float(theirs)
