"""The values of a reduction as instructions: every shared value once, indices resolved to addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType

from ucutlass import ir
from ucutlass.check.indexing import is_rename
from ucutlass.ir.elements import F32, Element
from ucutlass.ir.extents import Combined, Extent, Fixed, Free, combined
from ucutlass.ir.functions import FUNCTIONS
from ucutlass.ir.neutral import in_element
from ucutlass.kernels.addresses import Sizes
from ucutlass.kernels.arithmetic import Compute, ExtentValue, HostScalar, LiteralValue, Round, ScalarKind
from ucutlass.kernels.epilogue import kind_of
from ucutlass.kernels.gemm.match import pointer
from ucutlass.kernels.instructions import ELEMENT, Instructions
from ucutlass.kernels.reduction.match import ReductionPattern, is_window
from ucutlass.kernels.reduction.plan import (
    AxisAccess,
    Fetch,
    Inside,
    LinearIndex,
    Load,
    Point,
    ReductionInstruction,
    RowReduce,
    RowScan,
    RowValue,
    RowWindow,
    WindowOp,
    arguments,
)
from ucutlass.kernels.refused import Refused
from ucutlass.limits import READINGS

_CALLS = {"+": "add", "-": "subtract", "*": "multiply", "//": "floor_divide", "%": "modulo"}


@dataclass(frozen=True, slots=True)
class ModeIndex:
    """Runs of names that are addressed as one, innermost last."""

    rows: tuple[tuple[str, ...], ...]
    columns: tuple[tuple[str, ...], ...]
    windows: tuple[tuple[str, ...], ...]

    @property
    def all(self) -> tuple[tuple[str, ...], ...]:
        return (*self.rows, *self.columns, *self.windows)


@dataclass(frozen=True, slots=True)
class At:
    """Where a name is read: at `sum(c * coordinate of d) + offset` over `scale`, or at instruction
    `gathered`'s value."""

    terms: tuple[tuple[str, int], ...]
    offset: Extent
    scale: int = 1
    gathered: int | None = None
    inside: bool = False


Env = tuple[tuple[str, At], ...]
"""Names that are read elsewhere than at their own coordinate; the innermost index is first."""


_WINDOW_OPS: Mapping[str, WindowOp] = MappingProxyType(
    {
        "sum": "sum",
        "mean": "sum",
        "prod": "prod",
        "max": "max",
        "min": "min",
        "argmax": "argmax",
        "argmin": "argmin",
    }
)
"""What a window accumulates for a reduction; a mean is a sum that is divided."""


