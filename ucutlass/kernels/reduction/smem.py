"""Shared memory of reduction kernels: the tiles in which loads are transposed, the ring that rows pass through.

What the threads of a block hand each other in a reduction or a scan has its place in the device library
(`emit/reduction/reductions.j2`, `scans.j2`), sized by types that C++ alone knows, a few hundred bytes a warp.
"""

from __future__ import annotations

from dataclasses import dataclass

from ucutlass.ir.extents import Fixed
from ucutlass.ir.hardware import Arch
from ucutlass.kernels.reduction.plan import (
    LinearIndex,
    Load,
    ReductionProblem,
    ReductionSchedule,
    RowReduce,
    contiguous_along,
    reductions,
)

TILE = 64
"""Elements of a tile that is transposed along the vector mode, and along the other at most."""


@dataclass(frozen=True, slots=True)
class TransposeTile:
    """The tile of one load: its place among the problem's loads, the bytes of its elements, how many of them make a word of
    shared memory, and its lines."""

    load: int
    element: int
    word: int
    lines: int

    @property
    def padding(self) -> int:
        """Elements added to each row, a word, so that the words of a column lie in different banks."""
        return self.word

    @property
    def bytes(self) -> int:
        return self.lines * (TILE + self.padding) * self.element


def transpose_tiles(problem: ReductionProblem, schedule: ReductionSchedule) -> tuple[TransposeTile, ...]:
    """The tiles of a block, in the order of `schedule.transposed`."""
    return tuple(
        TransposeTile(k, problem.loads[k].elem.bytes, word, schedule.tile) for k, word in schedule.transposed
    )


BULK = 16
"""Bytes of whose multiples a bulk copy is made, from and to multiples of them."""

BARRIER = 8
"""Bytes of an mbarrier."""

PART = 16
"""Bytes of what a warp hands to the others of a reduction, at most."""


def ring_loads(problem: ReductionProblem, vector: int, straddle: bool) -> tuple[int, ...]:
    """The loads whose rows bulk copies bring: all that differ from row to row and along all columns. None where one of
    them does not lie in whole pieces of 16 bytes, or with gaps; vectors that do not divide rows, of `straddle`, do."""
    if not problem.across:
        return ()
    every = set(range(len(problem.rows) + len(problem.columns)))
    loads = []
    for k, load in enumerate(problem.loads):
        if {m for axis in load.axes for m, _ in axis.at.terms} != every:
            continue
        if not (_whole_pieces(problem, load, vector, straddle) and _whole_rows(problem, load)):
            return ()
        loads.append(k)
    return tuple(loads)


def _whole_rows(problem: ReductionProblem, load: Load) -> bool:
    """Whether a row's columns lie side by side, the last mode innermost."""
    first = len(problem.rows)
    inner: tuple[int, ...] = ()
    for mode in reversed(range(first, first + len(problem.columns))):
        moved = [axis for axis in load.axes if any(m == mode for m, _ in axis.at.terms)]
        if [(axis.at, sorted(axis.stride)) for axis in moved] != [
            (LinearIndex(((mode, 1),), Fixed(0)), sorted(inner))
        ]:
            return False
        inner = (*problem.modes[mode], *inner)
    return True


def _whole_pieces(problem: ReductionProblem, load: Load, vector: int, straddle: bool = False) -> bool:
    plain = all(a.scale == 1 and a.extent is None and a.gathered is None for a in load.axes)
    along = contiguous_along(load.axes, problem.vector) and plain and not load.guards
    return along and (vector if straddle else min(load.align, vector)) * load.elem.bytes % BULK == 0


def resident_loads(problem: ReductionProblem, vector: int, straddle: bool = False) -> tuple[int, ...]:
    """The loads that are the same for all rows, beside a ring: a block that stays for the launch may keep its part of
    them in shared memory; of vectors that `straddle` the ends of rows, in whole ones from the tensor's start on."""
    columns = {len(problem.rows)} if len(problem.columns) == 1 else set()
    return tuple(
        k
        for k, load in enumerate(problem.loads)
        if {m for axis in load.axes for m, _ in axis.at.terms} == columns
        and _whole_pieces(problem, load, vector, straddle)
    )


def resident_bytes(problem: ReductionProblem, schedule: ReductionSchedule) -> int:
    """The bytes of a block's part of what is the same for all rows."""
    loads = resident_loads(problem, schedule.vector, schedule.straddle)
    vectors = schedule.items * schedule.threads + schedule.straddle
    return vectors * schedule.vector * sum(problem.loads[k].elem.bytes for k in loads) + BARRIER


def ring_bytes(problem: ReductionProblem, schedule: ReductionSchedule) -> int:
    """The bytes of a block's ring, its barriers, and what its warps hand to each other."""
    if schedule.stages == 1:
        return 0
    vectors = schedule.rows * schedule.stages * schedule.threads
    elements = sum(
        problem.loads[k].elem.bytes for k in ring_loads(problem, schedule.vector, schedule.straddle)
    )
    ops = {(problem.instructions[i].kind, _op(problem, i)) for i in reductions(problem)}
    parts = schedule.rows * schedule.cluster * -(-schedule.threads // 32)
    barriers = (
        2 * schedule.rows * schedule.stages + 2 + (2 * schedule.rows if schedule.keep == "shared" else 0)
    )
    resident = resident_bytes(problem, schedule) if schedule.resident else 0
    return vectors * schedule.vector * elements + barriers * BARRIER + 2 * len(ops) * parts * PART + resident


def ring_limit(arch: Arch, schedule: ReductionSchedule) -> int:
    """The bytes of shared memory of a block, where an SM is to hold as many as the schedule says."""
    of_sm = arch.shared_memory_sm // schedule.blocks - arch.shared_memory_reserved
    return min(arch.shared_memory, of_sm)


def _op(problem: ReductionProblem, i: int) -> str:
    instruction = problem.instructions[i]
    assert isinstance(instruction, RowReduce)
    return instruction.op
