"""The emitted arithmetic: coordinates, random programs against an interpreter, accuracy, errors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.emit.harness import (
    NUMPY,
    ROUNDED,
    TORCH,
    Array,
    Toolchain,
    access,
    execute,
    problem,
    round_reference,
    samples,
)
from ucutlass.emit.arithmetic import arithmetic, kind_of
from ucutlass.ir.elements import BF16, BOOL, F16, F32, I32, I64, S8, Element
from ucutlass.ir.functions import FUNCTIONS
from ucutlass.kernels.access import Reduction, Store
from ucutlass.kernels.arithmetic import (
    Accumulator,
    Compute,
    CoordinateValue,
    ExtentValue,
    HostScalar,
    Instruction,
    LiteralValue,
    LoadSlot,
    Round,
    ScalarKind,
)
from ucutlass.kernels.gemm.plan import GemmProblem

# --- coordinates, extents, scalars -----------------------------------------------


def test_coordinates(host: Toolchain) -> None:
    coordinates: list[Instruction] = [
        CoordinateValue("m", 0, (3,), (0,), "i64"),
        CoordinateValue("m", 0, (), (3,), "i64"),
        CoordinateValue("n", 0, (), (1,), "i64"),
        CoordinateValue("batch", 1, (5,), (4,), "i64"),
        CoordinateValue("batch", 1, (), (5,), "i32"),
        ExtentValue((0, 3), "i64"),
        ExtentValue((), "f32"),
    ]
    outputs = [I64, I64, I64, I64, I32, I64, F32]
    text = arithmetic(problem(coordinates, range(7), [], outputs, batch=((2,), (4, 5))))
    assert text.coordinates
    extents = [6, 11, 2, 7, 4, 3]
    points = np.stack([np.random.default_rng(2).integers(0, e, 500) for e in (42, 11, 2, 12)], axis=1)
    actual = execute(host.build({"f": text}), "f", text, [np.zeros(500)], points, extents)
    m, n, _, b = points.T
    for value, want in zip(actual, [m // 7, m % 7, n, b // 3, b % 3, 42, 1], strict=True):
        assert np.array_equal(value, np.broadcast_to(want, value.shape))


def test_a_whole_mode_is_not_divided() -> None:
    program: list[Instruction] = [
        CoordinateValue("n", 0, (), (1,), "i64"),
        CoordinateValue("m", 0, (3,), (0,), "i64"),
    ]
    text = arithmetic(problem(program, [0, 1], [], [I64, I64]))
    assert text.params.count("FastDivmod divisor") == 1
    assert ".rem(" not in text.function


# --- random programs -------------------------------------------------------------

STEPWISE = sorted(
    name
    for name, function in FUNCTIONS.items()
    if function.error == 0 and name not in ("power", "floor_divide", "modulo")
)
"""Exactly rounded functions: the compiled program must agree to the last bit."""

ELEMS = (F32, BF16, F16, S8, I32, I64, BOOL)
KINDS: tuple[ScalarKind, ...] = ("f32", "i32", "i64", "bool")
RANK: tuple[ScalarKind, ...] = ("bool", "i32", "i64", "f32")


@st.composite
def programs(draw: st.DrawFn) -> GemmProblem:
    """Well-kinded programs over two inputs, all kinds of instruction, two outputs."""
    inputs = draw(st.lists(st.sampled_from(ELEMS), min_size=2, max_size=2))
    program: list[Instruction] = [
        Accumulator("f32"),
        *(LoadSlot(i, kind_of(e)) for i, e in enumerate(inputs)),
    ]
    for _ in range(draw(st.integers(1, 12))):
        program.append(draw(instructions(program)))
    positions = st.integers(max(0, len(program) - 3), len(program) - 1)
    results = draw(st.lists(positions, min_size=2, max_size=2))
    outputs = draw(st.lists(st.sampled_from(ELEMS), min_size=2, max_size=2))
    return problem(program, results, inputs, outputs, batch=((4, 5),))


@st.composite
def instructions(draw: st.DrawFn, before: Sequence[Instruction]) -> Instruction:
    any_kind = st.sampled_from(KINDS)
    atoms = st.one_of(
        st.builds(HostScalar, st.integers(0, 1), any_kind),
        st.builds(ExtentValue, st.sampled_from([(), (0,), (1, 3)]), st.sampled_from(KINDS[:3])),
        st.builds(LiteralValue, st.floats(width=32), st.just("f32")),
        st.builds(LiteralValue, st.integers(-(2**31), 2**31 - 1), st.sampled_from(["i32", "i64"])),
        st.builds(LiteralValue, st.booleans(), st.just("bool")),
        st.sampled_from(
            [
                CoordinateValue("m", 0, (3,), (0,), "i64"),
                CoordinateValue("m", 0, (), (3,), "i64"),
                CoordinateValue("n", 0, (), (1,), "f32"),
                CoordinateValue("batch", 0, (), (5,), "i32"),
            ]
        ),
    )
    rounds = st.builds(
        lambda arg, elem: Round(arg, elem, kind_of(elem)),
        st.integers(0, len(before) - 1),
        st.sampled_from(ROUNDED),
    )
    return draw(st.one_of(atoms, rounds, computes(before), computes(before)))


@st.composite
def computes(draw: st.DrawFn, before: Sequence[Instruction]) -> Instruction:
    kinds = [instruction.kind for instruction in before]
    numbers = [i for i, kind in enumerate(kinds) if kind != "bool"]
    truths = [i for i, kind in enumerate(kinds) if kind == "bool"]
    names = [n for n in STEPWISE if truths or FUNCTIONS[n].domain not in ("bool", "any")]
    function = FUNCTIONS[draw(st.sampled_from(names))]
    count = draw(st.integers(*function.arity))
    pool = truths if function.domain == "bool" else numbers
    args = [draw(st.sampled_from(pool)) for _ in range(count)]
    if function.domain == "any":
        args[0] = draw(st.sampled_from(truths))
    widest = max((kinds[a] for a in args[function.domain == "any" :]), key=RANK.index)
    outcome: dict[str, ScalarKind] = {"bool": "bool", "float": "f32", "same": widest}
    return Compute(function.name, tuple(args), outcome[function.outcome])


def to_kind(values: torch.Tensor, kind: ScalarKind) -> torch.Tensor:
    """Widened; what is f32 is kept in float64, rounded to f32 after every step."""
    return values.to(torch.float32).double() if kind == "f32" else values.to(TORCH[kind])


def round_all(values: torch.Tensor, elem: Element) -> torch.Tensor:
    rounded = [round_reference(v if isinstance(v, float) else _exact(v, elem), elem) for v in values.tolist()]
    return torch.tensor(rounded, dtype=TORCH[kind_of(elem)])


def _exact(value: int, elem: Element) -> float | int:
    return float(np.float32(value)) if elem.kind == "float" else value


def interpret(
    problem: GemmProblem,
    values: Sequence[Array],
    points: Array,
    extents: Sequence[int],
    scalars: Sequence[float],
) -> list[torch.Tensor]:
    """The arithmetic step by step, by the references of the table. Outputs as elements."""
    program, count = problem.arithmetic, len(points)
    kinds = [instruction.kind for instruction in program.instructions]
    done: list[torch.Tensor] = []
    for instruction in program.instructions:
        match instruction:
            case Accumulator(kind):
                value = torch.from_numpy(values[0])
            case LoadSlot(slot, kind):
                value = torch.from_numpy(values[1 + slot])
            case HostScalar(index, kind):
                number = scalars[index]
                value = torch.full(
                    (count,), number if kind in ("f32", "bool") else int(number), dtype=TORCH[kind]
                )
            case ExtentValue(extent, kind):
                value = torch.full((count,), math.prod(extents[i] for i in extent))
            case LiteralValue(number, kind):
                value = torch.full((count,), number, dtype=TORCH[kind])
            case CoordinateValue(mode, batch, inner, extent, kind):
                along = points[:, {"m": 0, "n": 1}.get(mode, 2 + batch)].astype(np.int64)
                inner_size, size = (math.prod(extents[i] for i in p) for p in (inner, extent))
                value = torch.from_numpy(along // inner_size % size)
            case Compute(name, args, kind):
                function = FUNCTIONS[name]
                skip = int(function.domain == "any")
                common = max((kinds[a] for a in args[skip:]), key=RANK.index)
                common = "f32" if function.domain == "float" else common
                operands = [done[a] if i < skip else to_kind(done[a], common) for i, a in enumerate(args)]
                defaults = (
                    function.defaults[len(args) - len(function.parameters) :]
                    if len(args) < len(function.parameters)
                    else ()
                )
                operands += [to_kind(torch.full((count,), d, dtype=torch.float64), common) for d in defaults]
                value = function.reference(*operands)
            case Round(arg, elem, kind):
                value = round_all(done[arg], elem)
        done.append(to_kind(value, kind))
    outputs = []
    for i, output in zip(program.results, problem.outputs, strict=True):
        elem = output.access.elem
        outputs.append(to_kind(done[i], "f32") if elem.kind == "float" else round_all(done[i], elem))
    return outputs


@pytest.mark.slow
# No shrinking: every step of it is a compilation.
@settings(
    max_examples=40,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)
@given(programs(), st.integers(0, 2**32 - 1))
def test_random_programs(host: Toolchain, problem: GemmProblem, seed: int) -> None:
    generator = np.random.default_rng(seed)
    text = arithmetic(problem)
    count, extents, scalars = 64, [6, 11, 2, 7, 4, 3], [0.3, -2.0]
    values: list[Array] = [generator.choice(samples(1, 2000)[0], count)]
    for kind in text.inputs:
        match kind:
            case "f32":
                values.append(generator.choice(samples(1, 2000)[0], count))
            case "bool":
                values.append(generator.integers(0, 2, count) == 1)
            case _:
                ends = np.iinfo(NUMPY[kind])
                values.append(generator.integers(ends.min, ends.max, count, NUMPY[kind], endpoint=True))
    points = np.stack([generator.integers(0, e, count) for e in (42, 11, 12)], axis=1)
    actual = execute(host.build({"f": text}), "f", text, values, points, extents, scalars)
    for have, want in zip(actual, interpret(problem, values, points, extents, scalars), strict=True):
        expected = want.numpy().astype(have.dtype)
        assert np.array_equal(have, expected, equal_nan=have.dtype == np.float32), text.text


# --- accuracy, liveness, errors --------------------------------------------------


def _silu_then(name: str | None, output: Store | Reduction) -> str:
    program: list[Instruction] = [Accumulator("f32"), LoadSlot(0, "f32"), Compute("silu", (0,), "f32")]
    if name is not None:
        program.append(Compute(name, (2, 1), "f32"))
    base = problem(program, [len(program) - 1], [BF16], [BF16])
    fields = {f: getattr(base, f) for f in base.__dataclass_fields__} | {"outputs": (output,)}
    return arithmetic(GemmProblem(**fields)).function


@pytest.mark.parametrize(
    ("name", "output", "fast"),
    [
        (None, Store(access(BF16)), True),
        (None, Store(access(F32)), False),
        (None, Store(access(S8)), False),
        ("multiply", Store(access(F16)), True),
        ("add", Store(access(F16)), False),
        (None, Reduction("sum", access(BF16)), False),
        (None, Reduction("max", access(BF16)), True),
    ],
)
def test_fast_forms_where_a_coarse_rounding_follows(
    name: str | None, output: Store | Reduction, fast: bool
) -> None:
    assert ("ucc_silu_fast(" in _silu_then(name, output)) == fast


def test_one_strict_use_makes_it_accurate() -> None:
    program: list[Instruction] = [
        Accumulator("f32"),
        Compute("silu", (0,), "f32"),
        Round(1, BF16, "f32"),
        Compute("add", (2, 1), "f32"),
    ]
    assert "ucc_silu_fast(" not in arithmetic(problem(program, [3])).function
    assert "ucc_silu_fast(" in arithmetic(problem(program, [2])).function


def test_unused_instructions_leave_no_trace() -> None:
    program: list[Instruction] = [
        Accumulator("f32"),
        Compute("mish", (0,), "f32"),
        HostScalar(0, "f32"),
        Compute("relu", (0,), "f32"),
    ]
    text = arithmetic(problem(program, [3]))
    assert "mish" not in text.text
    assert "scalar0" not in text.text
    assert not text.coordinates


def test_call_counts_its_arguments() -> None:
    text = arithmetic(problem([Accumulator("f32")], [0], [BF16]))
    assert text.call("p", ["m", "n"], "acc", ["x"], ["y"]) == "ucc_arithmetic(p, m, n, acc, x, y)"
    with pytest.raises(ValueError, match="2 coordinates, 1 inputs and 1 outputs, not 2, 0 and 1"):
        text.call("p", ["m", "n"], "acc", [], ["y"])


def test_an_instruction_out_of_order_is_refused() -> None:
    with pytest.raises(ValueError, match="instruction 0 uses"):
        arithmetic(problem([Compute("relu", (1,), "f32"), Accumulator("f32")], [0]))


def test_a_function_of_the_wrong_kind_is_refused() -> None:
    program: list[Instruction] = [LoadSlot(0, "bool"), Compute("min", (0, 0), "bool")]
    with pytest.raises(ValueError, match="min takes no operands of kind bool"):
        arithmetic(problem(program, [1], [BOOL], [BOOL]))
