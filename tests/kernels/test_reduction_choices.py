"""What reductions of KernelBench were measured to want on an H200, as the planner chooses it."""

from __future__ import annotations

import pytest

from tests.kernels.test_reduction import ROWS, emitted, planned
from ucutlass import frontend
from ucutlass.ir.hardware import DEVICES
from ucutlass.shapes import complete


@pytest.mark.parametrize(
    ("elem", "extent", "keep", "cluster", "items"),
    [
        ("f32", 262144, "shared", 8, 16),
        ("f32", 393216, "registers", 8, 12),
        ("f32", 393220, "shared", 8, 25),
        ("f32", 393218, "registers", 8, 12),
        ("bf16", 524288, "shared", 8, 16),
        ("bf16", 786432, "shared", 8, 24),
        ("bf16", 786436, "shared", 8, 24),
        ("bf16", 1_310_720, "registers", 1, 8),
        ("bf16", 4_000_000, "reread", 1, 4),
    ],
)
def test_a_cluster_keeps_rows_of_words_of_one_and_a_half_megabytes(
    elem: str, extent: int, keep: str, cluster: int, items: int
) -> None:
    schedule = planned(ROWS.format(e=elem), T=4096, D=extent).schedule
    assert (schedule.keep, schedule.cluster, schedule.items) == (keep, cluster, items)


def test_two_tensors_of_16_bits_are_no_words() -> None:
    text = "kernel k(x: bf16[T, D], y: bf16[T, D]) -> bf16[T, D] { return softmax[D](x + y) }"
    assert planned(text, T=4096, D=262144).schedule.cluster == 8
    assert planned(text, T=4096, D=393216).schedule.keep == "reread"
    words = text.replace("bf16", "f32")
    assert planned(words, T=4096, D=196608).schedule.keep == "registers"


def test_a_pick_keeps_no_more_than_was_measured() -> None:
    text = "kernel k(x: f32[T, D]) -> i64[T] { return argmax[D](x) }"
    assert planned(text, T=4096, D=393216).schedule.keep == "reread"


@pytest.mark.parametrize("body", ["sum[L](x)", "argmax[L](x)"])
@pytest.mark.parametrize(
    ("groups", "extent", "threads"),
    [(128, 4095, 16), (128, 4096, 4), (1, 4095, 4)],
    ids=["odd", "even", "too few rows"],
)
def test_single_elements_down_are_read_by_blocks_of_1024(
    body: str, groups: int, extent: int, threads: int
) -> None:
    result = "i64[A, C]" if "arg" in body else "f32[A, C]"
    text = f"kernel k(x: f32[A, L, C]) -> {result} {{ return {body} }}"
    schedule = planned(text, A=groups, L=4096, C=extent).schedule
    assert (schedule.keep, schedule.rows, schedule.threads) == ("reread", 64, threads)


@pytest.mark.parametrize(
    ("elem", "mask", "vector"),
    [("f32", "bool", 4), ("f32", "f32", 4), ("bf16", "bool", 8), ("bf16", "f32", 4)],
)
def test_a_scan_takes_16_bytes_of_its_widest_tensor(elem: str, mask: str, vector: int) -> None:
    what = "where(m, x, 0)" if mask == "bool" else "x * m"
    text = f"kernel k(x: {elem}[A, L], m: {mask}[A, L]) -> {elem}[A, L] {{ return cumsum[L]({what}) }}"
    assert planned(text, A=32768, L=32768).schedule.vector == vector


def test_few_rows_of_a_norm_have_two_waves_of_blocks() -> None:
    text = (
        "kernel k(x: f32[B, N], g: f32[N], b: f32[N]) -> f32[B, N] {\n"
        " d = x - mean[N](x)\n return d * rsqrt(mean[N](d * d) + 1e-5) * g + b\n}"
    )
    schedule = planned(text, B=16, N=4 << 20).schedule
    assert schedule.splits * 16 == 2 * 8 * 132


