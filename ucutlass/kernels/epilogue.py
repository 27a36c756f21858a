"""The epilogue of a dot: its access structure (operands read, results stored or reduced) and
its arithmetic (a pure function of scalars), kept apart from here on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, TypeAlias

from ucutlass import ir
from ucutlass.check.indexing import is_rename
from ucutlass.ir import extents
from ucutlass.ir.elements import BOOL, F32, I64, Element
from ucutlass.ir.extents import Extent
from ucutlass.ir.functions import FUNCTIONS
from ucutlass.ir.traversal import walk
from ucutlass.kernels.addresses import MergedModes, Operand, Sizes, operand
from ucutlass.kernels.arithmetic import (
    Accumulator,
    Arithmetic,
    Compute,
    CoordinateValue,
    ExtentValue,
    HostScalar,
    Instruction,
    KeptValue,
    LiteralValue,
    LoadSlot,
    Round,
    RowStatistic,
    ScalarKind,
    Statistic,
    StatisticOp,
)
from ucutlass.kernels.instructions import ELEMENT, Instructions
from ucutlass.kernels.refused import Refused

ReductionOp: TypeAlias = Literal["sum", "max", "min"]

_REDUCTIONS: Mapping[str, ReductionOp] = {"sum": "sum", "mean": "sum", "max": "max", "min": "min"}
"""Reductions that an epilogue takes, and how partial results combine."""


Summed: TypeAlias = ir.Dot | ir.Reduce
"""What an epilogue begins with: a dot, or a sum of scaled dots that one accumulator holds."""


@dataclass(frozen=True, slots=True)
class ReduceTo:
    """The output combines values over the dimensions that its tensor lacks."""

    op: ReductionOp


@dataclass(frozen=True, slots=True)
class EpilogueOutput:
    """One result: `value` is computed per element of the dot, then stored or reduced.

    `divide_by` holds the dimensions of a mean: values are divided before they are summed.
    """

    tensor: Operand
    value: ir.Value
    reduce: ReduceTo | None
    divide_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EpiloguePattern:
    """Inputs in slot order, with the value nodes that read them; outputs in result order. `others` are
    further dots over the same names, whose values are accumulators beside `dot`'s. `rows` are the names over
    which the kernel reduces values that it goes on with, one or none; `kept` is the value below which no pass
    but the first looks, `gate` a softmax below which nothing above it looks."""

    kernel: ir.Kernel
    dot: Summed
    inputs: tuple[Operand, ...]
    slots: dict[int, int]
    outputs: tuple[EpilogueOutput, ...]
    others: tuple[Summed, ...] = ()
    rows: tuple[str, ...] = ()
    kept: ir.Value | None = None
    gate: ir.Softmax | None = None


def epilogue(
    kernel: ir.Kernel,
    dot: Summed,
    stored: tuple[str, ...],
    loaded: tuple[str, ...],
    others: tuple[Summed, ...] = (),
    own: ir.Segment | None = None,
    rows: tuple[tuple[str, ...], ...] = (),
) -> EpiloguePattern:
    """The access structure around a dot, and `others` over the same names. A tensor gathered by `own`, the
    group of each row, is an operand over the groups. The kernel may reduce over one of `rows` and go on with the
    outcome. Raises Refused where it cannot be fused."""
    tensors = sum(isinstance(p.type, ir.TensorType) for p in kernel.params)
    outputs = tuple(
        _output(kernel, dot, result, tensors + i, stored, others) for i, result in enumerate(kernel.results)
    )
    pattern = around(kernel, dot, outputs, loaded, others, own, rows)
    return with_statistics(pattern, rows) if rows else pattern


def around(
    kernel: ir.Kernel,
    dot: Summed,
    outputs: tuple[EpilogueOutput, ...],
    loaded: tuple[str, ...],
    others: tuple[Summed, ...] = (),
    own: ir.Segment | None = None,
    rows: tuple[tuple[str, ...], ...] = (),
) -> EpiloguePattern:
    """The operands that outputs computed from a dot, and `others`, read besides. Raises Refused where one
    cannot be read at the element's own coordinates."""
    inputs: list[Operand] = []
    slots: dict[int, int] = {}
    for node in _above((dot, *others), outputs, own):
        if any(node is root for root in (dot, *others)) or _is_statistic(node, dot, rows):
            continue
        input_ = _input(kernel, dot, node, loaded, own)
        if input_ is not None:
            if input_ not in inputs:
                inputs.append(input_)
            slots[id(node)] = inputs.index(input_)
    return EpiloguePattern(kernel, dot, tuple(inputs), slots, outputs, others)


