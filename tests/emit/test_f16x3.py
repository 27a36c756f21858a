"""f32 as two f16 and a power of two, and TF32 as one, as kernels split them: the emitted functions, compiled for the host."""

from __future__ import annotations

import ctypes
import subprocess
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emit import host_compiler
from tests.emit.hopper import HEADERS
from ucutlass.emit.environment import templates
from ucutlass.ir.elements import TF32
from ucutlass.reference.rounding import round_float

Floats = npt.NDArray[np.float32]

_ENTRIES = """
extern "C" int tensor_exponent(float const* x, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = max(largest, finite_magnitude(x[i]));
  return f16x3_exponent(largest);
}
extern "C" void split(float const* x, int64_t count, int e, uint32_t* hi, uint32_t* lo) {
  for (int64_t i = 0; i < count; i += 2) split_f16x3(x[i], x[i + 1], power_of_two(-e), hi[i / 2], lo[i / 2]);
}
extern "C" int usual(float largest, float least) {
  return usual_f16x3(finite_magnitude(largest), least < 0 ? ~0u : finite_magnitude(least)) ? kUsualExponent : 0;
}
extern "C" bool wide(float largest, float least) { return f16x3_is_wide(finite_magnitude(largest), finite_magnitude(least)); }
extern "C" float combine(float main, float cross, int e) { return combine_parts(main, cross, 0x1p-11f, e); }
extern "C" int wide_exponent(float largest, float other) { return bf16x3_exponent(finite_magnitude(largest), finite_magnitude(other)); }
extern "C" void split_wide(float const* x, int64_t count, int e, uint32_t* hi, uint32_t* lo, uint32_t* rest) {
  for (int64_t i = 0; i < count; i += 2) split_bf16x3(x[i], x[i + 1], power_of_two(-e), hi[i / 2], lo[i / 2], rest[i / 2]);
}
extern "C" int usual_once(float largest) { return usual_f16(finite_magnitude(largest)) ? kUsualExponent : 0; }
extern "C" void once(float const* x, int64_t count, int e, uint32_t* parts) {
  for (int64_t i = 0; i < count; i += 2) parts[i / 2] = round_f16(x[i], x[i + 1], power_of_two(-e));
}
extern "C" void split_once(float const* x, int64_t count, int e, uint32_t* hi, uint32_t* lo) {
  for (int64_t i = 0; i < count; i += 2) split_bf16x2(x[i], x[i + 1], power_of_two(-e), hi[i / 2], lo[i / 2]);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    program, folder = host_compiler.compiler(), tmp_path_factory.mktemp("f16x3")
    macros = "".join(
        f"{{{{ f16x3.{name}() }}}}"
        for name in (
            "exponent",
            "usual_exponent",
            "range",
            "power",
            "split",
            "wide_exponent",
            "split_wide",
            "once",
            "split_tf32_bf16",
            "combine",
        )
    )
    functions = templates().from_string('{% import "hopper/f16x3.j2" as f16x3 %}' + macros).render()
    source = folder / "f16x3.cpp"
    source.write_text(functions + _ENTRIES)
    flags = (
        *host_compiler.LANGUAGE,
        host_compiler.KERNEL,
        *host_compiler.ALIGNED,
        *host_compiler.garbage(program),
    )
    header = host_compiler.precompiled("hopper", HEADERS + host_compiler.USUAL, flags)
    command = [program, *flags, "-shared", "-include", str(header), *host_compiler.includes(), str(source)]
    once = str(host_compiler.once(header))
    done = subprocess.run([*command, once, "-o", "f16x3.so"], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr[-4000:]
    built = ctypes.CDLL(str(folder / "f16x3.so"))
    built.combine.restype = ctypes.c_float
    built.wide_exponent.argtypes = built.usual.argtypes = built.wide.argtypes = (
        ctypes.c_float,
        ctypes.c_float,
    )
    built.wide.restype = ctypes.c_bool
    built.usual_once.argtypes = (ctypes.c_float,)
    built.combine.argtypes = (ctypes.c_float, ctypes.c_float, ctypes.c_int)
    return built


def split(library: ctypes.CDLL, x: Floats) -> tuple[int, npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The exponent, and hi and lo in f64."""
    count = ctypes.c_int64(x.size)
    e = library.tensor_exponent(ctypes.c_void_p(x.ctypes.data), count)
    hi, lo = np.zeros(x.size, np.float16), np.zeros(x.size, np.float16)
    places = (ctypes.c_void_p(part.ctypes.data) for part in (hi, lo))
    library.split(ctypes.c_void_p(x.ctypes.data), count, e, *places)
    return e, hi.astype(np.float64), lo.astype(np.float64)