@pytest.mark.parametrize(
    ("elem", "columns", "chosen"),
    [("bf16", 1024, (2, 16, 32, 32)), ("f32", 1024, (1, 16, 32, 32)), ("f32", 2048, (1, 16, 64, 32))],
)
def test_means_down_short_columns_keep_them_in_narrow_blocks(
    elem: str, columns: int, chosen: tuple[int, ...]
) -> None:
    text = f"kernel k(x: {elem}[M, N]) -> f32[N] {{ return mean[M](x) }}"
    schedule = planned(text, M=columns, N=8192).schedule
    assert (schedule.vector, schedule.rows, schedule.threads, schedule.items) == chosen
    assert (schedule.keep, schedule.splits) == ("registers", 1)
    assert planned(text, M=columns, N=1 << 20).schedule.vector * (2 if elem == "bf16" else 4) == 16


def test_what_is_the_same_for_a_column_says_nothing_of_its_vectors() -> None:
    text = (
        "kernel k(h: bf16[M, N], m: f32[N]) -> f32[N] {\n d = h - m\n return rsqrt(mean[M](d * d) + 1e-5)\n}"
    )
    schedule = planned(text, M=1024, N=8192).schedule
    assert (schedule.vector, schedule.rows, schedule.threads, schedule.keep) == (2, 16, 32, "registers")


def test_means_down_long_columns_or_few_rows_are_shared() -> None:
    text = "kernel k(x: f32[M, N]) -> f32[N] { return mean[M](x) }"
    for columns, rows in ((4096, 8192), (1024, 1024)):
        schedule = planned(text, M=columns, N=rows).schedule
        assert schedule.keep == "reread" and schedule.splits > 1 and schedule.vector == 4


@pytest.mark.parametrize(
    ("text", "sizes", "words"),
    [
        (
            "kernel k(x: f32[M, N]) -> f32[N] { return mean[M](x) }",
            {"M": 1024, "N": 8192},
            "of 4 that extents",
        ),
        ("kernel k(x: f32[M, N]) -> f32[N] { return mean[M](x) }", {"M": 64, "N": 8192}, "the widest that"),
        (
            "kernel k(x: f32[M, N], m: bool[M, N]) -> f32[M, N] { return cumsum[N](where(m, x, 0)) }",
            {"M": 32768, "N": 32768},
            "of 8 that extents",
        ),
    ],
)
def test_what_is_said_of_vectors_is_why_they_are_so_wide(
    text: str, sizes: dict[str, int], words: str
) -> None:
    _, made, _ = emitted(text, **sizes)
    assert words in next(note.reason for note in made.notes if note.value.startswith("vectors of"))


def test_tensors_of_one_element_have_a_plan() -> None:
    assert planned("kernel k(x: f32[]) -> f32[] { return x - x }").schedule.vector == 1


POOLED = "kernel k(x: f32[B, F, H, W]) -> {result} {{ return {value} }}"


def test_windows_that_are_reduced_further_are_read_side_by_side() -> None:
    """An H100 took 8.1 ms for the first where neighbouring threads read neighbouring images, of 1.4 ms to move."""
    value = "sum[F, P=H//4, Q=W//4](sigmoid(mean[R=4, S=4](x[H = 4*P + R, W = 4*Q + S])))"
    over_all = planned(POOLED.format(result="f32[B]", value=value), B=128, F=64, H=382, W=382)
    assert over_all.problem.across and over_all.schedule.vector == 1
    value = "sum[F](max[R=2, S=2](x[H = 2*P + R, W = 2*Q + S]))"
    down = planned(POOLED.format(result="f32[B, P=H//2, Q=W//2]", value=value), B=128, F=16, H=64, W=64)
    assert not down.problem.across and down.schedule.vector == 1


def _seconds(text: str, **sizes: int) -> float:
    checked = frontend.read_text(text)
    kernel = frontend.kernel(checked)
    return frontend.plan_kernel(checked, kernel, complete(kernel, sizes), "sm90a").planned.seconds


def test_a_reduction_that_many_results_repeat_costs_as_often() -> None:
    once = "kernel k(x: f32[M, N]) -> f32[M] { return min[N](x) }"
    repeated = "kernel k(x: f32[M, N], b: f32[C]) -> f32[C, M] { return min[N](x) + b }"
    sizes = {"M": 1024, "N": 8192}
    assert _seconds(repeated, C=8192, **sizes) > 100 * _seconds(once, **sizes)


