"""Tile widths that fill the GPU's waves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucutlass.ir.hardware import DEVICES
from ucutlass.ir.schedule import Warps
from ucutlass.kernels.gemm.problem import Shape
from ucutlass.kernels.gemm.rules.tiles import MAX_ACCUMULATORS, MAX_TILE, THREADS
from ucutlass.kernels.gemm.search import fitted, work

SMS = DEVICES["H200"].sms
LISTED: tuple[tuple[Warps, tuple[int, int]], ...] = (
    ("cooperative", (128, 256)),
    ("cooperative", (128, 128)),
    ("pingpong", (128, 128)),
    ("pingpong", (64, 64)),
)


def shape(m: int, n: int, batch: int = 1) -> Shape:
    return Shape(m, n, 4096, batch, 0, 0)


@pytest.mark.parametrize(
    ("m", "n", "tile"),
    [
        (1000, 5000, ("cooperative", (256, 160))),  # 128 tiles on 132 SMs, once
        (192, 11008, ("pingpong", (192, 96))),  # 115 of them, no row beyond the edge
        (5120, 48, ("pingpong", (64, 48))),
    ],
)
def test_widths_that_one_wave_takes(m: int, n: int, tile: tuple[Warps, tuple[int, int]]) -> None:
    assert tile in tuple(fitted(shape(m, n), SMS, MAX_ACCUMULATORS, LISTED))


def test_many_waves_need_none() -> None:
    assert not tuple(fitted(shape(16384, 16384), SMS, MAX_ACCUMULATORS, LISTED))


@given(st.integers(1, 5000), st.integers(1, 20000), st.integers(1, 4), st.sampled_from([104, 208]))
def test_what_is_fitted_can_be_held_and_is_worth_it(m: int, n: int, batch: int, held: int) -> None:
    one = shape(m, n, batch)
    least = min(work(one, tile, SMS) for tile in LISTED)
    found = tuple(fitted(one, SMS, held, LISTED))
    assert len({(warps, rows) for warps, (rows, _) in found}) == len(found)
    for warps, (rows, columns) in found:
        assert columns % 16 == 0 and columns <= MAX_TILE and rows * columns <= held * THREADS[warps]
        tile = (warps, (rows, columns))
        assert tile not in LISTED and work(one, tile, SMS) < 1.1 * least
