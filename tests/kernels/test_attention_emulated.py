"""Attention on the host: the emitted CUDA file against the reference, its TMA and wgmma emulated."""

from __future__ import annotations

import shutil

import pytest

from tests import isolated
from tests.emulated import LIMIT_SECONDS, Job, emulate
from tests.kernels.huge_numbers import Scores
from tests.programs_attention import PROGRAMS, text
from ucutlass import frontend
from ucutlass.runtime import isolation
from ucutlass.shapes import free_dims

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile emulated kernels")

QUICK = {"packed causal at the end"}
"""The others are slow tests, for their number."""

SIZES = {"B": 1, "H": 2, "G": 2, "L": 70, "S": 150, "E": 72, "O": 6}


def right(program: str, sizes: dict[str, int]) -> None:
    kernel = frontend.kernel(frontend.read_text(program))
    row = emulate(Job("attention", program, "attention", {d: sizes[d] for d in free_dims(kernel)}, None, 3))
    assert row.status == "right", row.detail


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in PROGRAMS]
)
def test_programs_compute_attention(name: str) -> None:
    right(text(name, "bf16", 32), SIZES)


@pytest.mark.slow
@pytest.mark.parametrize("head", [8, 32, 72, 96, 128, 192, 256])
@pytest.mark.parametrize("name", ["plain", "window"])
def test_heads_compute_attention(name: str, head: int) -> None:
    """Several tiles a thread block, with the queries' place shared or not."""
    right(text(name, "f16", head), SIZES | {"H": 3, "L": 200})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["window", "grouped causal at the end"])
def test_parts_of_keys_are_combined(name: str) -> None:
    right(text(name, "bf16", 32), SIZES | {"L": 5, "S": 1700})


HUGE_SIZES = SIZES | {"S": 300}
SCORES: tuple[Scores, ...] = ("rising", "positive", "negative", "falling")


@pytest.mark.parametrize("compute_type", ["bf16", pytest.param("f16", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        pytest.param("causal at the end", {}, marks=pytest.mark.slow),
        pytest.param("bias", {}, marks=pytest.mark.slow),
        pytest.param("mask", {}, marks=pytest.mark.slow),
        pytest.param("packed causal at the end", {}, marks=pytest.mark.slow),
        ("grouped causal at the end", {"L": 5, "S": 1700}),
    ],
)
def test_huge_scores_have_their_softmax(name: str, sizes: dict[str, int], compute_type: str) -> None:
    """Where the score times its scale is so large that its rounding is more than exponentials span."""
    program = text(name, compute_type, 64)
    kernel = frontend.kernel(frontend.read_text(program))
    named = {d: (HUGE_SIZES | sizes)[d] for d in free_dims(kernel)}
    outcome = isolated.run(
        "tests.kernels.huge_numbers:emulate_here",
        {"program": program, "sizes": named, "scores": SCORES, "seed": 3},
        limit_seconds=LIMIT_SECONDS,
    )
    assert isinstance(outcome, isolation.Returned), outcome
    for scores, result in zip(SCORES, outcome.value, strict=True):
        assert result["missing"] == 0, scores
        assert result["error"] < (2.0**-7 if compute_type == "bf16" else 2.0**-8), scores
