"""Attention on a GPU: the programs of `tests.programs_attention` and every head stand the verifier."""

from __future__ import annotations

import pytest
import torch

import ucutlass
from tests.programs_attention import PROGRAMS, text
from ucutlass import frontend
from ucutlass.backend import build_kernel
from ucutlass.hardware import device_named
from ucutlass.runtime.distributions import Distribution
from ucutlass.shapes import complete, free_dims
from ucutlass.trials import verified

pytestmark = [pytest.mark.gpu, pytest.mark.nvcc]

SIZES = {"B": 2, "H": 3, "G": 2, "L": 197, "S": 333, "E": 128}
DISTRIBUTIONS: tuple[Distribution, ...] = (
    "integer", "normal", "uniform", "large", "positive", "zeros", "one_hot", "wide", "special",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _hopper() -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma is of compute capability 9.0")


def stands(program: str, sizes: dict[str, int], most: int = 40) -> None:
    checked = frontend.read_text(program)
    kernel = frontend.kernel(checked)
    extents = complete(kernel, {d: n for d, n in sizes.items() if d in free_dims(kernel)})
    built = build_kernel(
        checked, kernel, extents, "sm90a", device=device_named(torch.cuda.get_device_name(0))
    )
    by_name = dict(zip(kernel.dims, extents, strict=True))
    plan = verified.plan(checked, kernel, built, by_name, seed=5, distributions=DISTRIBUTIONS, most=most)
    evidence = verified.run(plan)
    assert evidence.ok, "\n".join(evidence.failures())


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_stand(name: str) -> None:
    lane = "bf16" if len(name) % 2 else "f16"
    stands(text(name, lane, 64), SIZES)


@pytest.mark.parametrize("name", ["plain", "causal at the end", "capped"])
@pytest.mark.parametrize("head", [8, 32, 72, 96, 128, 192, 256])
def test_heads_stand(name: str, head: int) -> None:
    lane = "f16" if head % 64 else "bf16"
    stands(text(name, lane, head), SIZES | {"L": 333 if head > 64 else 70}, most=12)


@pytest.mark.parametrize("rows", [1, 64, 65, 1031])
def test_numbers_of_rows_stand(rows: int) -> None:
    stands(text("causal at the end", "bf16", 128), SIZES | {"L": rows, "S": 1031}, most=8)


def test_a_row_without_keys_is_nan_and_others_are_not() -> None:
    made = ucutlass.loads(text("causal", "bf16").replace("index(S) <= index(L)", "index(S) < index(L)"))
    q, k, v = (torch.randn(1, 2, 300, 64, device="cuda").bfloat16() for _ in range(3))
    y = made(q, k, v)
    assert bool(y[:, :, 0].isnan().all()) and not bool(y[:, :, 1:].isnan().any())


def test_long_sequences_agree_with_pytorch() -> None:
    made = ucutlass.loads(text("causal", "bf16"))
    q, k, v = (torch.randn(1, 8, 8192, 128, device="cuda").bfloat16() for _ in range(3))
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).float()
    error = (made(q, k, v).float() - wanted).norm() / wanted.norm()
    assert float(error) < 0.01
