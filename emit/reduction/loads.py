"""Loads of a reduction: vectors of items, and windows, whose overlapping elements are read once.

Where a window moves along the contiguous axis together with the vector, and the program fixes its extent,
all that a vector's windows touch is a *span*, read in aligned vectors: taps then are registers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import gcd

from ucutlass.emit.reduction.writer import (
    LocalNames,
    Writer,
    fill,
    moves,
    stored_cpp,
    touched,
    window_accumulator,
)
from ucutlass.ir.extents import Fixed
from ucutlass.kernels.reduction.plan import (
    AxisAccess,
    Fetch,
    LinearIndex,
    Load,
    ReductionOutput,
    ReductionPlan,
    ReductionProblem,
    RowWindow,
    arguments,
    contiguous_along,
    lies_flat,
)
from ucutlass.kernels.reduction.plan_straddle import access_elements, phased
from ucutlass.kernels.reduction.smem import TILE, TransposeTile, resident_loads, transpose_tiles


@dataclass(frozen=True, slots=True)
class LoadSpan:
    """What one vector's windows touch: `packs` vectors of `align` elements from `first` on, relative to
    where the vector's first element lies; `modes` are the windows that move within it, by factor."""

    load: int
    axis: AxisAccess
    align: int
    first: int
    shift: int
    packs: int
    step: int
    modes: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Loader:
    """Writes the loads of one plan."""

    plan: ReductionPlan
    writer: Writer
    ends: bool = False
    """Whether items are the elements at a row's ends, not vectors."""

    @property
    def problem(self) -> ReductionProblem:
        return self.plan.problem

    def declared(self, load: int, count: str = "kItems", into: str = "raw") -> str:
        source = self.problem.loads[load]
        width = "kVector" if moves(self.plan, source) and not self.ends else "1"
        return f"Pack<{raw_cpp(source)}, {width}> {into}{load}[{count}];"

    def load(self, k: int, valid: str, names: LocalNames) -> list[str]:
        """raw<k> of the item at hand; `valid`: whether its coordinates are there."""
        source, plan, vector = self.problem.loads[k], self.plan, self.problem.vector
        if plan.schedule.short:
            valid = "true"  # items that are not there have the first one's coordinates
        if k in dict(plan.schedule.transposed):
            return [f"raw{k}[i] = read_tile_row(tile{k}, tile_row, tile_column);"]
        if (
            plan.schedule.resident
            and k in names.local
            and k in resident_loads(self.problem, plan.schedule.vector, plan.schedule.straddle)
            and not self.ends
        ):
            line = "(line + i)" if plan.schedule.keep == "shared" else "i"
            at = f"&shared.resident{k}[({line} * kThreads + threadIdx.x) * kVector]"
            if plan.peels:
                return [f"raw{k}[0] = read_between({at}, head);"]
            return [f"raw{k}[0] = read_line({at});"]
        cpp, ids = raw_cpp(source), self.writer.ids(k)
        pack = f"raw{k}[0]" if k in names.local else f"{names.raw}{k}[{names.item}]"
        outside = f"{cpp}({fill(source)})"
        moved = [a for a in (*source.axes, *source.guards) if vector in touched(plan, [a])]
        if plan.flat and moved and not source.guards and lies_flat(self.problem, source.axes):
            read = f"load_straddling<kVector>(p.t{source.pointer}, first, p.elements)"
            if cpp != stored_cpp(source.elem):
                read = f"widen<{cpp}>({read})"
            return [f"{pack} = {read};"]
        if not moves(plan, source) or (
            not plan.flat and len(moved) == 1 and contiguous_along(source.axes, vector)
        ):
            # Neighbours: one address for all.
            here = replace(names, vector=None)
            count, align = ("kVector", self._aligned(source)) if moved else ("1", 1)
            how = "load_retained" if self._retained(k) and not self.ends else "load"
            read = f"{how}<{count}, {align}>(p.t{source.pointer} + o)"
            if plan.peels and moved and not self.ends and source not in phased(self.problem):
                read = f"load_between<{count}>(p.t{source.pointer}, o)"
            if self.shifts and moved:
                read = f"load_shifted<kVector>(p.t{source.pointer}, o, {self._size(source)})"
            if cpp != stored_cpp(source.elem):
                read = f"widen<{cpp}>({read})"
            if self._walked(k):
                read = f"load<{count}, {align}>(near{k})"
                if cpp != stored_cpp(source.elem):
                    read = f"widen<{cpp}>({read})"
                return [
                    f"{pack} = {valid} ? {read} : splat<{count}>({outside});",
                    f"near{k} += near{k}_apart;",
                ]
            return [
                "{",
                *self._ids(ids, here),
                *self.writer.address(source.axes, source.guards, here),
                f"{pack} = in && {valid} ? {read} : splat<{count}>({outside});",
                "}",
            ]
        here = replace(names, vector=vector)
        if plan.flat:
            valid = "true"  # coordinates are those of elements everywhere
        if self.shifts:
            assert vector is not None
            length = self.writer.fields.mode(vector, self.problem.modes[vector])
            valid = f"{valid} && q{vector} + v < {length}"
        read = f"{cpp}(load<1, 1>(p.t{source.pointer} + o).value[0])"
        return [
            "#pragma unroll",
            "for (int v = 0; v < kVector; ++v) {",
            *self.element(),
            *self._ids(ids, here),
            *self.writer.address(source.axes, source.guards, here),
            f"{pack}.value[v] = in && {valid} ? {read} : {outside};",
            "}",
        ]

    @property
    def shifts(self) -> bool:
        """Whether neighbouring threads shift their results to multiples of 16 bytes."""
        return self.plan.schedule.straddle and not self.plan.peels and not self.plan.flat

    def _size(self, source: Load) -> str:
        """The elements of a load's tensor, beyond which a vector is zeros. Axes that an index reads have extents of
        their own, not of the modes."""
        modes, fields = self.problem.modes, self.writer.fields
        if any(a.extent is not None for a in source.axes):
            return fields.reach(source.axes, modes)
        return fields.size(tuple(m for i, m in enumerate(modes) if i in touched(self.plan, source.axes)))

    def _aligned(self, source: Load) -> int:
        """The elements of a load that one access moves."""
        if not self.plan.peels:
            return source.align
        return 1 if self.ends else access_elements(source, self.plan.schedule.vector)

    def _retained(self, k: int) -> bool:
        """Whether no two rows share an element of a load, and its lines are to leave the L2 last."""
        all_modes = set(range(len(self.problem.rows) + len(self.problem.columns)))
        source = self.problem.loads[k]
        return self.plan.schedule.retain and touched(self.plan, (*source.axes, *source.guards)) == all_modes

    def element(self) -> list[str]:
        """The coordinate of the vector's element at hand; of vectors across all modes, those along each."""
        vector = self.problem.vector
        if self.plan.flat:
            names = {m: f"{'c' if m == vector else 'q'}{m}" for m in range(len(self.problem.rows))}
            return [f"[[maybe_unused]] int32_t const {name} = e{m}[v];" for m, name in names.items()]
        wide = "int32_t" if self.plan.schedule.short else "int64_t"
        return [] if vector is None else [f"[[maybe_unused]] {wide} const c{vector} = q{vector} + v;"]

    def _ids(self, ids: Sequence[int], names: LocalNames) -> list[str]:
        """The gathered coordinates of the element at hand."""
        if not ids:
            return []
        start = [] if names.vector is not None else ["constexpr int v = 0;"]
        return [*start, *self.writer.statements(ids, names)]

    # --- transposes

    def tiles(self) -> list[str]:
        """Returns the statements that fill the shared-memory tiles of transposed loads, which begin at `first_<mode>`."""
        lines: list[str] = []
        for tile in transpose_tiles(self.problem, self.plan.schedule):
            lines += self._tile(tile)
        return [*lines, "__syncthreads();"] if lines else []

    def _tile(self, tile: TransposeTile) -> list[str]:
        """Reads along the tensor's own mode, a word of each of as many lines; writes words of the other."""
        problem, fields, k, word = self.problem, self.writer.fields, tile.load, tile.word
        vector, across = problem.vector, self.plan.schedule.across
        assert vector is not None
        source = problem.loads[k]
        cpp = stored_cpp(source.elem)
        names, schedule = LocalNames(None), self.plan.schedule
        side = schedule.tile
        lines = fields.mode(vector, problem.modes[vector])
        wide = fields.mode(across, problem.modes[across])
        there, outside = "", ""
        if not schedule.full:
            there, outside = (
                f"j * {schedule.rows * word // side * word} + a < lines ? ",
                f" : splat<{word}>({cpp}(0.0f))",
            )
        places, address = schedule.rows * word // side * word, self.writer.address(source.axes, (), names)
        return [
            f"__shared__ __align__(16) uint8_t memory{k}[{side} * (kTile + {tile.padding}) * sizeof({cpp})];",
            f"auto* const tile{k} = reinterpret_cast<Pack<{cpp}, kTile + {tile.padding}>*>(memory{k});",
            "{",
            f"int const lu = int(threadIdx.x % {side // word}u) * {word}, lw = int(threadIdx.x / {side // word}u) * {word};",
            f"int64_t const q{across} = first_{across} + lu;",
            "int64_t origin, line;",
            *first_two(f"q{vector}", f"first_{vector} + lw", 1, address, "origin", "line"),
            f"[[maybe_unused]] int const lines = int(q{across}) < int({wide}) ? int({lines}) - int(first_{vector}) - lw : 0;",
            f"constexpr int kSlots = kTile / {places};",
            f"Pack<{cpp}, {word}> source_rows[kSlots][{word}];",
            f"auto const* from = p.t{source.pointer} + origin;",
            "#pragma unroll",
            "for (int j = 0; j < kSlots; ++j) {",
            "#pragma unroll",
            f"for (int a = 0; a < {word}; ++a) {{",
            f"source_rows[j][a] = {there}load<{word}, {word}>(from + a * line){outside};",
            "}",
            f"from += {places} * line;  // not by a product for each place",
            "}",
            "#pragma unroll",
            "for (int j = 0; j < kSlots; ++j) {",
            "#pragma unroll",
            f"for (int b = 0; b < {word}; ++b) {{",
            f"Pack<{cpp}, {word}> column;",
            "#pragma unroll",
            f"for (int a = 0; a < {word}; ++a) column.value[a] = source_rows[j][a].value[b];",
            f"store<{word}, {word}>(&tile{k}[lu + b].value[lw + j * {places}], column);",
            "}",
            "}",
            "}",
        ]

    def tile_lines(self) -> list[str]:
        """Returns the statements that find a thread's first place of a tile's results, and how far apart in memory its places
        lie: it adds that from one to the next."""
        problem, s = self.problem, self.plan.schedule
        vector, across, side = problem.vector, s.across, TILE // s.vector
        assert vector is not None
        ends = [f"int({self.writer.fields.mode(m, problem.modes[m])})" for m in (vector, across)]
        lines = [
            f"int const tile_column = int(threadIdx.x % {side}u) * {s.vector};",
            f"int const tile_line = int(threadIdx.x / {side}u);",
            f"int64_t const q{vector} = first_{vector} + tile_column;",
            f"[[maybe_unused]] int const tile_lines = int(q{vector}) < {ends[0]} ? {ends[1]} - int(first_{across}) - tile_line : 0;",
        ]
        walked: list[tuple[str, Load | ReductionOutput]] = [
            (f"near{k}", x) for k, x in enumerate(problem.loads) if self._walked(k)
        ]
        walked += [(f"target{j}", o) for j, o in enumerate(problem.outputs)]
        for name, x in walked:
            address = self.writer.address(x.axes, (), LocalNames(None))
            start = f"first_{across} + tile_line"
            lines += [
                f"int64_t origin_{name}, {name}_apart;",
                *first_two(f"q{across}", start, self.tile_step, address, f"origin_{name}", f"{name}_apart"),
                f"auto* {name} = p.t{x.pointer} + origin_{name};",
            ]
        return lines

    @property
    def tile_step(self) -> int:
        """Lines of a tile's results between two places of a thread."""
        return self.plan.schedule.rows * self.plan.schedule.vector // TILE

    def _walked(self, k: int) -> bool:
        """Whether a tile's loads of a tensor, which is not transposed, lie at equal distances."""
        source, s = self.problem.loads[k], self.plan.schedule
        plain = all(a.scale == 1 and a.extent is None and a.gathered is None for a in source.axes)
        neighbours = contiguous_along(source.axes, self.problem.vector) or not moves(self.plan, source)
        loose = bool(self.problem.windows or source.guards)
        return bool(s.transposed) and k not in dict(s.transposed) and plain and neighbours and not loose

    # --- windows

    def windows(self, windows: Iterable[int], names: LocalNames) -> list[str]:
        """These windows, of all elements of the item at hand."""
        instructions = self.problem.instructions
        return [
            line
            for i in windows
            if isinstance(window := instructions[i], RowWindow)
            for line in self._window(i, window, names)
        ]

    def _window(self, i: int, window: RowWindow, names: LocalNames) -> list[str]:
        problem = self.problem
        spans = self.spans(window)
        inside = [m for span in spans for m, _ in span.modes]
        outside = [m for m in window.modes if m not in inside]
        lines = [f"{window_accumulator(window, self.writer.kind(window.arg))} a{i}[kVector];"]
        here = replace(names, windows=names.windows | set(outside))
        lines += ["{"]  # two windows may have spans of one load
        lines += [line for m in outside for line in self._loop(m)]
        for span in spans:
            lines += self._span(span, here)
        lines += [line for m in window.modes if m in inside for line in self._loop(m)]
        here = replace(
            here,
            windows=names.windows | set(window.modes),
            spans={span.load: _tap(span) for span in spans} | dict(names.spans),
        )
        loads = [o.load for j in window.body if isinstance(o := problem.instructions[j], Fetch)]
        single = [k for k in dict.fromkeys(loads) if k not in here.spans]
        here = replace(here, local=here.local | set(single))
        for k in single:
            lines += [self.declared(k, "1"), *self.load(k, "true", here)]
        # What stays the same in the window is computed again for each tap: the compiler knows better.
        around = {a for j in window.body for a in arguments(problem.instructions[j], problem.loads)} | {
            window.arg
        }
        start = [
            line
            for j in self.writer.dependencies(around - set(window.body))
            for line in self.writer.line(j, here)
        ]
        work = [line for j in window.body for line in self.writer.line(j, here)]
        value = self.writer.operand(window.arg, here)
        at = f", w{window.modes[0]}" if window.op in ("argmax", "argmin") else ""
        lines += [
            "#pragma unroll",
            "for (int v = 0; v < kVector; ++v) {",
            *self.element(),
            *start,
            *work,
            f"a{i}[v].add({value}{at});",
            "}",
        ]
        return [*lines, *("}" for _ in window.modes), "}"]

    def _loop(self, mode: int) -> list[str]:
        problem = self.problem
        taps = problem.taps[mode - len(problem.rows) - len(problem.columns)]
        bound = str(taps) if taps else self.writer.fields.mode(mode, problem.modes[mode])
        pragma = ["#pragma unroll"] if 0 < taps <= MOST_TAPS else []
        return [*pragma, f"for (int w{mode} = 0; w{mode} < {bound}; ++w{mode}) {{"]

    def spans(self, window: RowWindow) -> list[LoadSpan]:
        loads = [o.load for j in window.body if isinstance(o := self.problem.instructions[j], Fetch)]
        spans = [span for k in dict.fromkeys(loads) if (span := self._span_of(k, window)) is not None]
        # All or none: the loops of a span's windows are inside the others.
        return spans if len({span.modes for span in spans}) <= 1 else []

    def _span_of(self, k: int, window: RowWindow) -> LoadSpan | None:
        """The span of a load, where it has one."""
        problem, vector = self.problem, self.problem.vector
        source = problem.loads[k]
        moved = [a for a in (*source.axes, *source.guards) if vector in touched(self.plan, [a])]
        if len(moved) != 1 or moved[0] not in source.axes or moved[0].stride != () or vector is None:
            return None
        (axis,) = moved
        terms = dict(axis.at.terms)
        modes = tuple((m, c) for m, c in axis.at.terms if m in window.modes)
        taps = {m: problem.taps[m - len(problem.rows) - len(problem.columns)] for m, _ in modes}
        plain = axis.scale == 1 and axis.gathered is None and axis.extent is not None
        fixed = isinstance(axis.at.offset, Fixed) and all(0 < n <= MOST_TAPS for n in taps.values())
        # Coordinates that a window's loop loads are not there yet where its span is read.
        steady = not any(
            m in touched(self.plan, [a])
            for a in (*source.axes, *source.guards)
            if a is not axis
            for m in (taps if a.gathered is None else window.modes)
        )
        if not (modes and plain and fixed and steady) or terms[vector] < 1 or any(c < 1 for _, c in modes):
            return None
        assert isinstance(axis.at.offset, Fixed)
        step, offset = terms[vector], axis.at.offset.value
        # Where a span starts: at multiples of what a vector steps over, and of every other name's factor.
        starts = [c for m, c in terms.items() if m != vector and m not in taps]
        align = gcd(source.span, step * self.plan.schedule.vector, *starts)
        count = step * (self.plan.schedule.vector - 1) + sum(c * (taps[m] - 1) for m, c in modes) + 1
        shift = offset % align
        packs = -(-(shift + count) // align)
        return LoadSpan(k, axis, align, offset - shift, shift, packs, step, modes)

    def _span(self, span: LoadSpan, names: LocalNames) -> list[str]:
        source, vector = self.problem.loads[span.load], self.problem.vector
        cpp, here = raw_cpp(source), replace(names, vector=None)
        others = tuple(a for a in source.axes if a is not span.axis)
        rest = tuple((m, c) for m, c in span.axis.at.terms if m not in dict(span.modes))
        start = self.writer.linear(LinearIndex(rest, Fixed(span.first)), here)
        assert span.axis.extent is not None and vector is not None
        bound = self.writer.fields.number(span.axis.extent)
        k = span.load
        at = f"p.t{source.pointer} + o + x"
        inside = f"x >= 0 && x < {bound}"
        first = []
        if self.plan.schedule.straddle:
            # One address and one comparison: such kernels are bound by instructions.
            at = f"window + j * {span.align}"
            inside = f"uint64_t(x) < uint64_t({bound})"
            first = [f"auto const* const window = p.t{source.pointer} + o + start;"]
        return [
            f"Pack<{cpp}, {span.packs * span.align}> span{k};",
            "{",
            *self._ids(self.writer.ids(k), here),
            *self.writer.address(others, source.guards, here),
            f"int64_t const start = {start};",
            *first,
            "#pragma unroll",
            f"for (int j = 0; j < {span.packs}; ++j) {{",
            f"int64_t const x = start + j * {span.align};",
            f"auto const pack = in && {inside}"
            f" ? widen<{cpp}>(load<{span.align}, {span.align}>({at}))"
            f" : splat<{span.align}>({cpp}({fill(source)}));",
            "#pragma unroll",
            f"for (int b = 0; b < {span.align}; ++b) span{k}.value[j * {span.align} + b] = pack.value[b];",
            "}",
            "}",
        ]


MOST_TAPS = 32
"""Extent of a window that is unrolled."""


def _tap(span: LoadSpan) -> str:
    taps = "".join(f" + {c} * w{m}" for m, c in span.modes)
    return f"span{span.load}.value[{span.shift} + {span.step} * v{taps}]"


def first_two(
    mode: str, start: str, apart: int, address: Sequence[str], origin: str, distance: str
) -> list[str]:
    """Returns the statements that leave the address at the coordinate `start` of a mode in `origin`, and in `distance` how far
    behind it that of the coordinate `apart` further lies."""
    return [
        f"{{ [[maybe_unused]] int64_t const {mode} = {start};",
        *address,
        f"{origin} = o; }}",
        f"{{ [[maybe_unused]] int64_t const {mode} = {start} + {apart};",
        *address,
        f"{distance} = o - {origin}; }}",
    ]


def raw_cpp(load: Load) -> str:
    """What a load is kept as: its element, or a float where an infinity fills it that conversions to its element
    saturate."""
    if load.elem.name in ("e4m3", "e5m2") and load.fill in (float("inf"), float("-inf")):
        return "float"
    return stored_cpp(load.elem)
