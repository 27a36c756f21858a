"""A reduction's rows shared by blocks: each leaves its part of a reduction, or its total of a scan, in the
workspace, and the next launch gathers them, always in the same order, so that results repeat bit by bit."""

from __future__ import annotations

from dataclasses import dataclass

from ucutlass.emit.functions import CPP
from ucutlass.emit.reduction.writer import accumulator
from ucutlass.kernels.reduction.plan import ReductionPlan, RowReduce, RowScan


@dataclass(frozen=True, slots=True)
class Splits:
    """Writes what the launches of one plan leave and gather."""

    plan: ReductionPlan

    @property
    def _lanes(self) -> str:
        return "1" if self.plan.problem.across else "kVector"

    def _sizes(self) -> list[tuple[int, RowReduce | RowScan, str]]:
        """Reductions and scans with the offset of their parts in the workspace."""
        lanes = 1 if self.plan.problem.across else self.plan.schedule.vector
        sizes, before = [], "0"
        for i, instruction in enumerate(self.plan.problem.instructions):
            if isinstance(instruction, RowReduce | RowScan):
                sizes.append((i, instruction, before))
                count = lanes * self.plan.schedule.splits
                # Whole words of 8 bytes: what comes behind stays aligned.
                before = f"{before} + p.rows * {count} * int64_t((sizeof({_part(instruction)}) + 7) / 8 * 8)"
        return sizes

    def workspace(self) -> str:
        """Bytes of partial results, as the host computes them."""
        if self.plan.schedule.splits == 1:
            return "0"
        lanes = 1 if self.plan.problem.across else self.plan.schedule.vector
        # An accumulator has 24 bytes at most.
        count = len(self._sizes()) * lanes * self.plan.schedule.splits * 24
        return f"uint64_t(p.rows) * {count}"

    def _at(self, i: int, instruction: RowReduce | RowScan) -> str:
        offset = next(o for j, _, o in self._sizes() if j == i)
        return (
            f"reinterpret_cast<{_part(instruction)}*>(p.partial + {offset}) + row * {self._lanes} * kSplits"
        )

    def leave(self, i: int, instruction: RowReduce | RowScan) -> list[str]:
        leader = "threadIdx.x" if self.plan.problem.across else "threadIdx.y"
        name = f"r{i}" if isinstance(instruction, RowReduce) else f"carry{i}"
        return [
            f"if (has_row && {leader} == 0) {{",
            f"auto* const partials = {self._at(i, instruction)};",
            f"for (int l = 0; l < {self._lanes}; ++l) partials[l * kSplits + blockIdx.y] = {name}[l];",
            "}",
        ]

    def gather(self, i: int, reduction: RowReduce) -> list[str]:
        thread = "threadIdx.x" if self.plan.problem.across else "threadIdx.y"
        return [
            "if (has_row) {",
            f"auto const* const partials = {self._at(i, reduction)};",
            f"for (int l = 0; l < {self._lanes}; ++l) {{",
            f"for (int part = {thread}; part < kSplits; part += kThreads) "
            f"r{i}[l].merge(partials[l * kSplits + part]);",
            "}",
            "}",
            f"reduce(r{i}, buffer);",
        ]

    def carry(self, i: int, scan: RowScan) -> list[str]:
        """The scan of the parts before this block's."""
        op = "Add" if scan.op == "sum" else "Multiply"
        return [
            "if (has_row) {",
            f"auto const* const partials = {self._at(i, scan)};",
            f"for (int l = 0; l < {self._lanes}; ++l) {{",
            "#pragma unroll 16",
            "for (int part = 0; part < int(blockIdx.y); ++part) "
            f"carry{i}[l] = {op}::apply(carry{i}[l], partials[l * kSplits + part]);",
            "}",
            "}",
        ]


def _part(instruction: RowReduce | RowScan) -> str:
    return accumulator(instruction) if isinstance(instruction, RowReduce) else CPP[instruction.kind]
