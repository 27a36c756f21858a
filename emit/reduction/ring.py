"""Rows that pass through a ring in shared memory: blocks, or clusters of them, stay for the whole launch, and bulk
copies bring lines of the next rows while one is reduced and stored (`reduction/ring.j2`).

A line is what the threads of a row read at a time, a vector each. One thread of a row has lines copied; each thread
takes its vector of a line to registers, after which the line's place in the ring is free for the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

from ucutlass.emit.reduction.indexing import IndexText
from ucutlass.emit.reduction.writer import LocalNames, Writer, fill, stored_cpp
from ucutlass.kernels.reduction.plan import ReductionPlan
from ucutlass.kernels.reduction.smem import resident_loads, ring_loads


@dataclass(frozen=True, slots=True)
class RingText:
    """Writes the ring of one plan."""

    plan: ReductionPlan
    writer: Writer
    index: IndexText

    @property
    def loads(self) -> tuple[int, ...]:
        s = self.plan.schedule
        return ring_loads(self.plan.problem, s.vector, s.straddle)

    @property
    def _group(self) -> int:
        """Lines that a thread reads before their places in the ring are free again: all of a row where the ring holds
        them, since each time takes a fence."""
        s = self.plan.schedule
        return s.items if s.items <= s.stages else max(1, s.stages // 2)

    @property
    def resident(self) -> tuple[int, ...]:
        s = self.plan.schedule
        return resident_loads(self.plan.problem, s.vector, s.straddle) if s.resident else ()

    def declared_resident(self) -> list[dict[str, object]]:
        """The buffers of what is the same for all rows, for the template."""
        return [{"number": k, "cpp": stored_cpp(self.plan.problem.loads[k].elem)} for k in self.resident]

    def declared(self) -> list[dict[str, object]]:
        """The ring's buffers, for the template."""
        return [{"number": k, "cpp": stored_cpp(self.plan.problem.loads[k].elem)} for k in self.loads]

    def start(self, part: str) -> list[str]:
        """Returns the statements ahead of the rows; `part` is the block's part of a row."""
        s = self.plan.schedule
        first, mine = self.share(part)
        lines = (
            "constexpr int lines = kItems;"
            if s.full
            else f"int const lines = ({mine} + kThreads - 1) / kThreads;"
        )
        copies = [line for k in self.loads for line in self.copy(k)]
        return [
            "Shared& shared = shared_memory();",
            "uint64_t *const full = shared.full[threadIdx.y], *const empty = shared.empty[threadIdx.y];",
            "int const blocks = int((p.rows + kRows - 1) / kRows);",
            f"{lines}  // of a row, that this block reads",
            "if (threadIdx.x == 0) {",
            "#pragma unroll 1",
            "for (int i = 0; i < kStages; ++i) {",
            "mbarrier_init(&full[i], 1);",
            f"mbarrier_init(&empty[i], {s.threads // 32});",
            "}",
            *self.other_barriers(),
            "fence_mbarrier_init();",
            "}",
            *(["sync_warp();", "__cluster_barrier_arrive();"] if s.cluster > 1 else []),
            "__syncthreads();",
            "int next_block = blockIdx.x, next_line = 0, next_stage = 0;",
            "uint32_t next_phase = 0;",
            "auto const fetch_next = [&] {",
            "if (next_block >= blocks) return;",
            "mbarrier_wait(&empty[next_stage], next_phase ^ 1);",
            "int const block = next_block;",
            *self.index.row(),
            f"int const first = {first} + next_line * kThreads;",
            *self.columns("first"),
            f"uint32_t const count = {'kThreads' if s.full else f'min(kThreads, {mine} - next_line * kThreads)'};",
            f"mbarrier_arrive_expect_tx(&full[next_stage], count * uint32_t(kVector * ({self.sizes})));",
            *copies,
            "if (++next_line == lines) next_line = 0, next_block += gridDim.x;",
            "if (++next_stage == kStages) next_stage = 0, next_phase ^= 1;",
            "};",
            "if (threadIdx.x == 0 && lines > 0) {",
            "#pragma unroll 1",
            "for (int i = 0; i < kStages; ++i) fetch_next();",
            "}",
            # None writes to a block that is not there yet.
            *(["sync_warp();", "__cluster_barrier_wait();"] if s.cluster > 1 else []),
            "int stage = 0, free_stage = 0;",
            "uint32_t phase = 0;",
            *self.fill(part),
        ]

    @property
    def sizes(self) -> str:
        """The bytes of an element of every load."""
        return " + ".join(f"sizeof({stored_cpp(self.plan.problem.loads[k].elem)})" for k in self.loads)

    def other_barriers(self) -> list[str]:
        """Returns the statements that initialise the barriers beside those of lines."""
        s = self.plan.schedule
        parts = "shared.exchanged[threadIdx.y]" if s.rows > 1 else "shared.exchanged"
        arrivals = "1" if s.cluster > 1 else "kThreads / 32"
        exchanged = [f"for (auto& barrier : {parts}) mbarrier_init(&barrier, {arrivals});"]
        filled = ["mbarrier_init(&shared.filled, 1);"]
        apart = s.cluster > 1 or (s.keep == "shared" and s.rows > 1)
        return [*(exchanged if apart else []), *(filled if self.resident else [])]

    def share(self, part: str) -> tuple[str, str]:
        """Returns the first of a block's vectors of a row, and how many it has."""
        if self.plan.shares:
            return f"{part} * int(p.share)", "own_vectors"
        return f"{part} * kLine", "int(p.columns)"

    def columns(self, first: str, head: bool = True) -> list[str]:
        """Returns coordinates of columns for the address of vector `first` of a row, which lies there as if the last
        mode went on beyond its extent; without its `head`, where it is the same for all rows."""
        modes = range(
            len(self.plan.problem.rows), len(self.plan.problem.rows) + len(self.plan.problem.columns)
        )
        at = dict.fromkeys(modes[:-1], "0") | {
            modes[-1]: f"int64_t({first}) * kVector{' + head' if self.plan.peels and head else ''}"
        }
        return [f"[[maybe_unused]] int64_t const q{mode} = {value};" for mode, value in at.items()]

    def fill(self, part: str) -> list[str]:
        """Returns the statements that bring a block's part of what is the same for all rows."""
        if not self.resident:
            return []
        s, problem = self.plan.schedule, self.plan.problem
        cpp = {k: stored_cpp(problem.loads[k].elem) for k in self.resident}
        sizes = " + ".join(f"sizeof({cpp[k]})" for k in self.resident)
        first, mine = self.share(part)
        # A vector behind some elements of a row lies in two that its start does not move.
        count = "kLine" if s.full else f"{mine} + 1" if self.plan.peels else mine
        copies = []
        for k in self.resident:
            source = problem.loads[k]
            bytes_ = f"count * uint32_t(kVector * sizeof({cpp[k]}))"
            copies += [
                "{",
                *self.writer.address(source.axes, (), LocalNames(None)),
                f"cp_async_bulk(shared.resident{k}, p.t{source.pointer} + o, {bytes_}, &shared.filled);",
                "}",
            ]
        return [
            "if (lines > 0) {",
            "if (threadIdx.x == 0 && threadIdx.y == 0) {",
            f"uint32_t const count = {count};",
            *self.columns(first, False),
            f"mbarrier_arrive_expect_tx(&shared.filled, count * uint32_t(kVector * ({sizes})));",
            *copies,
            "}",
            "mbarrier_wait(&shared.filled, 0);",
            "}",
        ]

    def copy(self, k: int) -> list[str]:
        source = self.plan.problem.loads[k]
        copy = "cp_async_bulk_retained" if self.plan.schedule.retain else "cp_async_bulk"
        bytes_ = f"count * uint32_t(kVector * sizeof({stored_cpp(source.elem)}))"
        return [
            "{",
            *self.writer.address(source.axes, (), LocalNames(None)),
            f"{copy}(shared.line{k}[threadIdx.y][next_stage], p.t{source.pointer} + o, {bytes_}, &full[next_stage]);",
            "}",
        ]

    def read(self) -> list[str]:
        """Returns the statements that take a row's lines to registers, and have those of later rows fetched."""
        lines = ["int owed = 0;", "#pragma unroll", "for (int i = 0; i < kItems; ++i) {", *self.index.item()]
        for k in self.loads:
            source = self.plan.problem.loads[k]
            lines.append(f"raw{k}[i] = splat<kVector>({stored_cpp(source.elem)}({fill(source)}));")
        there = "i < kItems - 1 || i < lines" if self.plan.schedule.dense else "i < lines"
        lines += [f"if ({there}) {{", "mbarrier_wait(&full[stage], phase);", "if (ok) {"]
        for k in self.loads:
            lines.append(
                f"raw{k}[i] = read_line(&shared.line{k}[threadIdx.y][stage][threadIdx.x * kVector]);"
            )
        lines += ["}", "if (++stage == kStages) stage = 0, phase ^= 1;", "}"]
        return [*lines, *self._releases(), "}"]

    def _releases(self) -> list[str]:
        """Returns the statements that free the places of lines behind line i, where it ends a group or the row. A row's
        leader has lines of later rows fetched to the places of the group before: not every warp has read this one."""
        s, group = self.plan.schedule, self._group
        ends = f"i % {group} == {group - 1} || i == kItems - 1" if group < s.items else "i == kItems - 1"
        first = f"i - i % {group}" if group < s.items else "0"
        return [
            f"if ({ends}) {{",
            f"int const count = max(0, min(i + 1, lines) - ({first}));",
            "fence_proxy_async();",
            "sync_warp();",
            "#pragma unroll 1",
            "for (int j = 0; j < count; ++j) {",
            "if (threadIdx.x % 32 == 0) mbarrier_arrive(&empty[free_stage]);",
            "if (++free_stage == kStages) free_stage = 0;",
            "}",
            *(["if (i == kItems - 1) owed += count;"] if group < s.items else ["owed = count;"]),
            "if (threadIdx.x == 0) {",
            "#pragma unroll 1",
            "for (int j = 0; j < owed; ++j) fetch_next();",
            "}",
            *(["owed = i == kItems - 1 ? 0 : count;"] if group < s.items else []),
            "}",
        ]
