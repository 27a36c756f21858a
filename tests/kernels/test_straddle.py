"""Rows of any length read and written by vectors that do not divide them: what is refused, and what blocks compute."""

from __future__ import annotations

import shutil

import pytest

from tests.emulated import Job, emulate
from tests.kernels.test_ring import (
    ADD_NORM,
    ENTROPY,
    GROUP_NORM,
    LAYER_NORM,
    SCAN,
    SOFTMAX,
    schedule,
    text_of,
)
from ucutlass.diagnostics import ProgramError

compiled = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile emulated kernels")

MAXIMA = (
    "kernel k(x: f32[A, L]) -> (p: i64[A], q: f32[A]) { return p = argmax[L](x), q = max[L](x) SCHEDULE }"
)
BIAS = (
    "kernel k(x: f16[B, H, D], y: f16[H, D], g: f32[D]) -> f32[B, H, D] {\n"
    " return softmax[D](x + y) * g SCHEDULE }"
)
POOL = "kernel k(x: f32[B, H, W]) -> f32[B, P=H-1, Q=W-1] { return max[R=4, S=4](x[H = P + R - 1, W = Q + S - 1]) SCHEDULE }"
VALID_POOL = "kernel k(x: f32[B, W]) -> f32[B, Q=W-6] { return mean[S=3](x[W = Q + 3*S]) SCHEDULE }"
SCALED = "kernel k(x: bf16[B, C, P], g: f32[C]) -> bf16[B, C, P] { return relu(x) * g SCHEDULE }"
SUM = "kernel k(x: f32[A, B], y: bf16[A, B]) -> f32[A, B] { return x + y SCHEDULE }"
SWAPPED = "kernel k(x: bf16[A, B, C]) -> bf16[B, A, C] { return x SCHEDULE }"
STRIDED = "kernel k(x: bf16[D, Z, B], w: f32[L, B]) -> bf16[D, L, B] { return where(w > 0, x[Z = 2*L + 1], 1) SCHEDULE }"
BACKWARDS = "kernel k(x: f32[D, Z, B]) -> f32[D, L=6, B] { return x[Z = 6 - L] * 2 SCHEDULE }"
GATHERED = "kernel k(x: f32[V, B], i: i32[L]) -> f32[L, B] { return x[V = i] * 2 SCHEDULE }"
PRODUCT = "kernel k(x: bf16[T, D]) -> f32[T] { return prod[D](x) SCHEDULE }"


@pytest.mark.parametrize(
    ("program", "fields", "sizes", "straddle"),
    [
        (SOFTMAX, "vector 8", {"T": 64, "D": 305}, True),
        (SOFTMAX, "vector 8", {"T": 64, "D": 304}, False),
        (SOFTMAX, "vector 2", {"T": 64, "D": 306}, False),
        (SOFTMAX.replace("bf16", "f32"), "vector 4", {"T": 64, "D": 305}, True),
    ],
)
def test_vectors_wider_than_rows_allow_straddle_their_ends(
    program: str, fields: str, sizes: dict[str, int], straddle: bool
) -> None:
    assert schedule(program, fields, **sizes).straddle == straddle


@pytest.mark.parametrize(
    ("program", "sizes", "expected"),
    [
        (SOFTMAX, {"T": 4096, "D": 305}, (8, 16, 3, 1)),
        (SOFTMAX, {"T": 4096, "D": 306}, (8, 16, 3, 1)),
        (SOFTMAX, {"T": 4096, "D": 2050}, (8, 64, 4, 1)),
        (SOFTMAX, {"T": 4096, "D": 96001}, (8, 256, 12, 4)),
        (SOFTMAX.replace("bf16", "f32"), {"T": 4096, "D": 333}, (4, 32, 3, 1)),
        (LAYER_NORM, {"T": 4096, "D": 33949}, (8, 1024, 5, 1)),
        (LAYER_NORM, {"T": 4096, "D": 1339}, (8, 32, 6, 1)),
        (POOL, {"B": 640, "H": 512, "W": 512}, (4, 1, 4, 1)),
        (SCALED, {"B": 64, "C": 64, "P": 16129}, (8, 256, 2, 1)),
        (SCALED.replace("bf16", "f32"), {"B": 64, "C": 64, "P": 1001}, (4, 256, 1, 1)),
        (SCALED, {"B": 64, "C": 64, "P": 35}, (8, 1, 1, 1)),
    ],
)
def test_vectors_straddle_where_single_elements_are_slower(
    program: str, sizes: dict[str, int], expected: tuple[int, ...]
) -> None:
    s = schedule(program, "", **sizes)
    assert (s.vector, s.threads, s.items, s.cluster) == expected and s.straddle


@pytest.mark.parametrize(
    ("program", "sizes"),
    [
        (SOFTMAX, {"T": 4096, "D": 304}),
        (SOFTMAX, {"T": 4096, "D": 33}),
        (MAXIMA, {"A": 4096, "L": 1001}),
        (SCALED, {"B": 64, "C": 64, "P": 36}),
    ],
)
def test_other_vectors_divide_rows(program: str, sizes: dict[str, int]) -> None:
    assert not schedule(program, "", **sizes).straddle


