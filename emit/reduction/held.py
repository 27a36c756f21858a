"""Rows that lie in shared memory while they are reduced and stored: blocks, or clusters of them, stay for the whole launch,
and each pass over a row reads its lines from the ring that bulk copies fill (`ring.py`).

The last pass over a row frees its lines one by one. The last warp that has read a line has the line that is as many behind
it as the ring holds copied to its place, so that no warp waits for others but where they reduce together. Groups of threads
of a block, `kRows` of them, have rows and rings of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ucutlass.emit.reduction.indexing import IndexText
from ucutlass.emit.reduction.ring import RingText
from ucutlass.emit.reduction.writer import Writer, fill, stored_cpp
from ucutlass.kernels.reduction.plan import HELD_AT_ONCE, ReductionPlan


@dataclass(frozen=True, slots=True)
class HeldText:
    """Writes the passes over rows of one plan that lie in shared memory."""

    plan: ReductionPlan
    writer: Writer
    index: IndexText

    @property
    def ring(self) -> RingText:
        return RingText(self.plan, self.writer, self.index)

    def start(self, part: str) -> list[str]:
        """Returns the statements ahead of the rows; `part` is the block's part of a row."""
        ring, s = self.ring, self.plan.schedule
        first, mine = ring.share(part)
        return [
            "Shared& shared = shared_memory();",
            "uint64_t* const full = shared.full[threadIdx.y];",
            "uint32_t* const readers = shared.readers[threadIdx.y];",
            "int const blocks = int((p.rows - threadIdx.y + kRows - 1) / kRows);  // that have a row for these threads",
            f"int const own = {mine}, lines = (own + kThreads - 1) / kThreads;  // of a row, that this block reads",
            "if (threadIdx.x == 0) {",
            "#pragma unroll 1",
            "for (int i = 0; i < kStages; ++i) {",
            "mbarrier_init(&full[i], 1);",
            "readers[i] = 0;",
            "}",
            *ring.other_barriers(),
            "fence_mbarrier_init();",
            "}",
            *(["sync_warp();", "__cluster_barrier_arrive();"] if s.cluster > 1 else []),
            "__syncthreads();",
            "int next_block = blockIdx.x, next_line = 0;",
            "auto const fetch = [&](int next_stage) {",
            "int const block = next_block;",
            *self.index.row(),
            "fence_proxy_async();",
            f"int const first = {first} + next_line * kThreads;",
            *ring.columns("first"),
            "uint32_t const count = min(kThreads, own - next_line * kThreads);",
            f"mbarrier_arrive_expect_tx(&full[next_stage], count * uint32_t(kVector * ({ring.sizes})));",
            *(line for k in ring.loads for line in ring.copy(k)),
            "};",
            "auto const advance = [&] {",
            "if (++next_line == lines) next_line = 0, next_block += gridDim.x;",
            "};",
            "if (lines > 0) {",
            "#pragma unroll 1",
            "for (int i = 0; i < kStages; ++i) {",
            "if (threadIdx.x == 0 && next_block < blocks) fetch(i);",
            "advance();",
            "}",
            "}",
            # None writes to a block that is not there yet.
            *(["sync_warp();", "__cluster_barrier_wait();"] if s.cluster > 1 else []),
            "int first_stage = 0;  // of the row at hand",
            "uint32_t phase = 0;",
            *ring.fill(part),
        ]

    def loads(self, targets: Sequence[int], waits: bool) -> list[str]:
        """Returns the statements that read the targets' loads from the ring for the items at hand; `waits`: for the
        first time."""
        every = [k for k in self.ring.loads if k in targets]
        if not every:
            return []
        lines = ["#pragma unroll", "for (int i = 0; i < kItems; ++i) {", *self.index.item(), *_AT]
        if waits:
            there = "if (whole || line + i < lines)"
            lines.append(f"{there} mbarrier_wait(&full[at], turn < kStages ? phase : phase ^ 1);")
        for k in every:
            source = self.plan.problem.loads[k]
            line = f"read_line(&shared.line{k}[threadIdx.y][at][threadIdx.x * kVector])"
            lines.append(
                f"raw{k}[i] = ok ? {line} : splat<kVector>({stored_cpp(source.elem)}({fill(source)}));"
            )
        return [*lines, "}"]

    def passed(self, inside: list[str], last: bool, stores: bool) -> list[str]:
        """Returns a pass over a row's lines; the `last` one frees them. Where it `stores` what it has read, no read is on
        its way when the store is; else a fence awaits them."""
        freed = self._freed(stores) if last else []
        count = min(HELD_AT_ONCE, self.plan.schedule.items)
        out = [
            "{",
            "int line = 0;",
            "{",
            f"constexpr int kItems = {count};",
            "constexpr bool whole = true;",
            "#pragma unroll 1",
            "for (; (line + kItems) * kThreads <= own; line += kItems) {",
            *inside,
            *freed,
            "}",
            "}",
            f"constexpr int kItems = {count};",
            "constexpr bool whole = false;",
            "#pragma unroll 1",
            "for (; line < lines; line += kItems) {",
            *inside,
            *freed,
            "}",
            "}",
        ]
        if last:
            out += [
                "first_stage += lines;",
                "if (first_stage >= kStages) first_stage -= kStages, phase ^= 1;",
            ]
        return out

    def _freed(self, stores: bool) -> list[str]:
        return [
            *([] if stores else ["fence_proxy_async();"]),
            "sync_warp();",
            "if (threadIdx.x % 32 == 0) {",
            "#pragma unroll",
            "for (int i = 0; i < kItems; ++i) {",
            *_AT,
            "if (!whole && line + i >= lines) break;",
            "if (next_block < blocks && last_reader(&readers[at])) fetch(at);",
            "advance();",
            "}",
            "}",
        ]


_AT = ("int const turn = first_stage + line + i, at = turn < kStages ? turn : turn - kStages;",)
"""The place of a line in the ring."""
