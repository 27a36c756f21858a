"""The instructions of a reduction as C++ statements, and the fields of its parameters.

Names in the emitted text: `q<mode>` is a mode's coordinate where an item's vector starts, `c<mode>` the
element's along the vector mode, `w<mode>` a window's; `i` an item, `v` an element of its vector;
`raw<load>[i].value[v]` what a load brought, `v<instruction>` a value, `r<reduction>` a row's reduction,
`s<instruction>[i][v]` a scan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from ucutlass.emit.arithmetic import computed, convert, kind_of, rounded, use_of
from ucutlass.emit.cuda_types import plain
from ucutlass.emit.functions import CPP, Use
from ucutlass.emit.text import literal, over_extents, product
from ucutlass.ir.elements import Element
from ucutlass.ir.extents import Extent, Fixed
from ucutlass.ir.neutral import in_element
from ucutlass.kernels.access import Product
from ucutlass.kernels.arithmetic import Compute, ExtentValue, HostScalar, LiteralValue, Round, ScalarKind
from ucutlass.kernels.reduction.plan import (
    AxisAccess,
    Fetch,
    Inside,
    LinearIndex,
    Load,
    Point,
    ReductionPlan,
    RowReduce,
    RowScan,
    RowValue,
    RowWindow,
    arguments,
    compact_modes,
)

# --- parameters -------------------------------------------------------------------


@dataclass(slots=True)
class Fields:
    """Fields of the parameters, each distinct one once, with the host's line that fills it."""

    types: dict[str, tuple[str, str]] = field(default_factory=dict)
    host: list[str] = field(default_factory=list)
    _named: dict[tuple[str, object], str] = field(default_factory=dict)

    def add(self, name: str, cpp: str, value: str, note: str = "") -> str:
        if name not in self.types:
            self.types[name] = (cpp, note)
            self.host.append(f"p.{name} = {value};")
        return f"p.{name}"

    def numbered(self, prefix: str, key: object, cpp: str, value: str, note: str = "") -> str:
        """A field whose name is the next number, for a key."""
        if (prefix, key) not in self._named:
            count = sum(p == prefix for p, _ in self._named)
            self._named[prefix, key] = f"{prefix}{count}"
        return self.add(self._named[prefix, key], cpp, value, note)

    def stride(self, stride: Product) -> str:
        return self.numbered("stride", stride, "int64_t", product(stride), product(stride))

    def number(self, extent: Extent) -> str:
        """An extent as an int64_t expression."""
        if isinstance(extent, Fixed):
            return str(extent.value)
        return self.numbered("number", extent, "int64_t", host_extent(extent))

    def size(self, modes: tuple[Product, ...]) -> str:
        """The elements of a tensor that these modes move."""
        value = " * ".join(f"({product(mode)})" for mode in modes)
        return self.numbered("size", modes, "int64_t", value)

    def reach(self, axes: tuple[AxisAccess, ...], modes: tuple[Product, ...]) -> str:
        """The elements of a tensor up to the last that loads along these axes may read."""
        value = " + ".join(["1", *(f"({product(a.stride)}) * ({_last(a, modes)})" for a in axes)])
        return self.numbered("size", axes, "int64_t", value)

    def mode(self, mode: int, extent: Product) -> str:
        return self.add(f"m{mode}", "int64_t", product(extent))


def _last(axis: AxisAccess, modes: tuple[Product, ...]) -> str:
    """The greatest coordinate of an axis that a load may read, in the host's terms."""
    if axis.extent is not None:
        return f"{host_extent(axis.extent)} - 1"
    return " + ".join(f"({product(modes[m])} - 1)" for m, _ in axis.at.terms)


def host_extent(extent: Extent) -> str:
    """An extent in the host's terms, of the array e; divisions round down."""
    return over_extents(extent, "floor_div", "floor_mod")


