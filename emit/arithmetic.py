"""The arithmetic of a plan as one C++ function of scalars that reads no memory.

The emitted text, in this order: the device functions used, `struct ArithmeticParams` with
`arithmetic_params`, its host-side maker, and

    CUTLASS_DEVICE void ucc_arithmetic(
        ArithmeticParams const& p,
        int m, int n, int b0, ..,       // coordinates of the element: one b for every batch mode
        float acc,                      // the dot's value: int32_t in the integer compute types; of several
                                        // dots acc, acc1, ..
        float in0, int32_t in1, ..,     // one for every problem input, widened
        float& out0, ..)                // one for every problem output

Every argument is always there, whether the arithmetic uses it or not. Inputs arrive widened to
the kind of their element (`kind_of`), which is exact. Outputs leave as the kind of the stored
element: floats not yet rounded to it, which the kernel does by
`cutlass::NumericConverter<Element, float>` (to nearest, ties to even; e4m3 and e5m2 saturate at
448 and 57344, infinity too, and keep NaN); integers already rounded to nearest, ties to even,
and saturated to the range of the element, so that a plain cast is exact; integers to be summed as
i64, for the kernel to saturate the sum. The text stands in no namespace: put it into one of the
kernel's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ucutlass.emit.definitions import require_definitions
from ucutlass.emit.functions import CPP, INTEGER, ROUND, Use, apply, definitions
from ucutlass.emit.text import literal, product
from ucutlass.emit.tolerance import coarse, tolerant
from ucutlass.ir.elements import F32, I32, Element
from ucutlass.ir.functions import FUNCTIONS
from ucutlass.kernels.access import Output, Product, Reduction, Store
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
)
from ucutlass.kernels.gemm.plan import GemmProblem

INCLUDES = (
    "<algorithm>",
    "<cmath>",
    "<cstdint>",
    "cutlass/cutlass.h",
    "cutlass/fast_math.h",
    "cutlass/functional.h",
    "cutlass/numeric_conversion.h",
)
"""What the emitted text needs; a name in angle brackets is the language's own header."""


@dataclass(frozen=True, slots=True)
class ArithmeticText:
    """The emitted text and what a caller of `ucc_arithmetic` must know.

    `functions`, `struct`, `maker` and `function` are the text's parts; all but `maker` are device code.
    `accumulator`, `inputs` and `outputs` are the kinds of those arguments (`CPP` has the types),
    `batch` the number of batch coordinates. `coordinates` tells whether any coordinate matters:
    where it is False a caller may pass zeros.
    """

    functions: str
    struct: str
    maker: str
    function: str
    accumulator: ScalarKind
    inputs: tuple[ScalarKind, ...]
    outputs: tuple[ScalarKind, ...]
    batch: int
    coordinates: bool
    statistics: tuple[str, ...] = ()
    keeps: bool = False

    @property
    def text(self) -> str:
        return "\n".join(part for part in (self.functions, self.params, self.function) if part)

    @property
    def params(self) -> str:
        return f"{self.struct}\n{self.maker}"

    def call(
        self, params: str, coordinates: Sequence[str], acc: str, inputs: Sequence[str], outputs: Sequence[str]
    ) -> str:
        """A call as an expression; `coordinates` are m, n and every batch coordinate. The arguments of row statistics
        stand behind `outputs`.

        Raises ValueError where a list has another length than the problem's.
        """
        behind = len(row_arguments(self.statistics, self.keeps))
        counts = (2 + self.batch, len(self.inputs), len(self.outputs) + behind)
        if (len(coordinates), len(inputs), len(outputs)) != counts:
            raise ValueError(
                f"ucc_arithmetic takes {counts[0]} coordinates, {counts[1]} inputs and {counts[2]} outputs, "
                f"not {len(coordinates)}, {len(inputs)} and {len(outputs)}"
            )
        return f"ucc_arithmetic({', '.join((params, *coordinates, acc, *inputs, *outputs))})"


def kind_of(elem: Element) -> ScalarKind:
    """The kind that values of this element have in the arithmetic; an f64 is an f32 there."""
    match elem.kind:
        case "float":
            return "f32"
        case "bool":
            return "bool"
        case "int":
            return "i64" if elem.bits > I32.bits else "i32"


def taken(output: Output) -> ScalarKind:
    """The kind in which an output leaves the arithmetic: i64 where integers are to be summed."""
    return "i64" if isinstance(output, Reduction) and output.wide else kind_of(output.access.elem)


