"""Sweeps: element-wise work, reductions and scans over columns, windows and gathers.

The template is `sweep.cu.j2`, its library `sweep_library.j2`; the kernel's body is written here, pass by
pass over the columns: loads of all items first, so that they are in flight together, then the work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ucutlass.emit import text
from ucutlass.emit.arithmetic import convert, kind_of, rounded
from ucutlass.emit.functions import CPP, INTEGER, ROUND, definitions
from ucutlass.emit.sweep_writer import (
    Fields,
    Names,
    Writer,
    accumulator,
    fill,
    moves,
    stored_cpp,
    tolerant,
    touched,
)
from ucutlass.emit.text import product
from ucutlass.plans.sweep import (
    Load,
    Output,
    RowReduce,
    ScanAlong,
    SweepPlan,
    SweepProblem,
    Window,
    phase_of,
    phases,
)

_INCLUDES = (
    "<cmath>",
    "<cstdint>",
    "<cstring>",
    "<cuda_runtime.h>",
    "<cuda/std/limits>",
    '"cutlass/cutlass.h"',
    '"cutlass/fast_math.h"',
    '"cutlass/numeric_conversion.h"',
)


def render(plan: SweepPlan) -> str:
    """The code of a plan, for `ucutlass.emit.text.finish`."""
    problem, schedule = plan.problem, plan.schedule
    made = _Body(plan, Writer(plan, Fields(), {}, tolerant(plan)))
    body = "\n".join(_indented(made.lines()))
    writer = made.writer
    conversions = [t for mark, t in (("ucc_round<", ROUND), ("ucc_integer<", INTEGER)) if mark in body]
    fields = writer.fields
    every: list[Load | Output] = [*problem.loads, *problem.outputs]
    across = problem.across
    scans = any(isinstance(i, ScanAlong) for i in problem.instructions)
    reductions = any(isinstance(i, RowReduce | Window) for i in problem.instructions)
    aligned = {
        x.pointer: max(y.align * y.elem.bytes for y in every if y.pointer == x.pointer)
        for x in every if x.align > 1
    }  # fmt: skip
    return text.render(
        "sweep.cu.j2",
        includes=_INCLUDES,
        columns=bool(problem.columns), across=across, reductions=reductions, scans=scans,
        vector=schedule.vector, threads=schedule.threads, rows=schedule.rows, items=schedule.items,
        functions="\n".join([*conversions, definitions(tuple(writer.uses))]),
        fields=[{"type": cpp, "name": name, "note": note} for name, (cpp, note) in fields.types.items()],
        floors=any("floor_" in line for line in fields.host),
        host=fields.host, body=body, dims=problem.dims,
        launches=made.launches, splits=schedule.splits, whole=any(o.whole for o in problem.outputs),
        block="%d, %d" % ((schedule.threads, schedule.rows) if across else (schedule.rows, schedule.threads)),
        block_threads=schedule.threads * schedule.rows,
        rows_per_block=schedule.rows * (1 if problem.columns else schedule.items),
        workspace=made.workspace(),
        aligned=[{"pointer": pointer, "bytes": n} for pointer, n in sorted(aligned.items()) if n > 1],
        multiples=_multiples(problem, schedule.vector),
    )  # fmt: skip


def _multiples(problem: SweepProblem, vector: int) -> list[dict[str, object]]:
    """What the plan relies on: vectors divide their mode, strides keep alignments."""
    needs: dict[tuple[str, int], None] = {}
    if problem.vector is not None and vector > 1:
        needs[product(problem.modes[problem.vector]), vector] = None
    every: list[Load | Output] = [*problem.loads, *problem.outputs]
    for one in every:
        for axis in one.axes:
            if min(one.align, vector) > 1 and axis.stride:
                needs[product(axis.stride), min(one.align, vector)] = None
    return [{"value": value, "of": of} for value, of in needs]


def _indented(lines: Iterable[str]) -> Iterable[str]:
    depth = 1
    for line in lines:
        closing = len(line) - len(line.lstrip("}"))
        shown = depth - closing
        depth += line.count("{") - line.count("}")
        yield line if line.startswith("#") else "  " * max(1, shown) + line


@dataclass(frozen=True, slots=True)
class _Body:
    """The kernel's statements."""

    plan: SweepPlan
    writer: Writer

    @property
    def problem(self) -> SweepProblem:
        return self.plan.problem

    @property
    def launches(self) -> int:
        return phases(self.problem) + 1 if self.plan.schedule.splits > 1 else 1

    def lines(self) -> list[str]:
        problem = self.problem
        self._totals()
        out = self._place()
        split, keep = self.plan.schedule.splits > 1, self.plan.schedule.keep == "registers"
        out += [line for load in self._kept() for line in self._declared(load)] if keep else []
        loaded: set[int] = set()
        for phase in range(phases(problem)):
            reductions = self._reductions(phase)
            out += [f"{accumulator(one)} r{i}[{self._lanes}];" for i, one in reductions]
            made = self._phase(reductions, loaded)
            made += [f"reduce<{i}>(r{i});" for i, _ in reductions]
            if not split:
                out += made
                continue
            out += [f"if constexpr (kLaunch == {phase}) {{", *made]
            out += [line for i, one in reductions for line in self._leave(i, one)]
            out += ["return;", "} else {"]
            out += [line for i, one in reductions for line in self._gather(i, one)]
            out += ["}"]
        if any(o.whole for o in problem.outputs) or not problem.columns:
            out += self._results(loaded)
        out += self._row_results()
        return out

    # --- where a thread is

    @property
    def _lanes(self) -> str:
        return "1" if self.problem.across else "kVector"

    def _totals(self) -> None:
        """Rows and columns in the units that threads count: vectors along the vector mode."""
        problem, fields = self.problem, self.writer.fields
        for load in problem.loads:
            fields.add(f"t{load.pointer}", f"{stored_cpp(load.elem)} const*",
                       f"static_cast<{stored_cpp(load.elem)} const*>(tensors[{load.pointer}])")  # fmt: skip
        for output in problem.outputs:
            cpp = stored_cpp(output.elem)
            fields.add(f"t{output.pointer}", f"{cpp}*", f"static_cast<{cpp}*>(tensors[{output.pointer}])")
        for name, modes, first in (("rows", problem.rows, 0), ("columns", problem.columns, len(problem.rows))):
            units = "*".join(f"({product(m)})" for m in modes) or "1"
            if problem.vector is not None and first <= problem.vector < first + len(modes):
                units = f"{units} / {self.plan.schedule.vector}"
            fields.add(name, "int64_t", units)
        if self.plan.schedule.splits > 1:
            fields.types["partial"] = ("uint8_t*", "")

    def _place(self) -> list[str]:
        if not self.problem.columns:
            return ["int64_t const block = blockIdx.x;"]
        row = "threadIdx.y" if self.problem.across else "threadIdx.x"
        lines = [
            f"int64_t const row = int64_t(blockIdx.x) * kRows + {row};",
            "bool const mine = row < p.rows;",
            "constexpr int kLine = kThreads * kItems;",
            f"[[maybe_unused]] constexpr int kSplits = {self.plan.schedule.splits};",
            "int const chunks = int((p.columns + kLine - 1) / kLine);",
            "[[maybe_unused]] int const first_chunk = int(int64_t(chunks) * blockIdx.y / gridDim.y);",
            "[[maybe_unused]] int const last_chunk = int(int64_t(chunks) * (blockIdx.y + 1) / gridDim.y);",
        ]
        return lines + self._coordinates("row", 0, len(self.problem.rows), "mine")

    def _coordinates(self, index: str, first: int, count: int, valid: str) -> list[str]:
        """q<mode> of modes first.. of a flat index, the last mode innermost; 0 where it is not valid."""
        problem, fields = self.problem, self.writer.fields
        if count == 0:
            return []
        lines, rest = [], f"at{first}"
        lines.append(f"int64_t {rest} = {valid} ? {index} : 0;")
        for mode in reversed(range(first, first + count)):
            vector = self.plan.schedule.vector if mode == problem.vector else 1
            scale = f" * {vector}" if vector > 1 else ""
            if mode == first:
                lines.append(f"[[maybe_unused]] int64_t const q{mode} = {rest}{scale};")
                continue
            units = f"({product(problem.modes[mode])}) / {vector}" if vector > 1 else product(problem.modes[mode])
            field = fields.add(f"div{mode}", "cutlass::FastDivmod", f"cutlass::FastDivmod(int({units}))")
            lines += [
                f"int quotient{mode}, remainder{mode};",
                f"{field}(quotient{mode}, remainder{mode}, int({rest}));",
                f"[[maybe_unused]] int64_t const q{mode} = int64_t(remainder{mode}){scale};",
                f"{rest} = quotient{mode};",
            ]
        return lines

    def _item(self) -> list[str]:
        """The coordinates of item i, and in `ok` whether it is there."""
        problem = self.problem
        if not problem.columns:
            lines = [
                "int64_t const row = (block * kItems + i) * kRows + threadIdx.x;",
                "bool const ok = row < p.rows;",
            ]
            return lines + self._coordinates("row", 0, len(problem.rows), "ok")
        thread = "threadIdx.x" if problem.across else "threadIdx.y"
        column = f"(int64_t(chunk) * kItems + i) * kThreads + {thread}"
        if self._scans and not problem.across:
            column = f"(int64_t(chunk) * kThreads + {thread}) * kItems + i"
        lines = [f"int64_t const place = {column};", "bool const ok = mine && place < p.columns;"]
        index = "(p.columns - 1 - place)" if self._reversed else "place"
        first = len(problem.rows)
        return lines + self._coordinates(index, first, len(problem.columns), "ok")

    @property
    def _scans(self) -> list[tuple[int, ScanAlong]]:
        return [(i, s) for i, s in enumerate(self.problem.instructions) if isinstance(s, ScanAlong)]

    @property
    def _reversed(self) -> bool:
        return any(s.reverse for _, s in self._scans)

    # --- loads

    def _kept(self) -> list[int]:
        return list(range(len(self.problem.loads))) if not self._only_windows() else []

    def _only_windows(self) -> bool:
        return False

    def _declared(self, load: int) -> list[str]:
        one = self.problem.loads[load]
        count = "kVector" if moves(self.plan, one) else "1"
        return [f"Pack<{_raw_cpp(one)}, {count}> raw{load}[kItems];"]

    def _loads(self, targets: Sequence[int], loaded: set[int]) -> list[str]:
        """Loads of all items that the targets need and that are not there yet."""
        keep = self.plan.schedule.keep == "registers"
        wanted = [k for k in self.writer.fetched(targets) if k not in loaded or not keep]
        if keep:
            loaded.update(wanted)
        if not wanted:
            return []
        lines = [] if keep else [line for k in wanted for line in self._declared(k)]
        lines += ["#pragma unroll", "for (int i = 0; i < kItems; ++i) {", *self._item()]
        for k in wanted:
            lines += self._load(k, "ok")
        return [*lines, "}"]

    def _load(self, k: int, valid: str) -> list[str]:
        """raw<k>[i] of the item at hand; `valid`: whether its coordinates are there."""
        one, plan = self.problem.loads[k], self.plan
        cpp = _raw_cpp(one)
        ids = self.writer.ids(k)
        outside = f"{cpp}({fill(one)})"
        vector = self.problem.vector
        along = [a for a in (*one.axes, *one.guards) if vector in touched(plan, [a])]
        side_by_side = one.align > 1 or plan.schedule.vector == 1 or _beside(one, vector)
        if not along or (len(along) == 1 and side_by_side and _beside(one, vector)):
            # Neighbours: one address for all.
            names = Names(None)
            count, align = ("kVector", one.align) if along else ("1", 1)
            read = f"load<{count}, {align}>(p.t{one.pointer} + o)"
            if cpp != stored_cpp(one.elem):
                read = f"widen<{cpp}>({read})"
            inner = [
                *self._ids(ids, names),
                *self.writer.address(one.axes, one.guards, names),
                f"raw{k}[i] = in && {valid} ? {read} : splat<{count}>({outside});",
            ]
            return ["{", *inner, "}"]
        names = Names(vector)
        return [
            "#pragma unroll", "for (int v = 0; v < kVector; ++v) {",
            f"[[maybe_unused]] int64_t const c{vector} = q{vector} + v;",
            *self._ids(ids, names),
            *self.writer.address(one.axes, one.guards, names),
            f"raw{k}[i].value[v] = in && {valid} ? {cpp}(load<1, 1>(p.t{one.pointer} + o).value[0]) : {outside};",
            "}",
        ]  # fmt: skip

    def _ids(self, ids: list[int], names: Names) -> list[str]:
        """The gathered coordinates of the element at hand."""
        if not ids:
            return []
        start = [] if names.vector is not None else ["constexpr int v = 0;"]
        return [*start, *self.writer.statements(ids, names)]

    # --- passes

    def _reductions(self, phase: int) -> list[tuple[int, RowReduce]]:
        at = phase_of(self.problem)
        return [
            (i, one) for i, one in enumerate(self.problem.instructions)
            if isinstance(one, RowReduce) and at[i] == phase
        ]  # fmt: skip

    def _chunks(self, inside: list[str]) -> list[str]:
        """Over a row's chunks; one is all where the row lies in registers."""
        if self.plan.schedule.keep == "registers":
            return ["{", "int const chunk = 0;", *inside, "}"]
        return ["for (int chunk = first_chunk; chunk < last_chunk; ++chunk) {", *inside, "}"]

    def _each(self, work: list[str], valid: bool = True) -> list[str]:
        """Over the elements of all items."""
        vector = self.problem.vector
        start = [f"[[maybe_unused]] int64_t const c{vector} = q{vector} + v;"] if vector is not None else []
        lines = ["#pragma unroll", "for (int i = 0; i < kItems; ++i) {", *self._item()]
        if valid:
            lines.append("if (ok) {")
        lines += ["#pragma unroll", "for (int v = 0; v < kVector; ++v) {", *start, *work, "}"]
        return [*lines, "}", "}"] if valid else [*lines, "}"]

    def _phase(self, reductions: list[tuple[int, RowReduce]], loaded: set[int]) -> list[str]:
        names = Names(self.problem.vector)
        targets = [one.arg for _, one in reductions]
        lane = "0" if self.problem.across else "v"
        lines = self._loads(targets, loaded)
        first: list[str] = []
        second: list[str] = []
        ends: list[str] = []
        for i, one in reductions:
            x = self.writer.operand(one.arg, names)
            match one.op:
                case "logsumexp":
                    lines.append(f"Exponentials part{i}[{self._lanes}];")
                    first.append(f"part{i}[{lane}].largest = extreme<true>(part{i}[{lane}].largest, {x});")
                    second.append(f"part{i}[{lane}].about += expf({x} - pivot(part{i}[{lane}].largest));")
                case "moments":
                    lines.append(f"Moments part{i}[{self._lanes}];")
                    first.append(f"part{i}[{lane}].mean += {x}; part{i}[{lane}].count += 1.0f;")
                    apart = f"float const apart{i} = {x} - part{i}[{lane}].mean;"
                    second.append(f"{apart} part{i}[{lane}].squares = fmaf(apart{i}, apart{i}, part{i}[{lane}].squares);")
                case "argmax" | "argmin":
                    first.append(f"r{i}[{lane}].add({x}, {self._count()});")
                case _:
                    first.append(f"r{i}[{lane}].add({x});")
            if one.op in ("logsumexp", "moments"):
                ends += [f"for (int l = 0; l < {self._lanes}; ++l) r{i}[l].merge(part{i}[l]);"]
        lines += self._each([*self.writer.statements(targets, names), *first])
        if second:
            lines += [
                f"for (int l = 0; l < {self._lanes}; ++l) part{i}[l].mean /= fmaxf(part{i}[l].count, 1.0f);"
                for i, one in reductions if one.op == "moments"
            ]  # fmt: skip
            two = [one.arg for _, one in reductions if one.op in ("logsumexp", "moments")]
            lines += self._each([*self.writer.statements(two, names), *second])
        return self._chunks([*lines, *ends])

    def _count(self) -> str:
        """The coordinate along the one name that argmax and argmin take."""
        return Names(self.problem.vector).at(len(self.problem.rows))

    def _results(self, loaded: set[int]) -> list[str]:
        whole = [o for o in self.problem.outputs if o.whole or not self.problem.columns]
        names = Names(self.problem.vector)
        targets = [o.value for o in whole]
        carries = [
            f"{CPP[s.kind]} carry{i}[{self._lanes}]; for (int l = 0; l < {self._lanes}; ++l) "
            f"carry{i}[l] = {'0' if s.op == 'sum' else '1'};"
            for i, s in self._scans
        ]  # fmt: skip
        lines = self._loads([*targets, *(s.arg for _, s in self._scans)], loaded)
        for i, s in self._scans:
            neutral = "0" if s.op == "sum" else "1"
            cpp = CPP[s.kind]
            at = "kVector - 1 - v" if s.reverse and self.problem.across else "v"
            lines.append(f"{cpp} s{i}[kItems][kVector];")
            value = self.writer.operand(s.arg, names)
            work = [*self.writer.statements([s.arg], names), f"s{i}[i][{at}] = ok ? {value} : {cpp}({neutral});"]
            lines += self._each(work, valid=False)
            op = "Add" if s.op == "sum" else "Multiply"
            lines.append(f"scan<{op}, {'true' if s.exclusive else 'false'}>(s{i}, carry{i});")
        stores = [line for j, o in enumerate(whole) for line in self._store(j, o)]
        lines += ["#pragma unroll", "for (int i = 0; i < kItems; ++i) {", *self._item(), "if (ok) {"]
        lines += [f"Pack<{stored_cpp(o.elem)}, kVector> out{j};" for j, o in enumerate(whole)]
        lines += ["#pragma unroll", "for (int v = 0; v < kVector; ++v) {"]
        if names.vector is not None:
            lines.append(f"[[maybe_unused]] int64_t const c{names.vector} = q{names.vector} + v;")
        lines += self.writer.statements(targets, names)
        lines += [f"out{j}.value[v] = {self._narrow(o, names)};" for j, o in enumerate(whole)]
        lines += ["}", *stores, "}", "}"]
        if not self.problem.columns:
            return lines
        return [*carries, *self._chunks(lines)]

    def _narrow(self, o: Output, names: Names) -> str:
        kind = self.writer.kind(o.value)
        value = convert(self.writer.operand(o.value, names), kind, kind_of(o.elem))
        match o.elem.kind:
            case "float" if o.elem.bits == 32:
                return value
            case "float":
                return f"cutlass::NumericConverter<{o.elem.cpp}, float>::convert({value})"
            case "bool":
                return f"uint8_t({value})"
            case "int":
                return f"{o.elem.cpp}({rounded(self.writer.operand(o.value, names), kind, o.elem)})"

    def _store(self, j: int, o: Output) -> list[str]:
        vector = self.problem.vector
        if vector is None or o.align > 1 or _beside(o, vector):
            inner = self.writer.address(o.axes, (), Names(None))
            return ["{", *inner, f"store<kVector, {o.align}>(p.t{o.pointer} + o, out{j});", "}"]
        inner = self.writer.address(o.axes, (), Names(vector))
        return [
            "for (int v = 0; v < kVector; ++v) {", f"[[maybe_unused]] int64_t const c{vector} = q{vector} + v;", *inner,
            f"p.t{o.pointer}[o] = out{j}.value[v];", "}",
        ]  # fmt: skip

    def _row_results(self) -> list[str]:
        """Results of one value a row, by one thread of each row."""
        rows = [o for o in self.problem.outputs if not o.whole and self.problem.columns]
        if not rows:
            return []
        across = self.problem.across
        names = Names(None if across else self.problem.vector)
        leader = "threadIdx.x" if across else "threadIdx.y"
        targets = [o.value for o in rows]
        lines = [f"if (mine && {leader} == 0 && blockIdx.y == 0) {{", "constexpr int i = 0;"]
        lanes = "1" if across else "kVector"
        for k in self.writer.fetched(targets):
            one = self.problem.loads[k]
            lines.append(f"Pack<{_raw_cpp(one)}, {lanes if moves(self.plan, one) else 1}> raw{k}[1];")
            lines += self._load(k, "true")
        lines += [f"Pack<{stored_cpp(o.elem)}, {lanes}> out{j};" for j, o in enumerate(rows)]
        lines += ["#pragma unroll", f"for (int v = 0; v < {lanes}; ++v) {{"]
        if names.vector is not None:
            lines.append(f"[[maybe_unused]] int64_t const c{names.vector} = q{names.vector} + v;")
        lines += self.writer.statements(targets, names)
        lines += [f"out{j}.value[v] = {self._narrow(o, names)};" for j, o in enumerate(rows)]
        lines.append("}")
        for j, o in enumerate(rows):
            if across:
                inner = self.writer.address(o.axes, (), Names(None))
                lines += ["{", *inner, f"p.t{o.pointer}[o] = out{j}.value[0];", "}"]
            else:
                lines += self._store(j, o)
        return [*lines, "}"]

    # --- splits

    def _sizes(self) -> list[tuple[int, RowReduce, str]]:
        """Reductions with the offset of their partial results in the workspace."""
        lanes = 1 if self.problem.across else self.plan.schedule.vector
        found, before = [], "0"
        for i, one in enumerate(self.problem.instructions):
            if isinstance(one, RowReduce):
                found.append((i, one, before))
                before = f"{before} + p.rows * {lanes * self.plan.schedule.splits} * int64_t(sizeof({accumulator(one)}))"
        return found

    def workspace(self) -> str:
        """Bytes of partial results, as the host computes them."""
        if self.plan.schedule.splits == 1:
            return "0"
        lanes = 1 if self.problem.across else self.plan.schedule.vector
        # An accumulator has 24 bytes at most.
        count = len(self._sizes()) * lanes * self.plan.schedule.splits * 24
        return f"uint64_t(p.rows) * {count}"

    def _at(self, i: int, one: RowReduce) -> str:
        offset = next(o for j, _, o in self._sizes() if j == i)
        return f"reinterpret_cast<{accumulator(one)}*>(p.partial + {offset}) + row * {self._lanes} * kSplits"

    def _leave(self, i: int, one: RowReduce) -> list[str]:
        leader = "threadIdx.x" if self.problem.across else "threadIdx.y"
        return [
            f"if (mine && {leader} == 0) {{", f"auto* const left = {self._at(i, one)};",
            f"for (int l = 0; l < {self._lanes}; ++l) left[l * kSplits + blockIdx.y] = r{i}[l];", "}",
        ]  # fmt: skip

    def _gather(self, i: int, one: RowReduce) -> list[str]:
        thread = "threadIdx.x" if self.problem.across else "threadIdx.y"
        return [
            "if (mine) {", f"auto const* const left = {self._at(i, one)};",
            f"for (int l = 0; l < {self._lanes}; ++l) {{",
            f"for (int part = {thread}; part < kSplits; part += kThreads) r{i}[l].merge(left[l * kSplits + part]);",
            "}", "}", f"reduce<{i}>(r{i});",
        ]  # fmt: skip


def _raw_cpp(load: Load) -> str:
    """What a load is kept as: its element, or a float where that has no infinity to fill with."""
    if load.elem.name == "e4m3" and load.fill in (float("inf"), float("-inf")):
        return "float"
    return stored_cpp(load.elem)


def _beside(one: Load | Output, vector: int | None) -> bool:
    """Whether elements lie side by side along the vector mode."""
    moved = [a for a in one.axes if any(m == vector for m, _ in a.at.terms)]
    return len(moved) == 1 and moved[0].stride == () and moved[0].at.terms == ((vector, 1),) and (
        moved[0].scale == 1 and moved[0].extent is None and moved[0].gathered is None
    )
