"""Shared memory of f32 by wgmma, whose kernel is a lean one of our own: as emit/gemm/lean_epilogue.py counts it. A
test holds the two against each other."""

from __future__ import annotations

import math
from typing import Literal

from ucutlass.kernels.access import Reduction
from ucutlass.kernels.gemm.candidate import ceil_div, epilogue_tensors
from ucutlass.kernels.gemm.plan import GemmProblem, Route

BARRIERS = 1024
"""Bytes before the tensors: barriers and the scheduler's state are fewer."""

BORDER = 1024
"""At which TMA's tensors begin."""

_WIDTHS = (64, 32, 16)
"""Columns of a step of the epilogue."""

_FEW = (32, 16)
"""With reductions over M."""

_ROW = (16, 128)
"""Bytes that the row of a TMA box has at least and at most."""


def lean_epilogue(
    problem: GemmProblem,
    routes: tuple[Route, ...],
    tile: tuple[int, int, int],
    warps: Literal["pingpong", "cooperative"],
) -> int | None:
    """The least bytes: one buffer for a step's results, two for what it loads, and vectors of two tiles;
    None where no width of a step serves all results."""
    inputs = len(problem.inputs)
    routed = list(zip(epilogue_tensors(problem), routes, strict=True))
    loads = [tensor for tensor, route in routed[:inputs] if route == "tma"]
    stores = [tensor for tensor, route in routed[inputs:] if route == "tma"]
    rows = 128 if warps == "cooperative" else 64
    sizes = {"row": tile[1], "column": tile[0], "scalar": 1, "batch": 1}
    vectors = sum(2 * _round(sizes[t.shape] * t.elem.bytes, 16) for t in problem.inputs if t.shape in sizes)
    taken = sum(t.elem.bytes for t in stores) + 2 * sum(t.elem.bytes for t in loads)
    first = stores[0].elem.bytes if stores else None
    needs = [
        columns * rows * taken
        for columns in _widths(problem, tile, warps, first)
        if tile[1] % columns == 0
        and all(_ROW[0] <= columns * t.elem.bytes <= _ROW[1] for t in (*stores, *loads) if t.n == ())
    ]
    return _round(min(needs) + vectors, BORDER) if needs else None


def lean_ring(problem: GemmProblem, tile: tuple[int, int, int], stages: int) -> int:
    """Bytes of the main loop: each operand and its small parts, a ring each."""
    m, n, k = tile
    return sum(2 * _round(stages * rows * k * problem.lane.bytes, BORDER) for rows in (m, n))


def _round(size: int, to: int) -> int:
    return ceil_div(size, to) * to


def _widths(
    problem: GemmProblem,
    tile: tuple[int, int, int],
    warps: Literal["pingpong", "cooperative"],
    first: int | None,
) -> tuple[int, ...]:
    """That reductions leave (emit/gemm/lean_reductions.py); `first` is the bytes of the first result by TMA."""
    reduced = [o.access for o in problem.outputs if isinstance(o, Reduction)]
    several = tile[0] > (128 if warps == "cooperative" else 64)
    if several and any(t.m is None and t.n is None for t in reduced):
        wide = 64 if warps == "pingpong" and first == 1 and tile[1] % 64 == 0 else 32
        return (math.gcd(wide, tile[1]),)
    return _FEW if any(t.m is None and t.n is not None for t in reduced) else _WIDTHS