def arithmetic(problem: GemmProblem, accumulators: int = 1) -> ArithmeticText:
    """The C++ of `problem.arithmetic`; instructions that no output depends on are left out. The function
    takes the values of so many dots; a caller names them as one argument, separated by commas.

    Raises ValueError for a program that no checked plan holds: an instruction that uses a later
    one, a function applied to a kind that it does not take, a literal outside its kind.
    """
    live = _live(problem.arithmetic)
    tolerant = _tolerant(problem, live)
    params = _ParameterFields.of(problem, live)
    writer = _Writer(problem, params, tolerant)
    lines = [line for i in live if (line := writer.statement(i))]
    lines += [writer.result(j) for j in range(len(problem.outputs))]
    lines += writer.statistics()
    uses = tuple(writer.use(i) for i in live if isinstance(problem.arithmetic.instructions[i], Compute))
    require_definitions(lines)
    body = "\n".join(lines)
    conversions = [text for mark, text in (("ucc_round<", ROUND), ("ucc_integer<", INTEGER)) if mark in body]
    signature = _signature(problem, accumulators)
    return ArithmeticText(
        functions="\n".join(part for part in (*conversions, definitions(uses)) if part),
        struct=params.struct(),
        maker=params.maker(),
        function=f"CUTLASS_DEVICE void ucc_arithmetic(\n    {signature}) {{\n{body}\n}}\n",
        accumulator=kind_of(problem.compute_type),
        inputs=tuple(kind_of(access.elem) for access in problem.inputs),
        outputs=tuple(taken(output) for output in problem.outputs),
        statistics=tuple(s.op for s in problem.arithmetic.statistics),
        keeps=problem.arithmetic.kept is not None,
        batch=len(problem.batch),
        coordinates=any(isinstance(problem.arithmetic.instructions[i], CoordinateValue) for i in live),
    )


_ACCUMULATED = ("acc", "acc1")
"""Names of the dots' values, by `Accumulator.index`."""


def row_arguments(statistics: Sequence[object], keeps: bool) -> list[tuple[str, str]]:
    """Types and names of what the arithmetic takes and gives for row statistics, behind its other arguments."""
    return [
        *(("float", f"row{i}") for i in range(len(statistics))),
        *((("float", "kept"),) if keeps else ()),
        *(("float&", f"term{i}") for i in range(len(statistics))),
        *((("float&", "keep"),) if keeps else ()),
    ]


def _signature(problem: GemmProblem, accumulators: int) -> str:
    point = ["int m", "int n", *(f"int b{i}" for i in range(len(problem.batch)))]
    inputs = [f"{CPP[kind_of(a.elem)]} in{i}" for i, a in enumerate(problem.inputs)]
    outputs = [f"{CPP[taken(o)]}& out{j}" for j, o in enumerate(problem.outputs)]
    sums = [f"{CPP[kind_of(problem.compute_type)]} {_ACCUMULATED[i]}" for i in range(accumulators)]
    rows = [
        f"{cpp} {name}"
        for cpp, name in row_arguments(problem.arithmetic.statistics, problem.arithmetic.kept is not None)
    ]
    groups = [["ArithmeticParams const& p"], point, sums, inputs, outputs, rows]
    return ",\n    ".join(", ".join(group) for group in groups if group)


# --- which instructions, how accurately ------------------------------------------


def _arguments(instruction: Instruction) -> tuple[int, ...]:
    match instruction:
        case Compute(args=args):
            return args
        case Round(arg=arg):
            return (arg,)
        case _:
            return ()


def _live(program: Arithmetic) -> tuple[int, ...]:
    """The instructions that some output depends on, in order."""
    needed = {*program.results, *(s.term for s in program.statistics)}
    if program.kept is not None:
        needed.add(program.kept)
    for i in reversed(range(len(program.instructions))):
        if i in needed:
            needed.update(_arguments(program.instructions[i]))
            if any(arg >= i for arg in _arguments(program.instructions[i])):
                raise ValueError(f"instruction {i} uses an instruction that is not before it")
    return tuple(sorted(needed))


def _tolerant(problem: GemmProblem, live: Sequence[int]) -> frozenset[int]:
    program = problem.arithmetic
    pairs = zip(program.results, problem.outputs, strict=True)
    exact = [i for i, output in pairs if not _forgives(output)]
    return tolerant(program.instructions, live, exact, lambda _: ())


def _forgives(output: Output) -> bool:
    match output:
        case Store(access):
            return coarse(access.elem)
        case Reduction(op, access):
            return op != "sum" and coarse(access.elem)


