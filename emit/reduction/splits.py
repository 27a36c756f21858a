"""A reduction's rows shared by blocks: each leaves its part of a reduction, or its total of a scan, in the
workspace, and the next launch gathers them, always in the same order, so that results repeat bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ucutlass.emit.functions import CPP
from ucutlass.emit.reduction.writer import accumulator
from ucutlass.kernels.reduction.plan import ReductionPlan, RowReduce, RowScan, scans_of

LONGEST_GATHER = 12
"""Parts that a thread merges one after another at most, at some 0.4 us each. Beyond, a launch between merges them: 528
parts of 128 channels cost the blocks of a batch norm 500 us, 96 of 512 those of its statistics 38."""


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

    def _offset(self, i: int) -> str:
        return next(o for j, _, o in self._sizes() if j == i)

    def _at(self, i: int, instruction: RowReduce | RowScan) -> str:
        begin = f"reinterpret_cast<{_part(instruction)}*>(p.partial + {self._offset(i)})"
        return f"{begin} + row * {self._lanes} * kSplits"

    @property
    def merges(self) -> bool:
        """Whether a launch of its own merges the parts of a reduction before the next reads them."""
        problem, schedule = self.plan.problem, self.plan.schedule
        if problem.across or schedule.splits == 1 or scans_of(problem):
            return False
        return schedule.vector * schedule.splits > LONGEST_GATHER * schedule.threads

    def merge(self, reductions: Sequence[tuple[int, RowReduce]]) -> list[str]:
        """Merges the parts of a row of each reduction into the first of them."""
        return [
            f"if (blockIdx.y == {number}) merge_parts(reinterpret_cast<{_part(reduction)}*>"
            f"(p.partial + {self._offset(i)}) + int64_t(blockIdx.x) * {self.plan.schedule.splits});"
            for number, (i, reduction) in enumerate(reductions)
        ]

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
        partials = ["if (has_row) {", f"auto const* const partials = {self._at(i, reduction)};"]
        if self.merges:
            return [
                *partials,
                f"for (int l = 0; l < {self._lanes}; ++l) r{i}[l] = partials[l * kSplits];",
                "}",
            ]
        return [
            *partials,
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