# --- statements -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes the instructions of one plan. `down`: row values are arrays over the vector."""

    plan: ReductionPlan
    fields: Fields
    uses: dict[Use, None]
    fast: frozenset[int]
    ends: bool = False
    """Whether items are the elements at a row's ends, not vectors."""
    applied: Mapping[int, int] = field(default_factory=dict)
    """The loads whose registers hold a value by now, by its instruction."""

    @property
    def down(self) -> bool:
        return not self.plan.problem.across

    def dependencies(self, targets: Iterable[int], defined: Collection[int] = ()) -> list[int]:
        """Returns what the targets need outside of windows and reductions and is not defined yet, in order."""
        problem = self.plan.problem
        reached: set[int] = set()
        stack = list(targets)
        while stack:
            i = stack.pop()
            if i in reached or i in defined:
                continue
            reached.add(i)
            match problem.instructions[i]:
                case RowValue() | RowScan():
                    pass
                case _ if i in self.applied:
                    pass
                case RowWindow(body=body) as window:
                    inner = {a for b in body for a in arguments(problem.instructions[b], problem.loads)}
                    stack += (inner | {window.arg}) - set(body)
                case instruction:
                    stack += arguments(instruction, problem.loads)
        return sorted(reached)

    def fetched(self, targets: Iterable[int]) -> list[int]:
        """The loads that the targets need before an element is computed, those of addresses first."""
        instructions = self.plan.problem.instructions
        # Instructions are in static single assignment: what gives an address stands before what reads there.
        loads = (
            self.applied[i]
            if i in self.applied
            else instruction.load
            if isinstance(instruction, Fetch)
            else None
            for i in self.dependencies(targets)
            for instruction in (instructions[i],)
        )
        return [k for k in dict.fromkeys(loads) if k is not None]

    def windows(self, targets: Iterable[int]) -> list[int]:
        """The windows that the targets need, those of addresses first."""
        return [
            i for i in self.dependencies(targets) if isinstance(self.plan.problem.instructions[i], RowWindow)
        ]

    def address_loads(self, load: int) -> list[int]:
        """The loads that give a load's gathered coordinates, of their own coordinates too."""
        return self.fetched(self.ids(load))

    def computed_address(self, load: int) -> bool:
        """Whether a window or a scan gives a load's gathered coordinates: then its elements cannot be loaded
        before these are computed."""
        instructions = self.plan.problem.instructions
        return any(
            isinstance(instructions[i], RowWindow | RowScan) for i in self.dependencies(self.ids(load))
        )

    def ids(self, load: int) -> list[int]:
        """The instructions that give a load's gathered coordinates."""
        source = self.plan.problem.loads[load]
        return [a.gathered for a in (*source.axes, *source.guards) if a.gathered is not None]

    def statements(self, targets: Iterable[int], names: LocalNames) -> list[str]:
        """The lines that compute the targets for the element at hand."""
        return [line for i in self.dependencies(targets, names.defined) for line in self.line(i, names)]

    def of_row(self, targets: Iterable[int]) -> list[int]:
        """What of the targets is the same for a whole row, where another than such a value reads it: it is
        computed once a row."""
        instructions, loads = self.plan.problem.instructions, self.plan.problem.loads
        live = self.dependencies(targets)
        same: set[int] = set()
        for i in live:
            instruction = instructions[i]
            constant = isinstance(instruction, RowValue | HostScalar | LiteralValue | ExtentValue)
            computed = isinstance(instruction, Compute | Round) and same.issuperset(
                arguments(instruction, loads)
            )
            if constant or computed:
                same.add(i)
        read = {a for i in live if i not in same for a in arguments(instructions[i], loads)}
        held = (read | set(targets)) & same
        return sorted(i for i in held if isinstance(instructions[i], Compute | Round))

    def line(self, i: int, names: LocalNames) -> list[str]:
        instruction = self.plan.problem.instructions[i]
        match instruction:
            case Compute() if i in self.applied:
                text = self._fetched(self.applied[i], names)
            case Fetch(load):
                text = self._fetched(load, names)
            case Point(at, kind):
                text = convert(f"int64_t({self.linear(at, names)})", "i64", kind)
            case Inside(axes):
                return self._inside(i, axes, names)
            case Compute():
                kinds = [self.kind(a) for a in instruction.args]
                if (reduction := self.kept(instruction)) is not None:
                    exponential = f"kept{reduction}[{names.item}][{names.element}]"
                    return [f"float const v{i} = {exponential} * scale{reduction};"]
                if (about := self._exponential(instruction)) is not None:
                    x, largest = (self.operand(a, names) for a in about)
                    return [f"float const v{i} = exponential({x}, {largest});"]
                use = use_of(instruction, kinds, i in self.fast)
                self.uses[use] = None
                text = computed(
                    instruction, use, [(self.operand(a, names), self.kind(a)) for a in instruction.args]
                )
            case Round(arg, elem, kind):
                value = rounded(self.operand(arg, names), self.kind(arg), plain(elem))
                text = convert(f"({value})", kind_of(elem), kind)
            case RowWindow():
                text = f"a{i}[{names.element}].value"
            case RowScan():
                place = (
                    f"kVector - 1 - {names.element}"
                    if instruction.reverse and not self.down
                    else names.element
                )
                text = f"s{i}[{names.item}][{place}]"
            case _:
                return []
        return [f"{CPP[instruction.kind]} const v{i} = {text};"]

    def kind(self, i: int) -> ScalarKind:
        return self.plan.problem.instructions[i].kind

    def operand(self, i: int, names: LocalNames) -> str:
        """Instruction i as a C++ primary of its kind."""
        instruction = self.plan.problem.instructions[i]
        match instruction:
            case LiteralValue(value, kind):
                return literal(value, kind)
            case HostScalar(index, kind):
                text = f"s[{index}] != 0.0" if kind == "bool" else f"{CPP[kind]}(s[{index}])"
                return self.fields.add(f"scalar{index}", CPP[kind], text)
            case ExtentValue(extent, kind):
                return self.fields.numbered(
                    "extent", (extent, kind), CPP[kind], f"{CPP[kind]}({product(extent)})", product(extent)
                )
            case RowValue(reduction, part, kind):
                at = f"r{reduction}[{names.element if self.down else 0}]"
                return f"{CPP[kind]}({at}.{_PART[part]})"
            case _ if i in names.defined:
                return f"h{i}[{names.element if self.down else 0}]"
            case _:
                return f"v{i}"

    # --- addresses

    def linear(self, at: LinearIndex, names: LocalNames) -> str:
        short = self.plan.flat or self.plan.schedule.short
        wide = "int64_t({})" if short else "{}"  # there, coordinates have 32 bits
        terms = [names.at(m) if c == 1 else f"{wide.format(names.at(m))} * {c}" for m, c in at.terms]
        if at.offset != Fixed(0) or not terms:
            terms.append(self.fields.number(at.offset))
        return " + ".join(terms)

    def position(self, axis: AxisAccess, names: LocalNames) -> str:
        """The coordinate along an axis, before it is divided by the scale."""
        if axis.gathered is None:
            return self.linear(axis.at, names)
        return convert(self.operand(axis.gathered, names), self.kind(axis.gathered), "i64")

    def address(
        self, axes: Sequence[AxisAccess], guards: Sequence[AxisAccess], names: LocalNames
    ) -> list[str]:
        """Lines that leave the element's offset in `o`, and in `in` whether it is there."""
        # 64-bit products of the coordinates of each element would take most of a kernel's time.
        fits = self.plan.schedule.short or (
            self.plan.flat and compact_modes(self.plan.problem, axes) is not None
        )
        index = "int32_t" if fits else "int64_t"
        lines = [f"{index} o = 0;", "[[maybe_unused]] bool in = true;"]
        for axis in axes:
            stride = "" if axis.stride == () else f" * {index}({self.fields.stride(axis.stride)})"
            if axis.extent is None and axis.scale == 1:
                lines.append(f"o += {index}({self.position(axis, names)}){stride};")
                continue
            lines += self._bounded(axis, names)
            lines.append(f"o += {index}(x){stride}; }}")
        for axis in guards:
            lines += [*self._bounded(axis, names), "}"]
        return lines

    def _bounded(self, axis: AxisAccess, names: LocalNames) -> list[str]:
        lines = [f"{{ int64_t x = {self.position(axis, names)};"]
        if axis.scale != 1:
            lines.append(f"in = in && x % {axis.scale} == 0; x /= {axis.scale};")
            # C++ rounds towards zero: what is below zero and does not divide would reach 0.
        if axis.extent is not None:
            low = "x >= 0" if axis.scale == 1 else f"({self.position(axis, names)}) >= 0"
            lines.append(f"in = in && {low} && x < {self.fields.number(axis.extent)};")
        return lines

    def _inside(self, i: int, axes: Sequence[AxisAccess], names: LocalNames) -> list[str]:
        lines = [f"bool v{i}; {{ bool in = true;"]
        for axis in axes:
            lines += [*self._bounded(axis, names), "}"]
        return [*lines, f"v{i} = in; }}"]

    def _fetched(self, load: int, names: LocalNames) -> str:
        source = self.plan.problem.loads[load]
        if load in names.spans:
            return widened(names.spans[load], source)
        pack = f"raw{load}[0]" if load in names.local else f"{names.raw}{load}[{names.item}]"
        element = names.element if moves(self.plan, source) else "0"
        if source.elem.kind == "float":
            return f"number({pack}, {element})"
        return widened(f"{pack}.value[{element}]", source)

    def kept(self, exponential: Compute) -> int | None:
        """The reduction for whose sum a thread took this exponential, about its own largest value, and kept it."""
        s, instructions = self.plan.schedule, self.plan.problem.instructions
        about = self._exponential(exponential)
        most = MOST_KEPT // (2 if s.threads * s.rows * s.blocks > KEEPING_THREADS else 1)
        if about is None or self.ends or s.stages == 1 or s.keep == "shared" or s.items * s.vector > most:
            return None
        x, largest = about
        row = instructions[largest]
        assert isinstance(row, RowValue)
        reduction = instructions[row.reduction]
        assert isinstance(reduction, RowReduce)
        return row.reduction if reduction.op == "logsumexp" and reduction.arg == x else None

    def kept_reductions(self) -> frozenset[int]:
        """The reductions whose exponentials a thread keeps."""
        every = (self.kept(i) for i in self.plan.problem.instructions if isinstance(i, Compute))
        return frozenset(i for i in every if i is not None)

    def _exponential(self, exponential: Compute) -> tuple[int, int] | None:
        """x and the row's largest, where this is exp(x - largest)."""
        instructions = self.plan.problem.instructions
        inner = instructions[exponential.args[0]] if exponential.function == "exp" else None
        if not isinstance(inner, Compute) or inner.function != "subtract":
            return None
        x, largest = inner.args
        row = instructions[largest]
        return (x, largest) if isinstance(row, RowValue) and row.part == "largest" else None