# --- parameters ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ParameterFields:
    """The struct's fields: host scalars, extents as numbers, divisors of coordinates."""

    scalars: tuple[HostScalar, ...]
    extents: tuple[ExtentValue, ...]
    divisors: tuple[Product, ...]

    @staticmethod
    def of(problem: GemmProblem, live: Sequence[int]) -> _ParameterFields:
        used = [problem.arithmetic.instructions[i] for i in live]
        divisors = [
            divisor
            for instruction in used
            if isinstance(instruction, CoordinateValue)
            for divisor in _divisors(problem, instruction)
            if divisor
        ]
        return _ParameterFields(
            scalars=tuple(dict.fromkeys(i for i in used if isinstance(i, HostScalar))),
            extents=tuple(dict.fromkeys(i for i in used if isinstance(i, ExtentValue))),
            divisors=tuple(dict.fromkeys(divisors)),
        )

    def struct(self) -> str:
        scalars = [f"{CPP[s.kind]} scalar{i};  // host scalar {s.index}" for i, s in enumerate(self.scalars)]
        extents = [f"{CPP[e.kind]} extent{i};  // {product(e.extent)}" for i, e in enumerate(self.extents)]
        divisors = [f"cutlass::FastDivmod divisor{i};  // {product(d)}" for i, d in enumerate(self.divisors)]
        fields = [f"  {line}" for line in (*scalars, *extents, *divisors)]
        return "\n".join(["struct ArithmeticParams {", *fields, "};", ""])

    def maker(self) -> str:
        """The host function that fills the struct from the entry's arrays.

        A product of extents that divides a coordinate is at most its mode's extent, an int. It
        is 0 for an empty problem, which FastDivmod's constructor would divide by.
        """
        values = []
        for i, scalar in enumerate(self.scalars):
            cpp, value = CPP[scalar.kind], f"s[{scalar.index}]"
            values.append(f"p.scalar{i} = " + (f"{value} != 0.0;" if cpp == "bool" else f"{cpp}({value});"))
        for i, extent in enumerate(self.extents):
            values.append(f"p.extent{i} = {CPP[extent.kind]}({product(extent.extent)});")
        for i, divisor in enumerate(self.divisors):
            maximum = f"std::max<int64_t>(1, {product(divisor)})"
            values.append(f"p.divisor{i} = cutlass::FastDivmod(int({maximum}));")
        names = [
            f"int64_t const*{' e' if self.extents or self.divisors else ''}",
            f"double const*{' s' if self.scalars else ''}",
        ]
        maker = [
            f"inline ArithmeticParams arithmetic_params({', '.join(names)}) {{",
            "  ArithmeticParams p;",
            *(f"  {line}" for line in values),
            "  return p;",
            "}",
        ]
        return "\n".join([*maker, ""])


def _extent_of(problem: GemmProblem, value: CoordinateValue) -> Product:
    match value.mode:
        case "m":
            return problem.m
        case "n":
            return problem.n
        case "batch":
            return problem.batch[value.batch]


def _divisors(problem: GemmProblem, value: CoordinateValue) -> tuple[Product, Product]:
    """What to divide the mode's coordinate by, and what to take the quotient modulo; () where
    that changes nothing, as for the outermost dimension of a mode."""
    outermost = sorted(value.inner + value.extent) == sorted(_extent_of(problem, value))
    return value.inner, () if outermost else value.extent


# --- statements ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes instruction i as variable v<i>; what is an argument or a literal stays in place."""

    problem: GemmProblem
    params: _ParameterFields
    tolerant: frozenset[int]

    def statement(self, i: int) -> str:
        """The line that computes instruction i; "" for one that needs none."""
        instruction = self.problem.arithmetic.instructions[i]
        match instruction:
            case Compute(function):
                text, meaning = self._compute(i, instruction), function
            case Round(arg, elem, kind):
                value = convert(rounded(self._operand(arg), self._kind(arg), elem), kind_of(elem), kind)
                text, meaning = value, f"to {elem.name}"
            case CoordinateValue(kind=kind):
                text, meaning = convert(self._coordinate(instruction), "i32", kind), "coordinate"
            case _:
                return ""
        return f"  {CPP[instruction.kind]} const v{i} = {text};  // {meaning}"

    def result(self, j: int) -> str:
        """The line that sets output j."""
        i, output = self.problem.arithmetic.results[j], self.problem.outputs[j]
        elem, value, kind = output.access.elem, self._operand(i), self._kind(i)
        if (to := taken(output)) != kind_of(elem) or to == "f32":
            return f"  out{j} = {convert(value, kind, to)};  // stored as {elem.name}"
        return f"  out{j} = {rounded(value, kind, elem)};  // stored as {elem.name}"

    def statistics(self) -> list[str]:
        """The lines that set the terms of statistics, and what is kept."""
        program = self.problem.arithmetic
        lines = [f"  term{i} = {self._operand(s.term)};" for i, s in enumerate(program.statistics)]
        return lines if program.kept is None else [*lines, f"  keep = {self._operand(program.kept)};"]

    def use(self, i: int) -> Use:
        """The function of Compute i with the kind in which it computes."""
        instruction = self.problem.arithmetic.instructions[i]
        assert isinstance(instruction, Compute)
        return use_of(instruction, [self._kind(arg) for arg in instruction.args], i in self.tolerant)

    def _compute(self, i: int, instruction: Compute) -> str:
        operands = [(self._operand(arg), self._kind(arg)) for arg in instruction.args]
        return computed(instruction, self.use(i), operands)

    def _coordinate(self, value: CoordinateValue) -> str:
        inner, extent = _divisors(self.problem, value)
        text = f"b{value.batch}" if value.mode == "batch" else value.mode
        if inner:
            text = f"p.divisor{self.params.divisors.index(inner)}.div({text})"
        if not value.extent:
            return "0"
        return f"p.divisor{self.params.divisors.index(extent)}.rem({text})" if extent else text

    def _kind(self, i: int) -> ScalarKind:
        instruction = self.problem.arithmetic.instructions[i]
        return instruction.kind

    def _operand(self, i: int) -> str:
        """Instruction i as a C++ primary of its kind."""
        instruction = self.problem.arithmetic.instructions[i]
        match instruction:
            case Accumulator(kind, index):
                return convert(_ACCUMULATED[index], kind_of(self.problem.compute_type), kind)
            case LoadSlot(slot, kind):
                return convert(f"in{slot}", kind_of(self.problem.inputs[slot].elem), kind)
            case RowStatistic(index):
                return f"row{index}"
            case KeptValue():
                return "kept"
            case HostScalar():
                return f"p.scalar{self.params.scalars.index(instruction)}"
            case ExtentValue():
                return f"p.extent{self.params.extents.index(instruction)}"
            case LiteralValue(value, kind):
                return literal(value, kind)
            case _:
                return f"v{i}"


