"""Every function's C++, compiled for the host and, marked gpu, for the device, against its
reference; integers and roundings likewise."""

from __future__ import annotations

import ctypes
import math
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.emit.harness import (
    FAST_ERROR,
    NUMPY,
    ROUNDED,
    SPECIAL,
    UNIT,
    Array,
    Toolchain,
    execute,
    one_function,
    problem,
    round_reference,
    samples,
)
from ucutlass.emit.arithmetic import ArithmeticText, arithmetic, kind_of
from ucutlass.emit.function_forms import FORMS
from ucutlass.ir.elements import BF16, BOOL, F16, F32, I32, I64, S8, Element
from ucutlass.ir.functions import FUNCTIONS
from ucutlass.kernels.arithmetic import (
    Accumulator,
    Compute,
    HostScalar,
    Instruction,
    LoadSlot,
    Round,
    ScalarKind,
)

# --- functions against their references ------------------------------------------


def _stable_gelu(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x.isneginf(), math.nan, 0.5 * x * torch.erfc(-x * math.sqrt(0.5)))


def _stable_gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


REFERENCES: dict[str, Callable[..., torch.Tensor]] = {
    **{name: function.reference for name, function in FUNCTIONS.items()},
    # These cancel in float64 too, for negative x.
    "gelu": _stable_gelu,
    "gelu_tanh": _stable_gelu_tanh,
    # a - b * floor(a / b) is NaN for an infinite b and loses everything where a / b is large.
    "modulo": lambda a, b: a.remainder(b),
}
POINTER = ctypes.POINTER(ctypes.c_float)
EXACT = 1.0
UNITS = {name: max(EXACT, function.error) for name, function in FUNCTIONS.items()} | {"power": 16.0}
"""Allowed relative error in units of 2**-24; rounding a float64 to f32 alone takes one."""
DEVICE_ERROR = 2.0**-20
"""What the device adds to a fast form: at most ex2.approx's 2**-22 twice, where a root of the power is
squared, and rcp.approx's 2**-23. No form's result moves by more than its power does."""


def check_close(name: str, got: Array, args: Sequence[Array], relative: float) -> None:
    """Within the relative error where the reference is a normal f32, within that error of the
    smallest normal below; NaN exactly where the reference has it."""
    tensors = [torch.from_numpy(a.astype(np.float64) if a.dtype == np.float32 else a) for a in args]
    want = REFERENCES[name](*tensors).numpy()
    if want.dtype == np.bool_:
        assert np.array_equal(got, want)
        return
    with np.errstate(all="ignore"):
        tolerance = relative * np.maximum(np.abs(want), 2.0**-126) + 2.0**-149
        overflow = np.abs(want) > 2.0**128 * (1 - relative) * (1 - UNIT)
        good = (np.abs(got - want) <= tolerance) | (got == want) | (np.isnan(got) & np.isnan(want))
        good |= overflow & (np.abs(got) > 2.0**127) & (np.sign(got) == np.sign(want))
        if not good.all():
            error = np.where(good, 0, np.abs(got - want) / tolerance * relative / UNIT)
            worst = int(np.nanargmax(np.where(np.isfinite(error), error, 0)))
            cases = [*np.flatnonzero(~good)[:8], worst]
            shown = [
                (*(a[i] for a in args), "got", got[i], "want", want[i], "units", error[i]) for i in cases
            ]
            raise AssertionError(f"{name}: {(~good).sum()} of {len(good)} wrong: {shown}")


FLOAT_NAMES = sorted(name for name, f in FUNCTIONS.items() if f.domain != "bool")
FAST_NAMES = sorted(name for name, form in FORMS.items() if form.fast)


def float_arguments(name: str) -> list[Array]:
    function = FUNCTIONS[name]
    arrays = samples(len(function.parameters))
    if function.domain == "any":
        arrays[0] = arrays[0] > 0
    if name in ("clamp", "hardtanh"):
        arrays[1], arrays[2] = np.minimum(arrays[1], arrays[2]), np.maximum(arrays[1], arrays[2])
    return arrays


def float_texts(names: Sequence[str], output: Element) -> dict[str, ArithmeticText]:
    return {f"f_{name}": arithmetic(one_function(name, output=output)) for name in names}


