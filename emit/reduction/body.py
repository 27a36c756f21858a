"""The statements of a reduction kernel, pass by pass over the columns: loads of all items first, so that they are in
flight together, then the work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ucutlass.emit.functions import CPP
from ucutlass.emit.reduction.held import HeldText
from ucutlass.emit.reduction.indexing import IndexText
from ucutlass.emit.reduction.loads import Loader
from ucutlass.emit.reduction.lookback import LookBackText
from ucutlass.emit.reduction.meeting import meeting
from ucutlass.emit.reduction.reductions import Passes, Reducer, reduced
from ucutlass.emit.reduction.ring import RingText
from ucutlass.emit.reduction.splits import Splits
from ucutlass.emit.reduction.statements import (
    ahead_of,
    narrowed,
    over_items,
    peeled,
    scope,
    whole_or_not,
    wide,
    zeros,
)
from ucutlass.emit.reduction.writer import (
    LocalNames,
    Writer,
    accumulator,
    stored_cpp,
    touched,
    window_accumulator,
)
from ucutlass.kernels.reduction.plan import (
    ReductionOutput,
    ReductionPlan,
    ReductionProblem,
    RowReduce,
    RowScan,
    RowValue,
    RowWindow,
    contiguous_along,
    early,
    phase_of,
    phases,
    reductions,
    scans_of,
)
from ucutlass.kernels.reduction.plan_straddle import access_elements, most_ends


@dataclass(frozen=True, slots=True)
class Body:
    """The kernel's statements."""

    plan: ReductionPlan
    writer: Writer
    loader: Loader
    index: IndexText
    kept: set[int] = field(default_factory=set)
    """The windows whose values registers hold by now."""
    at_ends: set[int] = field(default_factory=set)
    """The loads of which registers hold the elements at a row's ends by now."""

    @property
    def problem(self) -> ReductionProblem:
        return self.plan.problem

    @property
    def launches(self) -> int:
        return phases(self.problem) + bool(self._scans) + 1 if self.plan.schedule.splits > 1 else 1

    def merges(self) -> list[list[str]]:
        """By launch: what merges the parts that it leaves, where a launch of its own does."""
        splits = Splits(self.plan)
        if not splits.merges:
            return []
        return [splits.merge(self._reductions(phase)) for phase in range(phases(self.problem))]

    def lines(self) -> list[str]:
        self.index.totals()
        out = self.index.start()
        if self.plan.schedule.stages > 1:
            return [*out, *self._ring()]
        if self.plan.schedule.cluster > 1:
            # None writes to a block that is not there yet: the first reduction waits for all of them.
            row = ahead_of([*self.index.row(), *self._row()], "reduce(", "__cluster_barrier_wait();")
            return [*out, "__cluster_barrier_arrive();", *row]
        return [*out, *self.index.row(), *self._row()]

    def _ring(self) -> list[str]:
        """The rows of a block that stays for the whole launch."""
        return [
            *(self._held or RingText(self.plan, self.writer, self.index)).start(self._part),
            *self._first_ends(),
            "for (int block = blockIdx.x; block < blocks; block += gridDim.x) {",
            *self.index.row(),
            *self._row(),
            "}",
            # No block ends while another may still write into its memory.
            *(["cluster_sync();"] if self.plan.schedule.cluster > 1 else []),
        ]

    @property
    def _held(self) -> HeldText | None:
        """The passes over rows that lie in shared memory."""
        held = self.plan.schedule.keep == "shared"
        return HeldText(self.plan, self.writer, self.index) if held else None

    @property
    def _part(self) -> str:
        """The chunk of a row that lies in registers."""
        if self.plan.schedule.look_back:
            return "part"
        return "int(blockIdx.y)" if self.plan.schedule.sharers > 1 else "0"

    def _row(self) -> list[str]:
        """All that is done for a thread's row."""
        problem = self.problem
        splits, schedule = Splits(self.plan), self.plan.schedule
        split, keep = schedule.splits > 1, schedule.keep == "registers"
        out = [self.loader.declared(k) for k in range(len(problem.loads))] if keep else []
        out += [f"{self._window_type(i)} kept_a{i}[kItems][kVector];" for i in self._kept_windows]
        if self.plan.peels:
            out += [] if schedule.stages > 1 else [self._end_count]
            if keep or self._held:
                out += [self._ends.loader.declared(k, "kEnds", "end") for k in range(len(problem.loads))]
        loaded: set[int] = set()
        if schedule.stages > 1:
            ring = RingText(self.plan, self.writer, self.index)
            if not self._held:
                loaded |= set(ring.loads)
                out += self._chunks([*ring.read(), *self._applied(ring.loads)])
            out += self._coming_ends(ring.loads)
        # Behind a ring's fence, which would wait for them.
        out += self._early(False)
        for phase in range(phases(problem)):
            reductions = self._reductions(phase)
            out += [f"{accumulator(reduction)} r{i}[{self._lanes}];" for i, reduction in reductions]
            keepers = [i for i, _ in reductions if i in self.writer.kept_reductions()]
            out += [f"float kept{i}[kItems][kVector], top{i};" for i in keepers]
            phase_lines = self._phase(reductions, loaded)
            phase_lines += self._early(True) if phase + 1 == phases(problem) else []
            phase_lines += [f"reduce(r{i}, buffer{meeting(self.plan, i)});" for i, _ in reductions]
            phase_lines += [
                f"float const scale{i} = top{i} == -INFINITY ? 0.0f"
                f" : rescale_factor(pivot(top{i}), pivot(r{i}[0].largest));"
                for i in keepers
            ]
            if not split:
                out += phase_lines
                continue
            out += [f"if constexpr (kLaunch == {phase}) {{", *phase_lines]
            out += [line for i, reduction in reductions for line in splits.leave(i, reduction)]
            out += ["return;", "} else {"]
            out += [line for i, reduction in reductions for line in splits.gather(i, reduction)]
            out += ["}"]
        if any(o.whole for o in problem.outputs) or not problem.columns:
            out += self._results(loaded)
        out += self._row_results()
        return out

    @property
    def _lanes(self) -> str:
        return "1" if self.problem.across else "kVector"

    @property
    def _scans(self) -> tuple[tuple[int, RowScan], ...]:
        return scans_of(self.problem)

    @property
    def _early_loads(self) -> list[int]:
        """The loads of results of one value a row that need no row's reduction, where they are under way while the row
        is reduced."""
        if not early(self.plan):
            return []
        instructions = self.problem.instructions
        return [
            k
            for k in self.writer.fetched(o.value for o in self.problem.outputs if not o.whole)
            if not any(
                isinstance(instructions[i], RowValue | RowWindow | RowScan)
                for i in self.writer.dependencies(self.writer.ids(k))
            )
        ]

    def _early(self, gathered: bool) -> list[str]:
        """Loads those of them that lie at a gathered address, or the others."""
        names = LocalNames(None, item="0", raw="early")
        return [
            line
            for k in self._early_loads
            if bool(self.writer.ids(k)) == gathered
            for line in (self.loader.declared(k, "1", "early"), *self.loader.load(k, "true", names))
        ]

    # --- the ends of rows

    @property
    def _ends(self) -> Body:
        """The same statements of the elements at a row's ends, one a thread."""
        writer = replace(self.writer, ends=True)
        loader = replace(self.loader, writer=writer, ends=True)
        index = replace(self.index, writer=writer, loader=loader, ends=True)
        return replace(self, writer=writer, loader=loader, index=index)

    @property
    def _end_count(self) -> str:
        s = self.plan.schedule
        count = -(-most_ends(self.problem, s.vector) // s.threads)
        return f"constexpr int kEnds = {count};  // a thread's elements at a row's ends"

    def _first_ends(self) -> list[str]:
        """Loads the ends of a block's first row, where those of each row come while the one before is reduced."""
        if not self.plan.peels:
            return []
        loads = RingText(self.plan, self.writer, self.index).loads
        declared = [self._ends.loader.declared(k, "kEnds", "next") for k in loads]
        return [self._end_count, *declared, *self._fetched_ends(loads, "int(blockIdx.x)")]

    def _coming_ends(self, loads: Sequence[int]) -> list[str]:
        """Takes the ends of a row, and loads those of the block's next."""
        if not self.plan.peels:
            return []
        self.at_ends.update(loads)
        moves = [f"for (int i = 0; i < kEnds; ++i) end{k}[i] = next{k}[i];" for k in loads]
        return [*moves, *self._fetched_ends(loads, "block + int(gridDim.x)")]

    def _fetched_ends(self, loads: Sequence[int], block: str) -> list[str]:
        ends, names = self._ends, LocalNames(None, raw="next")
        lines = [line for k in loads for line in ends.loader.load(k, "ok", names)]
        return [
            f"if (int const coming = {block}; coming < blocks) {{",
            f"int const block = coming, chunk = {self._part};",
            *self.index.row(),
            *peeled(ends.index.item(), lines),
            "}",
        ]

    def _end_names(self, targets: Sequence[int], names: LocalNames) -> LocalNames:
        late = self._late(targets, self.at_ends)
        return replace(late, raw="end", defined=names.defined)

    def _end_loads(self, targets: Sequence[int], names: LocalNames) -> list[str]:
        """Loads what the targets need at a row's ends and is not there yet."""
        if not self.plan.peels:
            return []
        keep, ends = self.plan.schedule.keep != "reread", self._ends
        missing = [
            k
            for k in self.writer.fetched(targets)
            if k not in names.local and not (keep and k in self.at_ends)
        ]
        if keep:
            self.at_ends.update(missing)
        lines = [] if keep else [ends.loader.declared(k, "kEnds", "end") for k in missing]
        loads = [line for k in missing for line in ends.loader.load(k, "ok", names)]
        return [*lines, *peeled(ends.index.item(), loads)] if missing else []

    # --- loads

    def _loads(self, targets: Sequence[int], loaded: set[int], names: LocalNames) -> list[str]:
        """Loads of all items that the targets need, that are not there yet and that are not loaded item by
        item."""
        keep = self.plan.schedule.keep == "registers"
        missing = [
            k for k in self.writer.fetched(targets) if k not in names.local and not (keep and k in loaded)
        ]
        if keep:
            loaded.update(missing)
        if not missing:
            return []
        lines = [] if keep else [self.loader.declared(k) for k in missing]
        lines += ["#pragma unroll", "for (int i = 0; i < kItems; ++i) {", *self.index.item()]
        for k in missing:
            lines += self.loader.load(k, "ok", names)
        return [*lines, "}", *(self._applied(missing) if keep else [])]

    def _applied(self, loads: Sequence[int]) -> list[str]:
        """Computes the values that take the places of what these loads brought."""
        values = {i: k for i, k in self.writer.applied.items() if k in loads}
        if not values:
            return []
        plain = replace(self, writer=replace(self.writer, applied={}))
        places = [f"raw{k}[i].value[v] = v{i};" for i, k in values.items()]
        return plain._each(list(values), places, LocalNames(self.problem.vector))

    def _late(self, targets: Sequence[int], loaded: set[int], scanned: Sequence[int] = ()) -> LocalNames:
        """The names of a pass over the targets and what is scanned.

        Of the targets what is the same for all rows, or for a vector's elements, comes from the caches, item
        by item, and so does whatever lies at addresses that the pass computes. What an early load's address
        reads is early too.
        """
        fetched = self.writer.fetched([*targets, *scanned])
        late = {k for k in fetched if self.writer.computed_address(k)}
        if self.problem.columns:
            late |= {k for k in self.writer.fetched(targets) if k not in loaded and self._cached(k)}
        for k in fetched:
            if k not in late and k not in loaded:
                late -= set(self.writer.address_loads(k))
        return LocalNames(self.problem.vector, local=frozenset(late))

    def _cached(self, load: int) -> bool:
        """Whether a load is the same for all rows, or for a vector's elements, and its elements keep their places."""
        if load in self.writer.applied.values():
            return False
        source = self.problem.loads[load]
        modes = touched(self.plan, (*source.axes, *source.guards))
        return modes.isdisjoint(range(len(self.problem.rows))) or self.problem.vector not in modes

    def _item_loads(self, targets: Sequence[int], names: LocalNames) -> list[str]:
        """Loads of this item alone and its windows: what gives an address stands before what reads there."""
        loads = [k for k in self.writer.fetched(targets) if k in names.local]
        lines, windows = [], self.writer.windows(targets)
        for k in sorted(loads, key=self.writer.computed_address):
            needed = [i for i in self.writer.windows(self.writer.ids(k)) if i in windows]
            windows = [i for i in windows if i not in needed]
            lines += self._windows(needed, names)
            lines += [self.loader.declared(k, "1"), *self.loader.load(k, "true", names)]
        return [*lines, *self._windows(windows, names)]

    def _windows(self, windows: Sequence[int], names: LocalNames) -> list[str]:
        """These windows of this item: read, or as an earlier pass left them in registers."""
        lines: list[str] = []
        for i in windows:
            each = "for (int v = 0; v < kVector; ++v)"
            if i in self.kept:
                lines += [f"{self._window_type(i)} a{i}[kVector];", "#pragma unroll"]
                lines += [f"{each} a{i}[v] = kept_a{i}[i][v];"]
                continue
            lines += self.loader.windows([i], names)
            if i in self._kept_windows:
                lines += ["#pragma unroll", f"{each} kept_a{i}[i][v] = a{i}[v];"]
                self.kept.add(i)
        return lines

    def _window_type(self, i: int) -> str:
        window = self.problem.instructions[i]
        assert isinstance(window, RowWindow)
        return window_accumulator(window, self.writer.kind(window.arg))

    @property
    def _kept_windows(self) -> tuple[int, ...]:
        """The windows that several passes over a row in registers need: of each, one reads the elements."""
        if not self.problem.columns or self.plan.schedule.keep != "registers" or self._scans:
            return ()
        passes = [[o.value for o in self.problem.outputs if o.whole]]
        for phase in range(phases(self.problem)):
            own = self._reductions(phase)
            again = [r.arg for _, r in own if r.op in ("moments", "logsumexp", "argmax", "argmin")]
            passes += [[r.arg for _, r in own], again]
        needed = [i for targets in passes for i in self.writer.windows(targets)]
        return tuple(sorted({i for i in needed if needed.count(i) > 1}))

    # --- passes

    def _reductions(self, phase: int) -> list[tuple[int, RowReduce]]:
        at = phase_of(self.problem)
        numbered = [(i, self.problem.instructions[i]) for i in reductions(self.problem) if at[i] == phase]
        return [(i, instruction) for i, instruction in numbered if isinstance(instruction, RowReduce)]

    def _chunks(self, inside: list[str]) -> list[str]:
        """Over a row's chunks; one is all where the row lies in registers."""
        if self.plan.schedule.keep == "registers":
            return ["{", f"int const chunk = {self._part};", *inside, "}"]
        if self.index.whole_chunks():
            inside = whole_or_not("int64_t(chunk + 1) * kLine <= p.columns", inside)
        return ["for (int chunk = first_chunk; chunk < last_chunk; ++chunk) {", *inside, "}"]

    def _each(
        self,
        targets: Sequence[int],
        work: list[str],
        names: LocalNames,
        before: Sequence[str] = (),
        backwards: bool = False,
    ) -> list[str]:
        """Over the elements of all items that are there: the targets, then the work on them. `backwards`:
        from the largest coordinate on."""
        up, down = "int i = 0; i < kItems; ++i", "int i = kItems - 1; i >= 0; --i"
        vector = "int v = kVector - 1; v >= 0; --v" if backwards else "int v = 0; v < kVector; ++v"
        items = down if backwards and not self.index.reversed() else up
        return [
            "#pragma unroll",
            f"for ({items}) {{",
            *self.index.item(),
            "if (ok) {",
            *before,
            *self._item_loads(targets, names),
            "#pragma unroll",
            f"for ({vector}) {{",
            *self.loader.element(),
            *self.writer.statements(targets, names),
            *work,
            "}",
            "}",
            "}",
        ]

    def _once(self, targets: Sequence[int], names: LocalNames) -> tuple[list[str], LocalNames]:
        """The lines that compute once a row what of the targets is the same for all of it."""
        row_values = self.writer.of_row(targets)
        if not row_values or not self.problem.columns:
            return [], names
        lines = [f"{CPP[self.writer.kind(i)]} h{i}[{self._lanes}];" for i in row_values]
        lines += ["#pragma unroll", f"for (int v = 0; v < {self._lanes}; ++v) {{"]
        lines += [*self.writer.statements(row_values, names), *(f"h{i}[v] = v{i};" for i in row_values), "}"]
        return lines, replace(names, defined=frozenset(row_values))

    def _phase(self, reductions: list[tuple[int, RowReduce]], loaded: set[int]) -> list[str]:
        if self._held:
            return self._held_phase(self._held, reductions)
        targets = [reduction.arg for _, reduction in reductions]
        once, names = self._once(targets, self._late(targets, loaded))
        end_names = self._end_names(targets, names)
        ahead, lines = self._brought(targets, loaded, names)
        lines = [*once, *lines, *self._end_loads(targets, end_names)]
        passes = self._passes(reductions, names)
        lines += [line for m in passes for line in m.declared]
        lines += self._first(targets, passes, names)
        end_passes = self._ends._passes(reductions, end_names)
        if self.plan.peels:
            lines += scope(self._ends._first(targets, end_passes, end_names))
        lines += [line for m in passes for line in m.between]
        for backwards in (False, True):
            lines += self._second(reductions, passes, names, backwards)
            if self.plan.peels:
                lines += scope(self._ends._second(reductions, end_passes, end_names, backwards))
        chunks = self._chunks([*lines, *(line for m in passes for line in m.ends)])
        return ["{", *ahead, *chunks, "}"] if ahead else chunks

    def _held_phase(self, held: HeldText, reductions: list[tuple[int, RowReduce]]) -> list[str]:
        """The phase of a row that lies in shared memory."""
        targets = [reduction.arg for _, reduction in reductions]
        once, names = self._once(targets, self._late(targets, set()))
        end_names = self._end_names(targets, names)
        at = phase_of(self.problem)[reductions[0][0]]
        last = at + 1 == phases(self.problem) and not any(o.whole for o in self.problem.outputs)
        passes, end_passes = self._passes(reductions, names), self._ends._passes(reductions, end_names)
        inside = reduced(
            passes,
            self._first(targets, passes, names),
            [self._second(reductions, passes, names, backwards) for backwards in (False, True)],
        )
        out = held.passed([*self._held_loads(held, targets, names, at == 0), *inside], last, False)
        if self.plan.peels:
            ends = self._ends
            second = [scope(ends._second(reductions, end_passes, end_names, b)) for b in (False, True)]
            work = reduced(passes, scope(ends._first(targets, end_passes, end_names)), second)
            out += ["{", f"int const chunk = {self._part};", *self._end_loads(targets, end_names), *work, "}"]
        return ["{", *once, *out, "}"]

    def _held_loads(
        self, held: HeldText, targets: Sequence[int], names: LocalNames, waits: bool
    ) -> list[str]:
        """Takes what the targets need of the lines at hand to registers; loads what else they need."""
        missing = [k for k in self.writer.fetched(targets) if k not in names.local]
        others = [k for k in missing if k not in held.ring.loads]
        lines = [self.loader.declared(k) for k in missing]
        lines += held.loads(missing, waits)
        if others:
            lines += ["#pragma unroll", "for (int i = 0; i < kItems; ++i) {", *self.index.item()]
            lines += [line for k in others for line in self.loader.load(k, "ok", names)]
            lines.append("}")
        return lines

    def _held_results(self, held: HeldText, whole: list[ReductionOutput]) -> list[str]:
        """The results of a row that lies in shared memory."""
        targets = [o.value for o in whole]
        once, names = self._once(targets, self._late(targets, set()))
        loads = self._held_loads(held, targets, names, phases(self.problem) == 0)
        out = held.passed([*loads, *self._stored(whole, targets, names)], True, True)
        if self.plan.peels:
            end_names = self._end_names(targets, names)
            # What the ends need is on its way while vectors are stored.
            ahead = [f"int const chunk = {self._part};", *self._end_loads(targets, end_names)]
            out = ["{", *ahead, *out, *scope(self._ends._stored(whole, targets, end_names)), "}"]
        return [*once, *out]

    def _passes(self, reductions: list[tuple[int, RowReduce]], names: LocalNames) -> list[Passes]:
        reducer = Reducer(self.plan, self.loader, self.index)
        return [
            reducer.passes(i, reduction, self.writer.operand(reduction.arg, names), names)
            for i, reduction in reductions
        ]

    def _first(self, targets: Sequence[int], passes: list[Passes], names: LocalNames) -> list[str]:
        """The first pass over a chunk's elements."""
        before = [line for m in passes for line in m.counted]
        if passes and all(m.vectors for m in passes):
            return over_items(self.index.item(), [*before, *(line for m in passes for line in m.vectors)])
        return self._each(targets, [line for m in passes for line in m.first], names, before)

    def _second(
        self,
        reductions: list[tuple[int, RowReduce]],
        passes: list[Passes],
        names: LocalNames,
        backwards: bool,
    ) -> list[str]:
        """The second pass over a chunk's elements, of the reductions that have one."""
        pairs = zip(passes, reductions, strict=True)
        again = [(m, reduction) for m, (_, reduction) in pairs if m.second and m.backwards == backwards]
        if not again:
            return []
        work = [line for m, _ in again for line in m.second]
        return self._each([reduction.arg for _, reduction in again], work, names, (), backwards)

    def _brought(
        self, targets: Sequence[int], loaded: set[int], names: LocalNames
    ) -> tuple[list[str], list[str]]:
        """Loads of a pass: what stands before the chunks, and what stands in them."""
        if self.plan.schedule.ahead:
            return self._following(targets, names)
        return [], self._loads(targets, loaded, names)

    def _results(self, loaded: set[int]) -> list[str]:
        whole = [o for o in self.problem.outputs if o.whole or not self.problem.columns]
        if self._held:
            return self._held_results(self._held, whole)
        targets = [o.value for o in whole]
        scans = self._scans
        scanned = [s.arg for _, s in scans]
        once, names = self._once([*targets, *scanned], self._late(targets, loaded, scanned))
        carries = [
            f"{CPP[s.kind]} carry{i}[{self._lanes}]; for (int l = 0; l < {self._lanes}; ++l) "
            f"carry{i}[l] = {'0' if s.op == 'sum' else '1'};"
            for i, s in scans
        ]
        if scans and self.plan.schedule.keep == "reread":
            ahead, lines = self._following([*targets, *scanned], names)
        else:
            ahead, lines = self._brought([*targets, *scanned], loaded, names)
        for i, s in scans:
            lines += self._scan(i, s, names)
        if scans and self.plan.schedule.splits > 1:
            ahead = [*self._totals([*ahead, *self._chunks(lines)]), *ahead]
        end_names = self._end_names(targets, names)
        lines += self._end_loads(targets, end_names)
        lines += self._stored(whole, targets, names)
        if self.plan.peels:
            lines += scope(self._ends._stored(whole, targets, end_names))
        return [*once, *carries, *ahead, *self._chunks(lines)] if self.problem.columns else lines

    def _stored(
        self, whole: Sequence[ReductionOutput], targets: Sequence[int], names: LocalNames
    ) -> list[str]:
        """Computes and stores the results of all items."""
        stores = [line for j, o in enumerate(whole) for line in self._store(j, o)]
        lines = ["#pragma unroll", "for (int i = 0; i < kItems; ++i) {", *self.index.item()]
        lines.append("if (ok) {")
        declared = [f"Pack<{wide(o)}, kVector> wide{j};" for j, o in enumerate(whole)]
        if self.loader.shifts:
            # Threads without a vector take part in the shuffles of results.
            declared = [line for j, o in enumerate(whole) for line in zeros(j, o)]
            lines[-1:-1] = declared
        else:
            lines += declared
        lines += self._item_loads(targets, names)
        lines += ["#pragma unroll", "for (int v = 0; v < kVector; ++v) {", *self.loader.element()]
        lines += self.writer.statements(targets, names)
        lines += [f"wide{j}.value[v] = {self._narrow(o, names)};" for j, o in enumerate(whole)]
        if self.loader.shifts:
            return [*lines, "}", "}", *stores, "}"]
        if not self.problem.columns:
            steps = [
                f"target{j} += target{j}_apart;" for j in range(len(whole)) if self.plan.schedule.transposed
            ]
            return [*lines, "}", *stores, "}", *steps, "}"]
        return [*lines, "}", "if (has_row) {", *stores, "}", "}", "}"]

    def _totals(self, scanned: Sequence[str]) -> list[str]:
        """The launch that leaves each part's total of every scan, and what the next begins with."""
        splits, scans = Splits(self.plan), self._scans
        return [
            f"if constexpr (kLaunch == {phases(self.problem)}) {{",
            *scanned,
            *(line for i, s in scans for line in splits.leave(i, s)),
            "return;",
            "} else {",
            *(line for i, s in scans for line in splits.carry(i, s)),
            "}",
        ]

    def _following(self, targets: Sequence[int], names: LocalNames) -> tuple[list[str], list[str]]:
        """Works as `_loads`, for one pass over chunks: each chunk's loads are under way while the one before
        is computed. What stands before the chunks, and what stands in them."""
        missing = [k for k in self.writer.fetched(targets) if k not in names.local]
        load = ["#pragma unroll", "for (int i = 0; i < kItems; ++i) {", *self.index.item()]
        for k in missing:
            load += self.loader.load(k, "ok", replace(names, raw="next"))
        load.append("}")
        ahead = [self.loader.declared(k, into="next") for k in missing]
        ahead += ["{", "int const chunk = first_chunk;", *load, "}"]
        inside = [self.loader.declared(k) for k in missing]
        inside += ["#pragma unroll", "for (int i = 0; i < kItems; ++i) {"]
        inside += [*(f"raw{k}[i] = next{k}[i];" for k in missing), "}"]
        inside += ["if (int const next_chunk = chunk + 1; next_chunk < last_chunk) {"]
        inside += ["int const chunk = next_chunk;", *load, "}"]
        return ahead, inside

    def _scan(self, i: int, s: RowScan, names: LocalNames) -> list[str]:
        """A chunk's values of a scan."""
        neutral, cpp = "0" if s.op == "sum" else "1", CPP[s.kind]
        at = "kVector - 1 - v" if s.reverse and self.problem.across else "v"
        op = "Add" if s.op == "sum" else "Multiply"
        return [
            f"{cpp} s{i}[kItems][kVector];",
            "#pragma unroll",
            "for (int i = 0; i < kItems; ++i)",
            "#pragma unroll",
            f"for (int v = 0; v < kVector; ++v) s{i}[i][v] = {cpp}({neutral});",
            *self._each([s.arg], [f"s{i}[i][{at}] = {self.writer.operand(s.arg, names)};"], names),
            f"scan<{op}, {'true' if s.exclusive else 'false'}>(s{i}, carry{i}{self._look_back(i, s)});",
        ]

    def _look_back(self, i: int, s: RowScan) -> str:
        """Through which the parts of a row learn what stands before them, as a further argument."""
        return f", {LookBackText(self.plan).of(i, s)}" if self.plan.schedule.look_back else ""

    def _narrow(self, o: ReductionOutput, names: LocalNames) -> str:
        return narrowed(o.elem, self.writer.operand(o.value, names), self.writer.kind(o.value))

    def _store(self, j: int, o: ReductionOutput) -> list[str]:
        vector = self.problem.vector
        lines = [f"auto const out{j} = narrow<{stored_cpp(o.elem)}>(wide{j});"]
        if self.plan.flat:
            return [*lines, f"store_straddling(p.t{o.pointer}, first, out{j}, p.elements);"]
        if vector is None or contiguous_along(o.axes, vector):
            inner = self.writer.address(o.axes, (), LocalNames(None))
            if self.plan.schedule.transposed:
                return [*lines, f"store<kVector, {o.align}>(target{j}, out{j});"]
            align = o.align
            if self.plan.peels:
                align = 1 if self.index.ends else access_elements(o, self.plan.schedule.vector)
            store = f"store<kVector, {align}>(p.t{o.pointer} + o, out{j});"
            if self.loader.shifts:
                rest = f"{self.index.length()} - q{vector}"
                ends = f"q{vector} > 0, {rest} > kVector, ok ? int(min(int64_t(kVector), {rest})) : 0"
                store = f"store_shifted(p.t{o.pointer}, o, out{j}, {ends});"
            return [*lines, "{", *inner, store, "}"]
        inner = self.writer.address(o.axes, (), LocalNames(vector))
        return [
            *lines,
            "#pragma unroll",
            "for (int v = 0; v < kVector; ++v) {",
            *self.loader.element(),
            *inner,
            f"p.t{o.pointer}[o] = out{j}.value[v];",
            "}",
        ]

    def _row_results(self) -> list[str]:
        """Results of one value a row, by one thread of each row."""
        rows = [o for o in self.problem.outputs if not o.whole and self.problem.columns]
        if not rows:
            return []
        across = self.problem.across
        names = LocalNames(None if across else self.problem.vector)
        leader = "threadIdx.x" if across else "threadIdx.y"
        targets = [o.value for o in rows]
        part = "part" if self.plan.schedule.look_back else "blockIdx.y"
        lines = [f"if (has_row && {leader} == 0 && {part} == 0) {{"]
        lanes = "1" if across else "kVector"
        at_hand = self._early_loads
        fetched = [k for k in self.writer.fetched(targets) if k not in at_hand]
        names = replace(names, local=frozenset(fetched))
        if at_hand:
            names = replace(names, item="0", raw="early")
        lines += self._item_loads(targets, names)
        lines += [f"Pack<{wide(o)}, {lanes}> wide{j};" for j, o in enumerate(rows)]
        lines += ["#pragma unroll", f"for (int v = 0; v < {lanes}; ++v) {{"]
        lines += [] if across else self.loader.element()
        lines += self.writer.statements(targets, names)
        lines += [f"wide{j}.value[v] = {self._narrow(o, names)};" for j, o in enumerate(rows)]
        lines.append("}")
        for j, o in enumerate(rows):
            if across:
                inner = self.writer.address(o.axes, (), LocalNames(None))
                narrowed = f"narrow<{stored_cpp(o.elem)}>(wide{j})"
                lines += ["{", *inner, f"p.t{o.pointer}[o] = {narrowed}.value[0];", "}"]
            else:
                lines += self._store(j, o)
        return [*lines, "}"]
