"""A scan in one pass over memory, by decoupled look-back: the parts of a row lie in the registers of blocks, and a
block combines the statuses that earlier blocks published to the prefix of its own part (`reduction/lookback.j2`).

The workspace holds a counter, from which blocks take tickets, and for every scan and block of rows the statuses:
the total of each part, the total of each group of `RADIX` parts, and the inclusive prefix at the end of each run of
`RADIX` groups. What a part waits for follows from its number alone, so that results repeat bit by bit, unlike those
of Merrill and Garland (NVIDIA NVR-2016-002), whose look-back takes whatever is published already.

An element's sum is made in this order: runs before its own, one after another; groups of its run before its
own, and parts of its group before its own, each in one order; then what stands before it in its part. No term
passes through more additions than one after another, which the reference's bound of a scan allows for
(`ucutlass.reference.reductions`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ucutlass.emit.functions import CPP
from ucutlass.kernels.arithmetic import ScalarKind
from ucutlass.kernels.reduction.plan import Load, ReductionPlan, RowScan, scans_of

RADIX = {True: 32, False: 16}
"""Parts of a group, and groups of a run, by whether vectors lie along columns. With 32 each lane of a warp reads one
status. Where a status is a row of totals there are half as many, since they are read besides the part itself."""

COUNTER = 16
"""Bytes of the counter."""


@dataclass(frozen=True, slots=True)
class LookBackText:
    """Writes the statuses by which the blocks of one plan communicate."""

    plan: ReductionPlan

    @property
    def _lanes(self) -> int:
        """Scans that a block runs side by side."""
        s = self.plan.schedule
        return s.rows * (1 if self.plan.problem.across else s.vector)

    @property
    def radix(self) -> int:
        return RADIX[self.plan.problem.across]

    def blocks(self, loads: Iterable[Load]) -> int:
        """Blocks that an SM is to hold, so that some load while others wait: threads have registers for what
        is scanned, for the `loads` that are asked for again with it, and 32 more."""
        s = self.plan.schedule
        bytes_ = sum(s.vector * x.elem.bytes for x in loads)
        bytes_ += sum(4 * _words(scan.kind) * s.vector for _, scan in scans_of(self.plan.problem))
        registers = max(64, math.ceil(bytes_ * s.items / 4) + 32)
        return max(1, 65536 // (s.threads * s.rows * registers))

    def workspace(self) -> str:
        """Returns the bytes of the counter and of all statuses, as the host computes them."""
        words = sum(_words(s.kind) for _, s in scans_of(self.plan.problem))
        blocks = f"ceil_div(p.rows, {self.plan.schedule.rows})"
        return f"uint64_t({COUNTER}) + uint64_t({blocks}) * p.statuses * {self._lanes * words * 8}"

    def fields(self) -> dict[str, str]:
        """Returns parameters by name, as the host computes them: the parts of a row, and the statuses of a scan."""
        line = self.plan.schedule.threads * self.plan.schedule.items
        return {
            "parts": f"ceil_div(p.columns, {line})",
            "statuses": f"p.parts + p.parts / {self.radix} + p.parts / {self.radix * self.radix}",
        }

    def start(self) -> list[str]:
        """Returns the statements that find the block of rows and the part of this thread block. Consecutive tickets go to
        different rows, so that each row has the longest time from part to part."""
        return [
            "uint32_t const ticket = take_ticket(reinterpret_cast<uint32_t*>(p.partial));",
            "uint32_t const row_blocks = gridDim.x / uint32_t(p.parts);",
            "int64_t const block = ticket % row_blocks;",
            "int const part = int(ticket / row_blocks);",
        ]

    def of(self, i: int, scan: RowScan) -> str:
        """Returns the look-back of scan i, an argument of the library's `scan`."""
        before = sum(_words(s.kind) for j, s in scans_of(self.plan.problem) if j < i)
        words = f"int64_t(row_blocks) * {before} + block * {_words(scan.kind)}"
        at = f"reinterpret_cast<uint64_t*>(p.partial + {COUNTER}) + ({words}) * p.statuses * {self._lanes}"
        return f"LookBack<{CPP[scan.kind]}>{{{at}, part, int(p.parts)}}"


def _words(kind: ScalarKind) -> int:
    return 2 if kind == "i64" else 1