@pytest.fixture(scope="session")
def accurate_on_host(host: Toolchain) -> ctypes.CDLL:
    return host.build(float_texts(FLOAT_NAMES, F32))


@pytest.fixture(scope="session")
def fast_on_host(host: Toolchain) -> ctypes.CDLL:
    return host.build(float_texts(FAST_NAMES, BF16))


@pytest.fixture(scope="session")
def on_device(device: Toolchain) -> tuple[ctypes.CDLL, ctypes.CDLL]:
    return device.build(float_texts(FLOAT_NAMES, F32)), device.build(float_texts(FAST_NAMES, BF16))


def check_function(library: ctypes.CDLL, name: str, output: Element, relative: float) -> None:
    args = float_arguments(name)
    text = arithmetic(one_function(name, output=output))
    (actual,) = execute(library, f"f_{name}", text, [np.zeros(len(args[0])), *args])
    check_close(name, actual, args, relative)


def test_every_function_has_a_form() -> None:
    assert FORMS.keys() == FUNCTIONS.keys()


@pytest.mark.parametrize("name", FLOAT_NAMES)
def test_accurate_form(accurate_on_host: ctypes.CDLL, name: str) -> None:
    check_function(accurate_on_host, name, F32, UNITS[name] * UNIT)


FUSED = """
#include <cmath>

// A float that remembers of which factors it is the product: a sum takes them unrounded.
struct Fused {
  float value, a = 0.0f, b = 0.0f;
  bool product = false;
  Fused(float value) : value(value) {}
  Fused(float a, float b) : value(a * b), a(a), b(b), product(true) {}
};
Fused fmaf(Fused x, Fused y, Fused z) { return std::fmaf(x.value, y.value, z.value); }
Fused operator*(Fused x, Fused y) { return {x.value, y.value}; }
Fused operator+(Fused x, Fused y) {
  if (x.product) return fmaf(x.a, x.b, y.value);
  return y.product ? fmaf(y.a, y.b, x.value) : Fused(x.value + y.value);
}
Fused operator-(Fused x) { return x.product ? Fused(-x.a, x.b) : Fused(-x.value); }
Fused operator-(Fused x, Fused y) { return x + -y; }
Fused& operator+=(Fused& x, Fused y) { return x = x + y; }
Fused operator/(Fused x, Fused y) { return x.value / y.value; }
bool operator<(Fused x, Fused y) { return x.value < y.value; }
Fused fminf(Fused x, Fused y) { return std::fmin(x.value, y.value); }
Fused fmaxf(Fused x, Fused y) { return std::fmax(x.value, y.value); }
Fused fabsf(Fused x) { return std::fabs(x.value); }
Fused expf(Fused x) { return std::exp(x.value); }
Fused ucc_exp2_ftz(Fused x) { return std::exp2(x.value) * (1.0f + 0x1p-22f); }
// The instruction is an ulp off here.
Fused ucc_reciprocal(Fused x) {
  float y = std::nextafter(1.0f / x.value, 2.0f);
  return std::fmaf(y, std::fmaf(-x.value, y, 1.0f), y);
}

Fused form(Fused x) {@FORM@}

extern "C" void run(long count, float const* x, float* y) {
  for (long i = 0; i < count; ++i) y[i] = form(x[i]).value;
}
"""


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_compensation_bears_products_fused_into_sums(host: Toolchain, name: str, tmp_path: Path) -> None:
    """As ptxas fuses wherever it can: what is put back must not count on how a product was rounded.

    Of the table's 64 units gelu_tanh needs some 16: h has expf's (2 ulp are 4) and 1 of its fmaf, twice
    over in x * h * h, whose products add 2, divisor, its reciprocal and the last product 4; du leaves u's
    own error far below a unit. Without du the rounding of u alone, half an ulp of 43, would move exp(2 * u)
    by 64.
    """
    source, library = tmp_path / "form.cpp", tmp_path / "form.so"
    form = FORMS[name].f32.replace("constexpr ", "const ")
    source.write_text(FUSED.replace("@FORM@", re.sub(r"\bfloat\b", "Fused", form)))
    flags = ["-std=c++17", "-O2", "-ffp-contract=off", "-shared", "-fPIC"]
    subprocess.run([host.command[0], *flags, str(source), "-o", str(library)], check=True)
    (x,) = float_arguments(name)
    y = np.empty_like(x)
    ctypes.CDLL(str(library)).run(ctypes.c_long(len(x)), x.ctypes.data_as(POINTER), y.ctypes.data_as(POINTER))
    check_close(name, y, [x], UNITS[name] * UNIT)


