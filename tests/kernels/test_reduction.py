"""Reductions: matched from the typed graph, refused with a code and a place, planned by their numbers."""

from __future__ import annotations

import ctypes
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emit import emulator, plan_reference
from tests.emit.harness import HOST_SHIM
from tests.fuzz.test_identifiers import MARK, renamed
from tests.pairs.spaces import SPACES
from ucutlass import frontend
from ucutlass.backend import source_of
from ucutlass.diagnostics import Diagnostic, ProgramError
from ucutlass.emit.text import Source
from ucutlass.kernels.gemm.plan import LaunchParameters
from ucutlass.kernels.planned import Planned
from ucutlass.kernels.reduction.match import ReductionPattern
from ucutlass.kernels.reduction.plan import (
    ReductionPlan,
    RowReduce,
    RowScan,
    RowValue,
    RowWindow,
    phases,
    reductions,
)
from ucutlass.shapes import complete, free_dims


def form(body: str, params: str, result: str) -> ReductionPattern:
    checked = frontend.read_text(f"kernel k({params}) -> {result} {{ {body} }}")
    pattern = frontend.pattern(checked, frontend.kernel(checked))
    assert isinstance(pattern, ReductionPattern)
    return pattern


def emitted(text: str, aligned: bool = True, **sizes: int) -> tuple[ReductionPlan, Planned, Source]:
    """The plan for sm90a on an H200, and its source."""
    checked = frontend.read_text(text)
    kernel = frontend.kernel(checked)
    fine = None if aligned else [False] * 9
    made = frontend.plan_kernel(checked, kernel, complete(kernel, sizes), "sm90a", aligned=fine).planned
    assert isinstance(made, Planned) and isinstance(made.plan, ReductionPlan)
    return made.plan, made, source_of(checked, kernel, made)


def planned(text: str, aligned: bool = True, **sizes: int) -> ReductionPlan:
    return emitted(text, aligned, **sizes)[0]


# --- what is a row, a column, a window ---------------------------------------------------

X2 = "x: f32[A, L]"
RECOGNISED: Mapping[str, tuple[str, str, str, str]] = {
    "element-wise": ("return relu(x) + y", "x: f32[A, L], y: f32[L]", "f32[L, A]", "A L | |"),
    "reduction": ("return sum[L](x)", X2, "f32[A]", "A | L |"),
    "reduction of all": ("return sum[A, L](x)", X2, "f32[]", "| A L |"),
    "norm": ("d = x - mean[L](x)  return d * rsqrt(mean[L](d * d))", X2, "f32[A, L]", "A | L |"),
    "softmax": ("return softmax[A](x)", X2, "f32[A, L]", "L | A |"),
    "scan": ("return cumsum[L](x)", X2, "f32[A, L]", "A | L |"),
    "scan of a norm": ("return cumsum[L](x / sum[L](x))", X2, "f32[A, L]", "A | L |"),
    "results of rows and of columns": (
        "return y = softmax[L](x), z = logsumexp[L](x)",
        X2,
        "(y: f32[A, L], z: f32[A])",
        "A | L |",
    ),
    "window": ("return max[R=3](x[L = P + R - 1])", X2, "f32[A, P=L]", "A P | | R"),
    "window of channels too": ("return max[A, R=3](x[L = P + R - 1])", X2, "f32[P=L]", "P | | A R"),
    "reduction of a window's values": (
        "return sum[P=L](max[R=3](x[L = P + R - 1]))",
        X2,
        "f32[A]",
        "A | P | R",
    ),
    "window that the result keeps": (
        "v = x[L = P + R]  return v - mean[R](v)",
        X2,
        "f32[A, P=L-2, R=3]",
        "A P | R |",
    ),
    "window, then a norm": (
        "v = max[R=3](x[L = P + R - 1])  return v - mean[P](v)",
        X2,
        "f32[A, P=L]",
        "A | P | R",
    ),
    "weights of a window alone": (
        "return sum[R](relu(x[L = P + R]) * w) / sum[R](w)",
        "x: f32[A, L], w: f32[R=3]",
        "f32[A, P=L-2]",
        "A P | | R",
    ),
    "gather": ("return t[V = i] * 2", "t: f32[V, D], i: i64[B]", "f32[B, D]", "D B | |"),
    "pick": ("return logsumexp[L](x) - x[L = t]", "x: f32[A, L], t: i64[A]", "f32[A]", "A | L |"),
}