def use_of(instruction: Compute, kinds: Sequence[ScalarKind], fast: bool) -> Use:
    """The function with the kind in which it computes, of operands of these kinds."""
    function = FUNCTIONS[instruction.function]
    among = list(kinds[function.domain == "any" :])
    if function.outcome == "same":
        among.append(instruction.kind)
    kind: ScalarKind = "f32" if function.domain == "float" else max(among, key=_WIDTH.index)
    return Use(function.name, kind, fast)


def computed(instruction: Compute, use: Use, operands: Sequence[tuple[str, ScalarKind]]) -> str:
    """The call as an expression of the instruction's kind; `operands` are C++ primaries with their kinds."""
    function = FUNCTIONS[instruction.function]
    kinds = ["bool", use.kind, use.kind] if function.domain == "any" else [use.kind] * len(operands)
    args = [convert(text, have, kind) for (text, have), kind in zip(operands, kinds, strict=True)]
    missing = len(function.parameters) - len(args)
    args += [literal(value, use.kind) for value in function.defaults[len(function.defaults) - missing :]]
    result = "bool" if function.outcome == "bool" else use.kind
    call = apply(use, args)
    return call if result == instruction.kind else convert(f"({call})", result, instruction.kind)


_WIDTH: tuple[ScalarKind, ...] = ("bool", "i32", "i64", "f32")
"""Kinds, each wider than those before it: what mixed operands meet in."""

_BITS: Mapping[ScalarKind, int] = MappingProxyType({"bool": 1, "i32": 32, "i64": 64})
"""How many bits an integer of a kind may take."""


def convert(text: str, source: ScalarKind, target: ScalarKind) -> str:
    """A C++ primary of one kind as another; a float becomes an integer by rounding."""
    if source == target:
        return text
    if target == "bool":
        return f"bool({text} != {literal(0, source)})"
    if source == "f32":
        return _to_integer(text, 32 if target == "i32" else 64, True, CPP[target])
    return f"{CPP[target]}({text})"


def rounded(text: str, source: ScalarKind, elem: Element) -> str:
    """The value as one of `elem`, in the kind of `elem`."""
    kind = kind_of(elem)
    match elem.kind:
        case "float":
            wide = convert(text, source, "f32")
            if elem.mantissa >= F32.mantissa:
                return wide
            return f"ucc_round<{elem.cpp}>({wide})"
        case "bool":
            return convert(text, source, "bool")
        case "int":
            if source != "f32" and _BITS[source] <= elem.bits:
                return convert(text, source, kind)
            wide = text if source in ("f32", "i64") else f"int64_t({text})"
            return _to_integer(wide, elem.bits, not elem.name.startswith("u"), CPP[kind])


def _to_integer(text: str, bits: int, signed: bool, cpp: str) -> str:
    lowest = -(2 ** (bits - 1)) if signed else 0
    highest = 2 ** (bits - 1) - 1 if signed else 2**bits - 1
    wide: ScalarKind = "i64" if bits > I32.bits else "i32"
    return f"ucc_integer<{literal(lowest, wide)}, {literal(highest, wide)}, {cpp}>({text})"