def test_overlapping_windows_move_a_tensor_once() -> None:
    text = "kernel k(x: f32[B, L]) -> f32[B, P=L] { return sum[R=15](x[L = P + R - 7]) }"
    copy = "kernel k(x: f32[B, L]) -> f32[B, L] { return 2 * x }"
    sizes = {"B": 4096, "L": 16384}
    assert _seconds(text, **sizes) < 1.1 * _seconds(copy, **sizes)


def test_a_reduction_without_whole_results_reads_its_rows_once() -> None:
    total = "kernel k(x: f32[B, L]) -> f32[B] { return sum[L](x) }"
    least = 4 * 2**30 / DEVICES["H200"].bandwidth
    assert least < _seconds(total, B=8, L=2**27) < 1.1 * least


@pytest.mark.parametrize("place", ["step", "5"])
def test_a_tensor_weighs_as_much_as_is_read_of_it(place: str) -> None:
    """A step of a recurrent layer took 36 us on an H200 by vectors of x, whose bytes are those of all steps."""
    text = f"""kernel k(x: f32[T, B, N], h: f32[B, K], w: f32[N, K], step: i64) -> f32[B, N] {{
      return tanh(x[T = {place}] + sum[K](h * w) + f32(step))
    }}"""
    plan = planned(text, T=256, B=8, N=256, K=256)
    assert plan.problem.across and (plan.schedule.threads, plan.schedule.rows) == (32, 4)


@pytest.mark.parametrize(
    ("elem", "extent", "chosen"),
    [("bf16", 6, (8, 1)), ("f32", 6, (2, 2)), ("bf16", 4, (4, 2)), ("bf16", 8, (8, 1)), ("f32", 4, (4, 1))],
)
def test_threads_take_several_vectors_of_fewer_than_16_bytes(
    elem: str, extent: int, chosen: tuple[int, int]
) -> None:
    text = f"kernel k(x: {elem}[A, B, C], b: {elem}[C]) -> {elem}[A, B, C] {{ return relu(x + b) }}"
    schedule = planned(text, A=2**20, B=16, C=extent).schedule
    assert (schedule.vector, schedule.items) == chosen


@pytest.mark.parametrize(
    ("elem", "extent", "vector"),
    [
        ("bf16", 1001, 8),
        ("f32", 333, 4),
        ("f32", 332, 4),
        ("bf16", 1002, 8),
        ("bf16", 1004, 4),
        ("f32", 45, 4),
    ],
)
def test_vectors_straddle_odd_lines_that_lie_in_another_order(elem: str, extent: int, vector: int) -> None:
    """Other lengths have vectors of their own, of more than a word."""
    text = f"kernel k(x: {elem}[A, B, C]) -> {elem}[B, A, C] {{ return x }}"
    schedule = planned(text, A=1811, B=37, C=extent).schedule
    assert (schedule.vector, schedule.straddle) == (vector, extent % (4 if elem == "bf16" else 2) > 0)


@pytest.mark.parametrize("given", ["m: f32[K], v: f32[K]", "m: f32[B, P, Q, K], v: f32[K]"])
def test_small_tensors_do_not_say_along_what_elements_are_taken(given: str) -> None:
    """Of two that are large vectors lie along both."""
    text = f"kernel k(x: f32[B, P, Q, K], {given}) -> f32[B, K, P, Q] {{ return (x - m) * v }}"
    schedule = planned(text, B=64, P=126, Q=126, K=128).schedule
    assert bool(schedule.transposed) == ("P" not in given)


@pytest.mark.parametrize(("rows", "splits"), [(200, 11), (665, 7), (791, 6), (792, 1), (1100, 1)])
def test_rows_that_would_leave_some_sms_one_more_are_shared(rows: int, splits: int) -> None:
    text = "kernel k(x: f16[T, D], t: i64[T]) -> f32[T] { return logsumexp[D](x) - x[D = t] }"
    assert planned(text, T=rows, D=201_792).schedule.splits == splits
