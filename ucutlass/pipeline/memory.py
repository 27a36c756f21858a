"""Plans one workspace for everything that lives between a pipeline's launches, and for the kernels' own
scratch.

Two allocations may share bytes where all uses of one end before the other's first use, in the order that
streams and events enforce. Allocations are placed by falling size, each into the tightest gap that those with
overlapping live ranges leave (the best-fit method of Pisarchyk and Lee, arXiv 2001.03288).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ALIGNMENT = 256
"""Bytes: what kernels' workspaces need (ucutlass/kernels/gemm/plan.py), and TMA and vectors at least."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """Bytes that are live from `first_step` on; `uses` are all steps that touch them, including the first,
    and none of them comes before it."""

    name: str
    bytes: int
    first_step: int
    uses: frozenset[int]


@dataclass(frozen=True, slots=True)
class WorkspaceLayout:
    """The offset of each allocation, by name, in a workspace of `bytes` bytes. `unshared_bytes` is what the
    allocations would take without sharing."""

    offsets: Mapping[str, int]
    bytes: int
    unshared_bytes: int


def live_together(a: Allocation, b: Allocation, before: Sequence[frozenset[int]]) -> bool:
    """Returns whether the live ranges of two allocations may overlap; `before` is as in
    `ucutlass.pipeline.streams.StreamAssignment`."""
    return not (a.uses <= before[b.first_step] or b.uses <= before[a.first_step])


def assign_offsets(blocks: Sequence[Allocation], before: Sequence[frozenset[int]]) -> WorkspaceLayout:
    """Returns offsets for allocations with distinct names. Allocations of no bytes are left out."""
    nonempty = [b for b in blocks if b.bytes > 0]
    order = sorted(nonempty, key=lambda b: (-b.bytes, b.first_step, b.name))
    offsets: dict[str, int] = {}
    placed: list[Allocation] = []
    for block in order:
        occupied = sorted(
            (offsets[p.name], offsets[p.name] + aligned(p.bytes))
            for p in placed
            if live_together(block, p, before)
        )
        offsets[block.name] = _best_fit(aligned(block.bytes), occupied)
        placed.append(block)
    total = max((offsets[b.name] + aligned(b.bytes) for b in nonempty), default=0)
    return WorkspaceLayout(
        {b.name: offsets[b.name] for b in nonempty}, total, sum(aligned(b.bytes) for b in nonempty)
    )


def _best_fit(size: int, occupied: Sequence[tuple[int, int]]) -> int:
    """Returns the start of the smallest gap between occupied ranges (sorted by start) that holds `size`
    bytes, else the end of the last range."""
    best: tuple[int, int] | None = None
    end = 0
    for start, stop in occupied:
        gap = start - end
        if gap >= size and (best is None or gap < best[0]):
            best = gap, end
        end = max(end, stop)
    return end if best is None else best[1]


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