@pytest.mark.parametrize("name", RECOGNISED)
def test_rows_columns_and_windows(name: str) -> None:
    body, params, result, expected = RECOGNISED[name]
    reduction_pattern = form(body, params, result)
    names = [part.split() for part in expected.split("|")]
    assert [
        list(reduction_pattern.rows),
        list(reduction_pattern.columns),
        list(reduction_pattern.windows),
    ] == names


# --- what is refused ---------------------------------------------------------------------

REFUSED: Mapping[str, tuple[str, str, str, str, str, str]] = {
    "f64 read": ("return relu(x)", "x: f64[L]", "f32[L]", "UC0310", "reads f64", "x: f64[L]"),
    "s4 read": ("return x * 2", "x: s4[L]", "f32[L]", "UC0310", "reads s4", "x: s4[L]"),
    "f64 written": ("return x * 2", "x: f32[L]", "f64[L]", "UC0310", "writes f64", "f64[L]"),
    "two sets": (
        "return x - max[A](x) * sum[L](x)",
        X2,
        "f32[A, L]",
        "UC0311",
        "over [L], another over [A]",
        "sum[L](x)",
    ),
    "a reduction of a reduction": (
        "return sum[A](max[L](x))",
        X2,
        "f32[]",
        "UC0311",
        "over [A], another over [L]",
        "sum[A](max[L](x))",
    ),
    "columns that are a window's": (
        "w = x[L = P + R]  return sum[R](w * softmax[R](w))",
        X2 + ", y: f32[R=3]",
        "f32[A, P=L-2]",
        "UC0311",
        "over [R]",
        "softmax[R](w)",
    ),
    "results over other names": (
        "return y = x * 2, z = x[A = 0]",
        X2,
        "(y: f32[A, L], z: f32[L])",
        "UC0312",
        "this one over [L]",
        "z: f32[L]",
    ),
    "var of a window": (
        "return var[R=3](x[L = P + R])",
        X2,
        "f32[A, P=L-2]",
        "UC0313",
        "var",
        "var[R=3](x[L = P + R])",
    ),
    "logsumexp of a window": (
        "return logsumexp[R=3](x[L = P + R])",
        X2,
        "f32[A, P=L-2]",
        "UC0313",
        "logsumexp",
        "logsumexp[R=3](x[L = P + R])",
    ),
    "a reduction read elsewhere": (
        "return sum[L](x)[A = A - 1]",
        X2,
        "f32[A]",
        "UC0314",
        "another place",
        "sum[L](x)",
    ),
    "a scan read elsewhere": (
        "return cumsum[L](x)[L = L - 1]",
        X2,
        "f32[A, L]",
        "UC0314",
        "another place",
        "cumsum[L](x)",
    ),
    "a window of reductions": (
        "return max[R=3](sum[L](x)[A = P + R - 1])",
        X2,
        "f32[P=A]",
        "UC0314",
        "another place",
        "sum[L](x)",
    ),
    "an index inside a gather": (
        "return (x * 2)[L = L - 1][L = i]",
        X2 + ", i: i64[J]",
        "f32[A, J]",
        "UC0314",
        "divides or gathers",
        "(x * 2)[L = L - 1]",
    ),
    "a window of windows": (
        "h = max[R=3](x[L = L + R - 1])  return sum[S=3](h[L = P + S - 1])",
        X2,
        "f32[A, P=L]",
        "UC0314",
        "another window",
        "sum[S=3](h[L = P + S - 1])",
    ),
    "both directions": (
        "return cumsum[L](x) + cumsum[L](x, reverse=true)",
        X2,
        "f32[A, L]",
        "UC0316",
        "one direction",
        "cumsum[L](x, reverse=true)",
    ),
    "a scan of a scan": (
        "return cumsum[L](cumsum[L](x))",
        X2,
        "f32[A, L]",
        "UC0316",
        "a scan of a scan",
        "cumsum[L](cumsum[L](x))",
    ),
    "a sum of a scan": (
        "return sum[L](cumsum[L](x))",
        X2,
        "f32[A]",
        "UC0316",
        "a reduction of a scan",
        "sum[L](cumsum[L](x))",
    ),
    "a softmax of a scan": (
        "return softmax[L](cumsum[L](x))",
        X2,
        "f32[A, L]",
        "UC0316",
        "a reduction of a scan",
        "softmax[L](cumsum[L](x))",
    ),
    "a nameless axis": ("return x", "x: f32[L]", "f32[L, 2]", "UC0220", "nameless", "f32[L, 2]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_one_launch_cannot_do_is_refused_at_its_place(name: str) -> None:
    body, params, result, code, words, place = REFUSED[name]
    text = f"kernel k({params}) -> {result} {{ {body} }}"
    diagnostic = _refusal(text)
    assert (diagnostic.code, words in diagnostic.message) == (code, True), diagnostic
    span = diagnostic.span
    assert diagnostic.hint and text[span.start : span.end].startswith(place)


def _refusal(text: str) -> Diagnostic:
    checked = frontend.read_text(text)
    with pytest.raises(ProgramError) as caught:
        frontend.check_schedules(checked, frontend.kernel(checked))
    (found,) = caught.value.diagnostics
    return found


def test_a_schedule_is_foreign_to_it() -> None:
    text = "kernel k(x: f32[L=1048576]) -> f32[L=1048576] { return relu(x)  schedule sm90a { swizzle 2 } }"
    checked = frontend.read_text(text)
    (found,) = frontend.check_schedules(checked, frontend.kernel(checked))
    assert found.code == "UC0439" and "`swizzle 2`" in found.message
    assert found.hint is not None and "nearest legal schedule: rows 256  vector 4" in found.hint


def test_vectors_longer_than_a_scanned_row_are_refused() -> None:
    text = "kernel k(x: f32[A, C]) -> f32[A, C] { return cumsum[C](x)  schedule sm90a { vector 4 } }"
    with pytest.raises(ProgramError, match="UC0470"):
        planned(text, A=64, C=2)


def test_a_launch_numbers_its_vectors_in_32_bits() -> None:
    text = "kernel k(x: f32[L]) -> f32[L] { return relu(x) }"
    assert planned(text, L=4 * (2**31 - 1)).schedule.vector == 4
    with pytest.raises(ProgramError, match="UC0460"):
        planned(text, L=4 * 2**31)
    with pytest.raises(ProgramError, match="UC0460"):
        planned(text, L=2**31 + 1)


# --- planning ----------------------------------------------------------------------------

ROWS = "kernel k(x: {e}[T, D]) -> {e}[T, D] {{ return softmax[D](x) }}"


@pytest.mark.parametrize(
    ("elem", "extent", "vector"),
    [
        ("f32", 4096, 4),
        ("f32", 4095, 4),
        ("f32", 46, 2),
        ("f32", 45, 1),
        ("bf16", 4096, 8),
        ("bf16", 4097, 8),
        ("bf16", 44, 4),
        ("bf16", 33, 1),
        ("f32", 1, 1),
        ("e4m3", 4096, 8),
    ],
)
def test_vectors_are_as_wide_as_types_and_extents_allow(elem: str, extent: int, vector: int) -> None:
    assert planned(ROWS.format(e=elem), T=128, D=extent).schedule.vector == vector


def test_the_vector_lies_along_what_is_contiguous() -> None:
    down = planned("kernel k(x: f32[A, L, C]) -> f32[A, L, C] { return softmax[L](x) }", A=8, L=64, C=64)
    assert not down.problem.across and down.schedule.vector == 4
    assert planned(ROWS.format(e="f32"), T=8, D=64).problem.across


def test_names_side_by_side_are_one_mode() -> None:
    text = "kernel k(x: f32[A, B, C, D]) -> f32[A, B, C, D] { return softmax[C, D](x) }"
    problem = planned(text, A=3, B=5, C=7, D=8).problem
    assert (problem.rows, problem.columns) == (((0, 1),), ((2, 3),))
    apart = planned(
        "kernel k(x: f32[A, B, C]) -> f32[A, B, C] { return softmax[A, C](x) }", A=3, B=5, C=8
    ).problem
    assert (apart.rows, apart.columns) == (((1,),), ((0,), (2,)))


def test_pointers_that_are_not_aligned_are_read_element_by_element() -> None:
    text = ROWS.format(e="bf16")
    fine, poor = planned(text, T=64, D=512).problem, planned(text, False, T=64, D=512).problem
    assert {x.align for x in (*fine.loads, *fine.outputs)} == {8}
    assert {x.align for x in (*poor.loads, *poor.outputs)} == {1}
    assert {x.span for x in poor.loads} == {1}


def test_a_row_stays_in_registers_while_it_fits() -> None:
    for extent, keep in ((1024, "registers"), (4096, "registers"), (2**24, "reread")):
        assert planned(ROWS.format(e="bf16"), T=1024, D=extent).schedule.keep == keep


@pytest.mark.parametrize(
    ("elem", "extent", "threads", "items", "full"),
    [
        ("bf16", 16, 2, 1, True),
        ("bf16", 64, 4, 2, True),
        ("f32", 1024, 128, 2, True),
        ("bf16", 4096, 256, 2, True),
        ("f32", 8192, 512, 4, True),
        ("f16", 32000, 512, 8, False),
        ("f32", 32768, 1024, 8, True),
    ],
)
def test_threads_of_a_row_grow_with_its_bytes(
    elem: str, extent: int, threads: int, items: int, full: bool
) -> None:
    schedule = planned(ROWS.format(e=elem), T=4096, D=extent).schedule
    assert (schedule.threads, schedule.items, schedule.full, schedule.cluster) == (threads, items, full, 1)


def test_lines_that_are_full_ask_for_no_element() -> None:
    text = ROWS.format(e="bf16")
    _, _, full = emitted(text, T=64, D=4096)
    _, _, ragged = emitted(text, T=64, D=4104)
    assert "constexpr bool ok = true" in full.code and "place < uint32_t(p.columns)" not in full.code
    assert "place < uint32_t(p.columns)" in ragged.code
    assert "if (!(p.columns == 512)) return 1;" in full.code


def test_what_is_the_same_for_a_row_is_computed_once() -> None:
    text = "kernel k(x: f32[T, D]) -> f32[T, D] { return x * rsqrt(mean[D](x * x) + 1e-5) }"
    _, _, source = emitted(text, T=64, D=4096)
    before, after = source.code.split("rsqrt", 1)[0], source.code.rsplit("wide0.value[v] =", 1)[0]
    assert source.code.count("rsqrtf(") == 1 and "reduce(r" in before and "h" in after


def test_a_pick_compares_numbers_and_then_finds_its_place() -> None:
    plan, _, source = emitted("kernel k(x: f32[T, D]) -> i64[T] { return argmax[D](x) }", T=64, D=8192)
    assert (plan.schedule.threads, plan.schedule.items) == (256, 8)
    assert "Extreme<float, true> part" in source.code and "if (is_extreme(" in source.code


def test_a_scan_down_takes_wide_lines_however_odd() -> None:
    text = "kernel k(x: f32[A, L, C]) -> f32[A, L, C] { return cumsum[L](x) }"
    odd = planned(text, A=64, L=2048, C=4095).schedule
    assert (odd.vector, odd.rows, odd.threads, odd.full) == (1, 512, 2, True)
    even = planned(text, A=64, L=4096, C=1024).schedule
    assert (even.vector, even.rows, even.threads, even.full) == (4, 64, 8, True)
    assert planned(text, A=64, L=14 * 97, C=4095).schedule.full, "items are chosen to divide"


def test_a_window_weighted_along_the_last_name_is_a_reduction() -> None:
    body = "return sum[K](x[L = L + K - 3] * w)"
    reduction_pattern = form(body, "x: bf16[B, C, L], w: bf16[C, K=4]", "bf16[B, C, L]")
    assert reduction_pattern.windows == ("K",)


def test_a_scan_reads_in_chunks_however_short_its_rows() -> None:
    text = "kernel k(x: f32[T, D]) -> f32[T, D] { return cumsum[D](x) }"
    assert planned(text, T=4096, D=256).schedule.keep == "reread"


def test_few_long_rows_are_shared_by_blocks() -> None:
    text = "kernel k(x: f32[T, D]) -> f32[T] { return sum[D](x) }"
    assert planned(text, T=100_000, D=4096).schedule.splits == 1
    few, made, source = emitted(text, T=1, D=2**26)
    assert few.schedule.splits > 1
    assert any("blocks a row" in note.value for note in made.notes)
    assert "p.partial" in source.code


def test_one_build_serves_other_extents_of_the_same_divisors() -> None:
    text = ROWS.format(e="bf16")
    assert planned(text, T=1000, D=4096) == planned(text, T=3000, D=4096)


# --- instructions ------------------------------------------------------------------------

NORM = "kernel k(x: f16[T, D], g: f16[D]) -> f16[T, D] {{ d = x - mean[D](x)  return d * rsqrt({}) * g }}"


@pytest.mark.parametrize(
    "square", ["mean[D](d * d) + 1e-5", "mean[D](d ** 2) + 1e-5", "var[D](x) + mean[D](d * d)"]
)
def test_a_norm_is_one_pass(square: str) -> None:
    problem = planned(NORM.format(square), T=512, D=1024).problem
    needed = [problem.instructions[i] for i in reductions(problem)]
    assert all(isinstance(one, RowReduce) and one.op == "moments" for one in needed)
    assert phases(problem) == 1
    parts = {one.part for one in problem.instructions if isinstance(one, RowValue)}
    assert {"mean", "squares"} <= parts


def test_a_mean_that_is_used_otherwise_keeps_its_own_pass() -> None:
    """The second mean is of other numbers: nothing is fused."""
    problem = planned(NORM.format("mean[D](d * x) + 1e-5"), T=512, D=1024).problem
    assert phases(problem) == 2


def test_what_is_shared_is_computed_once() -> None:
    body = "return y = softmax[D](x), z = softmax[D](x) * 2"
    text = f"kernel k(x: f32[T, D]) -> (y: f32[T, D], z: f32[T, D]) {{ {body} }}"
    problem = planned(text, T=8, D=64).problem
    assert len(reductions(problem)) == 1 and len(problem.loads) == 1


def test_integers_are_summed_in_64_bits() -> None:
    problem = planned("kernel k(x: s8[T, D]) -> i32[T] { return sum[D](x) }", T=8, D=64).problem
    (row,) = (problem.instructions[i] for i in reductions(problem))
    assert isinstance(row, RowReduce) and row.kind == "i64"


def test_scans_and_windows_are_instructions() -> None:
    scan = planned(
        "kernel k(x: f32[L]) -> f32[L] { return cumprod[L](x, exclusive=true, reverse=true) }", L=64
    )
    (found,) = (i for i in scan.problem.instructions if isinstance(i, RowScan))
    assert (found.op, found.exclusive, found.reverse) == ("prod", True, True)
    pool = planned("kernel k(x: f32[L]) -> f32[P=L] { return mean[R=3](x[L = P + R - 1]) }", L=64)
    (window,) = (i for i in pool.problem.instructions if isinstance(i, RowWindow))
    assert window.op == "sum" and pool.problem.taps == (3,)


# --- what the entry refuses --------------------------------------------------------------


def _entry(text: str, folder: Path, **sizes: int) -> tuple[Any, Planned]:
    _, made, source = emitted(text, **sizes)
    shimmed = replace(source, text=f"#include <cmath>\n{HOST_SHIM}{source.text}")
    return emulator.build(shimmed, folder), made


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile the emulated kernel")
def test_arguments_that_break_the_plan_are_refused(tmp_path: Path) -> None:
    text = "kernel k(x: f16[T, D]) -> f32[T] { return sum[D](x) }"
    entry, made = _entry(text, tmp_path, T=3, D=64)
    x, y = torch.ones(3 * 64 + 8, dtype=torch.float16), torch.zeros(3)
    start = x.data_ptr()
    assert start % 16 == 0

    def launched(at: int, sizes: tuple[int, int]) -> int:
        y.fill_(float("nan"))
        return plan_reference.call(entry, [at, y.data_ptr()], sizes, (), LaunchParameters(), "cpu", 0)

    assert launched(start, (3, 64)) == 0
    assert y.tolist() == [64.0] * 3
    assert launched(start + 2, (3, 64)) == 1, "a pointer that no vector may start at"
    assert launched(start, (3, 60)) == 1, "rows that break vectors"
    assert launched(start, (0, 64)) == 1, "no rows"
    assert launched(start, (3, 0)) == 1, "no columns"
    assert launched(start, (-1, 64)) == 1
    assert torch.isnan(y).all(), "what is refused writes nothing"
    assert launched(start, (2, 64)) == 0, "other extents of the same divisors are served"
    assert y.tolist()[:2] == [64.0] * 2 and torch.isnan(y[2])
    assert made.launch == ()


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile the emulated kernel")
@pytest.mark.parametrize("axes, columns", [("T, D", 218), ("T, D", 256), ("T, D", 40), ("D, T", 24)])
def test_rows_longer_than_the_plan_holds_are_refused_or_right(
    axes: str, columns: int, tmp_path: Path
) -> None:
    """Kernels are lent to calls of other extents."""
    text = f"kernel k(x: f32[{axes}]) -> f32[{axes}] {{ return softmax[D](x) }}"
    entry, made = _entry(text, tmp_path, T=16, D=columns)
    assert isinstance(made.plan, ReductionPlan) and made.plan.schedule.keep == "registers"
    axis, served = axes.split(", ").index("D"), []
    for length in (columns, columns + 8, 2 * columns, 4 * columns, 11 * columns):
        x = torch.randn((16, length) if axis else (length, 16))
        y = torch.full_like(x, float("nan"))
        tensors = [x.data_ptr(), y.data_ptr()]
        code = plan_reference.call(entry, tensors, tuple(x.shape), (), LaunchParameters(), "cpu", 0)
        assert code in (0, 1)
        if code == 0:
            torch.testing.assert_close(y, x.softmax(axis))
            served.append(length)
    assert columns in served and 11 * columns not in served


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile the emulated kernel")
def test_a_square_whose_words_the_arguments_break_is_refused(tmp_path: Path) -> None:
    entry, made = _entry("kernel k(x: bf16[A, L]) -> bf16[L, A] { return x }", tmp_path, A=64, L=66)
    assert isinstance(made.plan, ReductionPlan) and made.plan.schedule.transposed == ((0, 2),)
    x, y = torch.ones(64 * 66 + 8, dtype=torch.bfloat16), torch.zeros(66 * 64, dtype=torch.bfloat16)

    def launched(at: int, sizes: tuple[int, int]) -> int:
        return plan_reference.call(entry, [at, y.data_ptr()], sizes, (), LaunchParameters(), "cpu", 0)

    assert launched(x.data_ptr() + 4, (64, 66)) == 0, "words are 4 bytes"
    assert launched(x.data_ptr() + 2, (64, 66)) == 1, "a pointer that no word may start at"
    assert launched(x.data_ptr(), (64, 65)) == 1, "lines that break words"


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile the emulated kernel")
@pytest.mark.parametrize("order", ["[A, L]", "[L, A]"])
def test_a_pick_is_the_first_of_equals_and_of_nans(order: str, tmp_path: Path) -> None:
    entry, _ = _entry(f"kernel k(x: f32{order}) -> i64[A] {{ return argmax[L](x) }}", tmp_path, A=8, L=1024)
    x = torch.randn(8, 1024)
    x[0, [700, 3, 901]] = 9.0
    x[1, [600, 77]] = float("nan")
    x[2] = float("-inf")
    x[3] = 0.5
    x[4, [1023, 512]] = float("inf")
    x[5, 1023] = float("nan")
    x[6, :5], x[6, 5] = float("-inf"), 7.0
    given = x if order == "[A, L]" else x.t().contiguous()
    y = torch.full((8,), -7)
    sizes = (8, 1024) if order == "[A, L]" else (1024, 8)
    assert (
        plan_reference.call(entry, [given.data_ptr(), y.data_ptr()], sizes, (), LaunchParameters(), "cpu", 0)
        == 0
    )
    assert y.tolist() == [3, 77, 0, 0, 512, 1023, 5, int(x[7].argmax())]


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile the emulated kernel")
def test_the_workspace_is_asked_for_and_needed(tmp_path: Path) -> None:
    entry, made = _entry("kernel k(x: f32[D]) -> f32[] { return sum[D](x) }", tmp_path, D=2**22)
    assert isinstance(made.plan, ReductionPlan) and made.plan.schedule.splits > 1
    size = ctypes.c_uint64(0)
    pointers, extents = (ctypes.c_void_p * 2)(64, 64), (ctypes.c_int64 * 1)(2**22)
    assert entry(pointers, extents, None, None, ctypes.c_void_p(72), None, None) == 1, "not at 16 bytes"
    assert entry(pointers, extents, None, None, None, ctypes.byref(size), None) == 0
    assert size.value > 0
    assert entry(pointers, extents, None, None, None, None, None) == 1, "no workspace given"


# --- random programs ---------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31))
def test_what_is_accepted_is_planned_and_emitted_without_a_name(seed: int) -> None:
    made = SPACES["reduction"].drawn(seed)
    try:
        checked = frontend.read_text(made.text)
        sizes = {d: made.sizes[d] for d in free_dims(frontend.kernel(checked))}
        plan, _, first = emitted(made.text, **sizes)
    except ProgramError:
        return
    again, _, second = emitted(made.text, **sizes)
    assert (plan, first.code, first.entry) == (again, second.code, second.entry)
    other = renamed(made.text)
    names = _renaming(made.text, other)
    marked_plan, _, marked = emitted(other, **{names.get(d, d): n for d, n in sizes.items()})
    assert MARK in marked.text and MARK not in marked.code
    assert (marked_plan, marked.code) == (plan, first.code)


def _renaming(text: str, other: str) -> Mapping[str, str]:
    """The new name of each name: the words of both texts, one by one."""
    words = re.findall(r"[A-Za-z_]\w*", text)
    return dict(zip(words, re.findall(r"[A-Za-z_]\w*", other), strict=True))


def test_rows_that_stream_stay_in_the_l2_longest() -> None:
    text = "kernel k(x: bf16[T, D], g: bf16[D]) -> bf16[T, D] { return x * rsqrt(mean[D](x * x) + 1e-5) * g }"
    _, _, large = emitted(text, T=131072, D=4096)
    _, _, small = emitted(text, T=1024, D=4096)
    _, _, ragged = emitted(text, T=131072, D=4104)
    assert "load_retained<kVector, 8>(p.t0" in large.code and "load<kVector, 8>(p.t1" in large.code
    assert "load_retained" not in small.code + ragged.code


def test_what_many_rows_share_is_not_counted_as_kept() -> None:
    text = """kernel k(h: bf16[M, (G=64 C)], gain: bf16[(G C)], shift: bf16[(G C)]) -> bf16[M, (G C)] {
  d = h - mean[C](h)
  return d * rsqrt(mean[C](d * d) + 1e-5) * gain + shift
}"""
    schedule = planned(text, M=32768, C=64).schedule
    assert (schedule.threads, schedule.items, schedule.full) == (4, 2, True)


def test_few_long_rows_that_are_reduced_first_are_scanned_by_many_blocks() -> None:
    """In one pass nothing of a row is known before it is scanned: `test_look_back` has those."""
    text = "kernel k(x: f32[A, L]) -> f32[A, L] { return cumsum[L](x / sum[L](x)) }"
    few, _, source = emitted(text, A=2, L=1_000_000)
    many = planned(text, A=200, L=1_000_000)
    assert few.schedule.splits > 100 and many.schedule.splits == 1
    assert source.code.count("cudaLaunchKernelEx(&config, reduction<") == 3


@pytest.mark.parametrize("columns", [1, 2, 3, 8, 12, 64, 77, 513, 4096])
@pytest.mark.parametrize(
    "text",
    [
        "kernel k(x: f32[L, C]) -> f32[L, C] { return cumsum[L](x) }",
        "kernel k(x: bf16[L, C]) -> bf16[C] { return sum[L](x) }",
        "kernel k(x: f16[L, C]) -> f16[L, C] { return softmax[L](x) }",
        "kernel k(x: f32[L, C]) -> f32[L, C] { return cumsum[C](x) }",
    ],
)
def test_a_block_has_at_most_1024_threads(text: str, columns: int) -> None:
    for length in (5, 1000, 300_003):
        schedule = planned(text, L=length, C=columns).schedule
        assert schedule.threads * schedule.rows <= 1024


def test_a_cluster_waits_for_its_blocks_once_a_row_is_on_its_way() -> None:
    text = "kernel k(x: bf16[T, D]) -> bf16[T, D] { return softmax[D](x) SCHEDULE }"
    fields = "schedule sm90a { keep registers  threads 128  cluster 1x2 }"
    body = emitted(text.replace("SCHEDULE", fields), T=4096, D=4096)[2].text.partition("__global__")[2]
    steps = ("__cluster_barrier_arrive();", "load<kVector, 8>(p.t0", "__cluster_barrier_wait();", "reduce(r")
    places = [body.index(step) for step in steps]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("elem", "value", "pairs"),
    [
        ("bf16", "softmax[D](x)", "max.NaN.bf16x2"),
        ("f16", "logsumexp[D](x)", "max.NaN.f16x2"),
        ("bf16", "softmax[D](x * 2.0)", None),
        ("f32", "softmax[D](x)", None),
    ],
)
def test_largest_elements_are_compared_by_pairs(elem: str, value: str, pairs: str | None) -> None:
    result = "f32[T]" if "logsumexp" in value else f"{elem}[T, D]"
    code = emitted(f"kernel k(x: {elem}[T, D]) -> {result} {{ return {value} }}", T=4096, D=4096)[2].text
    assert "largest_of(raw0[i])" in code if pairs else "largest_of" not in code
    assert pairs is None or pairs in code
