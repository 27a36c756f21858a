"""One workspace for all that lives between a pipeline's launches, and for the kernels' own scratch.

Two blocks may share bytes where all use of one has ended before the other's begins, in the order that
streams and events enforce. Blocks are placed by falling size, each in the tightest gap that those it
lives beside leave (the best-fit form of Pisarchyk and Lee, arXiv 2001.03288).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ALIGNMENT = 256
"""Bytes: what kernels' workspaces need (ucutlass/kernels/gemm/plan.py), and TMA and vectors at least."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """Bytes that hold something from the step `made` on; `uses` are all steps that touch them, `made`
    too, none of them before it."""

    name: str
    bytes: int
    first_step: int
    uses: frozenset[int]


@dataclass(frozen=True, slots=True)
class WorkspaceLayout:
    """Where each block begins, by name, in `bytes` bytes; `apart` is what they would take side by side."""

    offsets: Mapping[str, int]
    bytes: int
    unshared_bytes: int


def live_together(a: Allocation, b: Allocation, before: Sequence[frozenset[int]]) -> bool:
    """Whether two blocks may be alive at once; `before` as in `ucutlass.pipeline.streams.Lanes`."""
    return not (a.uses <= before[b.first_step] or b.uses <= before[a.first_step])


def assign_offsets(blocks: Sequence[Allocation], before: Sequence[frozenset[int]]) -> WorkspaceLayout:
    """Offsets for blocks, whose names differ. Blocks of no bytes are left out."""
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
    """The start of the smallest gap between taken ranges (sorted by start) that holds `size`, else
    behind them all."""
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