def _is_statistic(node: ir.Value, dot: Summed, rows: tuple[tuple[str, ...], ...]) -> bool:
    """Whether a node reduces what comes from the dot over the whole of one of `rows`, in floating point."""
    if not isinstance(node, ir.Softmax) and not (isinstance(node, ir.Reduce) and node.op in _STATISTICS):
        return False
    whole = any(set(node.over) == set(names) for names in rows)
    return whole and dot in list(walk(node.value)) and {node.elem.kind, dot.elem.kind} == {"float"}


_STATISTICS = frozenset({"sum", "mean", "max", "min", "var", "logsumexp"})
"""Reductions over a row with whose outcome the epilogue goes on."""


def with_statistics(e: EpiloguePattern, rows: tuple[tuple[str, ...], ...]) -> EpiloguePattern:
    """The pattern with the names of its statistics, if it has any. Raises Refused where no kernel serves them."""
    nodes = list(walk(*(o.value for o in e.outputs), into=lambda n: () if n is e.dot else ir.children(n)))
    statistics = [n for n in nodes if n is not e.dot and _is_statistic(n, e.dot, rows)]
    if not statistics:
        return e
    over = {frozenset(n.over) for n in statistics if isinstance(n, ir.Reduce | ir.Softmax)}
    partly = any(o.reduce is not None or set(o.value.dims) != set(e.dot.dims) for o in e.outputs)
    if len(over) > 1 or partly:
        raise _used_again(statistics[0])
    (names,) = over
    anchor = _kept(e, nodes, statistics)
    if anchor is None:
        raise _used_again(statistics[0])
    softmaxes = [n for n in nodes if isinstance(n, ir.Softmax) and not n.log and _parts(e, nodes, n)]
    return replace(
        e,
        rows=tuple(d for d in e.dot.dims if d in names),
        kept=anchor,
        gate=softmaxes[0] if softmaxes else None,
    )


def _below(
    e: EpiloguePattern, nodes: list[ir.Value], node: ir.Value, without: ir.Value | None = None
) -> list[ir.Value]:
    """The values that `node` is computed from down to operands and the dot, not going below `without`."""
    stops = (without, e.dot, *(n for n in nodes if id(n) in e.slots))
    return list(walk(node, into=lambda n: () if any(n is s for s in stops) else ir.children(n)))


def _parts(e: EpiloguePattern, nodes: list[ir.Value], node: ir.Value) -> bool:
    """Whether the outputs depend on the dot and on operands over its names through `node` alone."""
    ends = [e.dot, *(n for n in nodes if id(n) in e.slots and set(n.dims) == set(e.dot.dims))]
    reached = [n for o in e.outputs for n in _below(e, nodes, o.value, node)]
    return not any(n is end and n is not node for n in reached for end in ends)


def _kept(e: EpiloguePattern, nodes: list[ir.Value], statistics: list[ir.Value]) -> ir.Value | None:
    """The value through which all go that depend on the dot or on operands over its names, before any statistic; of
    several the one that is computed last."""

    def early(node: ir.Value) -> bool:
        lower = _below(e, nodes, node)
        return any(n is e.dot for n in lower) and not any(n is s for n in lower for s in statistics)

    fitting = [n for n in nodes if n.elem.kind == "float" and early(n) and _parts(e, nodes, n)]
    return max(fitting, key=lambda n: len(_below(e, nodes, n)), default=None)


def _used_again(node: ir.Value) -> Refused:
    return Refused(
        "UC0303",
        "a reduction of the dot's result is used again with more work; it is only known once every tile is done",
        node.span,
        "cut here: store the dot's result and its reduction, go on in a second stage",
    )


def _above(
    dots: tuple[Summed, ...], outputs: tuple[EpilogueOutput, ...], own: ir.Segment | None
) -> list[ir.Value]:
    """The nodes of the epilogue: everything reached without passing through a dot, nor below
    a node that is itself an operand."""

    def into(node: ir.Value) -> tuple[ir.Value, ...]:
        gathered = isinstance(node, ir.Gather) and node.ids is own
        ends = gathered or isinstance(node, ir.Read) or any(node is dot for dot in dots)
        return () if ends else ir.children(node)

    return list(walk(*(o.value for o in outputs), into=into))


