"""The rows and columns of a thread of a reduction, as coordinates of the modes."""

from __future__ import annotations

from dataclasses import dataclass

from ucutlass.emit.reduction.loads import Loader
from ucutlass.emit.reduction.lookback import LookBackText
from ucutlass.emit.reduction.meeting import counters
from ucutlass.emit.reduction.writer import LocalNames, Writer, stored_cpp
from ucutlass.emit.text import product
from ucutlass.kernels.access import Product
from ucutlass.kernels.reduction.plan import ReductionPlan, ReductionProblem, RowReduce, phases, scans_of
from ucutlass.kernels.reduction.plan_straddle import most_ends, phased
from ucutlass.kernels.reduction.smem import TILE


@dataclass(frozen=True, slots=True)
class IndexText:
    """Writes coordinates: q<mode> of a mode where an item's vector starts."""

    plan: ReductionPlan
    writer: Writer
    loader: Loader
    ends: bool = False
    """Whether items are the elements at a row's ends, not vectors."""

    @property
    def look_back(self) -> LookBackText:
        return LookBackText(self.plan)

    @property
    def problem(self) -> ReductionProblem:
        return self.plan.problem

    @property
    def integer(self) -> str:
        """The type of coordinates."""
        return "int32_t" if self.plan.schedule.short else "int64_t"

    def totals(self) -> None:
        """Rows and columns in the units that threads count: vectors along the vector mode."""
        problem, fields = self.problem, self.writer.fields
        for load in problem.loads:
            fields.add(
                f"t{load.pointer}",
                f"{stored_cpp(load.elem)} const*",
                f"static_cast<{stored_cpp(load.elem)} const*>(tensors[{load.pointer}])",
            )
        for output in problem.outputs:
            cpp = stored_cpp(output.elem)
            fields.add(f"t{output.pointer}", f"{cpp}*", f"static_cast<{cpp}*>(tensors[{output.pointer}])")
        if self.plan.schedule.transposed:
            sides = (problem.vector, self.plan.schedule.across)
            counts = [self._tiles(i) if i in sides else f"({product(m)})" for i, m in enumerate(problem.rows)]
            fields.add("rows", "int64_t", " * ".join(counts))
            fields.add("columns", "int64_t", "1")
            return
        if self.plan.flat:
            elements = " * ".join(f"({product(m)})" for m in problem.rows)
            fields.add("elements", "int64_t", elements, "of each result")
        for name, modes, first in (
            ("rows", problem.rows, 0),
            ("columns", problem.columns, len(problem.rows)),
        ):
            units = "*".join(f"({product(m)})" for m in modes) or "1"
            if problem.vector is not None and first <= problem.vector < first + len(modes):
                vector = self.plan.schedule.vector
                units = f"{units} / {vector}"
                if self.plan.schedule.straddle:
                    units = self._straddled(modes)
            fields.add(name, "int64_t", units)
        if self.plan.peels:
            vector = self.plan.schedule.vector
            length = product(problem.columns[0])
            fields.add("ends", "int64_t", f"{length} - p.columns * {vector}", "elements at a row's ends")
        if self.plan.schedule.splits > 1 or self.plan.schedule.look_back or self.plan.schedule.grid > 1:
            fields.types["partial"] = ("uint8_t*", "")
        if self.plan.shares:
            sharers = self.plan.schedule.sharers
            fields.add(
                "share",
                "int64_t",
                f"(p.columns + {sharers - 1}) / {sharers}",
                "vectors of a row that a block has",
            )
        if self.plan.schedule.grid > 1:
            fields.add("counters", "int64_t", counters(self.plan))
        if self.plan.schedule.look_back:
            for name, value in self.look_back.fields().items():
                fields.add(name, "int64_t", value)

    def start(self) -> list[str]:
        if self.plan.schedule.transposed:
            return self._tile()
        if not self.problem.columns:
            return [f"{self.integer} const block = blockIdx.x;"]
        if self.plan.schedule.look_back:
            return self.look_back.start()
        return [
            "[[maybe_unused]] constexpr int kLine = kThreads * kItems;",
            f"[[maybe_unused]] constexpr int kSplits = {self.plan.schedule.splits};",
            "int const chunks = "
            + (
                "max(1, int((p.columns + kLine - 1) / kLine));"
                if self.plan.peels
                else "int((p.columns + kLine - 1) / kLine);"
            ),
            *self._own_chunks(),
            *(
                ["int const own_vectors = max(0, min(int(p.share), int(p.columns - blockIdx.y * p.share)));"]
                if self.plan.shares
                else []
            ),
            "[[maybe_unused]] int buffer = 0;  // which of two buffers in shared memory the next reduction uses",
        ]

    def _own_chunks(self) -> list[str]:
        """The chunks of a row that a block takes."""
        if phases(self.problem) == 0 and not scans_of(self.problem):
            # Few elements of a block would not repay a division.
            line, splits = self.plan.schedule.threads * self.plan.schedule.items, self.plan.schedule.splits
            part = f"p.columns > 0 ? (p.columns + {line * splits - 1}) / {line * splits} : 1"
            self.writer.fields.add("part", "int64_t", part, "chunks of a block")
            return [
                "[[maybe_unused]] int const first_chunk = int(blockIdx.y * p.part);",
                "[[maybe_unused]] int const last_chunk = min(chunks, first_chunk + int(p.part));",
            ]
        return [
            "[[maybe_unused]] int const first_chunk = int(int64_t(chunks) * blockIdx.y / gridDim.y);",
            "[[maybe_unused]] int const last_chunk = int(int64_t(chunks) * (blockIdx.y + 1) / gridDim.y);",
        ]

    def row(self) -> list[str]:
        """The coordinates of the thread's row. Where it has none, it does again what the last
        row's does, and stores nothing."""
        if not self.problem.columns:
            return []
        row = "threadIdx.y" if self.problem.across else "threadIdx.x"
        own_block = self.plan.schedule.look_back or self.plan.schedule.stages > 1
        if self.plan.schedule.keep == "shared":
            # A group of threads ends with the last row that it has.
            lines = [
                "int64_t const row = int64_t(block) * kRows + threadIdx.y;",
                "[[maybe_unused]] constexpr bool has_row = true;",
            ]
        elif self.plan.schedule.rows == 1:
            # A launch has no more blocks than rows.
            block = "block" if own_block else "blockIdx.x"
            lines = [f"int64_t const row = {block};", "[[maybe_unused]] constexpr bool has_row = true;"]
        else:
            block = (
                "int64_t(block)"
                if self.plan.schedule.stages > 1
                else "block"
                if own_block
                else "int64_t(blockIdx.x)"
            )
            lines = [
                f"int64_t const own_row = {block} * kRows + {row};",
                "[[maybe_unused]] bool const has_row = own_row < p.rows;",
                "int64_t const row = has_row ? own_row : p.rows - 1;",
            ]
        lines += self._coordinates("row", 0, len(self.problem.rows), "true")
        return lines + self._head() if self.plan.peels else lines

    def _straddled(self, modes: tuple[Product, ...]) -> str:
        """The vectors between a row's ends; of all lines, where nothing is reduced."""
        vector, at = self.plan.schedule.vector, self.problem.vector
        if self.plan.flat:
            return f"(p.elements + {vector - 1}) / {vector}"
        if self.problem.columns:
            least = most_ends(self.problem, vector) - vector + 1
            return f"{product(modes[0])} < {least} ? 0 : ({product(modes[0])} - {least}) / {vector}"
        return " * ".join(self._units(m) if m == at else f"({product(x)})" for m, x in enumerate(modes))

    def _units(self, mode: int) -> str:
        """The vectors along the vector mode."""
        vector = self.plan.schedule.vector
        if self.plan.schedule.straddle:
            return f"(({product(self.problem.modes[mode])} + {vector - 1}) / {vector})"
        return f"({product(self.problem.modes[mode])}) / {vector}"

    def _head(self) -> list[str]:
        """How many elements of a row lie before its first whole vector."""
        vector = self.problem.vector
        return [
            "int head;",
            "{",
            f"int64_t const q{vector} = 0;",
            *self.writer.address(phased(self.problem)[0].axes, (), LocalNames(None)),
            "head = int(uint64_t(-o) % kVector);",
            "}",
        ]

    def _tile(self) -> list[str]:
        """Returns the statements that find a block's tile. Blocks are numbered along a few tiles of the other side, so that
        the blocks in flight read long stretches, then along the vector mode, along the rest of the other side, and
        along all other modes."""
        problem, fields, across = self.problem, self.writer.fields, self.plan.schedule.across
        vector = problem.vector
        assert vector is not None
        row_elements, side = self._tiles(vector), self._tiles(across)
        group = f"({side} % 8 == 0 ? 8 : {side} % 4 == 0 ? 4 : {side} % 2 == 0 ? 2 : 1)"
        few = fields.add("group", "Divisor", f"Divisor(int({group}))")
        lines = ["int rest = int(blockIdx.x), at, near;", f"{few}(rest, near, rest);"]
        for mode, units in ((vector, row_elements), (across, f"{side} / {group}")):
            field = fields.add(f"tiles{mode}", "Divisor", f"Divisor(int({units}))")
            first = "at" if mode == vector else f"at * {few}.divisor + near"
            lines += [
                f"{field}(rest, at, rest);",
                f"int64_t const first_{mode} = int64_t({first}) * {self._side(mode)};",
            ]
        others = [m for m in range(len(problem.rows)) if m not in (vector, across)]
        for mode in reversed(others):
            units = product(problem.modes[mode])
            field = fields.add(f"div{mode}", "Divisor", f"Divisor(int({units}))")
            lines += [f"{field}(rest, at, rest);", f"[[maybe_unused]] int64_t const q{mode} = at;"]
        return [*lines, *self.loader.tiles(), *self.loader.tile_lines()]

    def _side(self, mode: int) -> int:
        """The elements of a tile along one of its two modes."""
        return TILE if mode == self.problem.vector else self.plan.schedule.tile

    def _tiles(self, mode: int) -> str:
        side = self._side(mode)
        return f"(({product(self.problem.modes[mode])} + {side - 1}) / {side})"

    def _across_modes(self) -> list[str]:
        """The number of a vector's first element among all, and the coordinates of each element, which carry from one to the
        next: a division each would take most of a kernel's time. Beyond the last they are those of some element."""
        modes, fields = range(len(self.problem.rows)), self.writer.fields
        lengths = [f"int32_t({fields.mode(m, self.problem.modes[m])})" for m in modes]
        lines = ["int32_t const first = ok ? int32_t(row) * kVector : 0;", "int32_t rest = first;"]
        for mode in reversed(modes[1:]):
            units = product(self.problem.modes[mode])
            field = fields.add(f"div{mode}", "Divisor", f"Divisor(int({units}))")
            lines += [f"int32_t q{mode};", f"{field}(rest, q{mode}, rest);"]
        lines += ["int32_t q0 = rest;", f"int32_t {', '.join(f'e{m}[kVector]' for m in modes)};"]
        lines += ["#pragma unroll", "for (int v = 0; v < kVector; ++v) {"]
        lines += [f"e{m}[v] = q{m};" for m in modes[1:]]
        lines.append(f"e0[v] = min(q0, {lengths[0]} - 1);")
        carry = "1"
        for mode in reversed(modes[1:]):
            lines += [
                f"q{mode} += {carry};",
                f"bool const carry{mode} = {f'{carry} && ' if carry != '1' else ''}q{mode} == {lengths[mode]};",
                f"q{mode} = carry{mode} ? 0 : q{mode};",
            ]
            carry = f"carry{mode}"
        return [*lines, f"q0 += {carry};", "}"]

    def _coordinates(self, index: str, first: int, count: int, valid: str) -> list[str]:
        """q<mode> of modes first.. of a flat index, the last mode innermost; 0 where it is not valid."""
        problem, fields = self.problem, self.writer.fields
        if count == 0:
            return []
        lines, rest = [], f"at{first}"
        wide = self.integer
        lines.append(f"{wide} {rest} = {index if valid == 'true' else f'{valid} ? {index} : 0'};")
        for mode in reversed(range(first, first + count)):
            vector = self.plan.schedule.vector if mode == problem.vector else 1
            scale = f" * {vector}" if vector > 1 else ""
            if mode == first:
                lines.append(f"[[maybe_unused]] {wide} const q{mode} = {rest}{scale};")
                continue
            units = self._units(mode) if vector > 1 else product(problem.modes[mode])
            field = fields.add(f"div{mode}", "Divisor", f"Divisor(int({units}))")
            lines += [
                f"int quotient{mode}, remainder{mode};",
                f"{field}(quotient{mode}, remainder{mode}, int({rest}));",
                f"[[maybe_unused]] {wide} const q{mode} = {wide}(remainder{mode}){scale};",
                f"{rest} = quotient{mode};",
            ]
        return lines

    def item(self) -> list[str]:
        """The coordinates of item i, and in `ok` whether it is there."""
        problem = self.problem
        if self.plan.schedule.transposed:
            across = self.plan.schedule.across
            return [
                f"int const tile_row = tile_line + i * {self.loader.tile_step};",
                f"[[maybe_unused]] int64_t const q{across} = first_{across} + tile_row;",
                "constexpr bool ok = true;"
                if self.plan.schedule.full
                else f"bool const ok = i * {self.loader.tile_step} < tile_lines;",
            ]
        if not problem.columns:
            lines = [
                f"{self.integer} const row = (block * kItems + i) * kRows + threadIdx.x;",
                f"bool const ok = row < {self.integer}(p.rows);",
            ]
            if self.plan.flat:
                return [*lines, *self._across_modes()]
            return lines + self._coordinates("row", 0, len(problem.rows), "ok")
        thread = "threadIdx.x" if problem.across else "threadIdx.y"
        if self.ends:
            return self._end(thread)
        if self.plan.schedule.keep == "shared":
            return self._held_item()
        # Full lines need no comparison, and 64 bits let the compiler walk addresses by their strides.
        full = self.plan.schedule.full
        wide = "int64_t" if full else "uint32_t"
        column = f"({wide}(chunk) * kItems + i) * kThreads + {thread}"
        if self.plan.shares:
            column = f"uint32_t(chunk) * uint32_t(p.share) + i * kThreads + {thread}"
        if scans_of(self.problem) and not problem.across:
            column = f"({wide}(chunk) * kThreads + {thread}) * kItems + i"
        if self.whole_chunks():
            wide, column = "int64_t", f"(int64_t(chunk) * kItems + i) * kThreads + {thread}"
        within = (
            f"int(i * kThreads + {thread}) < own_vectors"
            if self.plan.shares
            else "place < uint32_t(p.columns)"
        )
        if self.whole_chunks():
            within = "whole || place < p.columns"
        if self.plan.schedule.dense:
            within = f"i < kItems - 1 || {within}"
        ok = "constexpr bool ok = true" if full else f"bool const ok = {within}"
        lines = [f"{wide} const place = {column};", f"[[maybe_unused]] {ok};"]
        valid = "true" if full else "ok"
        if self.plan.peels:
            at = f"{'place' if full else '(ok ? int64_t(place) : 0)'} * kVector + head"
            return [*lines, f"[[maybe_unused]] int64_t const q{problem.vector} = {at};"]
        index = f"({wide}(p.columns) - 1 - place)" if self.reversed() else "place"
        first = len(problem.rows)
        return lines + self._coordinates(index, first, len(problem.columns), valid)

    def whole_chunks(self) -> bool:
        """Whether parts of a row that threads fill take a branch of their own, in which all items are there: where parts
        follow one another through registers, and of their exponentials a sum is left."""
        s, problem = self.plan.schedule, self.problem
        if s.keep != "reread" or s.full or s.ahead or not problem.columns or not problem.across:
            return False
        ops = {i.op for i in problem.instructions if isinstance(i, RowReduce)}
        return ops == {"logsumexp"} and not scans_of(problem) and not any(o.whole for o in problem.outputs)

    def _held_item(self) -> list[str]:
        """The coordinates of line i of those at hand, of a row in shared memory."""
        own = "(line + i) * kThreads + int(threadIdx.x)"
        before = "int(blockIdx.y) * int(p.share) + " if self.plan.shares else ""
        lines = [
            f"int const place = {before}{own};",
            f"[[maybe_unused]] bool const ok = whole || {own} < own;",
        ]
        if self.plan.peels:
            at = "int64_t(ok ? place : 0) * kVector + head"
            return [*lines, f"[[maybe_unused]] int64_t const q{self.problem.vector} = {at};"]
        return lines + self._coordinates("place", len(self.problem.rows), len(self.problem.columns), "ok")

    def _end(self, thread: str) -> list[str]:
        """The coordinate of an element at a row's ends, which the first part of a row has beside its vectors. Of an
        element-wise kernel the last has them, whose last threads have no vectors, and wait for none."""
        vector = self.plan.schedule.vector
        column = f"place < head ? place : place + int64_t(p.columns) * {vector}"
        alone = phases(self.problem) == 0 and not scans_of(self.problem)
        part, own = ("chunks - 1", f"(kThreads - 1 - {thread})") if alone else ("0", thread)
        return [
            f"int const place = i * kThreads + {own};",
            f"bool const ok = chunk == {part} && place < int(p.ends);",
            f"[[maybe_unused]] int64_t const q{self.problem.vector} = !ok ? 0 : {column};",
        ]

    def length(self) -> str:
        """The elements of a row, along the vector mode."""
        vector = self.problem.vector
        assert vector is not None
        return self.writer.fields.mode(vector, self.problem.modes[vector])

    def reversed(self) -> bool:
        return any(s.reverse for _, s in scans_of(self.problem))
