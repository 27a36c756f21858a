"""The emitted C++ at the ends of types: positions past a border, literals beyond their type."""

from __future__ import annotations

import shutil

import pytest

from tests.emulated import Job, emulate

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile emulated kernels")

WINDOWS = """kernel k(x: {elem}[M, H]) -> (a: i64[M, P=H], b: i64[M, P=H], c: i64[M, P=H], d: i64[M, P=H],
    e: f32[M, P=H], f: i32[M, P=H], g: i64[M, P=H]) {{
  return a = max[R=3](x[H = P + R - 2]), b = min[R=3](x[H = P + R - 2]), c = argmax[R=3](x[H = P + R - 2]),
    d = prod[R=3](x[H = P + R - 2]), e = max[R=3](f32(x[H = P + R + 7])),
    f = max[R=3](i32(bool(x[H = P + R - 2]))), g = min[R=3]((x + 1)[H = P + R + 7])
}}"""
LITERALS = """kernel k(x: i32[M, H=9]) -> (a: i32[M, H], b: i64[M, H], c: bool[M, H], d: i32[M, H],
    e: i32[M, H],
    f: i64[M, H], g: bool[M, H]) {
  return a = x + 4294967297, b = min(x, 4294967296) // 4294967297, c = x < 4294967296,
    d = x + i32(2.7),
    e = x * 4611686018427387905 + i32(4294967296.0), f = x * 715827882 + size(H), g = x > 0 and bool(0.5)
}"""


@pytest.mark.slow
@pytest.mark.parametrize("elem", ["s8", "u8", "i64"])
def test_windows_past_a_border(elem: str) -> None:
    row = emulate(Job("windows", WINDOWS.format(elem=elem), "k", {"M": 3, "H": 9}, None, 1))
    assert row.status == "right", row.detail


def test_literals_are_converted_as_casts_do() -> None:
    row = emulate(Job("literals", LITERALS, "k", {"M": 3}, None, 1))
    assert row.status == "right", row.detail


@pytest.mark.parametrize("elem", ["e4m3", "e5m2"])
def test_what_saturates_is_filled_with_infinities(elem: str) -> None:
    source = f"kernel k(x: {elem}[B, L, D]) -> f32[L, D] {{ return max[B](x[L = L - 2]) }}"
    row = emulate(Job("saturating", source, "k", {"B": 3, "L": 5, "D": 33}, None, 1))
    assert row.status == "right", row.detail