def _output(
    kernel: ir.Kernel,
    dot: Summed,
    result: ir.ResultDecl,
    pointer: int,
    stored: tuple[str, ...],
    others: tuple[Summed, ...],
) -> EpilogueOutput:
    if result.type.elem.name not in stored:
        raise Refused(
            "UC0306",
            f"no kernel writes {result.type.elem.name} from a dot",
            result.span,
            "results may be " + " ".join(stored),
        )
    tensor = operand(result.type, pointer, result.span)
    value = result.value
    if isinstance(value, ir.Cast) and value.elem is result.type.elem:
        value = value.value
    below = list(walk(value))
    if not any(d in below for d in (dot, *others)):
        raise Refused.no_family(kernel, "a result that does not come from the dot", result.value.span)
    if isinstance(value, ir.Reduce) and value is not dot and dot in list(walk(value.value)):
        return _reduction(dot, value, tensor)
    require_dims(value, dot)
    return EpilogueOutput(tensor, value, None)


def _reduction(dot: Summed, value: ir.Reduce, tensor: Operand) -> EpilogueOutput:
    if value.op not in _REDUCTIONS:
        raise Refused(
            "UC0309",
            f"{value.op} cannot be taken in the epilogue of a dot",
            value.span,
            "store the dot's result and reduce it in a second stage",
        )
    require_dims(value.value, dot)
    monotone = value.op in ("max", "min") and tensor.elem.kind == "float"
    if value.elem.kind != tensor.elem.kind and not monotone:
        # Partial results have the stored element's kind: every term would be converted on its own.
        raise Refused(
            "UC0309",
            f"a {value.op} of kind {value.elem.name} is not stored as {tensor.elem.name} by the epilogue of "
            "a dot: each term would be converted before it is combined",
            value.span,
            f"convert inside, {value.op}[..]({tensor.elem.name}(..)), or store it as {value.elem.name}",
        )
    return EpilogueOutput(
        tensor, value.value, ReduceTo(_REDUCTIONS[value.op]), value.over if value.op == "mean" else ()
    )


def require_dims(value: ir.Value, dot: Summed) -> None:
    extra = [d for d in value.dims if d not in dot.dims]
    if extra:
        raise Refused(
            "UC0307",
            f"{', '.join(extra)} comes from an epilogue operand alone; the dot has "
            f"{', '.join(dot.dims) or 'no names'}",
            value.span,
            "combine them in a second stage",
        )


def _input(
    kernel: ir.Kernel, dot: Summed, node: ir.Value, loaded: tuple[str, ...], own: ir.Segment | None = None
) -> Operand | None:
    """The tensor that a node reads, None where it reads none. Raises Refused."""
    rename: dict[str, str] = {}
    inner = node
    if isinstance(inner, ir.Gather) and inner.ids is own and isinstance(inner.value, ir.ParamValue):
        inner = inner.value
    while isinstance(inner, ir.Read):
        if not is_rename(inner, kernel.dims):
            raise Refused(
                "UC0304",
                "an operand of the epilogue is read at the result's own coordinates",
                inner.span,
                _stage_before(node),
            )
        rename |= {p.dim: rename.get(p.at.terms[0][0], p.at.terms[0][0]) for p in inner.positions}
        inner = inner.value
    match inner:
        case ir.ParamValue(index):
            type_ = kernel.params[index].type
            if isinstance(type_, ir.ScalarType):
                return None
            if type_.elem.name not in loaded:
                raise Refused(
                    "UC0306",
                    f"no kernel reads {type_.elem.name} in the epilogue of a dot",
                    node.span,
                    "operands may be " + " ".join(loaded),
                )
            pointer = sum(isinstance(p.type, ir.TensorType) for p in kernel.params[:index])
            return operand(type_, pointer, node.span, rename)
        case ir.Reduce() if dot in list(walk(inner)):
            raise _used_again(inner)
        case ir.Gather() | ir.Segment():
            raise Refused(
                "UC0304", "an operand of the epilogue cannot be gathered", inner.span, _stage_before(node)
            )
        case ir.Softmax() | ir.Scan() | ir.Reduce():
            raise Refused.no_family(kernel, "a dot with softmax, scans or reductions around it", inner.span)
        case _ if isinstance(node, ir.Read):
            raise Refused("UC0304", "only stored tensors can be indexed in an epilogue", inner.span)
    return None