@pytest.mark.parametrize("name", FAST_NAMES)
def test_fast_form(fast_on_host: ctypes.CDLL, name: str) -> None:
    check_function(fast_on_host, name, BF16, FAST_ERROR - DEVICE_ERROR)


@pytest.mark.parametrize("elem", [F16, BF16], ids=lambda elem: elem.name)
@pytest.mark.parametrize("name", FAST_NAMES)
def test_fast_form_of_every_16_bit_value(fast_on_host: ctypes.CDLL, name: str, elem: Element) -> None:
    bits = torch.arange(-(2**15), 2**15).to(torch.int16)
    x = bits.view(getattr(torch, str(elem.torch))).float().numpy()
    assert len(x) == 2**16
    text = arithmetic(one_function(name, output=BF16))
    (actual,) = execute(fast_on_host, f"f_{name}", text, [np.zeros(len(x)), x])
    with np.errstate(invalid="ignore"):  # signalling NaNs
        check_close(name, actual, [x], FAST_ERROR - DEVICE_ERROR)


@pytest.mark.parametrize("name", FAST_NAMES)
def test_fast_form_calls_nothing_that_guards_denormals(name: str) -> None:
    """Of the special-function unit, the two instructions themselves; else what needs none of it."""
    called = set(re.findall(r"(\w+)\(", re.sub("//.*", "", FORMS[name].fast)))
    assert called <= {"ucc_exp2_ftz", "ucc_reciprocal_ftz", "fmaf", "fabsf", "fminf", "fmaxf"}


@pytest.mark.parametrize("name", ["gelu_tanh", "mish", "sigmoid", "silu"])
def test_sigmoids_divide_nowhere(name: str) -> None:
    """A division tests its operands' ranges, and saturated numbers took its slow path, nearly every warp."""
    assert "/" not in re.sub("//.*", "", FORMS[name].f32)


@pytest.mark.gpu
@pytest.mark.parametrize("name", FLOAT_NAMES)
def test_accurate_form_on_device(on_device: tuple[ctypes.CDLL, ctypes.CDLL], name: str) -> None:
    check_function(on_device[0], name, F32, UNITS[name] * UNIT)


@pytest.mark.gpu
@pytest.mark.parametrize("name", FAST_NAMES)
def test_fast_form_on_device(on_device: tuple[ctypes.CDLL, ctypes.CDLL], name: str) -> None:
    check_function(on_device[1], name, BF16, FAST_ERROR)


# --- integers and conversions ----------------------------------------------------


def _wrap(value: int, kind: ScalarKind) -> int:
    return int(np.array(value & (2**64 - 1), np.uint64).astype(NUMPY[kind]))