@cache
def tensors() -> dict[str, Floats]:
    random = np.random.default_rng(5)
    normal = random.standard_normal(4096).astype(np.float32)
    one_large = normal * np.float32(1e-3)
    one_large[77] = 1e30
    return {
        "normal": normal,
        "one large": one_large,
        "orders": normal * np.exp2(random.integers(-25, 1, 4096)).astype(np.float32),
        "every order": normal * np.exp2(random.uniform(-149, 125, 4096)).astype(np.float32),
        "zeros": np.zeros(4096, np.float32),
        "subnormal": normal * np.float32(1e-40),
        "small": normal * np.float32(1e-33),
        "largest": np.full(4096, np.finfo(np.float32).max),
    }


@pytest.mark.parametrize("name", tensors())
def test_the_parts_are_the_element(name: str, library: ctypes.CDLL) -> None:
    x = tensors()[name]
    e, hi, lo = split(library, x)
    largest = np.abs(x).max()
    scaled = float(largest) * 2.0**-e
    assert 2.0**14 <= scaled < 2.0**15 or (e == -126 and scaled < 2.0**14)
    exact = x.astype(np.float64)
    error = np.abs((hi + lo * 2.0**-11) * 2.0**e - exact)
    assert (error <= np.maximum(2.0**-22 * np.abs(exact), 2.0 ** (e - 36))).all()
    assert (np.abs(lo) <= np.maximum(np.abs(hi), 2.0**-12)).all()
    assert ((hi == 0) == (x == 0)).all()


@pytest.mark.parametrize(
    ("largest", "least", "usual", "wide"),
    [
        (0, -1, True, False),
        (31.9, 2.0**-20, True, False),
        (4, 2.0**-20, True, False),
        (4, 2.0**-21, False, False),
        (32, 1, False, False),
        (1e30, 1e-3, False, True),
        (1e-45, 1e-45, False, False),
    ],
)
def test_exponents_are_of_the_range(
    largest: float, least: float, usual: bool, wide: bool, library: ctypes.CDLL
) -> None:
    e = library.usual(largest, least)
    assert bool(e) == usual
    if usual and largest > 0:
        assert largest * 2.0**-e < 2.0**15 and 2.0 ** (e - 36) <= 2.0**-26 * least
    assert least < 0 or library.wide(largest, least) == wide


def split_wide(library: ctypes.CDLL, x: Floats, e: int) -> list[npt.NDArray[np.float64]]:
    """The three parts in f64."""
    parts = [np.zeros(x.size, np.uint16) for _ in range(3)]
    places = (ctypes.c_void_p(part.ctypes.data) for part in parts)
    library.split_wide(ctypes.c_void_p(x.ctypes.data), ctypes.c_int64(x.size), e, *places)
    return [(part.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for part in parts]


@pytest.mark.parametrize("name", tensors())
def test_three_bf16_are_the_element(name: str, library: ctypes.CDLL) -> None:
    x = tensors()[name]
    e = library.wide_exponent(float(np.abs(x).max()), 1.0)
    assert -126 <= e <= 0
    hi, lo, rest = split_wide(library, x, e)
    exact = x.astype(np.float64) * 2.0**-e
    large = np.abs(exact) >= 2.0**-110
    assert np.isfinite(hi).all() and (hi + lo + rest == exact)[large].all()
    assert (np.abs(hi + lo + rest - exact) <= 2.0**-133).all()
    assert (np.abs(lo) <= 2.0**-7 * np.abs(hi))[large].all() and (np.abs(rest) <= 2.0**-15 * np.abs(hi))[
        large
    ].all()
    assert ((hi == 0) == (x == 0)).all()


@given(st.floats(2.0**-149, 2.0**127, width=32), st.floats(2.0**-149, 2.0**127, width=32))
def test_products_of_bf16_stay_in_f32s_range(library: ctypes.CDLL, a: float, b: float) -> None:
    exponents = library.wide_exponent(a, b), library.wide_exponent(b, a)
    assert a * b * 2.0 ** -sum(exponents) < max(2.0**63, 2 * a * b)


PAYLOADS = np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)


