"""Rows that pass through a ring on a GPU, against the float64 reference: lines that end within a row, clusters, blocks
of the grid, several blocks an SM."""

from __future__ import annotations

from typing import Any

import pytest

import ucutlass
from tests.gpu.turns import build_in_turn
from tests.kernels.test_ring import (
    ARGMAX,
    ENTROPY,
    GROUP_NORM,
    LAYER_NORM,
    SOFTMAX,
    planned_source,
    schedule,
    text_of,
)
from ucutlass.emit.text import Source
from ucutlass.kernels.families import Plan
from ucutlass.runtime import verify
from ucutlass.runtime.inputs import generate

pytestmark = pytest.mark.gpu

SOFTMAX_F32 = SOFTMAX.replace("bf16", "f32")

CASES = (
    (SOFTMAX, {"T": 141, "D": 65536}, "stages 8  cluster 1x2  threads 512"),
    (SOFTMAX, {"T": 35, "D": 262144}, ""),
    (SOFTMAX_F32, {"T": 35, "D": 262144}, ""),
    (SOFTMAX_F32, {"T": 35, "D": 131076}, ""),
    (LAYER_NORM, {"T": 67, "D": 131072}, "stages 8  cluster 1x8  threads 256"),
    (LAYER_NORM.replace("b: f32", "b: bf16"), {"T": 67, "D": 131072}, ""),
    (LAYER_NORM.replace("b: f32", "b: bf16"), {"T": 35, "D": 200_008}, ""),
    (GROUP_NORM, {"T": 9, "C": 4, "P": 262144}, ""),
    (GROUP_NORM, {"T": 9, "C": 4, "P": 75_004}, "stages 8  split_k 16  threads 512"),
    (ARGMAX, {"A": 3, "B": 70, "D": 20_004}, "stages 4  cluster 1x2  threads 256"),
    (SOFTMAX, {"T": 9001, "D": 4096}, "stages 4  threads 256  blocks 4"),
    (LAYER_NORM, {"T": 3001, "D": 16384}, "stages 4  threads 256  blocks 2"),
    (SOFTMAX, {"T": 5003, "D": 2056}, "stages 4  threads 32  rows 4  blocks 2"),
    (SOFTMAX, {"T": 141, "D": 100_008}, "keep shared  stages 13  cluster 1x4  threads 512  blocks 2"),
    (LAYER_NORM, {"T": 67, "D": 131072}, "keep shared  stages 9  cluster 1x8  threads 256  rows 2"),
    (
        LAYER_NORM,
        {"T": 35, "D": 72_143},
        "keep shared  stages 10  cluster 1x4  threads 256  rows 2  vector 8",
    ),
    (SOFTMAX_F32, {"T": 35, "D": 220_160}, "keep shared  stages 14  cluster 1x16  threads 256  rows 2"),
    (LAYER_NORM, {"T": 3001, "D": 16384}, "keep shared  stages 8  cluster 1x1  threads 256  rows 2"),
    (ENTROPY, {"T": 67, "D": 100_008}, "keep shared  stages 7  cluster 1x8  threads 256"),
)
"""Programs, extents, and the schedule; nothing where the planner chooses a ring itself."""

WITHOUT = (
    (SOFTMAX, {"T": 141, "D": 65536}, ""),
    (SOFTMAX, {"T": 67, "D": 131072}, ""),
    (SOFTMAX, {"T": 67, "D": 96_008}, ""),
    (SOFTMAX, {"T": 67, "D": 96_001}, ""),
    (SOFTMAX, {"T": 301, "D": 20_000}, "cluster 1x4  threads 256"),
    (LAYER_NORM, {"T": 301, "D": 20_003}, "cluster 1x2  threads 512"),
    (ARGMAX, {"A": 3, "B": 70, "D": 20_004}, "cluster 1x2  threads 256"),
    (ENTROPY, {"T": 301, "D": 60_000}, "keep reread  threads 256  items 4"),
    (ENTROPY, {"T": 301, "D": 60_003}, "keep reread  threads 128  items 2"),
)
"""Rows that clusters keep in registers, and ones whose parts follow one another through a block's."""


def sources() -> list[tuple[Source, Plan]]:
    """The kernel of every case, in their order."""
    pairs = []
    for program, sizes, fields in (*CASES, *WITHOUT):
        planned, source = planned_source(program, fields, **sizes)
        pairs.append((source, planned.plan))
    return pairs


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """Every kernel, built once and in parallel; the calls then find them in the cache."""
    build_in_turn("ring", sources, (*CASES, *WITHOUT))


@pytest.mark.parametrize("number", range(len(CASES)))
def test_rings_agree_with_the_reference(number: int) -> None:
    program, sizes, fields = CASES[number]
    assert schedule(program, fields, **sizes).stages > 1
    agrees(program, sizes, fields)


@pytest.mark.parametrize("number", range(len(WITHOUT)))
def test_rows_without_a_ring_agree_with_the_reference(number: int) -> None:
    program, sizes, fields = WITHOUT[number]
    assert schedule(program, fields, **sizes).stages == 1
    agrees(program, sizes, fields)


def agrees(program: str, sizes: dict[str, int], fields: str) -> None:
    kernel = ucutlass.loads(text_of(program, fields))
    arguments = generate(kernel.program, sizes, "normal", seed=7, device="cuda")

    def launch(given: Any, outputs: Any) -> None:
        kernel(*given, out=outputs[0] if len(outputs) == 1 else tuple(outputs))

    verdict = verify.check(kernel.program, launch, arguments)
    assert verdict.ok, str(verdict)
