"""Shared memory against what nvcc 13.0 says of CUTLASS 4.2's `Kernel::SharedStorageSize`."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from tests.kernels.gemm.problems import gemm
from ucutlass.ir.elements import ELEMENTS
from ucutlass.kernels.gemm.schedule import routes_of
from ucutlass.kernels.gemm.smem import sm80_memory, sm90_memory

Measured = tuple[
    int, tuple[int, int, int], Literal["pingpong", "cooperative"], int, str, str, str | None, bool
]

MEASURED: tuple[Measured, ...] = (
    (214016, (128, 256, 64), "cooperative", 4, "f16", "f16", None, False),
    (230400, (128, 256, 64), "cooperative", 4, "f16", "f16", "f16", False),
    (205824, (64, 128, 64), "pingpong", 8, "f16", "f16", None, False),
    (182272, (128, 128, 64), "pingpong", 5, "f16", "f32", None, False),
    (124928, (64, 128, 128), "pingpong", 4, "e4m3", "e4m3", "f16", False),
    (215040, (128, 128, 64), "cooperative", 4, "f16", "f16", "f32", False),
    (125696, (64, 16, 64), "pingpong", 12, "f16", "f16", None, False),
    (148480, (128, 128, 64), "cooperative", 4, "f16", "f16", None, True),
)
"""Bytes; tile, warps, stages; element of A and B, of D, of C; whether there is a bias along N."""


@pytest.mark.parametrize(
    ("expected", "tile", "warps", "stages", "compute_type", "out", "source", "bias"), MEASURED
)
def test_sm90_storage(
    expected: int,
    tile: tuple[int, int, int],
    warps: Literal["pingpong", "cooperative"],
    stages: int,
    compute_type: str,
    out: str,
    source: str | None,
    bias: bool,
) -> None:
    problem, _ = gemm(
        4096, 4096, 4096, compute_type=compute_type, out=out, residual=source is not None, bias=bias
    )
    if source is not None:
        problem = replace(
            problem, inputs=(replace(problem.inputs[0], elem=ELEMENTS[source]), *problem.inputs[1:])
        )
    assert sm90_memory(problem, routes_of(problem, "sm90"), tile, warps, stages).total == expected


def test_sm90_keeps_a_buffer_where_nothing_is_stored_by_tma() -> None:
    problem, _ = gemm(4096, 4096, 4096, compute_type="f16", out="f16")
    assert sm90_memory(problem, ("direct",), (128, 128, 64), "cooperative", 3).total == 115712


def test_sm80_epilogue_shares_the_main_loop() -> None:
    problem, _ = gemm(512, 512, 512)
    assert sm80_memory(problem, (128, 128, 32), (64, 64), 4).total == 4 * (128 + 128) * 32 * 2
    # Two stages of 32 x 32 are less than a pass of 32 rows of accumulators.
    assert sm80_memory(problem, (32, 32, 32), (16, 16), 2).total == 2 * (32 + 32) * 32 * 2
    assert sm80_memory(problem, (32, 256, 32), (16, 64), 2).total >= 32 * (256 + 4) * 4