def test_what_is_not_finite_stays_apart(library: ctypes.CDLL) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 3.0, 0.0, -1e-30], np.float32)
    e, hi, lo = split(library, x)
    assert e == 1 - 14
    np.testing.assert_array_equal(hi[[0, 1, 3, 4, 5]], [1, -1, 3 * 2.0**13, 0, -(2.0**-24)])
    np.testing.assert_array_equal(lo, [np.inf, -np.inf, np.nan, 0, 0, 2.0**-13])
    assert abs(hi[2]) == 1
    hi, lo, rest = split_wide(library, np.array([np.inf, -np.inf, *PAYLOADS, 0.0, -1e-45], np.float32), 0)
    np.testing.assert_array_equal(hi, [1, -1, 1, -1, 0, -(2.0**-133)])
    np.testing.assert_array_equal(lo[:5], 0)
    np.testing.assert_array_equal(rest, [np.inf, -np.inf, np.nan, np.nan, 0, 0])


FINITE = [name for name in tensors() if name != "largest"]
"""The tensors that TF32 does not round to infinity."""


def as_tf32(x: Floats) -> npt.NDArray[np.float64]:
    return round_float(torch.from_numpy(x).double(), TF32).numpy()


@pytest.mark.parametrize("name", FINITE)
def test_one_f16_is_the_element_of_tf32(name: str, library: ctypes.CDLL) -> None:
    x = tensors()[name]
    place = ctypes.c_void_p(x.ctypes.data)
    e = library.tensor_exponent(place, ctypes.c_int64(x.size))
    parts, exact = np.zeros(x.size, np.float16), as_tf32(x)
    library.once(place, ctypes.c_int64(x.size), e, ctypes.c_void_p(parts.ctypes.data))
    own = parts.astype(np.float64) * 2.0**e
    assert (own == exact)[np.abs(exact) >= 2.0 ** (e - 14)].all()
    assert (np.abs(own - exact) <= 2.0 ** (e - 24)).all() and ((own == 0) == (exact == 0)).all()


@pytest.mark.parametrize(
    ("largest", "usual"),
    [(0.0, False), (2.0**-7, True), (0.99 * 2.0**-7, False), (31.9, True), (32.0, False)],
)
def test_the_usual_exponent_ends_far_below_the_largest_element(
    largest: float, usual: bool, library: ctypes.CDLL
) -> None:
    e = library.usual_once(largest)
    assert bool(e) == usual
    assert not usual or (largest * 2.0**-e < 2.0**15 and 2.0 ** (e - 24) <= 2.0**-27 * largest)


@pytest.mark.parametrize("name", FINITE)
def test_two_bf16_of_one_sign_are_the_element_of_tf32(name: str, library: ctypes.CDLL) -> None:
    x = tensors()[name]
    e = library.wide_exponent(float(np.abs(x).max()), 1.0)
    hi, lo = split_once(library, x, e)
    exact = as_tf32(x) * 2.0**-e
    large = np.abs(exact) >= 2.0**-122
    assert np.isfinite(hi).all() and (hi + lo == exact)[large].all()
    assert (np.abs(hi + lo - exact) <= 2.0**-122).all()
    assert ((hi == 0) == (exact == 0))[large].all() and ((lo == 0) == (exact == 0)).all()
    assert (hi * lo >= 0).all()


def split_once(library: ctypes.CDLL, x: Floats, e: int) -> list[npt.NDArray[np.float64]]:
    """Both parts in f64."""
    parts = [np.zeros(x.size, np.uint16) for _ in range(2)]
    places = (ctypes.c_void_p(part.ctypes.data) for part in parts)
    library.split_once(ctypes.c_void_p(x.ctypes.data), ctypes.c_int64(x.size), e, *places)
    return [(part.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for part in parts]


def test_what_is_not_finite_stays_apart_in_two_bf16(library: ctypes.CDLL) -> None:
    largest = np.finfo(np.float32).max
    x = np.array([np.inf, -np.inf, *PAYLOADS, largest, 0.0], np.float32)
    hi, lo = split_once(library, x, 0)
    np.testing.assert_array_equal(hi, [1, -1, 1, -1, 1, 0])
    np.testing.assert_array_equal(lo, [np.inf, -np.inf, np.nan, np.nan, np.inf, 0])


@given(main=st.floats(-(2.0**60), 2.0**60, width=32, allow_subnormal=False), e=st.integers(-252, 226))
@settings(max_examples=200, deadline=None)
def test_sums_are_scaled_in_f32s_range(library: ctypes.CDLL, main: float, e: int) -> None:
    exact = main * 2.0**e
    scaled = library.combine(main, 0.0, e)
    with np.errstate(over="ignore"):
        if abs(exact) >= 2.0**-126 or exact == 0:
            assert scaled == np.float32(exact)
        else:
            assert abs(scaled - exact) <= 2.0**-149