def _stage_before(node: ir.Value) -> str:
    axes = ", ".join(node.dims)
    return f"store it in a stage before, in a pipeline: b: {node.elem.name}[{axes}] = .., and use b here"


# --- arithmetic -------------------------------------------------------------------


def arithmetic(e: EpiloguePattern, modes: MergedModes, sizes: Sizes) -> Arithmetic:
    """The scalar function of the epilogue, every shared value computed once."""
    build = _Build(e, modes, sizes)
    anchor = None if e.kept is None or e.kept is e.dot else build.keep(e.kept)
    results = []
    for output in e.outputs:
        value = build.value(output.value)
        if output.divide_by:
            count = build.add(ExtentValue(sizes.product(output.divide_by), "i64"))
            value = build.add(
                Compute("divide", (build.convert(value, "f32"), build.convert(count, "f32")), "f32")
            )
        results.append(build.convert(value, _taken(output)))
    return Arithmetic(tuple(build.instructions), tuple(results), tuple(build.statistics), anchor)


def kind_of(elem: Element) -> ScalarKind:
    """What an element is computed in."""
    if elem.kind == "float":
        return "f32"
    if elem is BOOL:
        return "bool"
    return "i64" if elem is I64 else "i32"


def _taken(output: EpilogueOutput) -> ScalarKind:
    """What a result is handed over in; see `ucutlass.kernels.access.Reduction`."""
    summed = output.reduce is not None and output.reduce.op == "sum"
    return "i64" if summed and output.tensor.elem.kind == "int" else kind_of(output.tensor.elem)


_PAIRS: Mapping[tuple[StatisticOp, StatisticOp], StatisticOp] = MappingProxyType(
    {("mean", "mean"): "variance", ("sum", "max"): "exponentials"}
)
"""Which statistic of a distance to the one before it is a pair with that."""


