"""How a thread block of the matrix-vector kernel covers its tile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ucutlass.kernels.gemm.plan import GemmProblem, GemvSchedule

IN_FLIGHT = 8
"""Loads of the matrix that a thread has in flight at a time, about."""


@dataclass(frozen=True, slots=True)
class Cover:
    """How a thread block covers its tile.

    `order` is the mode along which neighbouring threads read the matrix. `threads_m` x
    `threads_k` threads share rows and K; `parts` groups of them leave sums in shared memory.
    """

    order: Literal["k", "m"]
    tile_m: int
    threads_m: int
    threads_k: int
    vector: int
    unroll: int
    parts: int


def cover(problem: GemmProblem, schedule: GemvSchedule) -> Cover:
    """The cover of a tile. Along M a thread's rows are adjacent, one vector of at most 8; along K
    vectors are short enough for a thread's share of the matrix to stay in registers."""
    a = problem.a
    widest = min(a.align, 16 // a.elem.bytes) if a.contiguous else 1
    if a.contiguous == "m":
        vector = min(widest, 8)
        rows, threads = schedule.rows, schedule.threads
        parts = threads if rows >= 32 else rows * threads // 32
        return Cover("m", rows * vector, rows, threads, vector, IN_FLIGHT // 2, parts)
    vector = min(widest, max(4, 64 // schedule.rows))
    unroll = max(1, min(4, IN_FLIGHT // schedule.rows))
    return Cover("k", schedule.rows, 1, schedule.threads, vector, unroll, schedule.threads // 32)