MOST_KEPT, KEEPING_THREADS = 64, 512
"""Exponentials that a thread keeps at most, a register each, where an SM has so many threads; half where it has more."""

_PART = MappingProxyType(
    {
        "value": "value",
        "logarithm": "logarithm()",
        "largest": "largest",
        "total": "total()",
        "mean": "mean",
        "squares": "squares",
    }
)

_ACCUMULATOR = MappingProxyType(
    {
        "sum": "Sum<{t}>",
        "prod": "Product<{t}>",
        "max": "Extreme<{t}, true>",
        "min": "Extreme<{t}, false>",
        "argmax": "ArgExtreme<{t}, true>",
        "argmin": "ArgExtreme<{t}, false>",
        "logsumexp": "LogSumExp",
        "moments": "Moments",
    }
)
"""The library's type that accumulates a reduction, of values of type t."""


def window_accumulator(window: RowWindow, kind: ScalarKind) -> str:
    """The library's type that accumulates a window."""
    return _ACCUMULATOR[window.op].format(t=CPP[kind])


def accumulator(reduction: RowReduce) -> str:
    return _ACCUMULATOR[reduction.op].format(t=CPP[reduction.kind])


@dataclass(frozen=True, slots=True)
class LocalNames:
    """What coordinates and loads are called at a place: `vector` is the mode whose elements differ there, if
    any; `windows` the modes whose loops stand around it; loads of `local` are those of this item alone, those
    of all items lie in the arrays `<raw><load>`, elements of `spans` lie there; `defined` are the values that
    were computed once for the row."""

    vector: int | None
    item: str = "i"
    element: str = "v"
    windows: frozenset[int] = frozenset()
    local: frozenset[int] = frozenset()
    spans: Mapping[int, str] = field(default_factory=dict)
    defined: frozenset[int] = frozenset()
    raw: str = "raw"

    def at(self, mode: int) -> str:
        if mode in self.windows:
            return f"w{mode}"
        return f"c{mode}" if mode == self.vector else f"q{mode}"