@pytest.mark.parametrize(
    ("program", "sizes"),
    [
        (SCAN, {"T": 64, "D": 305}),
        (MAXIMA, {"A": 7, "L": 133}),
        (GROUP_NORM, {"T": 4, "C": 3, "P": 305}),
        (
            "kernel k(x: bf16[T, D], i: i32[T, D]) -> bf16[T, D] { return softmax[D](x[D = i]) SCHEDULE }",
            {"T": 9, "D": 305},
        ),
    ],
)
def test_programs_whose_vectors_may_not_straddle(program: str, sizes: dict[str, int]) -> None:
    with pytest.raises(ProgramError, match="UC0470"):
        schedule(program, "vector 4", **sizes)


CASES = {
    "softmax": (SOFTMAX, "vector 8", {"T": 11, "D": 305}),
    "short rows": (SOFTMAX, "vector 8  threads 4", {"T": 13, "D": 5}),
    "rows shorter than vectors": (SOFTMAX, "vector 8  keep reread", {"T": 13, "D": 7}),
    "even rows": (SOFTMAX, "vector 8", {"T": 13, "D": 26}),
    "layer norm": (LAYER_NORM, "vector 8", {"T": 7, "D": 1001}),
    "layer norm read again": (
        LAYER_NORM,
        "vector 8  keep reread  split_k 3  threads 32",
        {"T": 3, "D": 2051},
    ),
    "layer norm whose chunks come ahead": (
        LAYER_NORM,
        "vector 8  keep reread  stages 2  threads 32  items 2",
        {"T": 3, "D": 2051},
    ),
    "two operands and results": (ADD_NORM, "vector 8", {"T": 5, "D": 333}),
    "gather beside": (ENTROPY, "vector 8", {"T": 9, "D": 333}),
    "rings": (SOFTMAX, "vector 8  stages 4  threads 32", {"T": 11, "D": 1305}),
    "a ring shorter than a row": (LAYER_NORM, "vector 8  stages 3  threads 32  items 5", {"T": 7, "D": 1051}),
    "whole lines": (SOFTMAX, "vector 8  threads 32", {"T": 5, "D": 527}),
    "words": (SOFTMAX.replace("bf16", "f32"), "vector 4", {"T": 5, "D": 335}),
    "operand of fewer names": (BIAS, "vector 8", {"B": 3, "H": 5, "D": 67}),
    "window": (POOL, "vector 4", {"B": 3, "H": 9, "W": 264}),
    "window over odd lines": (POOL, "vector 4", {"B": 3, "H": 9, "W": 36}),
    "window without borders": (VALID_POOL, "vector 4", {"B": 7, "W": 47}),
    "parts of lines": (
        SCALED,
        "vector 8  threads 32  items 1  split_k 3  keep reread",
        {"B": 2, "C": 3, "P": 1077},
    ),
    "one line": (SUM, "vector 4", {"A": 77, "B": 33}),
    "scaled lines": (SCALED, "vector 8", {"B": 3, "C": 5, "P": 77}),
    "short lines": (SCALED, "vector 8", {"B": 3, "C": 7, "P": 3}),
    "product": (PRODUCT, "vector 8", {"T": 9, "D": 21}),
    "lines in another order": (SWAPPED, "vector 8", {"A": 5, "B": 7, "C": 77}),
    "lines of a longer axis": (STRIDED, "vector 4", {"D": 5, "Z": 8, "L": 3, "B": 33}),
    "lines of a shorter axis": (STRIDED, "vector 4", {"D": 5, "Z": 2, "L": 7, "B": 33}),
    "lines backwards": (BACKWARDS, "vector 4", {"D": 6, "Z": 9, "B": 33}),
    "gathered lines of bytes": (
        GATHERED.replace("f32[V", "e4m3[V").replace("* 2", "+ 2"),
        "vector 4",
        {"L": 29, "V": 3, "B": 33},
    ),
    "gathered lines": (GATHERED, "vector 4", {"L": 29, "V": 3, "B": 33}),
    "words in another order": (SWAPPED.replace("bf16", "f32"), "vector 4", {"A": 5, "B": 7, "C": 53}),
}


def test_vectors_that_straddle_are_whole_words() -> None:
    narrow, sizes = GATHERED.replace("f32[V", "e4m3[V"), {"L": 29, "V": 3, "B": 33}
    with pytest.raises(ProgramError, match="words of 4 bytes"):
        schedule(narrow, "vector 2", **sizes)
    assert schedule(narrow, "vector 4", **sizes).straddle


@compiled
@pytest.mark.parametrize("name", CASES)
def test_kernels_compute_their_programs(name: str) -> None:
    program, fields, sizes = CASES[name]
    assert schedule(program, fields, **sizes).straddle
    row = emulate(Job(name, text_of(program, fields), "k", sizes, None, 0))
    assert row.status == "right", row.detail