class _Build(Instructions[Instruction]):
    """Appends instructions, each distinct one once."""

    def __init__(self, e: EpiloguePattern, modes: MergedModes, sizes: Sizes) -> None:
        super().__init__()
        self._e = e
        self._modes = modes
        self._sizes = sizes
        self._done: dict[int, int] = {}
        self.statistics: list[Statistic] = []

    def keep(self, node: ir.Value) -> int:
        """The instruction of a value that is kept, whose readers then read `KeptValue`."""
        at = self.convert(self.value(node), "f32")
        self._done[id(node)] = self.add(KeptValue("f32"))
        return at

    def value(self, node: ir.Value) -> int:
        if id(node) not in self._done:
            self._done[id(node)] = self._make(node)
        return self._done[id(node)]

    def _make(self, node: ir.Value) -> int:
        for index, dot in enumerate((self._e.dot, *self._e.others)):
            if node is dot:
                return self.add(Accumulator(kind_of(dot.elem), index))
        if id(node) in self._e.slots:
            return self.add(LoadSlot(self._e.slots[id(node)], kind_of(node.elem)))
        match node:
            case ir.ParamValue(index):
                scalars = sum(isinstance(p.type, ir.ScalarType) for p in self._e.kernel.params[:index])
                return self._narrow(self.add(HostScalar(scalars, kind_of(node.elem))), node.elem)
            case ir.Constant(value, elem):
                return self.add(LiteralValue(value, kind_of(elem)))
            case ir.Size(extent):
                return self._extent(extent)
            case ir.Coordinate(dim):
                return self._coordinate(dim)
            case ir.Cast(inner, elem):
                return self._cast(self.value(inner), elem)
            case ir.Apply("where", (_, value, same)) if value is same:  # `expand`
                return self.value(value)
            case ir.Apply(function, args, elem):
                return self._apply(function, args, elem)
            case ir.Softmax(_, inner, log):
                return self._softmax(self.convert(self.value(inner), "f32"), log, node is self._e.gate)
            case ir.Reduce(op, _, inner):
                return self._reduce(op, self.convert(self.value(inner), "f32"))
        raise AssertionError(f"an epilogue holds no {type(node).__name__}: recognition refuses it")

    def _extent(self, extent: Extent) -> int:
        match extent:
            case extents.Fixed(value):
                return self.add(LiteralValue(value, "i64"))
            case extents.Free(dim):
                return self.add(ExtentValue(self._sizes.product((dim,)), "i64"))
            case extents.Combined(op, left, right):
                name = {"+": "add", "-": "subtract", "*": "multiply", "//": "floor_divide", "%": "modulo"}[op]
                return self.add(Compute(name, (self._extent(left), self._extent(right)), "i64"))

    def _coordinate(self, dim: str) -> int:
        place: list[tuple[str, int, tuple[str, ...]]] = [("m", 0, self._modes.m), ("n", 0, self._modes.n)]
        place += [("batch", i, run) for i, run in enumerate(self._modes.batch)]
        for mode, batch, run in place:
            if dim in run:
                inner = self._sizes.product(run[run.index(dim) + 1 :])
                return self.add(CoordinateValue(mode, batch, inner, self._sizes.product((dim,)), "i64"))  # type: ignore[arg-type]
        raise AssertionError(f"{dim} is no mode of the dot: recognition refuses it")

    # --- over a row

    def _statistic(self, op: StatisticOp, term: int) -> int:
        """The row's value of a statistic, taken together with the one before it where its term is the distance to that."""
        last = len(self.statistics) - 1
        if last >= 0 and term == self._around(last, op):
            op = _PAIRS[op, self.statistics[last].op]
        statistic = Statistic(op, term, "n" if set(self._e.rows) == set(self._modes.n) else "m")
        if statistic not in self.statistics:
            self.statistics.append(statistic)
        return self.add(RowStatistic(self.statistics.index(statistic), "f32"))

    def _around(self, last: int, op: StatisticOp) -> int | None:
        """The term with which statistic `op` is a pair with that of index `last`; None where there is none."""
        before = self.statistics[last]
        if (op, before.op) not in _PAIRS:
            return None
        distance = self._compute("subtract", before.term, self.add(RowStatistic(last, "f32")))
        squared = op == "mean"
        return self._compute("multiply", distance, distance) if squared else self._compute("exp", distance)

    def _compute(self, function: str, *args: int) -> int:
        return self.add(Compute(function, args, "f32"))

    def _reduce(self, op: str, x: int) -> int:
        match op:
            case "var":
                centred = self._compute("subtract", x, self._statistic("mean", x))
                return self._statistic("mean", self._compute("multiply", centred, centred))
            case "logsumexp":
                largest = self._statistic("max", x)
                total = self._statistic("sum", self._exponential(x, largest))
                return self._compute("add", largest, self._compute("log", total))
            case "sum" | "mean" | "max" | "min":
                return self._statistic(op, x)
        raise AssertionError(f"{op} is no statistic of a row: recognition refuses it")

    def _softmax(self, x: int, log: bool, gate: bool) -> int:
        largest = self._statistic("max", x)
        exponential = self._exponential(x, largest)
        total = self._statistic("sum", exponential)
        if log:
            return self._compute(
                "subtract", self._compute("subtract", x, largest), self._compute("log", total)
            )
        if gate and self.statistics[-1].op == "exponentials":
            self.statistics[-1] = replace(self.statistics[-1], op="softmax")
            return self._compute(
                "multiply", self.convert(self.value(self._e.kept or self._e.dot), "f32"), total
            )
        return self._compute("divide", exponential, total)

    def _exponential(self, x: int, largest: int) -> int:
        return self._compute("exp", self._compute("subtract", x, largest))

    def _narrow(self, at: int, elem: Element) -> int:
        """Host scalars cross as doubles: a narrow float is rounded to what it was declared."""
        return self.add(Round(at, elem, "f32")) if elem.kind == "float" and elem.bits < F32.bits else at

    def _cast(self, at: int, elem: Element) -> int:
        if elem is ELEMENT[kind_of(elem)]:
            return self.convert(at, kind_of(elem))
        return self.add(Round(at, elem, kind_of(elem)))

    def _apply(self, function: str, args: tuple[ir.Value, ...], elem: Element) -> int:
        spec = FUNCTIONS[function]
        slots = [self.value(a) for a in args]
        picks = slots[1:] if spec.domain == "any" else slots
        kind = self.operand_kind(spec, picks, kind_of(elem))
        converted = [self.convert(a, kind) for a in picks]
        return self.add(Compute(function, (*slots[: len(slots) - len(picks)], *converted), kind_of(elem)))