def touched(plan: ReductionPlan, axes: Iterable[AxisAccess]) -> set[int]:
    """The modes that move an address, through gathered coordinates too."""
    modes: set[int] = set()
    for axis in axes:
        modes |= {m for m, _ in axis.at.terms}
        if axis.gathered is not None:
            modes |= moved_by(plan, axis.gathered)
    return modes


def moved_by(plan: ReductionPlan, i: int) -> set[int]:
    """The modes that change an instruction's value."""
    problem = plan.problem
    instruction = problem.instructions[i]
    match instruction:
        case Fetch(load):
            return touched(plan, (*problem.loads[load].axes, *problem.loads[load].guards))
        case Inside(axes):
            return touched(plan, axes)
        case Point(at):
            return {m for m, _ in at.terms}
        case RowValue():
            return set(range(len(problem.rows)))
        case RowScan():
            return set(range(len(problem.rows) + len(problem.columns)))
        case _:
            return {m for a in arguments(instruction, problem.loads) for m in moved_by(plan, a)}


def moves(plan: ReductionPlan, load: Load) -> bool:
    """Whether a load differs between the elements of a vector."""
    modes = touched(plan, (*load.axes, *load.guards))
    return bool(modes) if plan.flat else plan.problem.vector in modes


def widened(text: str, load: Load) -> str:
    """An element as its kind."""
    kind = kind_of(load.elem)
    return f"({text} != 0)" if kind == "bool" else f"{CPP[kind]}({text})"


def stored_cpp(elem: Element) -> str:
    """The C++ type of an element in memory; a bool is a byte."""
    return "uint8_t" if elem.kind == "bool" else plain(elem).cpp


def fill(load: Load) -> str:
    """What a position outside reads, in the kind of the element."""
    return literal(in_element(load.fill, load.elem), kind_of(load.elem))
