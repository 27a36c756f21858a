"""Shared memory of reduction kernels: the tiles in which loads are transposed.

What the threads of a block hand each other in a reduction or a scan has its place in the device library
(`emit/reduction/reductions.j2`, `scans.j2`), sized by types that C++ alone knows, a few hundred bytes a warp.
"""

from __future__ import annotations

from dataclasses import dataclass

from ucutlass.kernels.reduction.plan import ReductionProblem, ReductionSchedule

TILE = 64
"""Rows and columns of a tile that is transposed."""


@dataclass(frozen=True, slots=True)
class TransposeTile:
    """The tile of one load: its place among the problem's loads, the bytes of its elements, and how many of them
    make a word of shared memory."""

    load: int
    element: int
    word: int

    @property
    def padding(self) -> int:
        """Elements added to each row, a word, so that the words of a column lie in different banks."""
        return self.word

    @property
    def bytes(self) -> int:
        return TILE * (TILE + self.padding) * self.element


def transpose_tiles(problem: ReductionProblem, schedule: ReductionSchedule) -> tuple[TransposeTile, ...]:
    """The tiles of a block, in the order of `schedule.transposed`."""
    return tuple(TransposeTile(k, problem.loads[k].elem.bytes, word) for k, word in schedule.transposed)


def shared_bytes(problem: ReductionProblem, schedule: ReductionSchedule) -> int:
    """The bytes of a block's tiles."""
    return sum(tile.bytes for tile in transpose_tiles(problem, schedule))
