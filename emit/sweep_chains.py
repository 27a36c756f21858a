"""A scan's row in one pass over memory: its parts lie in the registers of blocks, and each block learns from
what the earlier ones told what stands before its part (`templates/sweep_chains.j2`).

The workspace holds a counter, from which blocks take the numbers of their parts, and of every scan and block of
rows one place for each part's total, for the total of each RADIX parts, and for what stands up to the end of each
RADIX of those. What a part waits for is fixed by its number, so that results repeat bit by bit.
"""

from __future__ import annotations

from dataclasses import dataclass

from ucutlass.emit.functions import CPP
from ucutlass.plan import ScalarKind
from ucutlass.plans.sweep import ScanAlong, SweepPlan, scans_of

RADIX = 32
"""Parts of a group, and groups of a run: as many as a warp has lanes, one for each place to read."""

COUNTER = 16
"""Bytes of the counter."""


@dataclass(frozen=True, slots=True)
class Chains:
    """Writes what the blocks of one plan tell each other."""

    plan: SweepPlan

    @property
    def _lanes(self) -> int:
        """Scans that a block runs side by side."""
        s = self.plan.schedule
        return s.rows * (1 if self.plan.problem.across else s.vector)

    def workspace(self) -> str:
        """Bytes of the counter and of all places, as the host computes them."""
        words = sum(_words(s.kind) for _, s in scans_of(self.plan.problem))
        blocks = f"ceil_div(p.rows, {self.plan.schedule.rows})"
        return f"uint64_t({COUNTER}) + uint64_t({blocks}) * p.places * {self._lanes * words * 8}"

    def fields(self) -> dict[str, str]:
        """Parameters by name, as the host computes them: the parts of a row, and the places of a scan."""
        line = self.plan.schedule.threads * self.plan.schedule.items
        return {
            "parts": f"ceil_div(p.columns, {line})",
            "places": f"p.parts + p.parts / {RADIX} + p.parts / {RADIX * RADIX}",
        }

    def start(self) -> list[str]:
        """The block of rows and the part that are this block's. Rows take turns: each then has the longest
        time from part to part."""
        return [
            "uint32_t const ticket = take(reinterpret_cast<uint32_t*>(p.partial));",
            "uint32_t const row_blocks = gridDim.x / uint32_t(p.parts);",
            "int64_t const block = ticket % row_blocks;", "int const part = int(ticket / row_blocks);",
        ]  # fmt: skip

    def of(self, i: int, scan: ScanAlong) -> str:
        """The chain of scan i, for the library's `scan`."""
        before = sum(_words(s.kind) for j, s in scans_of(self.plan.problem) if j < i)
        words = f"int64_t(row_blocks) * {before} + block * {_words(scan.kind)}"
        at = f"reinterpret_cast<uint64_t*>(p.partial + {COUNTER}) + ({words}) * p.places * {self._lanes}"
        return f"Chain<{CPP[scan.kind]}>{{{at}, part, int(p.parts)}}"


def _words(kind: ScalarKind) -> int:
    return 2 if kind == "i64" else 1
