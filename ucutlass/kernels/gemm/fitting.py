"""Tile widths that fill the GPU's waves: those that are tried for every shape leave up to half of the SMs
idle in the last wave where there are few tiles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from ucutlass.ir.schedule import Warps
from ucutlass.kernels.gemm.candidate import Shape, ceil_div
from ucutlass.kernels.gemm.rules.tiles import MAX_TILE, MIN_TILE_N, THREADS

Tile: TypeAlias = tuple[Warps, tuple[int, int]]
"""Warps, and the elements of a tile along M and N."""

_ROWS: tuple[tuple[Warps, int], ...] = (
    ("cooperative", 128),
    ("cooperative", 256),
    ("pingpong", 64),
    ("pingpong", 128),
    ("pingpong", 192),
)
_WORTH = 1.1
"""Share of the least work of the tiles that are tried anyway, up to which another width is worth a price."""

_WAVES = 4
"""Beyond so many waves the last one weighs little."""


_LOAD = 32
"""What loading a row or a column of the tile weighs beside one product; coarse, the cost model is to say."""


def work(shape: Shape, tile: Tile, sms: int) -> int:
    """Of the busiest SM, in products for each step of K, where the waves go on whole."""
    _, (rows, columns) = tile
    return ceil_div(_tiles(shape, rows, columns), sms) * (rows * columns + _LOAD * (rows + columns))


def fitted(shape: Shape, sms: int, accumulators: int, tried: tuple[Tile, ...]) -> Iterator[Tile]:
    """For each kind and height of a tile the width, in columns, by which the busiest SM works least, where
    that is at most a tenth more than with the best of `tried`, and is none of them. `accumulators` are what
    a thread may hold, in 32-bit registers."""
    known = min((work(shape, tile, sms) for tile in tried), default=None)
    for warps, rows in _ROWS:
        if rows >= 2 * shape.m and rows > 64:
            continue
        widest = min(MAX_TILE, accumulators * THREADS[warps] // rows // MIN_TILE_N * MIN_TILE_N)
        widths = range(MIN_TILE_N, widest + 1, MIN_TILE_N)
        options = [(warps, (rows, width)) for width in widths if _few(shape, rows, width, sms)]
        best = min(options, key=lambda tile: work(shape, tile, sms), default=None)
        if best is None or best in tried:
            continue
        if known is None or work(shape, best, sms) < _WORTH * known:
            yield best


def _few(shape: Shape, rows: int, width: int, sms: int) -> bool:
    return _tiles(shape, rows, width) <= _WAVES * sms


def _tiles(shape: Shape, rows: int, columns: int) -> int:
    return ceil_div(shape.m, rows) * ceil_div(shape.n, columns) * shape.batch