class Builder(Instructions[ReductionInstruction]):
    """Appends instructions and loads, each distinct one once."""

    def __init__(self, pattern: ReductionPattern, sizes: Sizes, modes: ModeIndex) -> None:
        super().__init__()
        self.loads: list[Load] = []
        self._numbers: dict[Load, int] = {}
        self._pattern, self._kernel, self._sizes, self._modes = pattern, pattern.kernel, sizes, modes
        self._mode = {name: i for i, run in enumerate(modes.all) for name in run}
        self._done: dict[tuple[int, Env, Env], int] = {}
        self._readings = 0

    def result(self, result: ir.ResultDecl) -> int:
        """The instruction whose value is stored, in the kind of the stored element."""
        value = result.value
        if isinstance(value, ir.Cast) and value.elem is result.type.elem:
            value = value.value
        return self.convert(self.value(value, (), ()), kind_of(result.type.elem))

    # --- instructions

    def compute(self, function: str, args: tuple[int, ...], kind: ScalarKind) -> int:
        return self.add(Compute(function, args, kind))

    # --- values

    def value(self, node: ir.Value, env: Env, guards: Env) -> int:
        """The instruction of a node where some of its names are read elsewhere."""
        mine = tuple((d, at) for d, at in env if d in node.dims)
        key = (id(node), mine, guards)
        if key not in self._done:
            self._readings += 1 + len(guards) // 4
            if self._readings > READINGS.most:
                raise Refused(READINGS.code, READINGS.message(self._readings), node.span, READINGS.hint)
            self._done[key] = self._make(node, mine, guards)
        return self._done[key]

    def _make(self, node: ir.Value, env: Env, guards: Env) -> int:
        match node:
            case ir.ParamValue():
                return self._parameter(node, env, guards, 0.0, ())
            case ir.Constant(value, elem):
                return self.add(LiteralValue(value, kind_of(elem)))
            case ir.Size(extent):
                return self.extent(extent)
            case ir.Coordinate(dim):
                return self._coordinate(dim, dict(env).get(dim))
            case ir.Cast(inner, elem):
                return self._cast(self.value(inner, env, guards), elem)
            case ir.Apply("where", (_, value, same)) if value is same:  # `expand`
                return self.value(value, env, guards)
            case ir.Apply(function, args, elem):
                return self._apply(function, [self.value(a, env, guards) for a in args], elem)
            case ir.Read():
                return self._read(node, env, guards)
            case ir.Gather():
                return self._gather(node, env, guards)
            case ir.Reduce() if is_window(node, self._pattern.windows):
                return self._window(node, env, guards)
            case ir.Reduce() | ir.Softmax() | ir.Scan():
                if env or guards:
                    raise Refused(
                        "UC0314",
                        "what is reduced or scanned is read at another place",
                        node.span,
                        "cut here: store it first, in a pipeline: h: f32[..] = ..",
                    )
                return self._over_columns(node)
        raise AssertionError(f"a reduction holds no {type(node).__name__}: the pattern refuses it")

    def _parameter(self, node: ir.ParamValue, env: Env, guards: Env, fill: float, checked: Env) -> int:
        type_ = self._kernel.params[node.index].type
        if isinstance(type_, ir.ScalarType):
            scalars = sum(isinstance(p.type, ir.ScalarType) for p in self._kernel.params[: node.index])
            at = self.add(HostScalar(scalars, kind_of(node.elem)))
            narrow = node.elem.kind == "float" and node.elem.bits < F32.bits
            return self.add(Round(at, node.elem, "f32")) if narrow else at
        axes = self.axes(type_.dims, env)
        own = tuple(self._along(d, at, ()) for d, at in guards if (d, at) not in checked and not at.inside)
        load = Load(pointer(self._kernel, node.index), node.elem, axes, own, fill, 1)
        number = self._numbers.setdefault(load, len(self.loads))
        if number == len(self.loads):
            self.loads.append(load)
        return self.add(Fetch(number, kind_of(node.elem)))

    def axes(self, order: tuple[str, ...], env: Env = ()) -> tuple[AxisAccess, ...]:
        """How a tensor of this memory order is addressed."""
        elsewhere, accesses = dict(env), []
        for mode, run in enumerate(self._modes.all):
            if run[-1] in order and not set(run) & set(elsewhere):
                stride = self._sizes.product(order[order.index(run[-1]) + 1 :])
                accesses.append(AxisAccess(stride, LinearIndex(((mode, 1),), Fixed(0))))
        for name in order:
            if name in elsewhere:
                stride = self._sizes.product(order[order.index(name) + 1 :])
                accesses.append(self._along(name, elsewhere[name], stride))
        return tuple(accesses)

    def _along(self, name: str, at: At, stride: tuple[int, ...]) -> AxisAccess:
        extent = None if at.inside else self._positions(Free(name))
        return AxisAccess(stride, self._linear(at), at.scale, extent, at.gathered)

    def _linear(self, at: At) -> LinearIndex:
        return LinearIndex(tuple((self._mode[d], c) for d, c in at.terms), self._positions(at.offset))

    def _positions(self, extent: Extent) -> Extent:
        match extent:
            case Fixed():
                return extent
            case Free(dim):
                return Free(str(self._sizes.position[dim]))
            case Combined(op, left, right):
                return Combined(op, self._positions(left), self._positions(right))

    def extent(self, extent: Extent) -> int:
        """An extent as an i64 value."""
        match extent:
            case Fixed(value):
                return self.add(LiteralValue(value, "i64"))
            case Free(dim):
                return self.add(ExtentValue(self._sizes.product((dim,)), "i64"))
            case Combined(op, left, right):
                return self.compute(_CALLS[op], (self.extent(left), self.extent(right)), "i64")

    def _coordinate(self, dim: str, at: At | None) -> int:
        if at is None:
            return self.add(Point(LinearIndex(((self._mode[dim], 1),), Fixed(0)), "i64"))
        if at.gathered is not None:
            return self.convert(at.gathered, "i64")
        point = self.add(Point(self._linear(at), "i64"))
        if at.scale == 1:
            return point
        return self.compute("floor_divide", (point, self.add(LiteralValue(at.scale, "i64"))), "i64")

    def _cast(self, at: int, elem: Element) -> int:
        kind = kind_of(elem)
        if elem is ELEMENT[kind]:
            return self.convert(at, kind)
        return self.add(Round(at, elem, kind))

    def _apply(self, function: str, operands: list[int], elem: Element) -> int:
        spec = FUNCTIONS[function]
        picks = operands[1:] if spec.domain == "any" else operands
        kind = self.operand_kind(spec, picks, kind_of(elem))
        converted = [self.convert(a, kind) for a in picks]
        return self.compute(function, (*operands[: len(operands) - len(picks)], *converted), kind_of(elem))

    # --- indices

    def _read(self, node: ir.Read, env: Env, guards: Env) -> int:
        here = dict(env)
        renames = is_rename(node, self._kernel.dims)
        moved = tuple((p.dim, self._composed(p, here, renames, node)) for p in node.positions)
        rest = tuple((d, at) for d, at in env if d in node.value.dims and d not in dict(moved))
        checks = () if renames else moved
        inner, around = (*moved, *rest), (*guards, *checks)
        if isinstance(node.value, ir.ParamValue):
            return self._parameter(node.value, inner, around, node.fill, checks)
        value = self.value(node.value, inner, around)
        if not checks:
            return value
        inside = self.add(Inside(tuple(self._along(d, at, ()) for d, at in checks)))
        fill = self.add(LiteralValue(in_element(node.fill, node.elem), self.kind(value)))
        return self.compute("where", (inside, value, fill), self.kind(value))

    def _composed(self, p: ir.Position, here: dict[str, At], inside: bool, node: ir.Read) -> At:
        terms: dict[str, int] = {}
        offset = p.at.offset
        for name, factor in p.at.terms:
            at = here.get(name)
            if at is None:
                terms[name] = terms.get(name, 0) + factor
                continue
            if at.scale != 1 or at.gathered is not None:
                raise Refused(
                    "UC0314",
                    "an index inside an index that divides or gathers",
                    node.span,
                    "cut here: store the inner one first, in a pipeline: h: f32[..] = ..",
                )
            for d, c in at.terms:
                terms[d] = terms.get(d, 0) + factor * c
            offset = combined("+", offset, combined("*", Fixed(factor), at.offset))
        ordered = tuple((d, terms[d]) for d in self._kernel.dims if terms.get(d))
        return At(ordered, offset, p.scale, None, inside)

    def _gather(self, node: ir.Gather, env: Env, guards: Env) -> int:
        ids = self.value(node.ids, env, guards)
        at = At((), Fixed(0), 1, ids)
        rest = tuple((d, a) for d, a in env if d in node.value.dims and d != node.dim)
        inner = ((node.dim, at), *rest)
        if isinstance(node.value, ir.ParamValue):
            return self._parameter(node.value, inner, guards, 0.0, ())
        return self.value(node.value, inner, (*guards, (node.dim, at)))

    def _window(self, node: ir.Reduce, env: Env, guards: Env) -> int:
        modes = tuple(self._mode[d] for d in node.over)
        arg = self.value(node.value, env, guards)
        integer = self.kind(arg) != "f32"
        op = _WINDOW_OPS[node.op]
        if node.op in ("sum", "prod") and integer:
            arg = self.convert(arg, "i64")
        if node.op == "mean":
            arg = self.convert(arg, "f32")
        kind: ScalarKind = "i64" if node.op in ("argmax", "argmin") else self.kind(arg)
        window = self.add(RowWindow(op, modes, self._moving(arg, set(modes)), arg, kind))
        if node.op != "mean":
            return window
        count = self.add(ExtentValue(self._sizes.product(node.over), "f32"))
        return self.compute("divide", (window, count), "f32")

    def _moving(self, root: int, modes: set[int]) -> tuple[int, ...]:
        """The instructions below `root` that change along the modes."""
        varying: dict[int, bool] = {}

        def moves(i: int) -> bool:
            if i not in varying:
                below = [moves(a) for a in arguments(self.instructions[i], self.loads)]
                varying[i] = any(below) or bool(self._touched(self.instructions[i]) & modes)
            return varying[i]

        moves(root)
        return tuple(sorted(i for i, moving in varying.items() if moving))

    def _touched(self, instruction: ReductionInstruction) -> set[int]:
        match instruction:
            case Fetch(load):
                accesses = [*self.loads[load].axes, *self.loads[load].guards]
            case Inside(axes):
                accesses = list(axes)
            case Point(at):
                return {m for m, _ in at.terms}
            case _:
                return set()
        return set(chain.from_iterable((m for m, _ in a.at.terms) for a in accesses))

    # --- over the columns

    def _over_columns(self, node: ir.Reduce | ir.Softmax | ir.Scan) -> int:
        arg = self.value(node.value, (), ())
        match node:
            case ir.Scan(op, _, _, exclusive, reverse):
                arg = arg if self.kind(arg) == "f32" else self.convert(arg, "i64")
                scan = RowScan("sum" if op == "cumsum" else "prod", arg, exclusive, reverse, self.kind(arg))
                return self.add(scan)
            case ir.Softmax(log=log):
                return self._softmax(self.convert(arg, "f32"), log)
            case ir.Reduce():
                return self._reduce(node, arg)

    def _softmax(self, x: int, log: bool) -> int:
        row = self.add(RowReduce("logsumexp", x, "f32"))
        largest = self.add(RowValue(row, "largest", "f32"))
        total = self.add(RowValue(row, "total", "f32"))
        shifted = self.compute("subtract", (x, largest), "f32")
        if log:
            return self.compute("subtract", (shifted, self.compute("log", (total,), "f32")), "f32")
        unit = self.add(LiteralValue(1.0, "f32"))
        inverse = self.compute("divide", (unit, total), "f32")
        return self.compute("multiply", (self.compute("exp", (shifted,), "f32"), inverse), "f32")

    def _reduce(self, node: ir.Reduce, arg: int) -> int:
        integer = self.kind(arg) != "f32"
        count = self.add(ExtentValue(self._sizes.product(node.over), "f32"))
        match node.op:
            case "mean":
                total = self.add(RowReduce("sum", self.convert(arg, "f32"), "f32"))
                return self.compute("divide", (self.add(RowValue(total, "value", "f32")), count), "f32")
            case "var":
                row = self.add(RowReduce("moments", self.convert(arg, "f32"), "f32"))
                return self.compute("divide", (self.add(RowValue(row, "squares", "f32")), count), "f32")
            case "logsumexp":
                row = self.add(RowReduce("logsumexp", self.convert(arg, "f32"), "f32"))
                return self.add(RowValue(row, "logarithm", "f32"))
            case "sum" | "prod":
                arg = self.convert(arg, "i64") if integer else arg
            case _:
                pass
        picks = node.op in ("argmax", "argmin")
        row = self.add(RowReduce(node.op, arg, self.kind(arg)))
        return self.add(RowValue(row, "value", "i64" if picks else self.kind(arg)))


