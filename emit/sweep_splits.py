"""A sweep's rows shared by blocks: each leaves its part of a reduction in the workspace, and the next launch
gathers them."""

from __future__ import annotations

from dataclasses import dataclass

from ucutlass.emit.sweep_writer import accumulator
from ucutlass.plans.sweep import RowReduce, SweepPlan


@dataclass(frozen=True, slots=True)
class Splits:
    """Writes what the launches of one plan leave and gather."""

    plan: SweepPlan

    @property
    def _lanes(self) -> str:
        return "1" if self.plan.problem.across else "kVector"

    def _sizes(self) -> list[tuple[int, RowReduce, str]]:
        """Reductions with the offset of their partial results in the workspace."""
        lanes = 1 if self.plan.problem.across else self.plan.schedule.vector
        found, before = [], "0"
        for i, one in enumerate(self.plan.problem.instructions):
            if isinstance(one, RowReduce):
                found.append((i, one, before))
                count = lanes * self.plan.schedule.splits
                before = f"{before} + p.rows * {count} * int64_t(sizeof({accumulator(one)}))"
        return found

    def workspace(self) -> str:
        """Bytes of partial results, as the host computes them."""
        if self.plan.schedule.splits == 1:
            return "0"
        lanes = 1 if self.plan.problem.across else self.plan.schedule.vector
        # An accumulator has 24 bytes at most.
        count = len(self._sizes()) * lanes * self.plan.schedule.splits * 24
        return f"uint64_t(p.rows) * {count}"

    def _at(self, i: int, one: RowReduce) -> str:
        offset = next(o for j, _, o in self._sizes() if j == i)
        return f"reinterpret_cast<{accumulator(one)}*>(p.partial + {offset}) + row * {self._lanes} * kSplits"

    def leave(self, i: int, one: RowReduce) -> list[str]:
        leader = "threadIdx.x" if self.plan.problem.across else "threadIdx.y"
        return [
            f"if (mine && {leader} == 0) {{", f"auto* const left = {self._at(i, one)};",
            f"for (int l = 0; l < {self._lanes}; ++l) left[l * kSplits + blockIdx.y] = r{i}[l];", "}",
        ]  # fmt: skip

    def gather(self, i: int, one: RowReduce) -> list[str]:
        thread = "threadIdx.x" if self.plan.problem.across else "threadIdx.y"
        return [
            "if (mine) {", f"auto const* const left = {self._at(i, one)};",
            f"for (int l = 0; l < {self._lanes}; ++l) {{",
            f"for (int part = {thread}; part < kSplits; part += kThreads) "
            f"r{i}[l].merge(left[l * kSplits + part]);",
            "}", "}", f"reduce(r{i}, turn);",
        ]  # fmt: skip
