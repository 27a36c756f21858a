"""Attention on a GPU: the programs of `tests.programs_attention` and every head stand the verifier."""

from __future__ import annotations

import itertools

import pytest
import torch

import ucutlass
from tests.kernels.huge_numbers import Scores, arguments_of
from tests.programs_attention import PROGRAMS, text
from ucutlass import frontend
from ucutlass.backend import build_kernel
from ucutlass.ir.hardware import device_named
from ucutlass.reference import expect
from ucutlass.runtime.distributions import Distribution
from ucutlass.shapes import complete, free_dims
from ucutlass.tasks import verification

pytestmark = [pytest.mark.gpu, pytest.mark.nvcc]

SIZES = {"B": 2, "H": 3, "G": 2, "L": 197, "S": 333, "E": 128, "O": 9}
DISTRIBUTIONS: tuple[Distribution, ...] = (
    "integer",
    "normal",
    "uniform",
    "large",
    "positive",
    "zeros",
    "one_hot",
    "wide",
    "special",
)


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
    plan = verification.plan(checked, kernel, built, by_name, seed=5, distributions=DISTRIBUTIONS, most=most)
    evidence = verification.run(plan)
    assert evidence.ok, "\n".join(evidence.failures())


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_stand(name: str) -> None:
    compute_type = "bf16" if len(name) % 2 else "f16"
    stands(text(name, compute_type, 64), SIZES)


@pytest.mark.parametrize("name", ["plain", "causal at the end", "capped"])
@pytest.mark.parametrize("head", [8, 32, 72, 96, 128, 192, 256])
def test_heads_stand(name: str, head: int) -> None:
    compute_type = "f16" if head % 64 else "bf16"
    stands(text(name, compute_type, head), SIZES | {"L": 333 if head > 64 else 70}, most=12)


@pytest.mark.parametrize("rows", [1, 64, 65, 1031])
def test_numbers_of_rows_stand(rows: int) -> None:
    stands(text("causal at the end", "bf16", 128), SIZES | {"L": rows, "S": 1031}, most=8)


@pytest.mark.parametrize("head", [32, 64, 128, 256])
@pytest.mark.parametrize("name", [n for n in PROGRAMS if n.startswith("packed")])
def test_packed_sequences_stand(name: str, head: int) -> None:
    sizes = {"H": 2, "G": 2, "L": 1031, "S": 1511, "E": 6, "O": 6}
    stands(text(name, "f16" if head == 64 else "bf16", head), sizes, most=6)


@pytest.mark.parametrize("queries", [1, 5, 64])
@pytest.mark.parametrize("head", [64, 128, 192])
def test_few_queries_stand(queries: int, head: int) -> None:
    """Their keys are split among thread blocks."""
    sizes = {"B": 1, "H": 2, "G": 4, "L": queries, "S": 4099}
    stands(text("grouped causal at the end", "bf16", head), sizes, most=6)


@pytest.mark.parametrize("name", ["window", "lengths", "gate", "turned result", "rows first", "two heads"])
def test_split_keys_stand(name: str) -> None:
    sizes = SIZES | {"B": 1, "L": 7, "S": 7001}
    stands(text(name, "f16", 64), sizes, most=6)


OFFSETS = ([0, 0, 300, 300, 517, 517, 700, 700], [0, 1, 2, 3, 4, 699, 700, 700], [0, 0, 0, 0, 0, 0, 0, 700])


@pytest.mark.parametrize("starts", OFFSETS)
def test_empty_sequences_and_long_ones(starts: list[int]) -> None:
    kernel = ucutlass.loads(text("packed causal from the start", "bf16"))
    q, k, v = (torch.randn(700, h, 64, device="cuda").bfloat16() for h in (4, 2, 2))
    ends = torch.tensor(starts, dtype=torch.int32, device="cuda")
    y = kernel(q, k, v, ends, ends).float()
    for begin, end in itertools.pairwise(starts):
        if begin == end:
            continue
        a = q[begin:end].transpose(0, 1).double()
        b, c = (x[begin:end].transpose(0, 1).repeat_interleave(2, 0).double() for x in (k, v))
        expected = torch.nn.functional.scaled_dot_product_attention(a, b, c, is_causal=True).transpose(0, 1)
        error = (y[begin:end] - expected).norm() / expected.norm()
        assert float(error) < 0.01, (begin, end)


WRONG = (
    [0, 500, 100, 700],
    [-5, 10, 2**30, -(2**30)],
    [700, 600, 500, 0],
    [0, 0, 0, 0],
    [9000, 9000, 9000, 9000],
)


@pytest.mark.parametrize("starts", WRONG)
def test_wrong_offsets_touch_nothing_outside(starts: list[int]) -> None:
    """Every row is written, nothing beside the result is, and the device is well afterwards."""
    kernel = ucutlass.loads(text("packed causal at the end", "bf16").replace("i64", "i32"))
    q, k, v = (torch.randn(700, h, 64, device="cuda").bfloat16() for h in (4, 2, 2))
    room = torch.full((3, 700, 4, 64), 7.0, device="cuda").bfloat16()
    ends = torch.tensor(starts, dtype=torch.int32, device="cuda")
    room[1] = 1e30
    kernel(q, k, v, ends, ends, out=room[1])
    torch.cuda.synchronize()
    assert bool((room[0] == 7.0).all()) and bool((room[2] == 7.0).all())
    assert not bool((room[1] == torch.tensor(1e30).bfloat16()).any())


def test_a_row_without_keys_is_nan_and_others_are_not() -> None:
    kernel = ucutlass.loads(text("causal", "bf16").replace("index(S) <= index(L)", "index(S) < index(L)"))
    q, k, v = (torch.randn(1, 2, 300, 64, device="cuda").bfloat16() for _ in range(3))
    y = kernel(q, k, v)
    assert bool(y[:, :, 0].isnan().all()) and not bool(y[:, :, 1:].isnan().any())


def test_long_sequences_agree_with_pytorch() -> None:
    kernel = ucutlass.loads(text("causal", "bf16"))
    q, k, v = (torch.randn(1, 8, 8192, 128, device="cuda").bfloat16() for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).float()
    error = (kernel(q, k, v).float() - expected).norm() / expected.norm()
    assert float(error) < 0.01


@pytest.mark.parametrize("compute_type", ["bf16", "f16"])
@pytest.mark.parametrize("scores", ["positive", "negative", "both", "rising", "falling"])
@pytest.mark.parametrize(
    ("name", "head", "sizes"),
    [
        ("plain", 96, {}),
        ("causal at the end", 64, {}),
        ("causal at the end", 96, {}),
        ("causal at the end", 256, {}),
        ("bias", 64, {}),
        ("mask", 64, {}),
        ("packed causal at the end", 64, {}),
        ("grouped causal at the end", 64, {"B": 1, "L": 5, "S": 4099}),
    ],
)
def test_huge_scores_have_their_softmax(
    name: str, head: int, sizes: dict[str, int], scores: Scores, compute_type: str
) -> None:
    program = text(name, compute_type, head)
    kernel = frontend.kernel(frontend.read_text(program))
    named = {d: (SIZES | sizes)[d] for d in free_dims(kernel)}
    arguments = arguments_of(kernel, named, scores, seed=3)
    (expected,) = expect(kernel, arguments)
    actual = ucutlass.loads(program)(*(a.cuda() for a in arguments)).cpu().double()
    there = expected.reference.isfinite()
    assert bool(actual[there].isfinite().all())
    error = (actual - expected.reference)[there].abs().max() / arguments[2].double().abs().max()
    assert float(error) < 2.0**-7
