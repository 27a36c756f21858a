"""What the emitter of recurrent layers reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ucutlass.kernels.recurrence.problem import GATES, RecurrentProblem

CELLS = tuple(GATES)
"""What a step may compute."""

ROWS_OF_WARP = 8
"""Rows of the weights that a warp multiplies at a time."""

WARP = 32

PACKET = 3
"""Values that travel between thread blocks in one access of 16 bytes, beside the word that says they are there."""

PACKET_BYTES = 16

MOST_AT_ONCE = 8
"""Packets that a thread has in registers until all of them are there."""

SKEW = 4
"""Elements by which rows are longer than their multiple of banks, so that those of neighbours are of other banks."""

MOST_POLLS = 2**23
"""Loads of a packet, each a way to L2 and back, after which a thread gives it up: more than a second, where a launch waits
some milliseconds at the most. They are counted, since a launch that is preempted or debugged is slow by the clock alone."""

RECEIVING_WARPS = 8
"""Warps that receive what other thread blocks computed."""


@dataclass(frozen=True, slots=True)
class RecurrentSchedule:
    """How thread blocks share a problem: each keeps the weights of `units` hidden units of one layer and direction in
    shared memory, for one of `groups` parts of the batch. Units are a multiple of `PACKET`. `concurrent` layers run side by side, each behind the one
    below it.

    `k_lanes` lanes of a warp and `k_parts` warps share each sum.
    """

    units: int
    k_lanes: int
    k_parts: int
    concurrent: int
    groups: int


@dataclass(frozen=True, slots=True)
class RecurrentPlan:
    """A problem under a schedule. Its extents shape the code."""

    arch: str
    problem: RecurrentProblem
    schedule: RecurrentSchedule

    emitter: ClassVar[str] = "ucutlass.emit.recurrence.emitter"
    launch_parameters: ClassVar[tuple[str, ...]] = ()

    @property
    def blocks(self) -> int:
        """Thread blocks of a layer in one direction, for one part of the batch."""
        return -(-self.problem.hidden // self.schedule.units)

    @property
    def grid(self) -> int:
        return self.blocks * self.problem.directions * self.schedule.concurrent * self.schedule.groups

    @property
    def batch(self) -> int:
        """Vectors of a part of the batch."""
        return self.problem.batch // self.schedule.groups

    @property
    def row_tiles(self) -> int:
        return -(-self.schedule.units * self.problem.gates // ROWS_OF_WARP)

    @property
    def rows(self) -> int:
        return self.row_tiles * ROWS_OF_WARP

    @property
    def multiplying(self) -> int:
        """Threads that multiply."""
        return self.row_tiles * self.schedule.k_parts * WARP

    @property
    def receiving(self) -> int:
        """Threads that wait for other blocks' packets."""
        return RECEIVING_WARPS * WARP

    @property
    def threads(self) -> int:
        return self.multiplying + self.receiving

    @property
    def at_once(self) -> int:
        """Packets of a step of one layer in one direction that a receiving thread waits for at a time."""
        return min(MOST_AT_ONCE, -(-self.packets // self.receiving))

    @property
    def k_step(self) -> int:
        """Elements of a sum that a warp takes at a time."""
        return self.schedule.k_lanes * 4

    @property
    def batches(self) -> int:
        """Vectors of a lane."""
        return -(-self.batch // (WARP // self.schedule.k_lanes))

    @property
    def span(self) -> int:
        """Elements of a state in shared memory, with those that the last block only pads."""
        return _round_up(self.blocks * self.schedule.units, 4)

    @property
    def hidden_pitch(self) -> int:
        return _round_up(self.span, self.k_step) + SKEW

    @property
    def input_pitch(self) -> int:
        below = self.problem.directions * self.span if self.problem.layers > 1 else 0
        return _round_up(max(self.problem.input, below), self.k_step) + SKEW

    @property
    def packets(self) -> int:
        """Packets of a step of one layer in one direction, for one part of the batch."""
        return self.blocks * self.batch * self.schedule.units // PACKET

    @property
    def workspace(self) -> int:
        """Bytes of all packets, each of which is written once."""
        p = self.problem
        return p.steps * p.layers * p.directions * self.schedule.groups * self.packets * PACKET_BYTES


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