def fused_moments(
    instructions: list[ReductionInstruction], loads: Sequence[Load]
) -> list[ReductionInstruction]:
    """`mean(x)` with `mean((x - mean(x)) ** 2)` as one reduction, which reads a row once: the squares about
    the mean that the row's moments have."""
    fused = list(instructions)
    for i, instruction in enumerate(instructions):
        pair = (
            _centred_square(instructions, instruction.arg)
            if isinstance(instruction, RowReduce) and instruction.op == "sum"
            else None
        )
        if pair is None:
            continue
        mean, total = pair
        first = instructions[total]
        assert isinstance(first, RowValue)
        if [j for j, o in enumerate(instructions) if total in arguments(o, loads)] != [mean]:
            continue
        x = instructions[first.reduction]
        assert isinstance(x, RowReduce)
        fused[first.reduction] = RowReduce("moments", x.arg, "f32")
        fused[mean] = RowValue(first.reduction, "mean", "f32")
        for j, other in enumerate(instructions):
            if isinstance(other, RowValue) and other.reduction == i:
                fused[j] = RowValue(first.reduction, "squares", "f32")
    return fused


def _centred_square(instructions: list[ReductionInstruction], at: int) -> tuple[int, int] | None:
    """Where instruction `at` is (x - mean(x)) squared: the mean, and the row's value that it divides."""
    match instructions[at]:
        case Compute("multiply", (left, right)) if left == right:
            centred = instructions[left]
        case Compute("power" | "pow", (left, two)) if instructions[two] == LiteralValue(2.0, "f32"):
            centred = instructions[left]
        case _:
            return None
    match centred:
        case Compute("subtract", (x, mean)):
            pass
        case _:
            return None
    match instructions[mean]:
        case Compute("divide", (total, count)) if isinstance(instructions[count], ExtentValue):
            row = instructions[total]
        case _:
            return None
    if isinstance(row, RowValue) and instructions[row.reduction] == RowReduce("sum", x, "f32"):
        return mean, total
    return None