def integer_reference(name: str, kind: ScalarKind, args: Sequence[int]) -> int:
    """Python's own integers, wrapped to the kind; a divisor of 0 gives 0."""
    if name in ("floor_divide", "modulo"):
        a, b = args
        return 0 if b == 0 else _wrap(a // b if name == "floor_divide" else a % b, kind)
    operations: dict[str, Callable[..., int]] = {
        "add": lambda a, b: a + b,
        "subtract": lambda a, b: a - b,
        "multiply": lambda a, b: a * b,
        "negate": lambda a: -a,
        "abs": abs,
        "min": min,
        "max": max,
        "clamp": lambda x, lo, hi: min(max(x, lo), hi),
        "where": lambda c, a, b: a if c else b,
        "less": lambda a, b: a < b,
        "less_equal": lambda a, b: a <= b,
        "greater": lambda a, b: a > b,
        "greater_equal": lambda a, b: a >= b,
        "equal": lambda a, b: a == b,
        "not_equal": lambda a, b: a != b,
    }
    return _wrap(operations[name](*args), kind)


INTEGER_NAMES = sorted(name for name, f in FUNCTIONS.items() if f.domain in ("number", "any"))


@pytest.mark.parametrize("kind", ["i32", "i64"])
def test_integer_functions(host: Toolchain, kind: ScalarKind) -> None:
    texts = {f"f_{name}": arithmetic(one_function(name, kind)) for name in INTEGER_NAMES}
    library = host.build(texts)
    ends = np.iinfo(NUMPY[kind])
    generator = np.random.default_rng(1)
    edges = [0, 1, -1, 2, -2, 7, -7, ends.min, ends.max, ends.min + 1]
    for name in INTEGER_NAMES:
        parameters = len(FUNCTIONS[name].parameters)
        grid: Array = np.array(np.meshgrid(*[edges] * parameters), NUMPY[kind]).reshape(parameters, -1)
        random = generator.integers(ends.min, ends.max, (parameters, 500), NUMPY[kind], endpoint=True)
        small = generator.integers(-20, 20, (parameters, 500), NUMPY[kind])
        args = list(np.concatenate([grid, random, small], axis=1))
        if name == "where":
            args[0] = args[0] > 0
        (actual,) = execute(library, f"f_{name}", texts[f"f_{name}"], [np.zeros(len(args[0])), *args])
        want = [integer_reference(name, kind, [int(a[i]) for a in args]) for i in range(len(actual))]
        assert [int(v) for v in actual] == want, name


@pytest.mark.parametrize("name", ["and", "or", "not"])
def test_logic(host: Toolchain, name: str) -> None:
    text = arithmetic(one_function(name, "bool"))
    args = [np.array(a) for a in ([False, False, True, True], [False, True, False, True])]
    args = args[: len(FUNCTIONS[name].parameters)]
    (actual,) = execute(host.build({"f": text}), "f", text, [np.zeros(4), *args])
    assert np.array_equal(actual, FUNCTIONS[name].reference(*map(torch.from_numpy, args)).numpy())


def same(got: object, want: float | int | bool) -> bool:
    number = float(want) if isinstance(want, float) else int(want)
    return got == number or (math.isnan(number) and math.isnan(float(got)))  # type: ignore[arg-type]


def check_rounding(toolchain: Toolchain) -> None:
    ties = [464, 465, 480, 61440, 61439, 65519, 65520, 127.5, 128.5, 2.5, 3.5, 1 + 2**-11, 1 + 3 * 2**-11]
    ends = [2.0**31, -(2.0**31), 2.0**63, -(2.0**63)]
    values = np.concatenate([SPECIAL, samples(1, 2000)[0], np.array([*ties, *ends], np.float32)])
    texts = {}
    for elem in ROUNDED:
        kind = kind_of(elem)
        program: list[Instruction] = [LoadSlot(0, "f32"), Round(0, elem, kind)]
        stored = {"f32": F32, "i32": I32, "i64": I64, "bool": BOOL}[kind]
        texts[f"to_{elem.name}"] = arithmetic(problem(program, [1], [F32], [stored]))
    library = toolchain.build(texts)
    for elem in ROUNDED:
        (actual,) = execute(
            library, f"to_{elem.name}", texts[f"to_{elem.name}"], [np.zeros(len(values)), values]
        )
        wrong = [
            (v, g, w)
            for v, g in zip(values, actual, strict=True)
            if not same(g, w := round_reference(float(v), elem))
        ]
        assert not wrong, f"{elem.name}: (value, got, want) {wrong[:10]}"


def test_rounding(host: Toolchain) -> None:
    check_rounding(host)


@pytest.mark.gpu
def test_rounding_on_device(device: Toolchain) -> None:
    check_rounding(device)


def test_integer_store_saturates(host: Toolchain) -> None:
    program: list[Instruction] = [
        Accumulator("i32"),
        HostScalar(1, "f32"),
        Compute("multiply", (0, 1), "f32"),
    ]
    text = arithmetic(problem(program, [0, 2], [], [S8, S8], compute_type=S8))
    acc = np.array([-1000, -129, -128, -1, 0, 127, 128, 2**31 - 1], np.int32)
    whole, scaled = execute(host.build({"f": text}), "f", text, [acc], scalars=[9.0, 0.5])
    assert list(whole) == [-128, -128, -128, -1, 0, 127, 127, 127]
    assert list(scaled) == [-128, -64, -64, 0, 0, 64, 64, 127]
